"""ArrayRecord files."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import penstock as ps
from penstock.cli.main import main
from penstock.testing import assert_elastic, assert_exact_resume
from tests.hostile.fuzzing import mutants


def write(path: Path, count: int = 60, first: int = 0) -> Path:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for i in range(first, first + count):
        writer.write(b"record %d" % i)
    writer.close()
    return path


def test_records_and_the_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write(tmp_path / "a.array_record"), write(tmp_path / "b.array_record", 20, 60)

    def make(batch: int) -> ps.Pipeline:
        return ps.read_array_record([one, two]).shuffle(seed=7).batch(batch)

    source = pickle.loads(pickle.dumps(make(1))).definition.origin
    assert source.read(np.array([79, 0, 60]))["bytes"].tolist() == [b"record 79", b"record 0", b"record 60"]
    assert source.locate(65) == {"file": str(two), "record": 5}
    assert_exact_resume(lambda: make(16), epochs=1)
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=8)
    assert main(["info", str(one)]) == 0 and "60" in capsys.readouterr().out
    assert main(["peek", str(one)]) == 0 and "record 0" in capsys.readouterr().out


READ = """
import sys, pathlib, numpy as np, penstock as ps
for path in sorted(pathlib.Path(sys.argv[1]).glob("m*.array_record")):
    try:
        rows = ps.read_array_record(path).definition.origin
        rows.read(np.arange(min(len(rows), 100)))
    except ps.PenstockError:
        print("refused")
"""


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "a.array_record", 5).read_bytes()
    for i, mutant in enumerate(mutants(data, 60, seed=1)):
        (tmp_path / f"m{i}.array_record").write_bytes(mutant)
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
    assert done.stdout.count("refused") > 5
    (tmp_path / "empty.array_record").write_bytes(b"")
    with pytest.raises(ps.DataError, match=r"empty\.array_record"):
        ps.read_array_record(tmp_path / "empty.array_record")


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Its reader then returns records that are empty, without an error."""
    path = write(tmp_path / "a.array_record", 4000)
    source = ps.read_array_record(path).definition.origin
    assert len(source.read(np.array([0]))["bytes"][0])
    records = source._records

    def cut(file: int, places: list[int]) -> list[bytes]:
        os.truncate(path, 0)
        return records(file, places)

    source._records = cut
    with pytest.raises(ps.DataError, match="the file as it was when it was opened"):
        source.read(np.array([3990]))
