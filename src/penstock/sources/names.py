"""Many names in little memory: one block of bytes and where each begins.

A million paths as Python strings take about 100 MB and a reference count each; here they take their own length.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


class Names:
    """An immutable sequence of strings, file names that are not valid UTF-8 included.

    >>> names = Names(["a/1.jpg", "b/2.jpg"])
    >>> len(names), names[1], list(names)
    (2, 'b/2.jpg', ['a/1.jpg', 'b/2.jpg'])
    """

    __slots__ = ("blob", "offsets")

    def __init__(self, names: Iterable[str]) -> None:
        texts = list(names)
        self.blob, self.offsets = b"", np.zeros(1, np.int64)
        self._fill([("", texts)] if texts else [])

    @classmethod
    def of_runs(cls, runs: Sequence[tuple[str, list[str]]]) -> Names:
        """The names of runs, each name with the prefix of its run; no run is empty.

        >>> list(Names.of_runs([("a/", ["1", "2"]), ("", ["b"])]))
        ['a/1', 'a/2', 'b']
        """
        names = cls(())
        names._fill(runs)
        return names

    @classmethod
    def joined(cls, parts: Sequence[Names]) -> Names:
        """The names of all parts, one after another."""
        names = cls(())
        names.blob = b"".join(part.blob for part in parts)
        names.offsets = np.cumsum(np.concatenate([[0], *(np.diff(part.offsets) for part in parts)]), dtype=np.int64)
        return names

    def _fill(self, runs: Sequence[tuple[str, list[str]]]) -> None:
        blobs: list[bytes] = []
        lengths: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        for prefix, texts in runs:
            joined = prefix + prefix.join(texts)
            if joined.isascii():
                blobs.append(joined.encode())
                lengths.append(np.fromiter(map(len, texts), np.int64, len(texts)) + len(prefix))
            else:
                encoded = [os.fsencode(prefix + text) for text in texts]
                blobs += encoded
                lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        self.blob, self.offsets = b"".join(blobs), np.cumsum(np.concatenate(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"name {index} of {len(self)}")
        return os.fsdecode(self.blob[self.offsets[index] : self.offsets[index + 1]])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))
