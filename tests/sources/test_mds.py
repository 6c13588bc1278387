"""MosaicML MDS datasets, written by the real MDSWriter (tests/data/mds.zip) and by our own."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import pickle
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import penstock as ps
from penstock.cli.main import main
from penstock.core.errors import DataError, FileMissing, LimitError, StoreError, UsageError
from penstock.core.limits import Limits
from penstock.preparation.write_mds import MDSWriter
from penstock.sources.formats import format_of
from penstock.sources.mds import MDSDataset
from penstock.sources.mds_tokens import MDSTokens
from penstock.testing import assert_elastic, assert_exact_resume
from tests.data.make_mds import COLUMNS, TOKENS, pixels, record

ARCHIVE = Path(__file__).parent.parent / "data" / "mds.zip"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """What MDSWriter of mosaicml-streaming 0.13.0 wrote."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path / "real")
    return tmp_path / "real"


def written(folder: Path, documents: list[Any], **options: Any) -> Path:
    folder.mkdir(parents=True)
    writer = MDSWriter(str(folder), {"tokens": "ndarray:uint16", "source": "str"}, **{"size_limit": 400, **options})
    for i, tokens in enumerate(documents):
        writer.write({"tokens": np.asarray(tokens, np.uint16), "source": f"s{i % 3}"})
    writer.finish()
    return folder


def ids(pipeline: ps.Pipeline) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in pipeline.peek(1000)]


EXPECTED = [tokens.tolist() for tokens in TOKENS]


def test_every_encoding_of_the_real_writer(real: Path) -> None:
    source = MDSDataset(real / "records")
    assert len(source) == 8
    assert set(source.columns) == set(COLUMNS)
    assert len(source.paths) == 4
    order = np.array([7, 0, 3, 3, 1])
    columns = source.read(order)
    assert [columns[name].dtype.name for name in ("n", "u8", "i16", "u64", "f16", "f32", "f64", "si", "sf")] == [
        "int64", "uint8", "int16", "uint64", "float16", "float32", "float64", "int64", "float64",
    ]  # fmt: skip
    for row, i in enumerate(order.tolist()):
        for name, value in record(i).items():
            found = columns[name][row]
            if isinstance(value, np.ndarray):
                assert found.dtype == value.dtype
                np.testing.assert_array_equal(found, value)
            elif name in ("f16", "f32"):
                assert found == found.dtype.type(value)
            elif name == "sd":
                assert found == str(value)
            else:
                assert found == value, name
        for name in ("png", "pil"):
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(columns[name][row]))), pixels(i))
        assert columns["jpg"][row].startswith(b"\xff\xd8\xff")
        assert [item[:4] for item in columns["pngs"][row]] == [b"\x89PNG"] * (i % 3)


def test_pictures_are_decoded(real: Path) -> None:
    for column in ("png", "pil"):
        pipeline = ps.read_mds(real / "records", columns=[column]).decode_images((4, 5), column=column, crop=None)
        images = next(iter(pipeline.batch(8).to_numpy()))["image"]
        assert images.shape[0] == 8


@pytest.mark.parametrize("name", ["zstd", "gz", "bytes"])
def test_tokens_of_the_real_writer(real: Path, name: str) -> None:
    pipeline = ps.open_mds(real / name, dtype="int64" if name == "bytes" else None)
    assert ids(pipeline) == EXPECTED
    stream = np.concatenate(TOKENS)
    source = pipeline.definition.origin
    assert isinstance(source, MDSTokens)
    assert source.n_tokens == len(stream)
    starts = np.random.default_rng(1).integers(0, len(stream) - 40, 200)
    np.testing.assert_array_equal(source.gather(starts, 40), stream[starts[:, None] + np.arange(40)])
    documents = source.documents_at(np.arange(len(stream)))
    np.testing.assert_array_equal(documents, np.repeat(np.arange(12), [len(t) for t in TOKENS]))


def test_windows_and_packs_equal_those_of_an_array(real: Path) -> None:
    stream = np.concatenate(TOKENS).astype(np.uint16)
    same = ps.open_tokens(stream, np.cumsum([0, *map(len, TOKENS)]))
    for build in (
        lambda p: p.windows(16).shuffle(seed=3).batch(4),
        lambda p: p.pack(32).shuffle(seed=3).batch(2),
        lambda p: p.shuffle(seed=3).batch(4).pad(64),
    ):
        one, other = build(ps.open_mds(real / "zstd")).to_numpy(), build(same).to_numpy()
        for mine, expected in zip(one, other, strict=True):
            assert mine.keys() == expected.keys()
            for name in expected:
                np.testing.assert_array_equal(mine[name], expected[name])


def test_the_invariant(real: Path) -> None:
    def build(batch: int = 4) -> Any:
        return ps.open_mds(real / "zstd").windows(8).shuffle(seed=7).batch(batch)

    assert_exact_resume(build)
    assert_elastic(build, batch=8, worlds=(1, 2), threads=(0, 2))
    records = ["text", "typed", "fixed"]
    assert_exact_resume(lambda: ps.read_mds(real / "records", columns=records).shuffle(seed=7).batch(2))


def test_shards_are_the_blocks_of_a_lane_shuffle(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [[i, i + 1] for i in range(64)])
    assert MDSDataset(folder).block_sizes().sum() == 64
    assert len(MDSDataset(folder).block_sizes()) > 3

    def build(batch: int = 8) -> Any:
        return ps.read_mds(folder, columns=["tokens"]).shuffle(seed=7, lanes=4).batch(batch)

    assert_exact_resume(build)
    assert_elastic(build, batch=8, worlds=(1, 2), threads=(0, 2))
    rows = [tuple(row) for batch in build().to_numpy() for row in batch["tokens"].tolist()]
    assert sorted(rows) == [(i, i + 1) for i in range(64)]


def test_pickles_are_refused_and_other_columns_read(real: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)without pickles.*column 'obj'.*columns="):
        ps.read_mds(real / "pickle")
    assert ps.read_mds(real / "pickle", columns=["n"]).peek() == [{"n": 5}]
    index = json.loads((real / "zstd" / "index.json").read_text())
    for shard in index["shards"]:
        shard["column_encodings"][shard["column_names"].index("source")] = "pkl"
    (real / "zstd" / "index.json").write_text(json.dumps(index))
    with pytest.raises(StoreError, match="as the index says"):  # the pickle does not matter, but the shards disagree
        ps.open_mds(real / "zstd")


@pytest.mark.parametrize("compression", [None, "gz", "zstd"])
def test_own_writer(tmp_path: Path, compression: str | None) -> None:
    documents = [[], [1], list(range(255)), list(range(256)), list(range(300)), [65535]]
    folder = written(tmp_path / "own", documents, compression=compression, hashes=("sha1", "xxh64"))
    assert ids(ps.open_mds(folder, "tokens")) == documents
    assert [row["source"] for row in ps.read_mds(folder, columns=["source"]).peek(9)] == [f"s{i % 3}" for i in range(6)]
    shards = json.loads((folder / "index.json").read_text())["shards"]
    assert len(shards) > 2
    assert all((shard["zip_data"] is None) == (compression is None) for shard in shards)


def test_several_datasets_one_after_another(tmp_path: Path) -> None:
    parts = [written(tmp_path / "root" / name, [[i, i + 1]] * 2) for i, name in enumerate("abc")]
    expected = [[i, i + 1] for i in range(3) for _ in range(2)]
    assert ids(ps.open_mds(parts, "tokens")) == expected
    assert ids(ps.open_mds(tmp_path / "root", "tokens")) == expected  # no index of its own: its subfolders
    shards = [
        {**shard, "raw_data": {**shard["raw_data"], "basename": f"{part.name}/{shard['raw_data']['basename']}"}}
        for part in parts
        for shard in json.loads((part / "index.json").read_text())["shards"]
    ]
    (tmp_path / "root" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))  # as merge_index does
    assert ids(ps.open_mds(tmp_path / "root", "tokens")) == expected


def test_splits_are_never_joined(tmp_path: Path) -> None:
    for name in ("train", "val"):
        written(tmp_path / name, [[len(name)]])
    with pytest.raises(UsageError, match=r"(?s)one split.*train, val.*split='train'"):
        ps.read_mds(tmp_path)
    assert ids(ps.open_mds(tmp_path, "tokens", split="val")) == [[3]]
    with pytest.raises(UsageError, match=r"a subfolder 'test'"):
        ps.read_mds(tmp_path, split="test")


def test_datasets_of_other_columns_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [[1]])
    (tmp_path / "two").mkdir()
    writer = MDSWriter(str(tmp_path / "two"), {"tokens": "ndarray:int32"})
    writer.write({"tokens": np.array([1], np.int32)})
    writer.finish()
    with pytest.raises(UsageError, match=r"(?s)column '(source|tokens)' in the encoding.*in every shard"):
        ps.read_mds([one, tmp_path / "two"])


def test_usage_errors(real: Path, tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match=r"an index.json"):
        ps.read_mds(tmp_path / "none")
    with pytest.raises(UsageError, match=r"columns of the dataset: source, tokens"):
        ps.read_mds(real / "zstd", columns=["text"])
    with pytest.raises(UsageError, match=r"dtype, the type of the tokens in a column of bytes"):
        ps.open_mds(real / "bytes")
    with pytest.raises(UsageError, match=r"dtype uint16, as stored"):
        ps.open_mds(real / "zstd", dtype="int32")
    with pytest.raises(UsageError, match=r"(?s)a column of token ids.*the encoding 'str'"):
        ps.open_mds(real / "zstd", "source")
    with pytest.raises(StoreError, match=r"a number of int64 tokens"):
        written_bytes = tmp_path / "odd"
        written_bytes.mkdir()
        writer = MDSWriter(str(written_bytes), {"tokens": "bytes"})
        writer.write({"tokens": b"12345"})
        writer.finish()
        ps.open_mds(written_bytes, dtype="int64")


PACKERS = {
    "br": lambda data: pa.Codec("brotli").compress(data, asbytes=True),
    "bz2": bz2.compress,
    "snappy": lambda data: pa.Codec("snappy").compress(data, asbytes=True),
}


@pytest.mark.parametrize("kind", PACKERS)
def test_compressions_of_the_other_writer(tmp_path: Path, kind: str) -> None:
    """As MDSWriter of 0.13.0 writes them: one call of the codec for a shard, and its hashes for both files."""
    documents = [list(range(n)) for n in range(1, 90)]
    folder = written(tmp_path / "a", documents, compression="gz", hashes=("sha1",))
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        data = gzip.decompress((folder / shard["zip_data"]["basename"]).read_bytes())
        packed = PACKERS[kind](data)
        name = f"{shard['raw_data']['basename']}.{kind}"
        (folder / name).write_bytes(packed)
        hashes = {"sha1": hashlib.sha1(packed, usedforsecurity=False).hexdigest()}
        shard |= {"compression": f"{kind}:5", "zip_data": {"basename": name, "bytes": len(packed), "hashes": hashes}}
    assert len(index["shards"]) > 5
    (folder / "index.json").write_text(json.dumps(index))
    assert ids(ps.open_mds(folder)) == documents

    shard = index["shards"][0]
    at, size = folder / shard["zip_data"]["basename"], shard["raw_data"]["bytes"]
    shard["raw_data"]["hashes"] = shard["zip_data"]["hashes"] = {}
    content = gzip.decompress((folder / "shard.00000.mds.gz").read_bytes())
    bad = [PACKERS[kind](content[:-1]), PACKERS[kind](content + b"1"), PACKERS[kind](content)[:-1], b"", bytes(90)]
    for packed in bad:
        at.write_bytes(packed)
        shard["zip_data"]["bytes"] = len(packed)
        (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(DataError, match=f"{kind[:2]}|{size} bytes when decompressed"):
            ps.read_mds(folder).peek(1)
    shard["raw_data"]["bytes"] = 1 << 31
    at.write_bytes(PACKERS[kind](content))
    shard["zip_data"]["bytes"] = at.stat().st_size
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(LimitError, match="decompression bomb"):
        ps.read_mds(folder).peek(1)


@pytest.mark.parametrize("compression", ["lzma", "zip:3"])
def test_other_compressions_are_refused(tmp_path: Path, compression: str) -> None:
    folder = written(tmp_path / "a", [[1]], compression="gz")
    text = (folder / "index.json").read_text().replace('"compression":"gz"', f'"compression":"{compression}"')
    (folder / "index.json").write_text(text)
    with pytest.raises(UsageError, match=r"(?s)with gz, zstd, bz2, br, snappy.*compression='zstd'"):
        ps.read_mds(folder)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_changed_byte_is_noticed_where_there_are_hashes(tmp_path: Path, compression: str | None) -> None:
    folder = written(tmp_path / "a", [list(range(50))] * 3, compression=compression, hashes=("sha256",))
    path = folder / ("shard.00000.mds" + (".zstd" if compression else ""))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"the sha256 hash of the index"):
        ps.read_mds(folder).peek()
    with pytest.raises(StoreError, match=r"the sha256 hash of the index"):
        ps.read_mds(folder, verify="open")
    if compression is None:
        assert len(ps.read_mds(folder, verify="off").peek(3)) == 3


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [[1, 2], [3, 4]], hashes=())
    source = MDSDataset(folder)
    source.read(np.array([0]))
    path = folder / "shard.00000.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"the file as it was when it was opened"):
        source.read(np.array([0]))


def test_shards_that_do_not_fit_the_temporary_file_are_fetched_again(tmp_path: Path) -> None:
    documents = [list(range(i, i + 60)) for i in range(40)]
    folder = written(tmp_path / "a", documents, compression="zstd")
    most = max(s["raw_data"]["bytes"] for s in json.loads((folder / "index.json").read_text())["shards"])
    source = MDSDataset(folder, limits=Limits(spool_bytes=5 * most))
    found: list[Any] = [None] * 4

    def read(number: int) -> None:
        order = np.random.default_rng(number).permutation(40)
        found[number] = all(
            source.column("tokens", np.array([i]))[0].tolist() == documents[i] for _ in range(3) for i in order.tolist()
        )

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 4
    with pytest.raises(LimitError, match=r"half of limits.spool_bytes"):
        MDSDataset(folder, limits=Limits(spool_bytes=most)).read(np.array([0]))


@pytest.fixture
def remote(real: Path) -> Iterator[str]:
    """The real datasets behind a URL."""
    import fsspec

    files = fsspec.filesystem("memory")
    files.put(str(real), "/mds-test", recursive=True)
    yield "memory://mds-test"
    files.rm("/mds-test", recursive=True)


@pytest.mark.parametrize("verify", ["first-touch", "off"])
def test_a_url_reads_as_the_folder_does(real: Path, remote: str, verify: Any) -> None:
    assert ids(ps.open_mds(f"{remote}/zstd", verify=verify)) == EXPECTED
    assert ids(ps.open_mds(f"{remote}/bytes", dtype="int64", verify=verify)) == EXPECTED
    columns = ["text", "any", "j"]
    one, other = MDSDataset(f"{remote}/records", columns=columns, verify=verify), MDSDataset(real / "records")
    for row in range(8):
        assert one.read(np.array([row]))["text"][0] == other.read(np.array([row]))["text"][0]
    assert one.fingerprint() == MDSDataset(real / "records", columns=columns).fingerprint()
    assert MDSDataset(f"{remote}/bytes").fingerprint() == MDSDataset(real / "bytes").fingerprint()


def test_fingerprints_are_of_content(tmp_path: Path) -> None:
    one = MDSDataset(written(tmp_path / "a", [[1, 2]]))
    assert one.fingerprint() == MDSDataset(written(tmp_path / "b", [[1, 2]])).fingerprint()
    assert one.fingerprint() != MDSDataset(written(tmp_path / "c", [[1, 3]])).fingerprint()
    without = [MDSDataset(written(tmp_path / str(i), [[1, i]], hashes=())).fingerprint() for i in (2, 2 + 1)]
    assert len(set(without)) == 2


def test_pickles_of_sources_read_the_same(real: Path) -> None:
    source = ps.open_mds(real / "zstd").definition.origin
    assert isinstance(source, MDSTokens)
    source.read(np.arange(12))
    again = pickle.loads(pickle.dumps(source))
    assert again.read(np.array([5]))["input_ids"][0].tolist() == EXPECTED[5]


def test_recognised_by_content(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert format_of(str(real / "records")).name == "mds"
    assert format_of(str(real / "records" / "index.json")).name == "mds"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.json").write_text('{"text": "no dataset of Mosaic"}\n')
    assert format_of(str(tmp_path / "other")).name == "jsonl"
    assert main(["info", str(real / "zstd"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["records"], facts["compression"]) == ("MosaicML MDS", 12, "zstd")
    assert main(["bench", str(real / "zstd"), "--length", "8", "--batch", "2", "--seconds", "0.2"]) == 0
    capsys.readouterr()
    assert main(["peek", str(real / "records"), "--rows", "2"]) == 0
    assert "läuft 1" in capsys.readouterr().out


def test_a_column_that_is_named_like_a_loss_mask_is_only_a_column(tmp_path: Path) -> None:
    writer = MDSWriter(str(tmp_path), {"tokens": "ndarray:uint16", "loss_runs": "ndarray:uint32"})
    writer.write({"tokens": np.array([1, 2], np.uint16), "loss_runs": np.array([0, 1], np.uint32)})
    writer.finish()
    assert ps.read_mds(tmp_path).peek()[0]["loss_runs"].tolist() == [0, 1]


def test_texts_are_tokenised(real: Path, tmp_path: Path) -> None:
    made = ps.prepare(ps.read_mds(real / "records", columns=["text"]), "bytes", tmp_path / "store")
    assert made.documents == 8
