"""Small Parquet files that would expand to gigabytes: held as dictionaries, or refused, from the headers of pages."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import DataError, LimitError
from penstock.core.limits import LIMITS
from penstock.sources import parquet_pages
from penstock.sources.parquet import ParquetFiles

LONG = "x" * 1_000_000
HONEST = [*(f"https://example.org/a/long/path/of/pages/{i // 7:06d}/{i}" for i in range(4000)), None, "", "é" * 300]


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, dictionary_pagesize_limit=1 << 30, store_schema=False, **options)
    return path


def repeated(value: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))


def test_a_value_repeated_to_gigabytes_is_held_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": repeated(LONG, 4000), "n": np.arange(4000)}, compression="zstd")
    assert path.stat().st_size < 20_000, "which would be 4 GB"
    code = """
import re, sys, numpy as np
from penstock.sources.parquet import ParquetFiles
source = ParquetFiles(sys.argv[1])
rows = source.read(np.array([3999, 5]))
assert rows["n"].tolist() == [3999, 5] and [len(t) for t in rows["text"]] == [1_000_000] * 2
assert sum(len(chunk.texts) for chunk in source.iterate()) == 4000
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())  # maxrss carries over the parent's
print(int(peak[1]) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 700, "MB"


def test_what_cannot_be_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pages, "FREE_BYTES", 4 << 20)
    lists = pa.ListArray.from_arrays(pa.array([0, 30, 60], pa.int32()), pa.array([LONG] * 60))
    prefixes = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    bombs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"text": lists}, {}),
        ({"text": pa.array([LONG[:100_000] + str(i) for i in range(200)])}, prefixes | {"data_page_size": 1 << 30}),
        ({"text": np.ones(1_000_000)}, {}),  # one run of one value
        ({"text": pa.nulls(1_000_000, pa.string())}, {}),
        ({"text": ["x" * 8_000_000]}, {"use_dictionary": False, "compression": "zstd"}),
    ]
    allowed = replace(LIMITS, expansion_free_bytes=1 << 40)  # whatever the footer says
    for columns, options in bombs:
        path = write(tmp_path / "a.parquet", columns, **options)
        source = ParquetFiles(path, limits=allowed)
        with pytest.raises(LimitError, match=r"(?s)'text.*a\.parquet, row group 0.*raise limits\.expansion"):
            source.read(np.array([0]))
        if source.kinds["text"] == "str":
            with pytest.raises(LimitError):
                list(source.iterate())
        more = replace(allowed, expansion=1 << 40)
        assert len(ParquetFiles(path, limits=more).read(np.array([1 if len(source) > 1 else 0]))["text"]) == 1


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_honest_files_of_each_encoding_are_read_whatever_the_first_bound_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(parquet_pages, "FREE_BYTES", 1 << 20)
    words = ["yes", "no", None, LONG[:2000]]
    columns = {
        "text": HONEST, "few": [words[i % 4] for i in range(len(HONEST))],
        "list": [[one, f"{i}"] for i, one in enumerate(HONEST)], "n": list(range(len(HONEST))),
        "s": [{"a": one, "b": [one]} for one in HONEST],
    }  # fmt: skip
    codecs = ("none", "snappy", "gzip", "zstd", "brotli", "lz4")
    tables = {name: pa.array(values) for name, values in columns.items()}
    columns["m"] = [[("key", one)] for one in HONEST]
    tables["m"] = pa.array(columns["m"], pa.map_(pa.string(), pa.string()))
    for compression, encoding in itertools.product(codecs, (None, "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")):
        names = ["text", "few", "list.list.element", "s.a", "s.b.list.element", "m.key_value.key", "m.key_value.value"]
        chosen = {"use_dictionary": False, "column_encoding": dict.fromkeys(names, encoding)} if encoding else {}
        path = write(tmp_path / "a.parquet", tables, compression=compression, data_page_version=version,
                     row_group_size=1500, data_page_size=20_000, **chosen)  # fmt: skip
        source = ParquetFiles(path)
        rows = np.array([len(HONEST) - 1, 0, 3, len(HONEST) - 3, 1700, 2])
        found = source.read(rows)
        for name, values in columns.items():
            assert list(found[name]) == [values[i] for i in rows], (name, compression, encoding)
        texts = [(text, "null") for chunk in source.iterate() for text in chunk.texts]
        assert [text for text, _ in texts] == [text for text in HONEST if text is not None]


def test_a_page_header_that_is_damaged_is_a_damaged_row_group(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["one"] * 10}, row_group_size=5, compression="none")
    data = bytearray(path.read_bytes())
    data[4:8] = b"\xff" * 4
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"row group 0"):
        ps.read_parquet(path).peek(1)
    assert len(list(ps.read_parquet(path, on_error="skip").batch(2).to_numpy())) == 5
