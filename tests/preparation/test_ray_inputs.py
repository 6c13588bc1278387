"""Preparation on Ray from a bucket, of every kind of file and with verbs: the bytes of a local run over local files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import penstock as ps
from tests.preparation.test_on_ray import cluster, contents, ray
from tests.storage.remote_stores import upload

__all__ = ["cluster", "ray"]  # fixtures

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own start

SETTINGS: dict[str, Any] = {"group_bytes": 20_000, "show_progress": False}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that ends without a line break, an empty one, compressed ones; quoted line breaks; no rows."""
    root = tmp_path_factory.mktemp("inputs")
    for name in ("jsonl", "parquet", "csv"):
        (root / name).mkdir()
    rows = [{"text": "é漢\n " * (i % 7) + f"row {i % 450} " + "word " * (i % 31), "n": i} for i in range(2000)]
    lines = [json.dumps(row, ensure_ascii=bool(row["n"] % 2)) for row in rows]
    (root / "jsonl" / "a.jsonl").write_text("\n".join(lines[:900]))
    (root / "jsonl" / "b.jsonl").write_text("")
    (root / "jsonl" / "c.jsonl.gz").write_bytes(gzip.compress("\n\n".join(lines[900:1300]).encode()))
    (root / "jsonl" / "d.jsonl.zst").write_bytes(zstandard.compress("\r\n".join(lines[1300:]).encode()))
    table = pa.Table.from_pylist(rows)
    for name, part in (("a", table[:1200]), ("b", table[:0]), ("c", table[1200:])):
        pq.write_table(part, root / "parquet" / f"{name}.parquet", row_group_size=130)
    quoted = "".join(f'"a ""quoted"" {i},\nline",{i}\n' for i in range(1000))
    (root / "csv" / "a.csv").write_text("text,n\n" + quoted)
    return root


def keep(record: dict[str, Any]) -> bool:
    return len(record["text"]) % 3 != 0


def change(record: dict[str, Any]) -> dict[str, Any]:
    return record | {"text": record["text"].upper()}


READERS: dict[str, Callable[..., Any]] = {"jsonl": ps.read_jsonl, "parquet": ps.read_parquet, "csv": ps.read_csv}
VERBS: dict[str, Callable[..., Any]] = {
    "filter and map": lambda rows, cache: rows.filter(keep).map(change),
    "exact": lambda rows, cache: rows.filter(keep).dedup(cache_dir=cache),
    "minhash": lambda rows, cache: rows.dedup(method="minhash", cache_dir=cache),
}


@pytest.mark.parametrize("verbs", VERBS)
@pytest.mark.parametrize("kind", READERS)
def test_a_bucket_on_ray_gives_the_bytes_of_local_files(
    ray: Any, s3: Any, inputs: Path, tmp_path: Path, kind: str, verbs: str
) -> None:
    url = upload(inputs / kind, s3.url(tmp_path.name), s3.options)
    local = VERBS[verbs](READERS[kind](inputs / kind), tmp_path / "cache")
    remote = VERBS[verbs](READERS[kind](url, storage_options=s3.options), tmp_path / "other cache")
    here = ps.prepare(local, "bytes", tmp_path / "here", **SETTINGS)
    there = ps.prepare(remote, "bytes", tmp_path / "there", cluster="ray", **SETTINGS)
    assert (here.id, here.documents) == (there.id, there.documents)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
