"""How long the viewer takes: the first page of a store of a billion tokens and of 100,000 images, a batch of 64 images.

The shards of the store, and the images, are hard links of a few: tables and listings are real, the disk stays empty.
A first page is measured from opening the target in a process that has imported the viewer to the last byte of the page;
each in a process of its own, since what was read once is kept. The targets are 1 s, and 0.5 s for the batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import judge, save, table
from bench.folders import make_folder
from penstock.core.columns import Ragged
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter

SHARDS, DOCUMENTS, LENGTH = 100, 10_000, 1000  # 1,000,000 documents, 1e9 tokens
IMAGES, BATCH = 100_000, 64

PAGE = """
import json, sys, time
import penstock.view.pages.batch, penstock.view.pages.data
from penstock.view.pages import PAGES, Query
from penstock.view.session import Choices, open_session
target, name, query, again = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
page = next(one for one in PAGES if one.name == name)
if again:
    session = open_session(target, Choices(batch=64))
    page.answer(session, Query(again))
began = time.perf_counter(), time.process_time()
if not again:
    session = open_session(target, Choices(batch=64))
html = page.answer(session, Query(query))
print(json.dumps([time.perf_counter() - began[0], time.process_time() - began[1], len(html)]))
"""


def make_store(folder: Path) -> None:
    """A store of many shards that are one file on disk."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 2 * LENGTH, DOCUMENTS)
    lengths[-1] += LENGTH * DOCUMENTS - int(lengths.sum()) if int(lengths.sum()) < LENGTH * DOCUMENTS else 0
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    with ShardWriter(folder / "00000.tokens", vocab_size=256) as shard:
        shard.add(Ragged(rng.integers(32, 127, int(offsets[-1])).astype(np.uint8), offsets))
    info = shard.finish()
    infos = [replace(info, name=f"{i:05d}.tokens") for i in range(SHARDS)]
    for one in infos[1:]:
        os.link(folder / "00000.tokens", folder / one.name)
    write_manifest(folder, infos, tokenizer={"kind": "bytes", "vocab_size": 256})


def ask(target: Path, page: str, query: dict[str, str], again: dict[str, str] | None = None) -> list[float]:
    """Wall seconds, processor seconds and characters of a page; `again` is a page that is opened before."""
    source = Path(__file__).resolve().parents[1] / "src"
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", PAGE, str(target), page, json.dumps(query), json.dumps(again)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return list(json.loads(done.stdout))


def run(images: int = IMAGES, count: int = 3) -> dict[str, Any]:
    """Measures each page `count` times in turn, and prints the least: other load only lengthens it."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make_store(root / "store")
        make_folder(root, images)
        asked: dict[str, tuple[Path, str, dict[str, str], dict[str, str] | None, float]] = {
            "first page, 1e9 tokens": (root / "store", "data", {}, None, 1.0),
            f"first page, {images:,} images": (root / "images", "data", {}, None, 1.0),
            f"batch of {BATCH} images, another step": (root / "images", "batch", {"step": "7"}, {"step": "0"}, 0.5),
        }
        found: dict[str, list[list[float]]] = {title: [] for title in asked}
        for _ in range(count):
            for title, (target, page, query, again, _) in asked.items():
                found[title].append(ask(target, page, query, again))
    least = {title: np.min(values, axis=0).tolist() for title, values in found.items()}
    rows: list[tuple[str, ...]] = [
        (title, f"{wall:.2f} s", f"{cpu:.2f} s", f"{size / 1e3:.0f} kB") for title, (wall, cpu, size) in least.items()
    ]
    table(f"the viewer, least of {count}", rows, ("page", "wall", "processor", "HTML"))
    targets: list[tuple[str, ...]] = [
        judge(f"{title}, wall seconds", least[title][0], of[-1], most=True) for title, of in asked.items()
    ]
    table("targets", targets, ("figure", "measured", "target", ""))
    facts = {"rows": rows, "targets": targets}
    save("viewer", facts)
    return facts


if __name__ == "__main__":
    run()
