"""A number for the record of each row, to key randomness by; it does not depend on the batch the row is in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.pad import as_row
from penstock.core import randomness
from penstock.core.errors import RecordError
from penstock.core.signals import surface

ID_COLUMNS = ("index", "record")


def record_ids(columns: Mapping[str, Any], content: str = "input_ids") -> NDArray[np.int64]:
    """A 64-bit number for each row: its `index`, else its `record`, else a hash of its `content` column.

    Text ids are hashed. Without an id, two rows of equal content are the same record, and draw the same numbers.

    >>> record_ids({"index": [4, 9], "input_ids": [[1], [2]]}).tolist()
    [4, 9]
    >>> first, second, third = record_ids({"input_ids": [[1, 2], [1, 3], np.array([1, 2], np.uint16)]}).tolist()
    >>> first == third, first == second
    (True, False)
    """
    for name in ID_COLUMNS:
        if name in columns:
            found = [_number(value, name, i) for i, value in enumerate(columns[name])]
            return np.array(found, np.uint64).view(np.int64)
    digests = b"".join(
        hashlib.blake2b(as_row(row).astype("<i8").tobytes(), digest_size=8).digest() for row in columns[content]
    )
    return np.frombuffer(digests, "<i8").astype(np.int64)


def _number(value: Any, name: str, i: int) -> int:
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        return randomness.key(text)
    return _whole(value, name, i) & ((1 << 64) - 1)


def _whole(value: Any, name: str, i: int) -> int:
    """The value as an integer, whatever type holds it."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        surface(error)
        number = None
    if number is None or number != value:
        raise RecordError(
            f"{name!r} to be an integer" + (" or text" if name in ID_COLUMNS else "") + " in every row",
            got=repr(value),
            where=f"row {i} of the batch",
            fix=f"pass integers, or leave the column {name!r} out",
            row=i,
        )
    return number


def epochs_of(columns: Mapping[str, Any], default: int) -> NDArray[np.int64]:
    """The epoch of each row: its `epoch` column, or else `default`, as one number that broadcasts."""
    if "epoch" in columns:
        return np.array([_whole(value, "epoch", i) for i, value in enumerate(columns["epoch"])], np.int64)
    return np.array([default], np.int64)


def check_ids(columns: Mapping[str, Any]) -> None:
    """Refuses ids and epochs of rows that are no integers."""
    epochs_of(columns, 0)
    if any(name in columns for name in ID_COLUMNS):
        record_ids(columns)


def record_keys(columns: Mapping[str, Any], seed: int, operation: str, epoch: int) -> randomness.U64:
    """The random key of each row for one operation: a function of (seed, operation, epoch, record) alone."""
    return randomness.keys(randomness.key(seed, operation), epochs_of(columns, epoch), record_ids(columns))
