"""Mutants of text files, plain and compressed, by file, line and paragraph: one pass and random access agree."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import zstandard

from penstock.core.errors import BadRecords
from penstock.sources.text import TextFiles
from tests.hostile.fuzzing import fuzz

TEXT = "one é\r\ntwo\n\n  \nthree\n\nfour 😀 five".encode()
PACKED = {
    "a.txt": TEXT,
    "a.txt.gz": gzip.compress(TEXT, mtime=0),
    "a.txt.zst": zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
}


@pytest.mark.parametrize("mode", ["file", "line", "paragraph"])
@pytest.mark.parametrize("name", PACKED)
def test_mutants(tmp_path: Path, name: str, mode: Literal["file", "line", "paragraph"]) -> None:
    path = tmp_path / name

    def read(data: bytes) -> object:
        path.write_bytes(data)
        source = TextFiles(path, mode=mode)
        chunks = list(source.iterate())
        texts, errors = [t for c in chunks for t in c.texts], [e for c in chunks for e in c.errors]
        try:
            again = source.read(np.arange(len(source)))["text"].tolist()
        except BadRecords as bad:
            assert len(bad.errors) == len(errors)  # noqa: PT017
            raise
        assert again == texts and not errors
        return texts

    fuzz(read, PACKED[name], 150)
