"""Where rows of different lengths go in one padded array: its width, how much of each row is kept, on which side.

Computed once for a batch and used for every column that is as long as `input_ids`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import RecordError, UsageError

Side = Literal["right", "left"]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Row i keeps `counts[i]` of its `full[i]` values, cut on the `truncate` side, beside padding on `side`."""

    full: list[int]
    counts: list[int]
    width: int
    side: Side
    truncate: Side

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.counts), self.width

    @property
    def cuts(self) -> bool:
        """Whether any row is longer than what is kept of it."""
        return self.counts is not self.full

    def kept(self, rows: Sequence[Any] | NDArray[Any]) -> Sequence[Any] | NDArray[Any]:
        """Each row without what is cut."""
        if not self.cuts:
            return rows
        pairs = zip(rows, self.counts, strict=True)
        if self.truncate == "right":
            return [row[:n] for row, n in pairs]
        return [row[len(row) - n :] for row, n in pairs]

    def starts(self) -> list[int]:
        """The place of each row's first value."""
        return [0] * len(self.counts) if self.side == "right" else [self.width - n for n in self.counts]

    def lengths(self) -> Lengths:
        """`counts` as an array."""
        return np.array(self.counts, np.int64)


def lay_out(
    full: list[int],
    *,
    side: Side = "right",
    length: int | None = None,
    multiple: int | None = None,
    max_length: int | None = None,
    truncate: Side = "right",
) -> Layout:
    """The layout of rows of these lengths.

    The width is the longest row, or `length`, rounded up to a `multiple`. With `max_length`, longer rows are cut.

    >>> lay_out([3, 5], multiple=8).width, lay_out([3, 5], length=6).width
    (8, 6)
    >>> lay_out([3, 5], max_length=4).counts
    [3, 4]
    """
    width, counts = max(full, default=0), full
    if max_length is not None and width > max_length:
        width, counts = max_length, [n if n < max_length else max_length for n in full]
    if length is not None:
        if width > length:
            row = full.index(max(full))
            raise RecordError(
                f"rows of at most {length} values",
                got=f"{full[row]}",
                where=f"row {row} of the batch",
                fix="raise `length`, or pass `max_length` to cut longer rows",
                row=row,
            )
        width = length
    if multiple is not None:
        width = -(-width // multiple) * multiple
    return Layout(full, counts, width, side, truncate)


def valid_mask(layout: Layout, dtype: Any = np.int64) -> NDArray[Any]:
    """1 where a padded row holds a value, 0 where it holds padding.

    >>> valid_mask(lay_out([2, 0], length=3, side="left")).tolist()
    [[0, 1, 1], [0, 0, 0]]
    """
    # Every row is a window of one array of ones, zeros and ones, so one copy makes them all.
    rows, width = layout.shape
    if not rows:
        return np.zeros((0, width), dtype)
    size = 1 << width.bit_length()
    steps = _steps(size, np.dtype(dtype))
    item = steps.itemsize
    if layout.side == "right":
        windows = np.ndarray((width + 1, width), steps.dtype, steps, size * item, (-item, item))
    else:
        windows = np.ndarray((width + 1, width), steps.dtype, steps, (2 * size - width) * item, (item, item))
    return windows[layout.counts]


@lru_cache(maxsize=16)
def _steps(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.repeat(np.array([1, 0, 1], dtype), size)


def check_padding(
    *,
    side: str = "right",
    truncate: str = "right",
    multiple: int | None = None,
    max_length: int | None = None,
) -> None:
    """Raises `UsageError` for arguments that cannot be padded with."""
    for name, text in (("padding side", side), ("truncation side", truncate)):
        if text not in ("right", "left"):
            raise UsageError(f"a {name} of 'right' or 'left'", got=repr(text), fix="use one of the two words")
    for name, number in (("multiple", multiple), ("max_length", max_length)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1):
            raise UsageError(f"`{name}` to be a positive integer or None", got=repr(number), fix="use 1 or more")
