"""Masked-LM: right shares, right places, and randomness that belongs to the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import RecordError, UsageError
from penstock.collate.record_id import record_ids
from penstock.facades.preprocessed.collate import create_mlm_collate

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
    drawn = batch["input_ids"][swapped]
    assert drawn.min() > 3  # never a special token as a replacement
    assert len(np.unique(drawn)) > 0.5 * min(len(drawn), VOCAB - 4)  # all over the vocabulary, not one for all
    assert np.bincount(drawn).max() < 0.02 * len(drawn)


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


def test_marks_may_be_missing_as_an_attention_mask_may() -> None:
    ids = list(range(10, 60))
    marked = {"input_ids": ids, "special_tokens_mask": [1] * 25 + [0] * 25}
    for bare in ({"input_ids": ids, "special_tokens_mask": None}, {"input_ids": ids}):
        batch = mlm(probability=1.0)([marked, bare])
        assert (batch["labels"] != -100).sum(axis=1).tolist() == [25, 50]
        assert (mlm(probability=1.0)([bare])["labels"] != -100).all()
        assert "special_tokens_mask" not in batch


@pytest.mark.parametrize("kind", [list, np.array])
@pytest.mark.parametrize("side", ["right", "left"])
def test_marks_lie_on_their_tokens_however_rows_are_padded_and_cut(kind: Any, side: Any) -> None:
    rows = [
        {"input_ids": kind([10, 11, 12, 13]), "special_tokens_mask": kind([1, 0, 0, 1])},
        {"input_ids": kind([14]), "special_tokens_mask": kind([0])},
    ]
    batch = mlm(probability=1.0, padding_side=side)(rows)
    assert unpad(batch, "labels") == [[-100, 11, 12, -100], [14]]
    cut = mlm(probability=1.0, padding_side=side, max_length=3, truncation_side="left")(rows)
    assert unpad(cut, "labels") == [[11, 12, -100], [14]]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ([1, 0], "'special_tokens_mask' to be as long as 'input_ids'"),
        ([1, 0, 0, 0], "'special_tokens_mask' to be as long as 'input_ids'"),
        (1, "'special_tokens_mask' to be a flat sequence of integers"),
        ([0.5, 0, 0], "rows of integers"),
    ],
)
def test_marks_that_do_not_fit_their_row(bad: Any, text: str) -> None:
    rows = [{"input_ids": [10], "special_tokens_mask": [0]}, {"input_ids": [10, 11, 12], "special_tokens_mask": bad}]
    with pytest.raises(RecordError) as caught:
        mlm()(rows)
    assert text in str(caught.value)
    assert caught.value.where == "row 1 of the batch"


def test_record_ids_come_from_the_row_or_its_content() -> None:
    assert record_ids({"index": [7, np.int64(8)], "input_ids": [[1], [2]]}).tolist() == [7, 8]
    assert record_ids({"record": [9], "input_ids": [[1]]}).tolist() == [9]
    by_name = record_ids({"record": ["a", "b"], "input_ids": [[1], [1]]})
    assert by_name[0] != by_name[1]
    lists, arrays = record_ids({"input_ids": [[1, 2]]}), record_ids({"input_ids": [np.array([1, 2], np.int32)]})
    assert lists.tolist() == arrays.tolist()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mlm(probability=2.0), "`probability` in"),
        (lambda: mlm(mask_share=0.8, random_share=0.3), "shares of 0 or more"),
        (lambda: create_mlm_collate(0, 1, 2), "ordinary tokens"),
    ],
)
def test_nonsense_is_refused(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


def test_missing_column_is_named() -> None:
    with pytest.raises(RecordError, match="a column 'input_ids'"):
        mlm()([{"x": 1}])
