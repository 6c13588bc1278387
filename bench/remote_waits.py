"""How long a trainer waits for each kind of remote input: 50 ms of added latency, steps of 100 ms, 128 rows each.

SeaweedFS on loopback behind a proxy, in a process of its own, that delays each request. Beside each input the same
files on a local disk: what a trainer waits for there is not the storage's. Files are opened and indexed before the
first step. The first 10 steps are not counted.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.storage.servers import seaweedfs

import penstock as ps
from bench.common import judge, save, table
from bench.remote_store import BATCH, FIRST, LATENCY, STEP, STEPS, slow_proxy, upload, waiting, write_store

RECORDS = BATCH * (STEPS + 24)
LETTERS = np.arange(97, 123, dtype=np.uint8)


def write_files(folder: Path) -> None:
    """The same texts as JSONL, Parquet and tar, and small photos in tar, each in two files."""
    import cv2
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(1)
    noise = cv2.resize(dice.integers(0, 256, (24, 24, 3), np.uint8), (160, 160), interpolation=cv2.INTER_CUBIC)
    for part in range(2):
        texts = [dice.choice(LETTERS, 2000).tobytes().decode() for _ in range(RECORDS // 2)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        pq.write_table(pa.table({"text": texts}), folder / f"{part}.parquet", row_group_size=128)
        with tarfile.open(folder / f"texts-{part}.tar", "w") as made:
            for n, text in enumerate(texts):
                _add(made, f"{part}-{n:05}.txt", text.encode())
        with tarfile.open(folder / f"photos-{part}.tar", "w") as made:
            for n in range(RECORDS // 2):
                _add(made, f"{part}-{n:05}.jpg", cv2.imencode(".jpg", np.roll(noise, n, axis=1))[1].tobytes())


def _add(made: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    made.addfile(info, io.BytesIO(data))


def pipelines(store: str, files: str, options: dict[str, Any], opened: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The inputs by name; `options` of the storage, `opened` of stores."""

    def tokens() -> ps.Pipeline:
        return ps.open_store(store, **options, **opened)

    def tar(name: str) -> ps.Pipeline:
        return ps.read_tar(f"{files}/{name}-*.tar", index=None, **options)

    def texts(rows: ps.Pipeline) -> ps.Pipeline:
        return rows.shuffle(seed=1).batch(BATCH)

    return {
        "windows": lambda: tokens().windows(1024).shuffle(seed=1).batch(BATCH),
        "packs": lambda: tokens().pack(2048).shuffle(seed=1).batch(BATCH),
        "padded documents": lambda: tokens().shuffle(seed=1).pad(to=1025).batch(BATCH),
        "JSONL": lambda: texts(ps.read_jsonl(f"{files}/*.jsonl", **options)),
        "JSONL in order": lambda: ps.read_jsonl(f"{files}/*.jsonl", **options).batch(BATCH),
        "Parquet": lambda: texts(ps.read_parquet(f"{files}/*.parquet", **options)),
        "Parquet in order": lambda: ps.read_parquet(f"{files}/*.parquet", **options).batch(BATCH),
        "tar": lambda: texts(tar("texts")),
        "tar in order": lambda: tar("texts").batch(BATCH),
        "images in tar": lambda: tar("photos").shuffle(seed=1).rename({"jpg": "bytes"}).decode_images(128).batch(BATCH),
    }


def measure() -> dict[str, dict[str, dict[str, float]]]:
    """For each input what `waiting` found: remote and local."""
    with tempfile.TemporaryDirectory() as name, seaweedfs(Path(name, "server")) as server:
        work = Path(name)
        store, files = work / "store", work / "files"
        files.mkdir()
        write_store(store, 2 * RECORDS * 1025)
        write_files(files)
        far, near = upload(store, server, "store"), upload(files, server, "files")
        found: dict[str, dict[str, dict[str, float]]] = {}
        here = pipelines(str(store), str(files), {}, {})
        with slow_proxy(server) as endpoint:
            options = {"storage_options": server.options | {"endpoint": endpoint}}
            for number, kind in enumerate(here):
                there = pipelines(far, near, options, {"cache_dir": work / f"cache-{number}"})[kind]()
                there.definition.origin.fingerprint()  # opened and indexed
                found[kind] = {"remote": waiting(there, None), "local": waiting(here[kind](), None)}
    return found


def run() -> dict[str, Any]:
    found = measure()
    names = ("share", "median_ms", "longest_ms", "first_batch", "requests", "megabytes")
    table(
        f"Steps of {STEP * 1e3:.0f} ms, {LATENCY * 1e3:.0f} ms more for each request, {BATCH} rows a step",
        [
            (
                kind,
                where,
                f"{v['share']:.2%}",
                *(f"{v[name]:.2f}" for name in names[1:4]),
                *(f"{v[name]:.0f}" for name in names[4:]),
            )
            for kind, both in found.items()
            for where, v in both.items()
        ],
        (
            "input",
            "where",
            f"waited after {FIRST} steps",
            "median ms",
            "longest ms",
            "first batch, s",
            "requests",
            "MB",
        ),
    )
    # Where local files wait as long, it is the decoder that the trainer waits for: the table above has both.
    targets = [
        judge(f"{kind}: % of time waiting", 100 * v["remote"]["share"], 1, most=True) for kind, v in found.items()
    ]
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {"waiting": found, "targets": targets}
    save("remote_waits", facts)
    return facts


if __name__ == "__main__":
    run()
