"""Growth: what opening and planning cost as the data grows, each as a curve with its exponent, beside a bare loop.

python -m bench growth
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import curve, judge, least_cpu, save, table

FILES, MEMBERS, DOCUMENTS, LINES = (2_000, 20_000, 60_000), (2_000, 20_000, 60_000), (10**5, 10**6), (10**4, 10**5)
GROUPS = (10_000, 40_000, 160_000)


def folders(root: Path) -> tuple[list[Any], list[Any]]:
    from penstock.sources.folders import ImageFolder

    opened, walked, states = {}, {}, {}
    for count in FILES:
        place = root / f"files{count}"
        for i in range(count):
            if i % 1000 == 0:
                (place / f"c{i // 1000:03d}").mkdir(parents=True)
            (place / f"c{i // 1000:03d}" / f"{i * 7919 % count:07d}.jpg").touch()
        walked[count] = 1e6 * least_cpu(lambda place=place: [f for _, _, f in os.walk(place)]) / count
        opened[count] = 1e6 * least_cpu(lambda place=place: ImageFolder(place)) / count
        folder = ImageFolder(place)
        assert folder._sizes is not None
        folder._sizes.all()  # what the thread does in the background
        states[count] = 1e6 * least_cpu(folder._identify, 2) / count
    last = FILES[-1]
    curves = [
        curve("image folder: open, per file", "us", opened, "1.5 of a walk"),
        curve("image folder: os.walk alone", "us", walked),
        curve("image folder: state once sizes are known, per file", "us", states, "0.3 us"),
    ]
    return curves, [
        judge("opening a folder over a bare walk", opened[last] / walked[last], 1.5, most=True),
        judge("us a file of a first state_dict(), sizes gathered", states[last], 0.3, most=True),
    ]


def tars(root: Path) -> tuple[list[Any], list[Any]]:
    from penstock.sources.tar import TarShards

    walks, again = {}, {}
    for count in MEMBERS:
        path = root / f"{count}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(count):
                info = tarfile.TarInfo(f"{i // 2:07d}.{'jpg' if i % 2 else 'cls'}")
                info.size = 700 if i % 2 else 1
                tar.addfile(info, io.BytesIO(bytes(info.size)))
        walks[count] = 1e6 * least_cpu(lambda path=path: TarShards(path, index=None), 2) / count
        TarShards(path)
        again[count] = 1e6 * least_cpu(lambda path=path: TarShards(path)) / count
    last = MEMBERS[-1]
    curves = [
        curve("tar: first walk, per member", "us", walks, "8 us"),
        curve("tar: open again, per member", "us", again, "0.3 us"),
    ]
    return curves, [
        judge("us a member of a first walk", walks[last], 8, most=True),
        judge("us a member to open again", again[last], 0.3, most=True),
    ]


def plans(_: Path) -> tuple[list[Any], list[Any]]:
    from penstock.order.buckets import plan_buckets

    costs = {}
    for count in DOCUMENTS:
        lengths = np.random.default_rng(0).geometric(1 / 300, count).astype(np.int64)
        plan = lambda lengths=lengths: plan_buckets(  # noqa: E731
            lengths, boundaries=[64, 128, 256, 512, 1024], batch_size=32, key=1
        )
        costs[count] = 1e9 * least_cpu(plan, 5) / count
    last = DOCUMENTS[-1]
    return (
        [curve("bucket: plan of known lengths, per document", "ns", costs, "35 ns")],
        [judge("ns a document of a bucket plan", costs[last], 35, most=True)],
    )


def lines(root: Path) -> tuple[list[Any], list[Any]]:
    from penstock.sources.jsonl import JsonlFiles

    index, bare = {}, {}
    for count in LINES:
        path = root / f"{count}.jsonl"
        path.write_text("".join(json.dumps({"text": "word " * (i % 200)}) + "\n" for i in range(count)))
        data = path.stat().st_size / 1e9
        turns = [
            (least_cpu(lambda path=path: len(JsonlFiles(path)), 1), least_cpu(lambda path=path: _count(path), 1))
            for _ in range(9)
        ]
        index[count], bare[count] = (min(times) / data for times in zip(*turns, strict=True))
    last = LINES[-1]
    return (
        [
            curve("JSON lines: index, per GB", "s", index, "1.5 of counting"),
            curve("counting newlines, per GB", "s", bare),
        ],
        [judge("indexing JSON lines over counting newlines", index[last] / bare[last], 1.5, most=True)],
    )


def row_groups(root: Path) -> tuple[list[Any], list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    import penstock as ps

    costs = {}
    for count in GROUPS:
        place = root / str(count)
        place.mkdir()
        table = pa.table({"text": [f"row {i}" for i in range(8000)], "n": range(8000)})
        for file in range(count // 1000):
            pq.write_table(table, place / f"{file:04d}.parquet", row_group_size=8)
        rows = ps.read_parquet(place).shuffle(seed=7, lanes=64)
        costs[count] = 1e6 * least_cpu(lambda rows=rows: rows.plan(batch=1024, world=16, hosts=4), 2) / count
    last = GROUPS[-1]
    return (
        [curve("Parquet: plan of lanes, per row group", "us", costs, "10 s for 160,000")],
        [judge("seconds of a plan of 160,000 row groups", costs[last] * last / 1e6, 10, most=True)],
    )


def _count(path: Path) -> int:
    total = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 22):
            total += int(np.count_nonzero(np.frombuffer(block, np.uint8) == 10))
    return total


def run() -> dict[str, Any]:
    curves: list[Any] = []
    targets: list[Any] = []
    for part in (folders, tars, plans, lines, row_groups):
        with tempfile.TemporaryDirectory() as name:
            more, judged = part(Path(name))
            curves += more
            targets += judged
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"curves": curves, "targets": targets}
    save("growth", facts)
    return facts


if __name__ == "__main__":
    run()
