"""Small stores of many shards for tests: a few shards, each under many names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.columns import Ragged
from penstock.store import manifest
from penstock.store.manifest import write_manifest
from penstock.store.reader import TokenStore
from penstock.store.writer import ShardInfo, ShardWriter

KINDS = 37  # different shards; a store has each of them under many names


def kinds(folder: Path) -> list[tuple[Path, ShardInfo]]:
    """Small shards of different sizes, some of them without tokens or without documents."""
    made = []
    for k in range(KINDS):
        rng = np.random.default_rng(k)
        lengths = rng.integers(0, 40, k % 5) if k % 11 else np.array([0])
        docs = Ragged.of([rng.integers(0, 60_000, n) for n in lengths], np.int64)
        with ShardWriter(folder / f"{k}.tokens", vocab_size=60_000, page_bytes=4096) as shard:
            shard.add(docs, {"number": np.arange(k % 5 if k % 11 else 1).astype(np.uint16) + k})
        made.append((folder / f"{k}.tokens", shard.finish()))
    return made


def make(
    folder: Path, shards: list[tuple[Path, ShardInfo]], count: int, *, listed: int = 1024, group: int = 1024
) -> Path:
    """A store of `count` shards, with as many in the manifest and in a group as asked."""
    folder.mkdir()
    infos = []
    for number in range(count):
        path, entry = shards[number * 5 % KINDS]
        name = f"g{number:06d}-\u00e9.tokens"
        os.link(path, folder / name)
        infos.append(ShardInfo(name, *(getattr(entry, f) for f in ShardInfo.__slots__[1:])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "MAX_LISTED", listed)
        patch.setattr(manifest, "GROUP_SHARDS", group)
        write_manifest(folder, infos, tokenizer={"name": "t"}, eos_id=3, metadata={"a": 1}, tool="test")
    return folder


def index_of(folder: Path) -> Path:
    return next(folder.glob("shards-*.index"))


def everything(store: TokenStore, seed: int = 0) -> list[Any]:
    """What training, packing and `why` read, in an order that depends on the seed."""
    rng = np.random.default_rng(seed)
    some = rng.integers(0, len(store), 50)
    tokens = rng.integers(0, store.n_tokens, 50)
    windows = rng.integers(0, store.n_tokens - 200, 64)
    found: list[Callable[[], Any]] = [
        lambda: store.gather(windows, 200).tolist(),
        lambda: [store.reader(windows, 8)(a, b).tolist() for a, b in ((0, 5), (5, 64))],
        lambda: {name: column.tolist() for name, column in store.read(some).items()},
        lambda: store.column("number", some).tolist(),
        lambda: store.starts(np.append(some, len(store))).tolist(),
        lambda: store.lengths(some).tolist(),
        lambda: store.documents_at(tokens).tolist(),
        lambda: [store.locate(int(d)) for d in some[:5]],
        lambda: store.gather(np.array([0]), min(store.n_tokens, 5000)).tolist(),
    ]
    results: dict[int, Any] = {k: found[k]() for k in rng.permutation(len(found)).tolist()}
    return [results[k] for k in range(len(found))]
