"""What uses all rows of a pipeline: one budget for bad records, no empty results, and errors of our own classes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

PROMPTS = ("bytes", "{text}")

READERS: dict[str, Callable[[ps.Pipeline, Path], Any]] = {
    "prepare": lambda p, out: ps.prepare(p, "bytes", out, show_progress=False),
    "tokenize": lambda p, out: p.tokenize("bytes", cache_dir=out, show_progress=False),
    "prepare_prompts": lambda p, out: ps.prepare_prompts(p, ps.PromptEngine(*PROMPTS), out, show_progress=False),
    "convert": lambda p, out: ps.convert(p, out, tokenizer="bytes"),
    "write jsonl": lambda p, out: p.write(out, "jsonl", show_progress=False, shard_rows=7),
    "write parquet": lambda p, out: p.write(out, "parquet", show_progress=False, shard_rows=7),
    "write webdataset": lambda p, out: p.write(out, "webdataset", show_progress=False, shard_rows=7),
    "exact filter": lambda p, out: p.filter(lambda record: True, exact=True, cache_dir=out).peek(1),
    "split by key": lambda p, out: p.split({"a": 0.5, "b": None}, key="text", cache_dir=out),
    "flat_map": lambda p, out: p.flat_map(lambda record: [record], cache_dir=out),
    "unbatch": lambda p, out: p.map(lambda r: {"x": np.arange(2)}).unbatch(cache_dir=out),
    "dedup": lambda p, out: p.dedup(cache_dir=out),
    "minhash": lambda p, out: p.dedup(method="minhash", cache_dir=out),
    "cache": lambda p, out: p.cache(cache_dir=out),
    "cache in memory": lambda p, _: p.cache(memory=1 << 20),
    "to_hf": lambda p, out: p.to_hf(cache_dir=out),
    "to_hf streaming": lambda p, _: list(p.to_hf(streaming=True)),
}
# A loader over these refuses when it delivers the first row, as over `.filter()`.
KEEPS_DUPLICATES_ONLY = {"dedup", "minhash"}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """20 lines, of which 3 and 7 are broken."""
    path = tmp_path / "lines.jsonl"
    made = (json.dumps({"text": f"t{i}", "n": i}) if i not in (3, 7) else "{" for i in range(20))
    path.write_text("".join(f"{line}\n" for line in made))
    return path


@pytest.mark.parametrize("name", READERS)
def test_bad_records_count_against_one_budget(name: str, lines: Path, tmp_path: Path) -> None:
    rows = ps.read_jsonl(lines, fields=["text", "n"])
    for budget in (2, 0.2, None):
        READERS[name](rows.skip_errors(budget), tmp_path / f"out {budget}")
    for budget in (1, 0.05):
        with pytest.raises(ps.DataError, match="expected at most 1 skipped records"):
            READERS[name](rows.skip_errors(budget), tmp_path / f"out {budget}")


@pytest.mark.parametrize("name", [name for name in READERS if name not in KEEPS_DUPLICATES_ONLY])
def test_rows_of_which_nothing_is_kept_are_refused(name: str, lines: Path, tmp_path: Path) -> None:
    nothing = ps.read_jsonl(lines, fields=["text", "n"], on_error="skip").filter(lambda record: False)
    with pytest.raises((ps.DataError, ps.UsageError), match="expected at least one"):
        READERS[name](nothing, tmp_path / "out")


@pytest.mark.parametrize("name", READERS)
def test_errors_of_records_and_functions_are_ours(name: str, lines: Path, tmp_path: Path) -> None:
    with pytest.raises(ps.DataError, match="valid JSON"):
        READERS[name](ps.read_jsonl(lines, fields=["text", "n"]), tmp_path / "broken")
    texts = ps.from_texts(["a", "b", "c"])
    with pytest.raises(ps.UserCodeError, match="a bool array of"):
        READERS[name](texts.filter(lambda columns: np.ones(2, bool), batched=True), tmp_path / "mask")
    with pytest.raises(ps.UserCodeError, match="ZeroDivisionError"):
        READERS[name](texts.filter(lambda record: 1 / 0), tmp_path / "raises")


def test_values_that_datasets_cannot_store_are_named(tmp_path: Path) -> None:
    """`datasets` says "An error occurred while generating the dataset" alone."""
    for value in (uuid.UUID(int=1), {"a": 2**63}):
        with pytest.raises(ps.UsageError, match=r"(?s)values that datasets can store.*(uuid|int|Overflow)"):
            ps.from_arrays({"x": [value, value], "n": [1, 2]}).to_hf(cache_dir=tmp_path)
