"""What each source can do, by the protocols of `sources.base`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.sources import base
from penstock.sources.arrays import Arrays, Texts
from penstock.sources.folders import ImageFolder
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.text import TextFiles
from penstock.sources.tokens import TokenArray

LINES = {
    "ScannedSource",
    "TextSource",
    "TextColumnSource",
    "FileSource",
    "RangeSource",
    "StampedSource",
    "RowsAheadSource",
}
OPTIONAL = [name for name in base.__all__ if name != "Source"]


def _images(folder: Path) -> ImageFolder:
    (folder / "a.jpg").write_bytes(b"...")
    return ImageFolder(folder, None)


def _jsonl(folder: Path, **options: Any) -> JsonlFiles:
    (folder / "a.jsonl").write_text('{"text": "one", "n": 1}\n')
    return JsonlFiles(folder / "a.jsonl", **options)


def _text(folder: Path) -> TextFiles:
    (folder / "a.txt").write_text("one\n")
    return TextFiles(folder / "a.txt")


@pytest.mark.parametrize(
    ("make", "can"),
    [
        (lambda _: Texts(["one"]), {"TextSource", "TextColumnSource", "RangeSource"}),
        (lambda _: Arrays({"x": [1]}), {"ColumnSource"}),
        (lambda _: TokenArray(np.arange(4)), {"TokenSource", "LengthSource", "WindowReader", "TokenParts"}),
        (_images, {"BorrowSource", "ClassSource", "NamedSource"}),
        (_jsonl, {*LINES, "ColumnSource", "PartialSource"}),
        (_text, LINES),
    ],
)
def test_capabilities(make: Any, can: set[str], tmp_path: Path) -> None:
    source = make(tmp_path)
    assert isinstance(source, base.Source)
    assert {name for name in OPTIONAL if isinstance(source, getattr(base, name))} == can


def test_text_column(tmp_path: Path) -> None:
    assert _jsonl(tmp_path, field="text").text_column == "text"
    assert _jsonl(tmp_path, fields=["text", "n"]).text_column is None
