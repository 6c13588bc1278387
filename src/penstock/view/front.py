"""The first records of files of lines, read from the front: a file of any size costs a few megabytes."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS
from penstock.sources import json_fields, jsonl
from penstock.sources.cutting import Piece
from penstock.sources.line_errors import place
from penstock.sources.lines import LineFiles
from penstock.sources.text import TextFiles


def first_texts(paths: list[str], by: str, rows: int) -> list[dict[str, Any]]:
    """`{"where", "record"}` or `{"where", "error"}` of the first texts."""
    source = TextFiles(paths, mode=by)
    found: list[dict[str, Any]] = []
    for chunk in source.iterate():
        good = zip(chunk.positions, chunk.texts, strict=True)
        bad = zip(chunk.error_positions, chunk.errors, strict=True)
        here = [(at, {"record": {"text": text}}) for at, text in good] + [(at, {"error": str(e)}) for at, e in bad]
        for (file, line, _), entry in sorted(here, key=lambda pair: pair[0]):
            found.append({"where": f"{source.paths[file]}, line {line}"} | entry)
        if len(found) >= rows:
            break
    return found[:rows]


def first_json_lines(paths: list[str], rows: int) -> list[dict[str, Any]]:
    """The same for JSON lines."""
    files = LineFiles(paths, limits=LIMITS, suffixes=jsonl.SUFFIXES)
    found: list[dict[str, Any]] = []

    def parse(piece: Piece, name: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
        for i, (start, stop) in enumerate(zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)):
            where = place(name, int(piece.lines[i]), piece.offset + start)
            try:
                found.append({"where": where, "record": json_fields.load(piece.data[start:stop], where)})
            except RecordError as error:
                found.append({"where": where, "error": str(error)})
        return [""] * len(piece.starts), []

    for _ in files.chunks(parse, size=1 << 16):
        if len(found) >= rows:
            break
    return found[:rows]
