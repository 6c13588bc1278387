"""Random windows of 10,000 shards, and records of 10,000 files, beside 4, in a process that may open 1,024 files.

python -m bench shards
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import curve, judge, save, table

COUNTS, TOKENS, LENGTH, ROWS, BATCHES, FILES = (4, 1_000, 10_000), 120_000_000, 128, 32, 1024, 1024
RECORDS = 100_000


def write_store(folder: Path, shards: int) -> None:
    """Stores of equal size: one shard is written and copied, so that each has its own pages in memory."""
    import shutil
    from dataclasses import replace

    from penstock.core.columns import Ragged
    from penstock.store.manifest import write_manifest
    from penstock.store.writer import ShardWriter

    folder.mkdir()
    each = TOKENS // shards
    tokens = np.random.default_rng(0).integers(0, 50_000, each).astype(np.uint16)
    first = folder / "00000.tokens"
    with ShardWriter(first, vocab_size=50_000) as shard:
        shard.add(Ragged(tokens, np.linspace(0, each, 5).astype(np.int64)))
    info = shard.finish()
    for number in range(1, shards):
        shutil.copyfile(first, folder / f"{number:05d}.tokens")
    write_manifest(folder, [replace(info, name=f"{number:05d}.tokens") for number in range(shards)])


def write_lines(folder: Path, files: int) -> None:
    """The same records of JSON in `files` gzip files and in as many plain ones."""
    plain = folder.with_name(f"{files}-plain")
    folder.mkdir()
    plain.mkdir()
    each = RECORDS // files
    for number in range(files):
        lines = (json.dumps({"text": f"record {row} " * 12}) for row in range(number * each, (number + 1) * each))
        data = "\n".join(lines).encode()
        (folder / f"{number:05d}.jsonl.gz").write_bytes(gzip.compress(data, 1))
        (plain / f"{number:05d}.jsonl").write_bytes(data)


def measure(folders: dict[int, str]) -> dict[str, dict[int, float]]:
    """Runs in a process of its own, with a limit on open files: processor microseconds a batch, least of several.

    The stores take turns. `bare` is the same gather with all addresses known, without looking whether files were cut.
    """
    import resource

    import penstock as ps

    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    ps.open_store(folders[COUNTS[0]]).windows(LENGTH).batch(ROWS).to_numpy(threads=0)  # imports
    opened, turns, bare, lines, plain = {}, {}, {}, {}, {}
    for count, folder in folders.items():
        began = time.process_time()
        run = iter(ps.open_store(folder).windows(LENGTH).shuffle(seed=1).batch(ROWS).to_numpy(threads=0))
        opened[count] = 1e3 * (time.process_time() - began)
        for _ in islice(run, 2500):  # nearly every shard has been opened and verified once
            pass
        turns[count] = [run]
        bare[count] = [bare_gather(folder)]
        for kind, into, before in (("gzip", lines, 1), ("plain", plain, 2 * RECORDS // ROWS)):
            records = ps.read_jsonl(f"{folder}-{kind}/*").shuffle(seed=1).repeat(None).batch(ROWS)
            into[count] = [iter(records.to_numpy(threads=0))]
            for _ in islice(into[count][0], before):  # every plain file is mapped
                pass
    for _ in range(9):
        for costs, batches in ((turns, BATCHES), (bare, BATCHES), (lines, BATCHES // 8), (plain, BATCHES // 8)):
            for each in costs.values():
                began = time.process_time()
                for _ in islice(each[0], batches):
                    pass
                each.append(1e6 * (time.process_time() - began) / batches)
    return {
        "batch": {count: min(each[1:]) for count, each in turns.items()},
        "bare": {count: min(each[1:]) for count, each in bare.items()},
        "lines": {count: min(each[1:]) for count, each in lines.items()},
        "plain": {count: min(each[1:]) for count, each in plain.items()},
        "open": opened,
    }


def bare_gather(folder: str) -> Iterator[Any]:
    """Windows at random of maps that are open, in blocks of 64 batches, widened batch by batch."""
    from penstock.store.arrays import row_view
    from penstock.store.reader import TokenStore

    store, random = TokenStore(folder), np.random.default_rng(0)
    starts = LENGTH * random.integers(0, TOKENS // LENGTH - 1, 10 * BATCHES * ROWS)
    part, local, left = store.places(starts)
    part, local = part[left > LENGTH], local[left > LENGTH]
    view, at = row_view(store.ready(part, local, LENGTH + 1), part, local, LENGTH + 1, store.dtype) or (None, None)
    assert view is not None
    out = np.empty((2, ROWS, LENGTH), np.int64)
    while True:
        for begin in range(0, len(at) - 64 * ROWS, 64 * ROWS):
            rows = view[at[begin : begin + 64 * ROWS]].view(store.dtype).reshape(64, ROWS, LENGTH + 1)
            for batch in rows:
                np.copyto(out[0], batch[:, :-1])
                np.copyto(out[1], batch[:, 1:])
                yield out


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        for count in COUNTS:
            write_store(Path(name) / str(count), count)
            write_lines(Path(name) / f"{count}-gzip", count)
        call = [sys.executable, "-P", __file__, "--measure", name]
        measured = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    found = {what: {int(count): cost for count, cost in costs.items()} for what, costs in measured.items()}
    few, many = COUNTS[0], COUNTS[-1]
    batches, bare, lines, plain = (found[what] for what in ("batch", "bare", "lines", "plain"))
    curves = [
        curve(f"a batch of {ROWS} windows, over shards, {FILES:,} files", "us", batches, "1.5 of few"),
        curve("the same gather with all addresses known", "us", bare),
        curve(f"a batch of {ROWS} records of JSON, over gzip files", "us", lines, "1.5 of few"),
        curve(f"a batch of {ROWS} records of JSON, over plain files", "us", plain, "1.5 of few"),
        curve("opening a store, over shards", "ms", found["open"]),
    ]
    ratios = (f"{batches[count] / bare[count]:.2f} at {count:,}" for count in COUNTS)
    print(f"  the loader over that gather: {', '.join(ratios)}")
    targets = [
        judge(f"a batch at {many:,} shards over one at {few}", batches[many] / batches[few], 1.5, most=True),
        judge(f"opening {many:,} shards over opening {few}", found["open"][many] / found["open"][few], 1.5, most=True),
        judge(f"a batch of {many:,} gzip files over one of {few}", lines[many] / lines[few], 1.5, most=True),
        judge(f"a batch of {many:,} plain files over one of {few}", plain[many] / plain[few], 1.5, most=True),
    ]
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"curves": curves, "targets": targets}
    save("shards", facts)
    return facts


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure({count: str(Path(sys.argv[2]) / str(count)) for count in COUNTS})))
    else:
        run()
