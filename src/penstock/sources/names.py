"""Many names in little memory: one block of bytes and where each begins.

A million paths as Python strings take about 100 MB and a reference count each; here they take their own length.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np


class Names:
    """An immutable sequence of strings, file names that are not valid UTF-8 included.

    >>> names = Names(["a/1.jpg", "b/2.jpg"])
    >>> len(names), names[1], list(names)
    (2, 'b/2.jpg', ['a/1.jpg', 'b/2.jpg'])
    """

    __slots__ = ("blob", "offsets")

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.blob = b"".join(encoded)
        self.offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(name) for name in encoded], out=self.offsets[1:])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"name {index} of {len(self)}")
        return os.fsdecode(self.blob[self.offsets[index] : self.offsets[index + 1]])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))
