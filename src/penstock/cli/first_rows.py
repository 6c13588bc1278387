"""The first records of anything, as plain JSON, without reading the rest of it.

Lines are read in one pass from the front, so a file of any size costs a few megabytes; documents of a store are looked
up in its table.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from penstock.cli import media
from penstock.core.columns import row
from penstock.core.errors import BadRecords, UsageError
from penstock.sources import splits
from penstock.sources.formats import DATASETS, Format, Options
from penstock.view.documents import beginning, decoded
from penstock.view.documents import place as document_place
from penstock.view.front import first_json_lines, first_texts

_MOST_IDS = 512
_HAVE_SPLITS = ("tfds", "hf splits")  # their openers know their splits


def records(path: str, found: Format, by: str, split: str | None, rows: int) -> list[dict[str, Any]]:
    """`{"where", "record"}` or `{"where", "error"}` of the first records of a path, or of one split of it."""
    paths = of_split(path, found, split)
    if found.name in media.KINDS:
        return media.first(paths, found, rows)
    if found.name == "jsonl":
        return first_json_lines(paths, rows)
    if found.name == "text":
        return first_texts(paths, by, rows)
    source = found.open(paths[0] if found in DATASETS else paths, Options(every_field=True, split=split or "train"))
    return [_numbered(source, i, path) for i in range(min(rows, len(source)))]


def _numbered(source: Any, number: int, path: str) -> dict[str, Any]:
    where = _where(source.locate(number), path)
    try:
        return {"where": where, "record": row(source.read(np.array([number])), 0)}
    except BadRecords as error:
        return {"where": where, "error": str(error)}


def of_split(path: str, found: Format, split: str | None) -> list[str]:
    """The files of a split of a path; for images and audio its folder. Without a split the path itself."""
    if split is None or found.name in _HAVE_SPLITS:
        return [path]
    if found.name in (*media.FOLDERS, "mds") and os.path.isdir(path):
        folders = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and splits.is_data(entry.name))
        return [os.path.join(path, splits.choose(folders, split, path))]
    if found in DATASETS:
        raise UsageError(
            "a dataset that has splits", got=f"--split {split} for {found.title}", where=path, fix="leave out --split"
        )
    return splits.split_files(path, split, suffixes=found.suffixes)


def of_config(path: str, rows: int, allow: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The first rows of the pipeline that a configuration describes."""
    from penstock.read.config import from_config

    found = from_config(path, allow_functions=allow).peek(rows)
    return [{"where": f"{path}, row {at}", "record": one} for at, one in enumerate(found)]


def named(name: str, split: str | None, rows: int) -> list[dict[str, Any]]:
    """The same for a dataset found by its name: registered, on this machine, in a cache or on a hub."""
    from penstock.facades.capibara.resolve import resolve_dataset
    from penstock.sources.hf_stream import HFStream

    found = resolve_dataset(name, every_field=True, **({"split": split} if split else {}))
    taken = list(islice(found.records(), rows)) if isinstance(found, HFStream) else found.peek(rows)
    return [{"where": f"{name}, row {at}", "record": one} for at, one in enumerate(taken)]


def _where(facts: dict[str, Any], path: str) -> str:
    kind = next((name for name in ("row", "record", "line") if name in facts), "record")
    return f"{facts.get('file', path)}, {kind} {facts.get(kind)}"


def documents(source: Any, tokenizer: Any, rows: int) -> list[dict[str, Any]]:
    """The first documents of a token source, and the first ids of each, decoded when there is a tokenizer."""
    found = []
    for number in range(min(rows, len(source))):
        length, ids = beginning(source, number, _MOST_IDS)
        one = {"where": document_place(source, number), "tokens": length, "ids": ids}
        found.append(one | {"text": decoded(tokenizer, ids)})
    return found
