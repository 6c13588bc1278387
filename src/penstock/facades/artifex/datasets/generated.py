"""Datasets whose records are computed from (seed, split, record), never stored. Opening one costs nothing."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.randomness import U64
from penstock.facades.artifex.datasets.base import BaseDataset

RECIPE = 1
"""Raised whenever a generator is changed so that its data differs."""


class GeneratedDataset(BaseDataset):
    """Size, random keys per record, and a fingerprint that reads no data."""

    _size = 0

    def set_size(self, size: int) -> None:
        """Sets the number of records; called once, at construction."""
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise UsageError("a number of records of at least 0", got=repr(size), where=type(self).__name__)
        self._size = int(size)

    def __len__(self) -> int:
        return self._size

    def record_keys(self, indices: NDArray[np.int64], purpose: str) -> U64:
        """Returns a random key for each record, for one purpose."""
        return randomness.keys(randomness.key(self.seed, str(self.split), purpose), indices)

    def fingerprint(self) -> str:
        facts = {"kind": type(self).__name__, "recipe": RECIPE, "size": self._size, **self.identity()}
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


def one_of(what: str, value: str, known: Collection[str]) -> str:
    """Returns `value`; raises and lists the known names if it is not one of them.

    >>> one_of("pattern_type", "circles", ["random", "circles"])
    'circles'
    """
    if not isinstance(value, str) or value not in known:
        names = ", ".join(repr(name) for name in known)
        near = difflib.get_close_matches(str(value), known, 1, cutoff=0.5) or [next(iter(known))]
        raise UsageError(f"{what} one of {names}", got=repr(value), fix=f"{what}={near[0]!r}")
    return value


C = TypeVar("C")


def checked_config(config: Any, kind: type[C], where: str) -> C:
    """Returns `config`, or a default one for None; raises unless it is of the kind that the dataset reads."""
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise UsageError(f"config: {kind.__name__}", got=type(config).__name__, where=where, fix=f"{kind.__name__}()")
    return config


def in_order(dataset_type: Any, config: Any) -> tuple[Any, Any]:
    """Returns (dataset_type, config) of a factory that was called with the two in either order.

    >>> in_order(None, "simple"), in_order("simple", None), in_order("synthetic", "simple")  # the last: one by default
    (('simple', None), ('simple', None), ('simple', None))
    """
    if isinstance(config, str):
        return config, None if isinstance(dataset_type, str) else dataset_type
    return (
        ("synthetic", dataset_type) if config is None and not isinstance(dataset_type, str) else (dataset_type, config)
    )
