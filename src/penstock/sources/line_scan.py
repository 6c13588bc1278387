"""The index of a plain file of lines in one scan that copies nothing: about the cost of counting newlines.

`scan_lines` finds what `line_index.scan` finds with pieces of complete records, which any file needs that is
compressed, remote, cut into paragraphs, or has a line beyond the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.sources.cutting import BOM, SPACE, Ints
from penstock.sources.line_index import Index

BLOCK_BYTES = 1 << 20
_WORD = 8
_SPARSE = 4  # line breaks are looked up word by word where at most one word in four has one


class Finder:
    """Finds line breaks, in memory that it reuses."""

    def __init__(self) -> None:
        self._found = np.empty(0, bool)
        self._words = np.empty(0, bool)

    def newlines(self, view: NDArray[np.uint8]) -> Ints:
        """The places of line breaks.

        >>> Finder().newlines(np.frombuffer(b"ab\\n\\ncdefghijkl\\nm", np.uint8)).tolist()
        [2, 3, 14]
        """
        if len(self._found) < len(view):
            self._found, self._words = np.empty(len(view), bool), np.empty(len(view) // _WORD, bool)
        found, full = np.equal(view, 10, out=self._found[: len(view)]), len(view) & -_WORD
        values = found[:full].view(np.uint64)
        words = np.flatnonzero(np.not_equal(values, 0, out=self._words[: len(values)]))
        if len(words) * _WORD * _SPARSE > full:
            return np.flatnonzero(found)
        bits = values[words]
        if (bits & (bits - np.uint64(1))).any():  # two in one word
            word, byte = np.nonzero(found[:full].reshape(-1, _WORD)[words])
            places = words[word] * _WORD + byte
        else:
            byte = np.log2(bits).astype(np.int64) >> 3  # exact: each is a power of two
            places = words * _WORD + (byte if sys.byteorder == "little" else _WORD - 1 - byte)
        if full == len(view):
            return places
        return np.concatenate([places, np.flatnonzero(found[full:]) + full])


def scan_lines(read: Callable[[int], bytes], limit: int) -> Index | None:
    """The index of the lines that `read` returns the bytes of; None if one is longer than `limit` bytes.

    >>> import io
    >>> index = scan_lines(io.BytesIO(b"one\\n\\n  \\ntwo").read, 100)
    >>> index.starts.tolist(), index.lines.tolist(), index.end
    ([0, 8], [1, 4], 11)
    """
    breaks: list[Ints] = []
    blank: list[Ints] = []  # numbers of lines that hold nothing but white space
    count = offset = skip = 0  # lines that have ended, bytes read, bytes of a mark at the beginning
    finder = Finder()
    open_blank = True  # whether the line at the end of the block holds only white space so far
    while data := read(BLOCK_BYTES):
        if not offset:
            while len(data) < len(BOM) and (more := read(len(BOM) - len(data))):
                data += more
            skip = len(BOM) if data.startswith(BOM) else 0
        view = np.frombuffer(data, np.uint8)
        ends = finder.newlines(view)
        if not len(ends):
            open_blank = open_blank and _is_blank(data[0 if offset else skip :])
            offset += len(data)
            continue
        first = int(ends[0])
        if open_blank and _is_blank(data[0 if offset else skip : first]):
            blank.append(np.array([count]))
        doubtful = np.flatnonzero(SPACE[view[ends[:-1] + 1]])  # lines that begin with white space, or are empty
        if len(doubtful):
            empty = ends[doubtful] + 1 == ends[doubtful + 1]
            blank.append(doubtful[empty] + count + 1)
            rest = doubtful[~empty]
            texts = zip(rest.tolist(), (ends[rest] + 1).tolist(), ends[rest + 1].tolist(), strict=True)
            blank.append(np.array([i + count + 1 for i, start, end in texts if data[start:end].isspace()], np.int64))
        open_blank = _is_blank(data[int(ends[-1]) + 1 :])
        breaks.append(ends + offset)
        count += len(ends)
        offset += len(data)
    starts = np.concatenate([[skip], *(ends + 1 for ends in breaks)]).astype(np.int64)
    if int(np.diff(starts, append=offset + 1).max()) > limit:  # it counts the break: the slow scan decides
        return None
    if open_blank:
        blank.append(np.array([count]))
    gone = np.concatenate([np.empty(0, np.int64), *blank])
    if not len(gone) or (len(gone) == 1 and gone[0] == count):  # only what follows the last line break
        return Index(starts[: count + 1 - len(gone)], None, offset)
    keep = np.ones(count + 1, bool)
    keep[gone] = False
    lines = np.flatnonzero(keep) + 1
    plain = bool((lines == np.arange(1, len(lines) + 1)).all())
    return Index(starts[keep], None if plain else lines, offset)


def _is_blank(data: bytes) -> bool:
    return not data or data.isspace()
