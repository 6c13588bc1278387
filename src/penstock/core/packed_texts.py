"""Many texts in one block of memory that child processes share: UTF-8 bytes and offsets in an unnamed file.

A Python `str` takes about 50 bytes more than its characters, and a copy of a list of them in each child process takes
all of it again. Packed texts are mapped by every child instead (see `shared_part`), and decoded when they are read,
about 0.3 us each.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 14  # texts encoded in one call
_regions: dict[int, tuple[int, int]] = {}  # address of a shared block -> its descriptor and size


class PackedTexts(Sequence[str]):
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
        lengths: list[NDArray[np.int64]] = []
        rest = iter(texts)
        with open(unnamed_file("penstock-texts"), "w+b") as file:
            while some := [text.encode("utf-8", "surrogatepass") for text in islice(rest, _CHUNK)]:
                lengths.append(np.array([len(text) for text in some], np.int64))
                file.write(b"".join(some))
            counts = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
            offsets = np.zeros(len(counts) + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            start = -(-file.tell() // 8) * 8  # the offsets follow the bytes
            file.seek(start)
            file.write(offsets.data)
            file.flush()
            block = _shared(os.dup(file.fileno()), start + offsets.nbytes)
        return cls(block[: int(offsets[-1])], block[start:].view(np.int64))

    def __len__(self) -> int:
        return len(self._offsets) - 1

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
        out = np.empty(len(rows), object)
        data = self._values.data
        edges = zip(self._offsets[rows].tolist(), self._offsets[rows + 1].tolist(), strict=True)
        for i, (start, stop) in enumerate(edges):
            out[i] = str(data[start:stop], "utf-8", "surrogatepass")
        return out


def _shared(fd: int, size: int) -> NDArray[np.uint8]:
    memory = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    block = np.frombuffer(memory, np.uint8)
    address = int(block.__array_interface__["data"][0])
    _regions[address] = fd, size
    weakref.finalize(memory, _forget, address, fd)
    return block


def _forget(address: int, fd: int) -> None:
    if _regions.get(address, (-1, 0))[0] == fd:
        del _regions[address]
    os.close(fd)


def shared_part(buffer: memoryview) -> tuple[int, int] | None:
    """The descriptor and offset of a buffer that lies in shared memory; None for any other."""
    if not _regions or not buffer.nbytes:
        return None
    address = int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])
    for start, (fd, size) in list(_regions.items()):
        if start <= address and address + buffer.nbytes <= start + size:
            return fd, address - start
    return None


def unnamed_file(label: str) -> int:
    """The descriptor of a memfd, or of an unlinked temporary file where the system has none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label)
    with tempfile.TemporaryFile(prefix=label) as file:
        return os.dup(file.fileno())
