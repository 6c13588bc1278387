"""Arguments and data of the wrong kind for a verb are refused, with the right line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps


@pytest.mark.parametrize("seed", [True, False, None, 1.5, "7"])
def test_a_seed_is_an_integer(seed: Any) -> None:
    with pytest.raises(ps.UsageError, match=r"an integer for seed= in .shuffle\(\)"):
        ps.from_texts(["a", "b"]).shuffle(seed)


def test_an_integer_of_numpy_is_the_same_seed() -> None:
    numbers = ps.from_arrays({"x": range(9)})
    assert numbers.shuffle(np.int64(7)) == numbers.shuffle(7)


@pytest.mark.parametrize("to", ["longest", 4])
@pytest.mark.parametrize("first", [True, False])
def test_text_cannot_be_padded(to: Any, first: bool) -> None:
    texts = ps.from_texts(["a", "bb"])
    pipeline = texts.pad(to).batch(2) if first else texts.batch(2).pad(to)
    with pytest.raises(ps.UsageError, match=r"\.tokenize\(tokenizer\) before \.pad\(\)"):
        pipeline.to_numpy(threads=0).batch_at(0)


def test_numbers_beside_text_are_padded() -> None:
    records = ps.from_texts(["a", "bb"]).map(lambda record: {**record, "ids": np.arange(len(record["text"]))})
    assert records.pad().batch(2).to_numpy().batch_at(0)["ids"].tolist() == [[0, 0], [0, 1]]


def test_a_text_file_is_no_token_store(tmp_path: Path) -> None:
    for name, size in (("a.txt", 5), ("b.jsonl", 9000)):
        (tmp_path / name).write_bytes(b"x" * size)
        with pytest.raises(ps.StoreError, match=r"the folder that `penstock prepare` wrote(.|\n)*penstock\.prepare\("):
            ps.open_store(tmp_path / name)
