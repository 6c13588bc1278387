"""Ranges of a source that are read independently of each other, cut from names and sizes alone.

The cut decides which documents share a shard, so it depends on nothing but the input: not on the machine, the number of
processes, or what was read before. A record belongs to the range in which it begins. Files up to the size of a range
are joined in order; a larger file is cut into ranges of its own, or is one range if it cannot be cut (compressed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Cursor = Mapping[str, int]
UNKNOWN_ROWS = 1 << 18  # rows of a range where nothing tells how many bytes a row has


@dataclass(frozen=True, slots=True)
class Range:
    """Consecutive records: from the cursor `start` up to the cursor `stop`. The first file begins at `start`."""

    start: dict[str, int]
    stop: dict[str, int]
    bytes: int = field(compare=False)
    """About how many bytes of input it has, for progress."""
    counted: bool = True
    """Whether `start["line"]` is known. If not, the range begins inside of a file and counts its lines from there."""

    def id(self) -> str:
        """Where it begins and ends, as text."""
        return f"{self.start['file']}:{self.start['offset']}-{self.stop['file']}:{self.stop['offset']}"


def file_ranges(
    sizes: Sequence[int], most: int, cut: Callable[[int], Sequence[int]], *, counted: bool = True
) -> list[Range]:
    """Ranges of files of these sizes. `cut(file)` names the places at which a file larger than `most` is cut.

    >>> [r.id() for r in file_ranges([3, 4, 25, 2], 10, lambda file: [9, 17])]
    ['0:0-2:0', '2:0-2:9', '2:9-2:17', '2:17-3:0', '3:0-4:0']
    """
    found: list[Range] = []
    first = held = 0
    for file, size in enumerate([*sizes, most]):  # the last one only closes the range before it
        if held + size > most and first < file:
            found.append(Range(_cursor(first), _cursor(file), held))
            first = file
        held = held + size if first < file else size
        if size > most:
            places = [0, *cut(file)]
            stops = [*(_cursor(file, place) for place in places[1:]), _cursor(file + 1)]
            for place, stop in zip(places, stops, strict=True):
                start = _cursor(file, place, place if counted else 0)
                found.append(Range(start, stop, size // len(places), counted or place == 0))
            first, held = file + 1, 0
    if first < len(sizes):
        found.append(Range(_cursor(first), _cursor(len(sizes)), held))
    return found


def _cursor(file: int, offset: int = 0, line: int = 0) -> dict[str, int]:
    return {"file": file, "offset": offset, "line": line}


def even_cuts(size: int, most: int) -> list[int]:
    """Places that cut `size` bytes into the fewest equal parts of at most `most`.

    >>> even_cuts(25, 10), even_cuts(10, 10)
    ([8, 16], [])
    """
    parts = -(-size // most)
    return [size * i // parts for i in range(1, parts)]


def row_ranges(rows: int, size: int | None, most: int) -> list[Range]:
    """Ranges of rows; each has the same power of two of rows, about `most` bytes.

    A power of two does not change when the size in bytes is counted a little differently.

    >>> [r.id() for r in row_ranges(10, 1000, 450)]
    ['0:0-0:4', '0:4-0:8', '0:8-0:10']
    """
    fit = UNKNOWN_ROWS if not size else rows if size <= most else max(1, most * rows // size)
    step = rows if fit >= rows else 1 << (fit.bit_length() - 1)
    return [
        Range(_cursor(0, at, at), _cursor(0, min(at + step, rows)), (size or 0) * min(step, rows - at) // rows)
        for at in range(0, rows, max(1, step))
    ]
