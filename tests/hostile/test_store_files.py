"""Mutants of every file of a token store: an error, or the same tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.store.reader import TokenStore
from tests.hostile.fuzzing import fuzz


@pytest.fixture
def store(tmp_path: Path) -> Path:
    texts = [f"document {i} " * (i % 5) for i in range(40)]
    made = ps.prepare(ps.from_texts(texts), "bytes", tmp_path / "store", shard_tokens=1 << 10, show_progress=False)
    return Path(made.path)


def content(folder: Path) -> object:
    found = TokenStore(folder)
    return found.read(np.arange(len(found)))["input_ids"].tolist(), found.gather(np.arange(9), 7).tolist()


@pytest.mark.parametrize("which", ["manifest.json", "first shard", "last shard"])
def test_mutants(store: Path, which: str) -> None:
    shards = sorted(store.glob("*.tokens"))
    path = {"manifest.json": store / "manifest.json", "first shard": shards[0], "last shard": shards[-1]}[which]

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return content(store)

    counts = fuzz(read, path.read_bytes(), 300, checked=True)
    assert counts["refused"] > 100
