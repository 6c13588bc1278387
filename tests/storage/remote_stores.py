"""Token stores for tests of remote reading: made on disk, uploaded, and compared with what is read from the URL.

Run as a program it is one process of several that share a cache: it compares every batch of its rank with the local
store and prints `same N`.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.core.columns import Ragged
from penstock.storage import objects
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter

PAGE = 4096


def make(folder: Path, documents: int = 600, shards: int = 5, page_bytes: int = PAGE, seed: int = 3) -> Path:
    """A store with a fixed and a ragged column."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    docs = [rng.integers(0, 60_000, n).tolist() for n in rng.integers(0, 900, documents)]
    infos = []
    for k, (a, b) in enumerate(pairwise(np.linspace(0, documents, shards + 1).astype(int).tolist())):
        with ShardWriter(folder / f"{k:05d}.tokens", vocab_size=60_000, page_bytes=page_bytes) as shard:
            numbers = np.arange(a, b)
            columns = {
                "number": numbers.astype(np.uint16),
                "runs": Ragged.of([np.arange(n % 4) + n for n in numbers], np.int64),
            }
            shard.add(Ragged.of(docs[a:b], np.int64), columns)
        infos.append(shard.finish())
    write_manifest(folder, infos, tokenizer={"name": "test"}, eos_id=7)
    return folder


def upload(folder: Path, url: str, options: dict[str, Any]) -> str:
    for path in sorted(folder.iterdir()):
        assert objects.put_new(f"{url}/{path.name}", path, options)
    return url


def disk_bytes(folder: Path) -> int:
    """What a folder occupies; files may disappear meanwhile."""
    total = 0
    for path in Path(folder).rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def loader(path: Any, rank: int, world: int, seed: int = 5, **options: Any) -> Any:
    return ps.open_store(path, **options).windows(256).shuffle(seed=seed).batch(24).shard(rank, world).to_numpy()


def main(job: dict[str, Any]) -> None:
    """Compares the batches of some epochs of one rank."""
    remote = loader(job["url"], job["rank"], job["world"], **job["options"])
    local = loader(job["folder"], job["rank"], job["world"])
    count = 0
    for _ in range(job["epochs"]):
        for a, b in zip(remote, local, strict=True):
            np.testing.assert_array_equal(a["input_ids"], b["input_ids"])
            np.testing.assert_array_equal(a["labels"], b["labels"])
            count += 1
            sys.stdout.write(f"{count}\n")
            sys.stdout.flush()
    sys.stdout.write(f"same {count}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
