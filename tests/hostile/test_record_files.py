"""CSV, JSON arrays and Arrow files that are damaged: a PenstockError or other values, never a crash or other errors.

A crash would end the test run too, so Arrow files are read in a child process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.errors import PenstockError
from tests.hostile.fuzzing import fuzz, mutants

ROWS = [{"text": f'say "{i}",\nor not', "n": i, "x": i / 3} for i in range(12)]


def test_csv_and_json(tmp_path: Path) -> None:
    import pandas as pd

    def read(suffix: str, reader, data: bytes) -> list:
        path = tmp_path / f"a{suffix}"
        path.write_bytes(data)
        rows = reader(path).definition.origin
        found = []
        for i in range(len(rows)):
            try:
                found.append(str(rows.read(np.array([i]))))
            except PenstockError:
                found.append("bad")
        texts = [t for chunk in rows.iterate() for t in chunk.texts]
        return [found, texts]

    table = pd.DataFrame(ROWS).to_csv(index=False).encode()
    counts = fuzz(lambda data: read(".csv", ps.read_csv, data), table, 400)
    assert counts["other"] > 100
    counts = fuzz(lambda data: read(".json", ps.read_json, data), json.dumps(ROWS).encode(), 400)
    assert counts["refused"] > 100


ARROW = """
import sys, pathlib, numpy as np, penstock as ps
from penstock.core.errors import PenstockError
counts = {"refused": 0, "read": 0}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.arrow")):
    try:
        rows = ps.read_arrow(path).rows()
        if len(rows) < 1 << 20:
            rows.read(np.arange(min(len(rows), 1000)))
        counts["read"] += 1
    except PenstockError:
        counts["refused"] += 1
print(counts["refused"], counts["read"])
"""


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_arrow(tmp_path: Path, kind: str) -> None:
    table = pa.table({"text": [r["text"] for r in ROWS], "n": [r["n"] for r in ROWS], "ids": [[1, 2], []] * 6})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for compressed in (False, True):
        sink = pa.BufferOutputStream()
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(sink, table.schema, options=options if compressed else None) as writer:
            writer.write_table(table, max_chunksize=5)
        for i, data in enumerate(mutants(sink.getvalue().to_pybytes(), 150, seed=int(compressed))):
            (tmp_path / f"{compressed}{i}.arrow").write_bytes(data)
    done = subprocess.run([sys.executable, "-c", ARROW, str(tmp_path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, read = map(int, done.stdout.split())
    assert refused + read == 300 and refused > 50
