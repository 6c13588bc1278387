"""The first records of anything, as plain JSON, without reading the rest of it.

Lines are read in one pass from the front, so a file of any size costs a few megabytes; documents of a store are looked
up in its table.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from penstock.cli import media
from penstock.core.columns import row
from penstock.core.errors import RecordError
from penstock.core.limits import LIMITS
from penstock.sources import json_fields, jsonl, splits
from penstock.sources.cutting import Piece
from penstock.sources.formats import Format, Options
from penstock.sources.json_records import read_array
from penstock.sources.lines import LineFiles, place
from penstock.sources.text import TextFiles
from penstock.view.documents import beginning, decoded
from penstock.view.documents import place as document_place

_MOST_IDS = 512


def records(path: str, found: Format, by: str, split: str | None, rows: int) -> list[dict[str, Any]]:
    """`{"where", "record"}` or `{"where", "error"}` of the first records of a path."""
    if found.name in media.KINDS:
        return media.first(path, found, rows)
    if found.name == "jsonl":
        array = read_array(splits.data_files(path, found.suffixes))
        if array is not None:
            return [{"where": f"{path}, record {at}", "record": _fields(one)} for at, one in enumerate(array[:rows])]
        return _json_lines(path, rows)
    if found.name == "text":
        return _texts(path, by, rows)
    source = found.open(path, Options(every_field=True, split=split or "train"))
    columns = source.read(np.arange(min(rows, len(source))))
    return [{"where": _where(source.locate(i), path), "record": row(columns, i)} for i in range(min(rows, len(source)))]


def named(name: str, split: str | None, rows: int) -> list[dict[str, Any]]:
    """The same for a dataset found by its name: registered, on this machine, in a cache or on a hub."""
    from penstock.facades.capibara.resolve import resolve_dataset
    from penstock.sources.hf_stream import HFStream

    found = resolve_dataset(name, every_field=True, **({"split": split} if split else {}))
    taken = list(islice(found.records(), rows)) if isinstance(found, HFStream) else found.peek(rows)
    return [{"where": f"{name}, row {at}", "record": one} for at, one in enumerate(taken)]


def _fields(record: Any) -> dict[str, Any]:
    return record if isinstance(record, dict) else {"value": record}


def _where(facts: dict[str, Any], path: str) -> str:
    return f"{facts.get('file', path)}, row {facts.get('row', facts.get('record'))}"


def _texts(path: str, by: str, rows: int) -> list[dict[str, Any]]:
    source = TextFiles([path], mode=by)
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


def _json_lines(path: str, rows: int) -> list[dict[str, Any]]:
    files = LineFiles([path], limits=LIMITS, suffixes=jsonl.SUFFIXES)
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


def documents(source: Any, tokenizer: Any, rows: int) -> list[dict[str, Any]]:
    """The first documents of a token source, and the first ids of each, decoded when there is a tokenizer."""
    found = []
    for number in range(min(rows, len(source))):
        length, ids = beginning(source, number, _MOST_IDS)
        one = {"where": document_place(source, number), "tokens": length, "ids": ids}
        found.append(one | {"text": decoded(tokenizer, ids)})
    return found
