"""Records of many files, plain and compressed, in any order: the same bytes, errors and places as file by file."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import DataError
from penstock.core.limits import LIMITS
from penstock.sources.lines import LineFiles


def write(folder: Path, files: int) -> tuple[list[Path], list[bytes]]:
    """Files of 0 to 6 records, every second one compressed, some with blank lines."""
    paths, records = [], []
    for number in range(files):
        lines = [f"file {number} record {row}".encode() for row in range(number % 7)]
        data = (b"\n\n" if number % 5 == 0 else b"\n").join(lines) + b"\n"
        path = folder / (f"{number:04d}.txt" + (".gz" if number % 2 else ""))
        path.write_bytes(gzip.compress(data) if number % 2 else data)
        paths.append(path)
        records += lines
    return paths, records


def test_records_in_any_order_are_those_of_their_files(tmp_path: Path) -> None:
    paths, records = write(tmp_path, 200)
    files = LineFiles(paths, limits=LIMITS)
    assert len(files) == len(records)
    random = np.random.default_rng(0)
    for count in (1, 7, 400):
        indices = random.integers(0, len(records), count)
        found, errors = files.fetch(indices)
        assert found == [records[i] for i in indices] and errors == []
    at = records.index(b"file 10 record 2")
    assert files.locate(at) == {"file": str(paths[10]), "line": 5, "offset": 36}


def test_all_starts_are_one_array(tmp_path: Path) -> None:
    paths, records = write(tmp_path, 50)
    files = LineFiles(paths, limits=LIMITS)
    files.fetch(np.arange(len(records)))
    assert all(np.shares_memory(i.starts, files._indexed().starts) for i in files.index if len(i.starts))
    sent = pickle.dumps(files)
    assert len(sent) < len(pickle.dumps([index.starts for index in files.index])) + 20_000 < 60_000
    again = pickle.loads(sent)
    assert again.fetch(np.arange(len(records)))[0] == records
    assert np.shares_memory(again.index[2].starts, again._indexed().starts)


def test_damaged_ends_are_errors_at_their_rows(tmp_path: Path) -> None:
    paths, records = write(tmp_path, 14)
    cut = next(p for p in paths if p.name == "0013.txt.gz")
    cut.write_bytes(gzip.compress(b"whole\nin the mid")[:-8])
    files = LineFiles(paths, limits=LIMITS)
    last = len(files) - 1
    found, errors = files.fetch(np.array([last, 3, last, 5]))
    assert found[1] == records[3] and found[3] == records[5]
    assert [error.row for error in errors] == [0, 2]
    assert "0013.txt.gz" in str(errors[0])


def test_a_changed_plain_file_is_noticed_at_its_next_read(tmp_path: Path) -> None:
    paths, records = write(tmp_path, 9)
    files = LineFiles(paths, limits=LIMITS)
    assert files.fetch(np.array([1]))[0] == [records[1]]
    path = next(path for path in paths if path.suffix == ".txt" and path.stat().st_size > 1)
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match="as it was when it was opened"):
        files.fetch(np.arange(len(records)))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="regular file"):
        files.fetch(np.arange(len(records)))
