"""Ranges of line files: where they are cut, and at which records they begin and end.

A plain file is cut at any byte; the range begins with the first record after that byte and ends with the record that
goes over its own end. Finding both costs two reads of about one record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.core.errors import StateError
from penstock.sources.cutting import boundary
from penstock.sources.ranges import Cursor, Range, even_cuts, file_ranges
from penstock.storage import filesystem

if TYPE_CHECKING:
    from penstock.sources.lines import LineFiles


def line_ranges(files: LineFiles, most: int) -> list[Range]:
    """Ranges of about `most` bytes. Reads the first bytes of files larger than that, to know if they are compressed."""
    sizes = [stamp.size for stamp in files.stamps]

    def cut(file: int) -> list[int]:
        return even_cuts(sizes[file], most) if files.kind(file) == "plain" and files.cuttable else []

    return file_ranges(sizes, most, cut, counted=False)


def exact_bounds(files: LineFiles, part: Range) -> tuple[Cursor, Cursor]:
    """The cursors of a range, moved to where its first record begins and its last one ends; equal if it has none."""
    file, offset = part.start["file"], part.start["offset"]
    end = _boundary(files, part.stop["file"], part.stop["offset"], None)
    stop = part.stop | {"offset": files.stamps[part.stop["file"]].size if end is None else end}
    if not offset:
        return part.start, stop
    until = part.stop["offset"] if part.stop["file"] == file else files.stamps[file].size + 1
    found = _boundary(files, file, offset, until)
    return (stop if found is None else part.start | {"offset": found}), stop


def _boundary(files: LineFiles, file: int, offset: int, until: int | None) -> int | None:
    if not offset:
        return 0
    _, stream = files.cutter(file, offset - 1)
    try:
        return boundary(stream, offset, until, paragraphs=files.paragraphs)
    finally:
        stream.close()


def checked_cursor(
    cursor: Cursor | None, stamps: Sequence[filesystem.Stamp], kind: Callable[[int], str]
) -> tuple[int, int, int]:
    """File, offset and line of a saved place; a place that cannot be here is refused."""
    n_files = len(stamps)
    if cursor is None:
        return 0, 0, 0
    values = [cursor.get(k) for k in ("file", "offset", "line")] if isinstance(cursor, Mapping) else []
    good = len(values) == 3 and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
    if good:
        file, offset, line = (int(v or 0) for v in values)
        inside = file < n_files and (offset <= stamps[file].size or kind(file) != "plain")
        if inside or (file == n_files and offset == 0):
            return file, offset, line
    raise StateError(
        "a cursor of this source: file, offset and line",
        got=repr(cursor)[:200],
        where=f"a source of {n_files} files",
        fix="use a cursor that came from the same files, or start from the beginning",
    )
