"""Windows over a stream of tokens: which tokens window i holds.

Window i of a stream is `tokens[i*stride : i*stride + length + 1]`: `length` inputs and the same shifted by one as
targets. Windows that must not cross documents are found by binary search in a prefix sum over the documents, which
costs 8 bytes per document and, per lookup, log2(documents).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError

I64 = NDArray[np.int64]


def count(n_tokens: int, length: int, stride: int) -> int:
    """How many windows i satisfy `i*stride + length + 1 <= n_tokens`.

    >>> count(10, length=4, stride=2), count(5, length=4, stride=2), count(4, length=4, stride=2)
    (3, 1, 0)
    """
    _check(length, stride)
    return max(0, (n_tokens - length - 1) // stride + 1)


def starts(index: Any, stride: int) -> I64:
    """The first token of each window.

    >>> starts([0, 1, 5], stride=4)
    array([ 0,  4, 20])
    """
    return np.asarray(index, np.int64) * np.int64(stride)


@dataclass(frozen=True, eq=False)
class DocumentWindows:
    """Windows that stay inside one document. Made by `inside_documents`.

    A document of fewer than `length + 1` tokens has no window: it is left out and counted in `dropped`, for the caller
    to report. `unused_tokens` counts all tokens that no window covers, tails of longer documents included.
    """

    length: int
    stride: int
    counts: I64
    dropped: int
    unused_tokens: int
    _ends: I64

    @property
    def total(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def locate(self, index: Any) -> tuple[I64, I64]:
        """The document of each window and the offset of the window's first token inside that document."""
        given = np.asarray(index, np.int64)
        if given.size and (int(given.min()) < 0 or int(given.max()) >= self.total):
            raise UsageError(
                f"window numbers from 0 to {self.total - 1}",
                got=f"{int(given.min())} to {int(given.max())}",
                where="windows inside documents",
                fix="ask for windows below `total`",
            )
        document = np.searchsorted(self._ends, given, side="right").astype(np.int64, copy=False)
        first = self._ends[document] - self.counts[document]
        return document, (given - first) * self.stride


def inside_documents(lengths: Any, length: int, stride: int) -> DocumentWindows:
    """The windows of documents with these lengths, none of them crossing from one document into the next.

    >>> windows = inside_documents([5, 2, 9], length=4, stride=4)
    >>> windows.total, windows.dropped, windows.unused_tokens
    (3, 1, 2)
    >>> windows.locate([0, 1, 2])
    (array([0, 2, 2]), array([0, 0, 4]))
    """
    _check(length, stride)
    sizes = np.asarray(lengths, np.int64)
    if sizes.size and int(sizes.min()) < 0:
        raise UsageError(
            "document lengths of zero or more",
            got=f"{int(sizes.min())} for document {int(sizes.argmin())}",
            where="windows inside documents",
            fix="repair the document table",
        )
    counts = np.maximum((sizes - (length + 1)) // stride + 1, 0)
    covered = np.where(counts > 0, (counts - 1) * min(stride, length + 1) + length + 1, 0)
    return DocumentWindows(
        length=length,
        stride=stride,
        counts=counts,
        dropped=int((counts == 0).sum()),
        unused_tokens=int(sizes.sum() - covered.sum()),
        _ends=np.cumsum(counts, dtype=np.int64),
    )


def _check(length: int, stride: int) -> None:
    if length < 1 or stride < 1:
        raise UsageError(
            "a length and a stride of at least 1 token",
            got=f"length={length}, stride={stride}",
            where="windows",
            fix="windows(length, stride=length) gives windows that do not overlap",
        )
