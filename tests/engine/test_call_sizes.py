"""A call that reads several batches ends before they are many bytes, where the source knows its rows' sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.engine.call_sizes import MOST_BYTES

LONG = MOST_BYTES // 3
LENGTHS = [*[3] * 200, *[LONG] * 24, *[3] * 100]


def ragged() -> ps.Pipeline:
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    return ps.from_arrays({"x": Ragged(np.zeros(offsets[-1], np.uint8), offsets)})


def lines(folder: Path) -> ps.Pipeline:
    for name, part in (("a", LENGTHS[:150]), ("b", LENGTHS[150:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"x": "y" * n}) + "\n" for n in part))
    return ps.read_jsonl(str(folder / "*.jsonl"), field="x")


def tokens(folder: Path) -> ps.Pipeline:
    texts = ["y" * (n if n < 9 else n // 2) for n in LENGTHS]
    return ps.from_texts(texts).tokenize("bytes", cache_dir=folder, show_progress=False)


def table() -> Any:
    return pa.table({"x": ["y" * n for n in LENGTHS]})


def arrow(folder: Path) -> ps.Pipeline:
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=8)
    return ps.read_arrow(folder / "a.arrow")


def parquet(folder: Path) -> ps.Pipeline:
    pq.write_table(table(), folder / "a.parquet", row_group_size=8, use_dictionary=False)
    return ps.read_parquet(folder / "a.parquet")


def hugging_face(_: Path) -> ps.Pipeline:
    """With an index mapping."""
    rows = datasets.Dataset(pa.concat_tables([table().slice(150), table().slice(0, 150)]))
    return ps.from_hf(rows.select([*range(len(LENGTHS) - 150, len(LENGTHS)), *range(len(LENGTHS) - 150)]))


SOURCES: dict[str, Any] = {
    "ragged": lambda folder: ragged(),
    "objects": lambda folder: ps.from_arrays({"x": [b"y" * n for n in LENGTHS], "n": range(len(LENGTHS))}),
    "texts": lambda folder: ps.from_texts(["y" * n for n in LENGTHS]),
    "lines": lines,
    "tokens": tokens,
    "table": lambda folder: ps.from_records(table()),
    "arrow": arrow,
    "parquet": parquet,
    "hugging face": hugging_face,
    "mixture": lambda folder: ps.concat([ragged(), ragged()]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_few_large_batches_are_read_in_one_call(kind: str, tmp_path: Path) -> None:
    rows = SOURCES[kind](tmp_path)
    loader = (rows.pad(to="longest") if kind in ("tokens",) else rows).batch(1).to_numpy(threads=0)
    work = loader._work()
    assert len(work.read(0, 64)) == 64
    assert len(work.read(190, 240)) <= 12
    assert len(work.read(201, 240)) <= 3
    assert len(work.read(201, 202)) == 1
    whole = [len(batch[next(iter(batch))]) for batch in loader]
    assert len(whole) == (2 if kind == "mixture" else 1) * len(LENGTHS)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 3}, {"workers": 2}, {}], ids=str)
def test_all_batches_come_in_order(options: dict[str, int]) -> None:
    rows = ragged().enumerate("n").batch(2)
    got = [batch["n"].tolist() for batch in rows.to_numpy(**options)]  # type: ignore[arg-type]
    assert got == [[i, i + 1] for i in range(0, len(LENGTHS), 2)]
