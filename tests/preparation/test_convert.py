"""`convert`: documents stay exactly as they are, and a result appears complete or not at all."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.core.columns import Ragged
from penstock.core.errors import DataError, UsageError
from penstock.sources.tokens import TokenStore
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter
from tests.data.make_mds import TOKENS

DOCUMENTS = [[1, 2, 3], [], [255], list(range(250)), [], [7, 7]]


def make_store(folder: Path, documents: list[list[int]], vocab_size: int, **columns: Any) -> Path:
    folder.mkdir()
    shards = []
    for at in (0, len(documents) // 2):
        stop = len(documents) // 2 if at == 0 else len(documents)
        with ShardWriter(folder / f"{at:05d}.tokens", vocab_size=vocab_size) as shard:
            some = {
                name: Ragged.of(values[at:stop], values[0].dtype) if isinstance(values, list) else values[at:stop]
                for name, values in columns.items()
            }
            shard.add(Ragged.of(documents[at:stop], np.int64), some)
        shards.append(shard.finish())
    write_manifest(folder, shards, tokenizer={"kind": "bytes", "sha256": "ab"}, eos_id=0)
    return folder


def documents_of(pipeline: ps.Pipeline) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in pipeline.peek(100_000)]


@pytest.mark.parametrize("vocab_size", [256, 50257, 200_000])
@pytest.mark.parametrize("to", ["megatron", "mds", "store"])
def test_there_and_back(tmp_path: Path, to: Any, vocab_size: int) -> None:
    documents = [[i % vocab_size for i in document] for document in [*DOCUMENTS, [vocab_size - 1] * 400]]
    store = make_store(tmp_path / "store", documents, vocab_size)
    made = ps.convert(store, tmp_path / "other", to)
    assert (made.documents, made.tokens) == (len(documents), sum(map(len, documents)))
    back = ps.convert(made.path, tmp_path / "back")
    assert back.documents == len(documents)
    assert documents_of(ps.open_store(back.path)) == documents
    one, two = TokenStore(store), TokenStore(back.path)
    assert one.dtype == two.dtype
    if to != "megatron":
        assert (two.vocab_size, two.manifest.eos_id, two.manifest.tokenizer) == (
            vocab_size, 0, {"kind": "bytes", "sha256": "ab"},
        )  # fmt: skip


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_columns_come_back_from_mds(tmp_path: Path, compression: Any) -> None:
    columns = {
        "label": np.arange(6, dtype=np.int16), "score": np.linspace(0, 1, 6, dtype=np.float32),
        "box": np.arange(24, dtype=np.uint8).reshape(6, 2, 2), "good": np.array([True, False] * 3),
        "loss_runs": [np.arange(i, dtype=np.uint32) for i in range(6)],
    }  # fmt: skip
    store = make_store(tmp_path / "store", DOCUMENTS, 256, **columns)
    made = ps.convert(store, tmp_path / "mds", "mds", compression=compression, size_limit=1000)
    assert made.lost == ["the type of column 'good': MDS has no bool, so it is uint8"]
    ps.convert(tmp_path / "mds", tmp_path / "back")
    one, two = TokenStore(store), TokenStore(tmp_path / "back")
    every = np.arange(6)
    for name in columns:
        mine, other = one.column(name, every), two.column(name, every)
        assert [np.asarray(v).tolist() for v in mine] == [np.asarray(v).tolist() for v in other]
        assert mine.dtype == other.dtype or name == "good"


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", DOCUMENTS, 256, label=np.arange(6))
    made = ps.convert(store, tmp_path / "web", "megatron")
    assert made.lost == [
        "the tokenizer's identity", "the end token's id", "the vocabulary size", "column 'label'",
    ]  # fmt: skip
    made = ps.convert(store, tmp_path / "copy", columns=[])
    assert made.lost == ["column 'label', by request"]


def read_as_megatron(prefix: Path) -> list[list[int]]:
    """As `_IndexReader` and `IndexedDataset` of Megatron-Core read a pair of files."""
    types = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}
    with open(f"{prefix}.idx", "rb") as stream:
        assert stream.read(9) == b"MMIDIDX\x00\x00"
        assert struct.unpack("<Q", stream.read(8))[0] == 1
        dtype = types[struct.unpack("<B", stream.read(1))[0]]
        sequences = struct.unpack("<Q", stream.read(8))[0]
        entries = struct.unpack("<Q", stream.read(8))[0]
        offset = stream.tell()
    buffer = memoryview(Path(f"{prefix}.idx").read_bytes())
    lengths = np.frombuffer(buffer, np.int32, sequences, offset)
    pointers = np.frombuffer(buffer, np.int64, sequences, offset + lengths.nbytes)
    documents = np.frombuffer(buffer, np.int64, entries, offset + lengths.nbytes + pointers.nbytes)
    assert lengths.shape[0] == sequences == documents[-1]
    tokens = Path(f"{prefix}.bin").read_bytes()
    return [
        np.frombuffer(tokens, dtype, int(lengths[i]), int(pointers[i])).tolist()
        for d in range(entries - 1)
        for i in range(documents[d], documents[d + 1])
    ]


@pytest.mark.parametrize("vocab_size", [256, 50257, 200_000])
def test_megatron_reads_it(tmp_path: Path, vocab_size: int) -> None:
    store = make_store(tmp_path / "store", DOCUMENTS, vocab_size)
    ps.convert(store, tmp_path / "deep" / "web", "megatron")
    assert read_as_megatron(tmp_path / "deep" / "web") == DOCUMENTS
    assert documents_of(ps.open_megatron(tmp_path / "deep" / "web")) == DOCUMENTS


def test_ids_that_megatron_cannot_hold(tmp_path: Path) -> None:
    tokens = ps.open_tokens(np.array([1, 1 << 31], np.uint32))
    with pytest.raises(DataError, match=r"(?s)token ids in \[0, 2147483647\].*unsigned 32-bit"):
        ps.convert(tokens, tmp_path / "web", "megatron")
    assert list(tmp_path.iterdir()) == []


def _tar(path: Path, documents: list[list[int]], part: str) -> None:
    with tarfile.open(path, "w") as tar:
        for number, document in enumerate(documents):
            file = io.BytesIO()
            if part == "npy":
                np.save(file, np.array(document, np.int32))
            else:
                file.write(json.dumps(document).encode())
            info = tarfile.TarInfo(f"{number:04}.{part}")
            info.size = len(file.getvalue())
            tar.addfile(info, io.BytesIO(file.getvalue()))


def _source(folder: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    rows = [{"input_ids": document, "n": i, "text": "t"} for i, document in enumerate(DOCUMENTS)]
    match kind:
        case "jsonl":
            (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            return folder / "a.jsonl", {}
        case "parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
            return str(folder / "a.parquet"), {}
        case "hf":
            datasets.Dataset.from_list(rows).save_to_disk(folder / "hf")
            return folder / "hf", {}
        case "hf object":
            return datasets.Dataset.from_list(rows), {}
        case "list":
            return rows, {}
        case "hf pipeline":
            return ps.from_hf(datasets.Dataset.from_list(rows)), {}
        case "npy" | "json":
            _tar(folder / "a.tar", DOCUMENTS, kind)
            return folder / "a.tar", {"column": kind}
        case "nanogpt":
            flat = [token for document in DOCUMENTS for token in [*document, 999]]
            np.array(flat, np.uint16).tofile(folder / "a.bin")
            return folder / "a.bin", {"eos_id": 999}
        case _:
            return ps.from_arrays({"input_ids": Ragged.of(DOCUMENTS, np.int64), "n": range(6)}), {}


@pytest.mark.parametrize(
    "kind", ["jsonl", "parquet", "hf", "hf object", "list", "hf pipeline", "npy", "json", "nanogpt", "arrays"]
)
def test_from_anything_with_ids(tmp_path: Path, kind: str) -> None:
    source, options = _source(tmp_path, kind)
    made = ps.convert(source, tmp_path / "store", vocab_size=1000, **options)
    expected = [[*document, 999] for document in DOCUMENTS] if kind == "nanogpt" else DOCUMENTS
    assert documents_of(ps.open_store(made.path)) == expected
    store = TokenStore(made.path)
    assert (store.dtype, store.vocab_size) == (np.uint16, 1000)
    if kind in ("jsonl", "parquet", "hf", "hf pipeline"):
        assert made.lost == ["column 'text'"]
        assert store.column("n", np.arange(6)).tolist() == list(range(6))  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["zstd", "gz", "bytes"])
def test_from_the_real_mds(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(Path(__file__).parent.parent / "data" / "mds.zip") as archive:
        archive.extractall(tmp_path / "real")
    options: dict[str, Any] = {"dtype": "int64"} if name == "bytes" else {}
    made = ps.convert(tmp_path / "real" / name, tmp_path / "store", **options)
    assert documents_of(ps.open_store(made.path)) == [tokens.tolist() for tokens in TOKENS]
    assert made.lost == ([] if name == "bytes" else ["column 'source'"])
    with pytest.raises(UsageError, match="the column that holds the token ids"):
        ps.convert(tmp_path / "real" / "pickle", tmp_path / "none")


def test_texts_with_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "ab"}\n{"body": "c"}\n')
    made = ps.convert(tmp_path / "a.jsonl", tmp_path / "store", tokenizer="bytes", field="body")
    assert documents_of(ps.open_store(made.path)) == [[97, 98, 256], [99, 256]]
    texts = [{"txt": "ab"}, {"txt": "c"}]
    datasets.Dataset.from_list(texts).save_to_disk(tmp_path / "hf")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, text in enumerate(texts):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(text["txt"])
            tar.addfile(info, io.BytesIO(text["txt"].encode()))
    for at, source in enumerate((tmp_path / "hf", tmp_path / "a.tar", datasets.Dataset.from_list(texts), texts)):
        ps.convert(source, tmp_path / f"{at}", tokenizer="bytes", field="txt")
        assert documents_of(ps.open_store(tmp_path / f"{at}")) == [[97, 98, 256], [99, 256]]
    with pytest.raises(UsageError, match="a store as the target of texts"):
        ps.convert(tmp_path / "a.jsonl", tmp_path / "web", "megatron", tokenizer="bytes", field="body")


def test_filters_of_a_pipeline_drop_records(tmp_path: Path) -> None:
    rows = ps.from_arrays({"input_ids": Ragged.of(DOCUMENTS, np.int64)}).filter(lambda row: len(row["input_ids"]) > 1)
    ps.convert(rows, tmp_path / "store")
    assert documents_of(ps.open_store(tmp_path / "store")) == [d for d in DOCUMENTS if len(d) > 1]


@pytest.mark.parametrize("to", ["store", "mds", "megatron"])
def test_nothing_is_written_over(tmp_path: Path, to: Any) -> None:
    store = make_store(tmp_path / "store", DOCUMENTS, 256)
    out = tmp_path / "out"
    ps.convert(store, out, to)
    with pytest.raises(UsageError, match=r"(?s)a place where nothing is yet.*--restart"):
        ps.convert(store, out, to)
    other = make_store(tmp_path / "two", [[1], [2]], 256)
    assert ps.convert(other, out, to, restart=True).documents == 2
    assert ps.convert(out, tmp_path / "check").documents == 2
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "thesis.tex").write_text("years of work")
    if to != "megatron":
        with pytest.raises(UsageError, match="a place where nothing is yet"):
            ps.convert(store, kept, to, restart=True)
    assert (kept / "thesis.tex").exists()


@pytest.mark.parametrize("to", ["store", "mds", "megatron"])
def test_a_failure_leaves_nothing_and_the_old_result(tmp_path: Path, to: Any) -> None:
    good = make_store(tmp_path / "store", DOCUMENTS, 256)
    out = tmp_path / "results" / "out"
    bad = ps.from_arrays({"input_ids": Ragged.of([[1]] * 600 + [[300]], np.int64)})
    with pytest.raises(DataError, match=r"(?s)token ids in \[0, 256\).*id 300.*document 600"):
        ps.convert(bad, out, to, vocab_size=256)
    assert list(out.parent.iterdir()) == []
    ps.convert(good, out, to)
    with pytest.raises(DataError):
        ps.convert(bad, out, to, vocab_size=256, restart=True)
    assert ps.convert(out, tmp_path / "check").documents == len(DOCUMENTS)


_SLOW = """
import sys, time, numpy as np, penstock as ps
def slow(row):
    time.sleep(0.002)
    return True
rows = ps.from_arrays({"input_ids": np.arange(4000 * 50).reshape(4000, 50) % 999}).filter(slow)
print("begun", flush=True)
ps.convert(rows, sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("to", ["store", "mds", "megatron"])
def test_a_kill_leaves_nothing_that_looks_complete(tmp_path: Path, to: Any) -> None:
    out = tmp_path / "out"
    child = subprocess.Popen([sys.executable, "-P", "-c", _SLOW, str(out), to], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        for _ in range(500):
            if any(tmp_path.rglob("*.partial")) or any(tmp_path.glob(".*partial")):
                break
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.wait(30)
        if child.stdout is not None:
            child.stdout.close()
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    store = make_store(tmp_path / "store", DOCUMENTS, 256)
    assert ps.convert(store, out, to).documents == len(DOCUMENTS)
    assert ps.convert(out, tmp_path / "check").documents == len(DOCUMENTS)


def test_usage_errors(tmp_path: Path) -> None:
    rows = ps.from_arrays({"a": [1, 2], "text": ["x", "y"]})
    with pytest.raises(UsageError, match="(?s)the column that holds the token ids.*--tokenizer"):
        ps.convert(rows, tmp_path / "out")
    with pytest.raises(DataError, match="a list of integer token ids in column 'text'"):
        ps.convert(rows, tmp_path / "out", column="text")
    with pytest.raises(UsageError, match='to="store", "megatron" or "mds"'):
        ps.convert(rows, tmp_path / "out", "tfrecord")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a path, a pipeline, a dataset or a source"):
        ps.convert(7, tmp_path / "out")
    with pytest.raises(UsageError, match="columns to keep of"):
        ps.convert(rows, tmp_path / "out", column="a", columns=["b"])
    with pytest.raises(UsageError, match="out: a URL of s3, gs or az, or a local path"):
        ps.convert(rows, "http://host/out", column="a")


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "store", DOCUMENTS, 256, label=np.arange(6))
    out = str(tmp_path / "mds")
    assert main(["convert", str(store), out, "--to", "mds", "--compression", "gz", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["documents"], facts["tokens"], facts["lost"]) == (6, sum(map(len, DOCUMENTS)), [])
    assert main(["convert", out, str(tmp_path / "web"), "--to", "megatron"]) == 0
    assert "column 'label'" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "web"), str(tmp_path / "back"), "--quiet"]) == 0
    assert documents_of(ps.open_store(tmp_path / "back")) == DOCUMENTS
    assert main(["convert", out, str(tmp_path / "web"), "--to", "megatron"]) == 1
    assert main(["convert", out, str(tmp_path / "web"), "--to", "megatron", "--restart"]) == 0


def test_into_an_object_store(tmp_path: Path, s3: Any, unconditional: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files appear once, what makes them a dataset last; nothing is overwritten or left behind."""
    from penstock.preparation.output import Output
    from penstock.storage import objects

    tokens = ps.open_tokens(np.arange(4000) % 250, np.arange(0, 4001, 100), 256)
    more: dict[str, Any] = {"storage_options": s3.options, "shard_tokens": 900, "size_limit": 4000}
    written: list[str] = []
    real = Output.put

    def put(self: Output, name: str, data: Any) -> bool:
        written.append(name)
        return real(self, name, data)

    monkeypatch.setattr(Output, "put", put)
    for to, last in (("store", "manifest.json"), ("mds", "index.json"), ("megatron", "x.idx")):
        url = s3.url("convert", to, "x")
        written.clear()
        there = ps.convert(tokens, url, to, **more)  # type: ignore[arg-type]
        here = ps.convert(tokens, tmp_path / to / "x", to, shard_tokens=900, size_limit=4000)  # type: ignore[arg-type]
        assert written[-1] == last and len(written) == (2 if to == "megatron" else len(written)) >= 2
        assert (there.path, there.tokens, there.bytes, there.lost) == (url, here.tokens, here.bytes, here.lost)
        base = s3.url("convert", to)
        found = {
            f.url[len(base) + 1 :]: objects.read_all(f.url, s3.options) for f in objects.list_files(base, s3.options)
        }
        local = {str(p.relative_to(tmp_path / to)): p.read_bytes() for p in (tmp_path / to).rglob("*") if p.is_file()}
        assert found == {name: data for name, data in local.items() if not name.startswith(".")}
        with pytest.raises(UsageError, match="(?s)a place where nothing is yet.*restart=True"):
            ps.convert(tokens, url, to, **more)  # type: ignore[arg-type]
        fewer = ps.open_tokens([1, 2, 3], [0, 3], 256)
        assert ps.convert(fewer, url, to, restart=True, **more).tokens == 3  # type: ignore[arg-type]
    objects.put_new(s3.url("convert-taken/notes.txt"), b"x", s3.options)
    with pytest.raises(UsageError, match="notes.txt, which exists"):
        ps.convert(tokens, s3.url("convert-taken"), restart=True, **more)
    bad = ps.open_tokens([1, 300], [0, 1, 2])
    with pytest.raises(DataError, match="id 300"):
        ps.convert(bad, s3.url("convert-bad"), vocab_size=256, **more)
    assert objects.list_files(s3.url("convert-bad"), s3.options) == []
    away = {"storage_options": unconditional.options}
    with pytest.raises(ps.StorageError, match="single_writer=True"):
        ps.convert(tokens, unconditional.url("convert"), **away)
    assert ps.convert(tokens, unconditional.url("convert"), single_writer=True, **away).tokens == 4000
