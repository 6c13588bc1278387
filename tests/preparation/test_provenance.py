"""`why` after `.tokenize()` and `.cache()` names the file and line of the record, whatever was read and done before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import PenstockError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in "ab":
        lines = [json.dumps({"text": f"{name}{i}", "lang": name}) for i in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "c.csv").write_text("text,n\n" + "".join(f"c{i},{i}\n" for i in range(6)))
    pq.write_table(pa.table({"text": [f"p{i}" for i in range(6)], "n": range(6)}), tmp_path / "p.parquet")
    return tmp_path


def records(data: Path) -> ps.Pipeline:
    return ps.read_jsonl(str(data / "[ab].jsonl"), field=None)


CASES: dict[str, Callable[[Path], ps.Pipeline]] = {
    "kept columns": records,
    "one column": lambda data: ps.read_jsonl(str(data / "[ab].jsonl")),
    "filter": lambda data: records(data).filter(lambda record: record["lang"] == "b"),
    "shuffle": lambda data: records(data).shuffle(seed=3).skip(2),
    "map": lambda data: records(data).map(lambda record: {"text": record["text"]}),
    "csv": lambda data: ps.read_csv(str(data / "c.csv")).take(4),
    "parquet": lambda data: ps.read_parquet(str(data / "p.parquet")).skip(1),
    "concat": lambda data: ps.concat([records(data).select(["text"]), ps.from_texts(["x0"])]).take(11),
    "mix": lambda data: ps.mix([ps.read_jsonl(str(data / f"{n}.jsonl")) for n in "ab"], stop="all"),
    "zip": lambda data: ps.zip([records(data).select(["text"]), ps.from_arrays({"n": list(range(12))})]),
}  # fmt: skip


def check(where: dict[str, Any], text: str) -> None:
    assert Path(where["file"]).name[0] == text[0]
    number = where["row"] if text[0] == "p" else where["line"] - (2 if text[0] == "c" else 1)
    assert number == int(text[1:])


@pytest.mark.parametrize("case", CASES)
def test_tokens_know_their_line(case: str, data: Path) -> None:
    rows = CASES[case](data)
    stored = rows.tokenize("bytes", eos=False, cache_dir=data / "cache", show_progress=False)
    for loader in (
        stored.pad(2).batch(1).to_numpy(threads=0),
        stored.windows(2, stride=2).batch(1).to_numpy(threads=0) if case != "one column" else None,
    ):
        if loader is None:
            continue
        for step in range(len(loader)):
            where = loader.why(step)["from"]
            where = where if "documents" not in where else where["documents"][0]
            tokens = loader.batch_at(step)["input_ids"][0].tolist()
            check(where, bytes(tokens[:2]).decode())


@pytest.mark.parametrize("case", [name for name in CASES if name not in ("zip", "mix", "shuffle")])
def test_cached_rows_know_their_line(case: str, data: Path) -> None:
    loader = CASES[case](data).cache(cache_dir=data / "cache").batch(1).to_numpy(threads=0)
    for step in range(len(loader)):
        where = loader.why(step)["from"]
        assert where["row"] == step or where["file"].endswith(".parquet")
        check(where, loader.batch_at(step)["text"][0])


def test_rows_whose_files_are_gone_keep_their_number(data: Path) -> None:
    stored = records(data).skip(2).tokenize("bytes", cache_dir=data / "cache", show_progress=False)
    loader = stored.pad(4).batch(1).to_numpy(threads=0)
    for name in "ab":
        (data / f"{name}.jsonl").write_text("{}\n")
    try:
        where = loader.why(1)["from"]
    except PenstockError:
        pytest.fail("the tokens are still those of row 1")
    assert where["pipeline_row"] == 1


def test_a_store_that_is_opened_later_has_rows_and_no_file_0(data: Path) -> None:
    ps.prepare(records(data).skip(2), "bytes", data / "out", show_progress=False)
    where = ps.open_store(data / "out").pad(4).batch(1).to_numpy(threads=0).why(3)["from"]
    assert where["pipeline_row"] == 3
    assert "file" not in where
