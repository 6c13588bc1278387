"""A call of several batches ends when it has read too many bytes, where the source does not know its rows' sizes."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import penstock as ps
from penstock.core.read_budget import PIECE
from penstock.engine import batches

LONG = 1 << 16
LENGTHS = [*[3] * 200, *[LONG] * 24, *[3] * 100]
CALL_BYTES = 6 * LONG  # of the tests


class Items:
    """Sizes are known once a record has been read."""

    fingerprint = "long records after short ones"

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": "y" * LENGTHS[number]}


class ManyItems(Items):
    def __init__(self) -> None:
        self.asked: list[int] = []

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        self.asked.append(len(numbers))
        return [self[number] for number in numbers]


def table() -> Any:
    return pa.table({"x": ["y" * n for n in LENGTHS]})


def parquet(folder: Path) -> ps.Pipeline:
    """One row group: its average says nothing about a row."""
    pq.write_table(table(), folder / "a.parquet", row_group_size=len(LENGTHS), use_dictionary=False)
    return ps.read_parquet(folder / "a.parquet")


def arrow(folder: Path, compression: str = "uncompressed") -> ps.Pipeline:
    pyarrow.feather.write_feather(table(), folder / "a.arrow", compression=compression, chunksize=len(LENGTHS))
    return ps.read_arrow(folder / "a.arrow")


def array_record(folder: Path) -> ps.Pipeline:
    records = ArrayRecordWriter(str(folder / "a.array_record"), "group_size:64")
    for n in LENGTHS:
        records.write(b"y" * n)
    records.close()
    return ps.read_array_record(folder / "a.array_record")


def mds(folder: Path) -> ps.Pipeline:
    layout = {
        "column_encodings": ["str"], "column_names": ["x"], "column_sizes": [None], "compression": None,
        "format": "mds", "hashes": [], "size_limit": 1 << 30, "version": 2,
    }  # fmt: skip
    head, samples = orjson.dumps(layout), [np.array([n], "<u4").tobytes() + b"y" * n for n in LENGTHS]
    first = 4 * (len(samples) + 2) + len(head)
    offsets = np.cumsum([first, *map(len, samples)]).astype("<u4")
    data = np.array([len(samples)], "<u4").tobytes() + offsets.tobytes() + head + b"".join(samples)
    (folder / "shard.00000.mds").write_bytes(data)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    shard = layout | {"raw_data": raw, "samples": len(samples), "zip_data": None}
    (folder / "index.json").write_bytes(orjson.dumps({"shards": [shard], "version": 2}))
    return ps.read_mds(folder)


def recordings(folder: Path) -> ps.Pipeline:
    for i, n in enumerate(LENGTHS):
        with wave.open(str(folder / f"{i:03d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(n // 4 * 2 + 2))
    return ps.read_audio(folder, None).decode_audio(8000)


SOURCES: dict[str, Callable[[Path], ps.Pipeline]] = {
    "dataset": lambda folder: ps.from_dataset(Items()),
    "dataset of many items": lambda folder: ps.from_dataset(ManyItems()),
    "parquet": parquet,
    "arrow": arrow,
    "compressed arrow": lambda folder: arrow(folder, "lz4"),
    "array record": array_record,
    "mds": mds,
    "recordings": recordings,
    "mixture": lambda folder: ps.concat([ps.from_dataset(Items()), ps.from_dataset(Items())]),
    "changed": lambda folder: parquet(folder).enumerate("n").rename({"x": "z"}),
    "pair": lambda folder: ps.zip([parquet(folder), ps.from_arrays({"n": np.arange(len(LENGTHS))})]),
}


def lengths(loader: Any) -> list[int]:
    found: list[int] = []
    for batch in loader:
        column = next(batch[name] for name in ("x", "z", "bytes", "audio") if name in batch)
        found += list(map(len, column))
    return found


@pytest.mark.parametrize("kind", SOURCES)
def test_a_call_of_rows_that_grow_is_cut(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CALL_BYTES", CALL_BYTES)
    loader = SOURCES[kind](tmp_path).batch(1).to_numpy(threads=0)
    work = loader._work()
    assert len(work.read(0, 64)) == 64
    assert len(work.read(190, 240)) <= 16
    assert work._widest <= 16, "the next calls begin with as many"
    assert len(work.read(201, 240)) <= 6
    assert len(work.read(201, 202)) == 1, "one batch alone is always read"
    whole = lengths(loader)
    assert len(whole) == (2 if kind == "mixture" else 1) * len(LENGTHS)
    assert [n > 100 for n in whole[: len(LENGTHS)]] == [n > 100 for n in LENGTHS]


def test_calls_become_wide_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CALL_BYTES", CALL_BYTES)
    monkeypatch.setattr(batches, "WIDER_AFTER", 2)
    work = ps.from_dataset(Items()).batch(1).to_numpy(threads=0)._work()
    narrow = len(work.read(190, 240))
    for _ in range(8):
        work.read(0, 64)
    assert narrow <= 16 and len(work.read(0, 64)) == 64


def test_records_are_asked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one batch at least: a dataset may read a chunk for it."""
    items = ManyItems()
    work = ps.from_dataset(items).batch(40).to_numpy(threads=0)._work()
    items.asked.clear()
    assert len(work.read(0, 4)) == 4 and items.asked == [40] * 4
    items.asked.clear()
    work = ps.from_dataset(items).batch(2).to_numpy(threads=0)._work()
    items.asked.clear()
    assert len(work.read(0, PIECE)) == PIECE and items.asked == [PIECE, PIECE]


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 3}, {"workers": 2}, {}], ids=str)
def test_all_batches_come_in_order(options: dict[str, int], tmp_path: Path) -> None:
    rows = parquet(tmp_path).batch(2)
    got = [list(map(len, batch["x"])) for batch in rows.to_numpy(**options)]  # type: ignore[arg-type]
    assert got == np.array(LENGTHS).reshape(-1, 2).tolist()


def test_batches_that_grow_when_they_are_made_are_handed_over_early() -> None:
    """Padding makes a large batch of few bytes: those after it are made in another call."""
    rows = datasets.Dataset.from_dict({"input_ids": [[1] * (n if i % 2 else 3) for i, n in enumerate(LENGTHS)]})
    work = ps.from_hf(rows).batch(32).pad(to="longest").to_numpy(threads=0)._work()
    assert len(work.batches(0, 4)) == 4
    assert len(work.batches(6, 9)) == 1


@pytest.mark.parametrize("output", ["numpy", "torch", "jax"])
def test_texts_and_objects_count(output: str) -> None:
    texts = ["y" * 10_000] * 4
    pictures = [np.zeros((50 + i, 50), np.float32) for i in range(4)]
    files = [{"bytes": b"x" * 10_000, "path": "a.png"}] * 4
    columns = {"text": texts, "files": files, "n": np.arange(4)} | ({"p": pictures} if output == "numpy" else {})
    loader = getattr(ps.from_arrays(columns).batch(4), f"to_{output}")()
    size = loader.output.nbytes(loader.batch_at(0))
    assert 80_000 <= size - (sum(p.nbytes for p in pictures) if output == "numpy" else 0) < 82_000
