"""Attacks on MDS datasets: names that lead out of the folder, bombs, wrong tables, and mutants of everything."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.errors import DataError, PenstockError, StoreError, UsageError
from penstock.core.limits import Limits
from penstock.preparation.write_mds import MDSWriter
from penstock.sources.mds import MDSDataset
from penstock.sources.mds_tokens import MDSTokens
from tests.hostile.fuzzing import fuzz

COLUMNS = {"tokens": "ndarray:uint16", "any": "ndarray", "text": "str", "j": "json", "n": "int"}


def dataset(folder: Path, **options: Any) -> Path:
    folder.mkdir()
    writer = MDSWriter(str(folder), COLUMNS, **{"size_limit": 700, "hashes": (), **options})
    for i in range(8):
        tokens = np.arange(i * 3, i * 3 + 20, dtype=np.uint16)
        writer.write({"tokens": tokens, "any": tokens.astype(np.int32), "text": f"text {i}", "j": {"i": [i]}, "n": i})
    writer.finish()
    return folder


def content(folder: Path, **options: Any) -> object:
    source = MDSDataset(folder, **options)
    tokens = MDSTokens(MDSDataset(folder, **options), "tokens")
    columns = source.read(np.arange(len(source)))
    windows = tokens.gather(np.arange(0, tokens.n_tokens - 4, 3), 4).tolist()
    return {name: [str(v) for v in column] for name, column in columns.items()}, windows, source.fingerprint()


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../b", "..", "a\\..\\b", "C:/x", "s3://x/y", "a\x00b", "", "./a"]
)
def test_names_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = dataset(tmp_path / "a")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = name
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="a file name below the folder of the index"):
        MDSDataset(folder)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "a", compression="gz")
    index = json.loads((folder / "index.json").read_text())
    bomb = gzip.compress(bytes(80 << 20))
    (folder / "shard.00000.mds.gz").write_bytes(bomb)
    index["shards"][0]["zip_data"]["bytes"] = len(bomb)
    index["shards"][0]["raw_data"]["bytes"] = 80 << 20
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(PenstockError, match="decompressed bytes per compressed byte"):
        MDSDataset(folder, limits=Limits(expansion_free_bytes=1 << 20)).read(np.array([0]))


def test_more_data_than_the_index_says(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "a", compression="gz")
    path = folder / "shard.00000.mds.gz"
    data = gzip.compress(gzip.decompress(path.read_bytes()) + b"x")
    path.write_bytes(data)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["zip_data"]["bytes"] = len(data)
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(StoreError, match="when decompressed"):
        MDSDataset(folder).read(np.array([0]))


def test_unknown_hashes_are_refused_or_ignored_on_request(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "a")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["hashes"] = {"shake_128": "00"}
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match="hashes of a known kind"):
        MDSDataset(folder)
    assert len(MDSDataset(folder, verify="off").read(np.array([0]))) == 5


def test_columns_that_the_shard_calls_otherwise(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "a")
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        shard["column_encodings"][shard["column_names"].index("text")] = "bytes"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(StoreError, match="as the index says"):
        MDSDataset(folder).read(np.array([0]))


def test_a_bad_sample_is_a_bad_record(tmp_path: Path) -> None:
    import penstock as ps

    folder = dataset(tmp_path / "a", size_limit=1 << 20)
    path = folder / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"text 5", b"\xff\xff\xff\xff\xff\xff"))
    with pytest.raises(DataError, match=r"(?s)encoding str.*shard.00000.mds, sample 5, column 'text'"):
        ps.read_mds(folder).peek(8)
    batches = ps.read_mds(folder, on_error="skip").batch(8).to_numpy()
    assert sum(len(batch["n"]) for batch in batches) == 8


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_mutants_of_an_index(tmp_path: Path, compression: str | None) -> None:
    folder = dataset(tmp_path / "a", compression=compression)
    path = folder / "index.json"

    def read(mutant: bytes) -> object:
        path.write_bytes(mutant)
        return content(folder)

    assert fuzz(read, path.read_bytes(), 400)["refused"] > 80


@pytest.mark.parametrize("compression", [None, "zstd", "gz"])
def test_mutants_of_a_shard(tmp_path: Path, compression: str | None) -> None:
    folder = dataset(tmp_path / "a", compression=compression)
    path = folder / ("shard.00000.mds" + (f".{compression}" if compression else ""))

    def read(mutant: bytes) -> object:
        path.write_bytes(mutant)
        return content(folder)

    assert fuzz(read, path.read_bytes(), 300)["refused"] > 60


def test_mutants_of_a_shard_with_hashes_are_noticed(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "a", hashes=("xxh64",))
    path = folder / "shard.00000.mds"

    def read(mutant: bytes) -> object:
        path.write_bytes(mutant)
        return content(folder)

    counts = fuzz(read, path.read_bytes(), 300, checked=True)
    assert counts["refused"] == 300


def test_mutants_with_the_size_of_the_index(tmp_path: Path) -> None:
    """The size no longer protects: table, configuration and values must."""
    folder = dataset(tmp_path / "a", size_limit=1 << 20)
    path, good = folder / "shard.00000.mds", (folder / "index.json").read_bytes()
    size = path.stat().st_size

    def read(mutant: bytes) -> object:
        path.write_bytes(mutant)
        (folder / "index.json").write_bytes(good.replace(b'"bytes":%d' % size, b'"bytes":%d' % len(mutant)))
        return content(folder)

    assert fuzz(read, path.read_bytes(), 300)["refused"] > 80


def test_nothing_is_written_beside_the_data(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "a", compression="zstd")
    before = sorted(path.name for path in folder.iterdir())
    content(folder)
    assert sorted(path.name for path in folder.iterdir()) == before
    shutil.rmtree(folder)
