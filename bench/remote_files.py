"""Epochs of remote JSONL, Parquet and tar in one thread, beside obstore's bare reads of the same ranges, counted.

SeaweedFS on loopback. A first epoch behind the proxy of the tests counts requests, without faults; the rates, in MB/s
of the files' bytes, are without it, because its Python would compete with the reader's.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import judge, medians, rounds, save, table

RECORDS, FILES, STEP = 6000, 3, 256


def _write(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(1)
    for file in range(FILES):
        texts = ["".join(map(chr, dice.integers(97, 123, 2000))) for _ in range(RECORDS // FILES)]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        pq.write_table(pa.table({"text": texts}), folder / f"{file}.parquet", row_group_size=50)
        with tarfile.open(folder / f"{file}.tar", "w") as made:
            for n, text in enumerate(texts):
                info = tarfile.TarInfo(f"{file}-{n:05}.txt")
                info.size = len(text)
                made.addfile(info, io.BytesIO(text.encode()))


def _bare(client: Any, log: list[tuple[str, str, str]], size: int) -> Callable[[], float]:
    """obstore reads of the ranges that an epoch asked for, ten at a time as it does by itself."""
    import obstore

    by_key: dict[str, list[tuple[int, int]]] = {}
    for _, path, span in log:
        if span:
            first, last = span.split("-")
            by_key.setdefault(path.split("/", 2)[2], []).append((int(first), int(last) + 1))

    def run() -> float:
        began = time.perf_counter()
        for key, spans in by_key.items():
            obstore.get_ranges(client, key, starts=[a for a, _ in spans], ends=[b for _, b in spans], coalesce=0)
        return size / (time.perf_counter() - began) / 1e6

    return run


def run(count: int = 3) -> dict[str, Any]:
    from tests.storage.fault_proxy import FaultProxy
    from tests.storage.servers import seaweedfs

    import penstock as ps
    from penstock.storage import object_client, objects

    rows: list[list[Any]] = []
    targets: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as work:
        files = Path(work, "files")
        files.mkdir()
        _write(files)
        with seaweedfs(Path(work, "server")) as server, FaultProxy(server.endpoint) as proxy:
            for path in files.iterdir():
                objects.put_new(server.url(path.name), path, server.options)
            client = object_client.place(server.url("x"), server.options).client
            opened = {"jsonl": ps.read_jsonl, "parquet": ps.read_parquet, "tar": ps.read_tar}
            for kind, read in opened.items():
                size = sum(path.stat().st_size for path in files.glob(f"*.{kind}"))

                def epoch(
                    options: dict[str, Any] = server.options, kind: str = kind, read: Any = read, size: int = size
                ) -> float:
                    """Of files that were just opened, indexed and hashed: sources keep what they decoded last."""
                    rows_of = read(server.url(f"*.{kind}"), storage_options=options)
                    rows_of.definition.origin.fingerprint()
                    proxy.clear()
                    began = time.perf_counter()
                    for _ in rows_of.batch(STEP).to_numpy(threads=1):
                        pass
                    return float(size / (time.perf_counter() - began) / 1e6)

                epoch(proxy.options)
                requests, log = proxy.requests, list(proxy.counts.log)
                reading = read(server.url(f"*.{kind}"), storage_options=server.options).batch(STEP).plan().reading
                assert reading is not None
                targets.append(
                    judge(
                        f"{kind}: requests of an epoch, times the plan's", requests / reading.requests, 1.2, most=True
                    )
                )
                found = medians(rounds({"epoch": epoch, "bare": _bare(client, log, size)}, count))
                rows.append([kind, requests, round(found["epoch"]), round(found["bare"])])
    table("Remote files", [tuple(map(str, row)) for row in rows], ("files", "requests", "epoch MB/s", "obstore MB/s"))
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {"rows": rows, "targets": targets}
    save("remote_files", facts)
    return facts


if __name__ == "__main__":
    run()
