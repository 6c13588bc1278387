"""Masked-LM and fill-in-the-middle: right shares, right places, and randomness that belongs to the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import RecordError, UsageError
from penstock.batching.fim import create_fim_collate
from penstock.batching.mlm import create_mlm_collate
from penstock.batching.record_id import record_ids

PAD, CLS, SEP, MASK, VOCAB = 0, 1, 2, 3, 1000


def mlm(**options: Any) -> Any:
    settings = {"special_token_ids": [CLS, SEP], "return_tensors": "np", **options}
    return create_mlm_collate(PAD, MASK, VOCAB, **settings)


def mlm_rows(count: int, length: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    bodies = [rng.integers(4, VOCAB, int(n)).tolist() for n in rng.integers(1, length, count)]
    return [{"index": i, "input_ids": [CLS, *body, SEP]} for i, body in enumerate(bodies)]


def unpad(batch: dict[str, Any], name: str) -> list[list[int]]:
    return [row[mask == 1].tolist() for row, mask in zip(batch[name], batch["attention_mask"], strict=True)]


def test_shares_are_15_and_80_10_10() -> None:
    rows = mlm_rows(300, 400)
    batch = mlm()(rows)
    original = create_mlm_collate(PAD, MASK, VOCAB, probability=0.0, return_tensors="np")(rows)["input_ids"]
    open_ = (batch["attention_mask"] == 1) & (original > 3)
    chosen = batch["labels"] != -100
    assert not (chosen & ~open_).any()
    assert (batch["labels"][chosen] == original[chosen]).all()
    assert (batch["input_ids"][~chosen] == original[~chosen]).all()
    share = chosen.sum() / open_.sum()
    masked = (batch["input_ids"][chosen] == MASK).mean()
    kept = (batch["input_ids"][chosen] == original[chosen]).mean()
    assert abs(share - 0.15) < 0.01
    assert abs(masked - 0.8) < 0.02
    assert abs(kept - 0.1) < 0.02
    swapped = chosen & (batch["input_ids"] != MASK) & (batch["input_ids"] != original)
    assert batch["input_ids"][swapped].min() > 3  # never a special token as a replacement


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 16])
def test_choices_belong_to_the_record(side: Any, multiple: int | None) -> None:
    rows = mlm_rows(12, 60)
    together = unpad(mlm()(rows), "input_ids")
    other = mlm(padding_side=side, pad_to_multiple_of=multiple)
    alone = [unpad(other([row]), "input_ids")[0] for row in rows]
    backwards = unpad(other(rows[::-1]), "input_ids")[::-1]
    assert together == alone == backwards


def test_seed_epoch_and_record_change_the_choices() -> None:
    rows = mlm_rows(8, 200)
    first = unpad(mlm()(rows), "labels")
    assert first == unpad(mlm()(rows), "labels")
    assert first != unpad(mlm(seed=1)(rows), "labels")
    assert first != unpad(mlm().at_epoch(1)(rows), "labels")
    assert unpad(mlm(epoch=1)(rows), "labels") == unpad(mlm()([{**r, "epoch": 1} for r in rows]), "labels")
    moved = [{**row, "index": row["index"] + 100} for row in rows]
    assert first != unpad(mlm()(moved), "labels")


def test_left_truncation_keeps_the_choices_of_the_tokens_that_stay() -> None:
    row = {"index": 5, "input_ids": list(range(100, 200))}
    whole = mlm()([row])["labels"][0]
    cut = mlm(max_length=40, truncation_side="left")([row])["labels"][0]
    assert cut.tolist() == whole[-40:].tolist()


def test_marked_special_tokens_are_left_alone() -> None:
    row = {"input_ids": [10] * 50 + [11] * 50, "special_tokens_mask": [1] * 50 + [0] * 50}
    batch = mlm(probability=1.0)([row])
    assert (batch["labels"][0, :50] == -100).all()
    assert (batch["labels"][0, 50:] == 11).all()
    assert "special_tokens_mask" not in batch


def test_record_ids_come_from_the_row_or_its_content() -> None:
    assert record_ids({"index": [7, np.int64(8)], "input_ids": [[1], [2]]}).tolist() == [7, 8]
    assert record_ids({"record": [9], "input_ids": [[1]]}).tolist() == [9]
    by_name = record_ids({"record": ["a", "b"], "input_ids": [[1], [1]]})
    assert by_name[0] != by_name[1]
    lists, arrays = record_ids({"input_ids": [[1, 2]]}), record_ids({"input_ids": [np.array([1, 2], np.int32)]})
    assert lists.tolist() == arrays.tolist()


def fim(**options: Any) -> Any:
    return create_fim_collate(PAD, 1001, 1002, 1003, **{"rate": 1.0, "shift": False, "return_tensors": "np", **options})


def undo(row: list[int], spm: bool) -> list[int]:
    """The document a rearranged row was made of."""
    pre, mid, suf = (row.index(t) for t in (1001, 1002, 1003))
    assert pre == 0
    if spm:
        assert suf == 1
        return row[mid + 1 :] + row[suf + 1 : mid]
    return row[1:suf] + row[mid + 1 :] + row[suf + 1 : mid]


@settings(deadline=None, max_examples=80)
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5), spm=st.booleans(), seed=st.integers(0, 99))
def test_fim_loses_nothing(lengths: list[int], spm: bool, seed: int) -> None:
    rows = [{"index": i, "input_ids": list(range(10, 10 + n))} for i, n in enumerate(lengths)]
    batch = fim(spm_rate=float(spm), seed=seed)(rows)
    for row, made in zip(rows, unpad(batch, "input_ids"), strict=True):
        assert len(made) == len(row["input_ids"]) + 3
        assert undo(made, spm) == row["input_ids"]
    assert unpad(batch, "labels") == unpad(batch, "input_ids")


def test_fim_shares_and_keys() -> None:
    rows = [{"index": i, "input_ids": list(range(10, 60))} for i in range(2000)]
    batch = fim(rate=0.5, spm_rate=0.25)(rows)
    made = unpad(batch, "input_ids")
    turned = [row for row in made if row[0] == 1001]
    assert abs(len(turned) / 2000 - 0.5) < 0.04
    assert abs(sum(row[1] == 1003 for row in turned) / len(turned) - 0.25) < 0.05
    assert unpad(fim(rate=0.5, spm_rate=0.25)(rows[::-1]), "input_ids")[::-1] == made
    assert unpad(fim(rate=0.5, spm_rate=0.25).at_epoch(1)(rows), "input_ids") != made
    assert fim(rate=0.0)(rows[:2])["input_ids"].tolist() == [row["input_ids"] for row in rows[:2]]


def test_fim_end_token_room_and_middle_only() -> None:
    rows = [{"index": i, "input_ids": [*range(10, 40), 9], "text": "t"} for i in range(20)]
    batch = fim(eos_token_id=9, max_length=20, learn="middle")(rows)
    assert batch["input_ids"].shape == (20, 20)
    assert (batch["input_ids"][:, -1] == 9).all()
    assert batch["text"] == ["t"] * 20
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        learnt = [t for t in labels if t != -100]
        assert ids[-len(learnt) :] == learnt
        assert all(t == -100 for t in labels[: len(ids) - len(learnt)])
    shifted = fim(shift=True)(rows[:1])
    assert shifted["labels"][0, :-1].tolist() == shifted["input_ids"][0, 1:].tolist()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mlm(probability=2.0), "`probability` in"),
        (lambda: mlm(mask_share=0.8, random_share=0.3), "shares of 0 or more"),
        (lambda: create_mlm_collate(0, 1, 2), "ordinary tokens"),
        (lambda: fim(rate=-1), "`rate` in"),
        (lambda: fim(learn="x"), "`learn` to be"),
    ],
)
def test_nonsense_is_refused(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


def test_missing_column_is_named() -> None:
    with pytest.raises(RecordError, match="a column 'input_ids'"):
        fim()([{"x": 1}])
    with pytest.raises(RecordError, match="a column 'input_ids'"):
        mlm()([{"x": 1}])
