"""MDS datasets and conversions on a real S3 server, also behind a proxy that fails."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import PenstockError
from penstock.preparation.write_mds import MDSWriter
from penstock.storage import objects
from tests.data.make_mds import TOKENS
from tests.storage.fault_proxy import Faults

EXPECTED = [tokens.tolist() for tokens in TOKENS]


@pytest.fixture(scope="module")
def uploaded(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The datasets of the real MDSWriter, and a larger one without hashes, on the server."""
    folder = tmp_path_factory.mktemp("mds")
    with zipfile.ZipFile(Path(__file__).parent.parent / "data" / "mds.zip") as archive:
        archive.extractall(folder)
    large = folder / "large"
    large.mkdir()
    writer = MDSWriter(str(large), {"tokens": "ndarray:uint16", "n": "int32"}, size_limit=20_000, hashes=())
    for i in range(400):
        writer.write({"tokens": np.arange(i, i + 200, dtype=np.uint16), "n": i})
    writer.finish()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            assert objects.put_new(s3.url("mds", path.relative_to(folder).as_posix()), path, s3.options)
    return str(s3.url("mds"))


def ids(pipeline: ps.Pipeline) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in pipeline.peek(1000)]


@pytest.mark.parametrize("verify", ["first-touch", "off"])
@pytest.mark.parametrize("name", ["zstd", "gz", "bytes"])
def test_tokens_from_a_bucket(s3: Any, uploaded: str, name: str, verify: Any) -> None:
    dtype = "int64" if name == "bytes" else None
    assert ids(ps.open_mds(f"{uploaded}/{name}", dtype=dtype, verify=verify, storage_options=s3.options)) == EXPECTED


def test_a_batch_of_many_shards_is_a_few_requests_at_once(fault_proxy: Any, uploaded: str) -> None:
    source = ps.read_mds(f"{uploaded}/large", storage_options=fault_proxy.options)
    loader = source.shuffle(seed=3).batch(100).to_numpy(threads=0)
    first = loader.batch_at(0)
    shards = len(source.definition.origin.paths)  # type: ignore[union-attr]
    assert shards > 5
    before = fault_proxy.requests
    second = loader.batch_at(1)
    assert fault_proxy.requests - before <= 2 * shards  # tables are known, near samples share a request
    for batch in (first, second):
        rows = zip(batch["n"].tolist(), batch["tokens"], strict=True)
        assert all(tokens.tolist() == list(range(n, n + 200)) for n, tokens in rows)


def test_the_same_batches_under_faults(fault_proxy: Any, uploaded: str, s3: Any) -> None:
    def run(options: dict[str, Any]) -> list[Any]:
        tokens = ps.open_mds(f"{uploaded}/large", "tokens", storage_options=options)
        return [b["input_ids"].tolist() for b in tokens.windows(64).shuffle(seed=5).batch(128).to_numpy(threads=0)]

    expected = run(s3.options)
    fault_proxy.clear(Faults(refuse=0.2, reset=0.05, seed=1))
    assert run(fault_proxy.options) == expected


def test_wrong_bytes_are_read_again_where_there_are_hashes(fault_proxy: Any, uploaded: str) -> None:
    rows = ps.read_mds(f"{uploaded}/records", columns=["n"], storage_options=fault_proxy.options).rows()
    fault_proxy.clear(Faults(wrong=1.0, times=1, methods=("GET",), seed=2))
    assert rows.read(np.arange(8))["n"].tolist() == [-i for i in range(8)]
    assert fault_proxy.made["wrong"] > 0


def test_a_shard_that_stays_wrong_is_an_error(s3: Any, tmp_path: Path) -> None:
    writer = MDSWriter(str(tmp_path), {"n": "int32"}, hashes=("sha1",))
    writer.write({"n": 7})
    writer.finish()
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    for each in tmp_path.iterdir():
        objects.put_new(s3.url("wrong", each.name), each, s3.options)
    with pytest.raises(PenstockError, match=r"(?s)the sha1 hash of the index.*shard.00000.mds"):
        ps.read_mds(s3.url("wrong"), storage_options=s3.options | {"retry_config": {"max_retries": 1}}).peek()


def test_a_replaced_shard_is_noticed(s3: Any, tmp_path: Path) -> None:
    writer = MDSWriter(str(tmp_path), {"n": "int32"}, hashes=())
    for i in range(4):
        writer.write({"n": i})
    writer.finish()
    for path in tmp_path.iterdir():
        objects.put_new(s3.url("replaced", path.name), path, s3.options)
    rows = ps.read_mds(s3.url("replaced"), storage_options=s3.options).rows()
    rows.read(np.arange(2))
    shard = s3.url("replaced", "shard.00000.mds")
    data = bytearray((tmp_path / "shard.00000.mds").read_bytes())
    data[-1] ^= 1
    objects.delete([shard], s3.options)
    assert objects.put_new(shard, bytes(data), s3.options)
    with pytest.raises(PenstockError, match="replaced|changed|ETag"):
        rows.read(np.arange(2, 4))


def test_conversions_from_a_bucket(s3: Any, uploaded: str, tmp_path: Path) -> None:
    made = ps.convert(f"{uploaded}/zstd", tmp_path / "store", storage_options=s3.options)
    assert ids(ps.open_store(made.path)) == EXPECTED
    url = s3.url("converted-store")
    for path in Path(made.path).iterdir():
        objects.put_new(f"{url}/{path.name}", path, s3.options)
    again = ps.convert(url, tmp_path / "web", "megatron", storage_options=s3.options)
    assert ids(ps.open_megatron(again.path)) == EXPECTED
