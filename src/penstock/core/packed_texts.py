"""Many texts or byte strings in one block of memory that child processes share: bytes and offsets in an unnamed file.

A Python `str` takes about 50 bytes more than its characters, and a copy of a list of them in each child process takes
all of it again. Packed texts are mapped by every child instead (`core.shared_memory`), and decoded when they are read,
about 0.3 us each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from penstock.core.os_errors import temporary_errors
from penstock.core.shared_memory import shared_block, unnamed_file

_CHUNK = 1 << 14  # texts encoded in one call


def pack(values: Sequence[Any] | NDArray[Any], least: int) -> PackedColumn | None:
    """A column of str, or of bytes, and None for missing values; None if it holds anything else or few characters.

    >>> pack(["one", None], least=1).take(np.array([1, 0])).tolist(), pack(["one", 2], least=1), pack(["a"], least=9)
    ([None, 'one'], None, None)
    """
    kinds = set(map(type, values)) - {type(None)}
    if kinds not in ({str}, {bytes}) or sum(len(value) for value in values if value is not None) < least:
        return None
    raw = kinds == {bytes}
    missing = np.fromiter((value is None for value in values), bool, len(values))
    empty: Any = b"" if raw else ""
    block, offsets = _packed((empty if value is None else value for value in values), raw)
    return PackedColumn(block, offsets, raw, missing if missing.any() else None)


class _Packed:
    """What both kinds share: where each value is in the block."""

    _values: NDArray[np.uint8]
    _offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def largest(self) -> int:
        """The bytes of the longest value."""
        return int(np.diff(self._offsets).max(initial=0))

    def bytes_of(self, rows: NDArray[np.int64]) -> int:
        """The bytes of these values together."""
        return int((self._offsets[rows + 1] - self._offsets[rows]).sum())


class PackedColumn(_Packed):
    """Values of a column, read like an array: `column[rows]`."""

    def __init__(
        self, values: NDArray[np.uint8], offsets: NDArray[np.int64], raw: bool, missing: NDArray[np.bool_] | None
    ) -> None:
        self._values, self._offsets, self._raw, self._missing = values, offsets, raw, missing

    @property
    def nbytes(self) -> int:
        return int(self._values.nbytes + self._offsets.nbytes)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """These values, as a column of objects."""
        out = _taken(self._values, self._offsets, rows, self._raw)
        if self._missing is not None:
            out[self._missing[rows]] = None
        return out

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _CHUNK):
            yield from self.take(np.arange(start, min(start + _CHUNK, len(self))))


class PackedTexts(_Packed, Sequence[str]):
    """A read-only sequence of texts.

    >>> texts = PackedTexts.of(["one", "", "two"])
    >>> len(texts), texts[2], texts[1:], texts.take(np.array([2, 0])).tolist()
    (3, 'two', ['', 'two'], ['two', 'one'])
    """

    def __init__(self, values: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._values, self._offsets = values, offsets

    @classmethod
    def of(cls, texts: Iterable[str]) -> PackedTexts:
        """Packs texts into shared memory."""
        return cls(*_packed(texts, raw=False))

    @overload
    def __getitem__(self, key: int) -> str: ...

    @overload
    def __getitem__(self, key: slice) -> list[str]: ...

    def __getitem__(self, key: int | slice) -> str | list[str]:
        rows = range(len(self))[key]
        found: list[str] = self.take(np.atleast_1d(np.asarray(rows, np.int64))).tolist()
        return found[0] if isinstance(rows, int) else found

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """These texts as a column of str."""
        return _taken(self._values, self._offsets, rows, raw=False)


def _packed(values: Iterable[Any], raw: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all values in shared memory, and where each begins."""
    lengths: list[NDArray[np.int64]] = []
    rest = iter(values)
    with temporary_errors("texts that child processes share"), open(unnamed_file("penstock-texts"), "w+b") as file:
        while some := list(islice(rest, _CHUNK)):
            data = some if raw else [text.encode("utf-8", "surrogatepass") for text in some]
            lengths.append(np.array([len(one) for one in data], np.int64))
            file.write(b"".join(data))
        counts = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        start = -(-file.tell() // 8) * 8  # the offsets follow the bytes
        file.seek(start)
        file.write(offsets.data)
        file.flush()
        block = shared_block(os.dup(file.fileno()), start + offsets.nbytes)
    return block[: int(offsets[-1])], block[start:].view(np.int64)


def _taken(values: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64], raw: bool) -> NDArray[Any]:
    out = np.empty(len(rows), object)
    data = values.data
    for i, (start, stop) in enumerate(zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)):
        out[i] = bytes(data[start:stop]) if raw else str(data[start:stop], "utf-8", "surrogatepass")
    return out
