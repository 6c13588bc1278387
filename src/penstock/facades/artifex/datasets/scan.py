"""Random access to a dataset that can only be iterated.

For indexing, and for pipelines, which need records that do not change. One iterator is read as far as needed, and its
samples are cached up to a number of bytes. A single later record is found by iterating again from the start; several
are refused, as every batch would iterate again. Loaders do not use this: see `datasets.passes`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.errors import UsageError

KEEP_BYTES = 256 << 20


class Scan:
    """Samples by number of an object that can be iterated several times.

    >>> Scan(lambda: iter([{"x": 1}, {"x": 2}])).take([1, 0])
    [{'x': 2}, {'x': 1}]
    """

    def __init__(self, begin: Callable[[], Iterable[dict[str, Any]]], keep_bytes: int = KEEP_BYTES) -> None:
        self._begin = begin
        self._left = keep_bytes
        self._kept: list[dict[str, Any]] = []
        self._live: Iterator[dict[str, Any]] | None = None
        self._lock = threading.Lock()

    def take(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns copies of these samples, in this order; IndexError past the end."""
        wanted = [int(index) for index in indices]
        with self._lock:
            self._read_on(max(wanted, default=-1))
            late = {index for index in wanted if index >= len(self._kept)}
            if len(wanted) > 1 and late:
                raise UsageError(
                    f"__getitem__(index), to read more than {KEEP_BYTES >> 20} MB of records by number",
                    got=f"a dataset that can only be iterated, and record {min(late)}",
                    fix="define it, or use create_simple_data_loader or PrefetchDataLoader, which iterate",
                )
            found = self._again(late) if late else {}
            return [dict(self._kept[i] if i < len(self._kept) else found[i]) for i in wanted]

    def _read_on(self, last: int) -> None:
        if self._live is None:
            self._live = iter(self._begin())
        while len(self._kept) <= last and self._left > 0:
            sample = next(self._live, None)
            if sample is None:
                raise IndexError(f"record {last} of {len(self._kept)}")
            self._kept.append(sample)
            self._left -= _bytes(sample)

    def _again(self, late: set[int]) -> dict[int, dict[str, Any]]:
        found = {}
        for index, sample in enumerate(self._begin()):
            if index in late:
                found[index] = sample
                if len(found) == len(late):
                    return found
        raise IndexError(f"record {max(late)}: the dataset ends before it")


def _bytes(sample: dict[str, Any]) -> int:
    return 200 + sum(int(getattr(v, "nbytes", 0)) or len(v) if isinstance(v, str | bytes | np.ndarray)
                     else int(getattr(v, "nbytes", 100)) for v in sample.values())  # fmt: skip
