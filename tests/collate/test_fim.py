"""Fill-in-the-middle: nothing lost, what belongs to a token stays with it, and cuts that belong to the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import RecordError, UsageError
from penstock.facades.preprocessed.collate import create_fim_collate

PAD, PRE, MID, SUF = 0, 1001, 1002, 1003


def unpad(batch: dict[str, Any], name: str) -> list[list[int]]:
    return [row[mask == 1].tolist() for row, mask in zip(batch[name], batch["attention_mask"], strict=True)]


def fim(**options: Any) -> Any:
    return create_fim_collate(PAD, PRE, MID, SUF, **{"rate": 1.0, "shift": False, "return_tensors": "np", **options})


def undo(row: list[int], spm: bool) -> list[int]:
    """The document a rearranged row was made of."""
    pre, mid, suf = (row.index(t) for t in (PRE, MID, SUF))
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
    turned = [row for row in made if row[0] == PRE]
    assert abs(len(turned) / 2000 - 0.5) < 0.04
    assert abs(sum(row[1] == SUF for row in turned) / len(turned) - 0.25) < 0.05
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


@pytest.mark.parametrize("eos", [None, 9])
@pytest.mark.parametrize("spm", [False, True])
def test_the_middle_alone_is_learnt(eos: int | None, spm: bool) -> None:
    """The two forms share their cuts, so the first, whose middle can be told from its tokens, tells the other's."""
    text = list(range(10, 40))
    rows = [{"index": i, "input_ids": text + ([] if eos is None else [eos])} for i in range(40)]
    batch = fim(eos_token_id=eos, learn="middle", spm_rate=float(spm))(rows)
    told = fim(eos_token_id=eos, spm_rate=0.0)(rows)
    sizes = set()
    for ids, labels, plain in zip(
        *(b.tolist() for b in (batch["input_ids"], batch["labels"], told["input_ids"])), strict=True
    ):
        middle = plain[plain.index(MID) + 1 :]  # with the end token, where there is one
        assert labels == [-100] * (len(ids) - len(middle)) + middle
        assert ids[len(ids) - len(middle) :] == middle
        sizes.add(len(middle))
    assert len(sizes) > 10


def test_cuts_fall_anywhere_from_the_beginning_to_the_end() -> None:
    rows = [{"index": i, "input_ids": [10, 11, 12]} for i in range(400)]
    found = set()
    for ids in fim(spm_rate=0.0)(rows)["input_ids"].tolist():
        prefix = ids[1 : ids.index(SUF)]
        suffix = ids[ids.index(SUF) + 1 : ids.index(MID)]
        found.add((len(prefix), 3 - len(suffix)))
    assert found == {(a, b) for a in range(4) for b in range(a, 4)}


@pytest.mark.parametrize(("eos", "most"), [(None, 3), (9, 4)])
def test_a_width_without_room_for_the_three_tokens(eos: int | None, most: int) -> None:
    rows = [{"index": i, "input_ids": [10, 11, 12, 13, 9]} for i in range(8)]
    for width in range(1, most):
        batch = fim(eos_token_id=eos, max_length=width, learn="middle")(rows)
        assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 9][:width]] * 8
        assert batch["labels"].tolist() == batch["input_ids"].tolist()
    exact = fim(eos_token_id=eos, max_length=most, spm_rate=0.0)(rows)
    assert exact["input_ids"].tolist() == [[PRE, SUF, MID, *([] if eos is None else [eos])]] * 8


@pytest.mark.parametrize("mask", [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]])
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_padding_a_row_came_with_is_taken_away(mask: list[int], rate: float) -> None:
    ids = iter([5, 6, 7])
    row = [next(ids) if attended else 0 for attended in mask]
    for key in ({"index": 3}, {}):  # with an id or without, the row is the same record as without padding
        batch = fim(rate=rate)([{"input_ids": row, "attention_mask": mask, **key}])
        bare = fim(rate=rate)([{"input_ids": [5, 6, 7], **key}])
        assert {name: value.tolist() for name, value in batch.items()} == {
            name: value.tolist() for name, value in bare.items()
        }
    assert fim(rate=rate)([{"input_ids": [0, 0], "attention_mask": [0, 0]}])["attention_mask"].sum() == 3 * rate


def test_a_hole_in_the_mask_moves_with_its_token() -> None:
    rows = [{"index": i, "input_ids": [10, 11, 12, 13], "attention_mask": [1, 0, 1, 1]} for i in range(30)]
    batch = fim()(rows)
    hole = batch["input_ids"] == 11
    assert (hole.sum(axis=1) == 1).all()
    assert ((batch["attention_mask"] == 0) == hole).all()
    assert ((batch["labels"] == -100) == hole).all()


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.parametrize("spm", [0.0, 1.0])
def test_labels_and_other_columns_move_with_their_tokens(rate: float, spm: float) -> None:
    rows = [
        {
            "index": i,
            "input_ids": [*range(10, 10 + n)],
            "labels": [-100, *range(11, 10 + n)],
            "kind": [t % 7 for t in range(10, 10 + n)],
            "weight": np.arange(10, 10 + n, dtype=np.float32),
            "box": [1, 2],
        }
        for i, n in enumerate([5, 9, 1, 7])
    ]
    batch = fim(rate=rate, spm_rate=spm, pad_values={"kind": -1})(rows)
    ids, real = batch["input_ids"], (batch["input_ids"] >= 10) & (batch["input_ids"] < PRE)
    new = np.isin(ids, [PRE, MID, SUF])
    assert new.sum() == 3 * 4 * rate
    assert (batch["labels"] == np.where((ids > 10) | new, ids, -100)).all()
    assert (batch["kind"] == np.where(real, ids % 7, -1)).all()
    assert (batch["weight"] == np.where(real, ids, 0)).all()
    assert batch["weight"].dtype == np.float32
    assert batch["box"].tolist() == [[1, 2]] * 4


def test_the_middle_alone_of_labels_a_row_brings() -> None:
    row = {"index": 1, "input_ids": list(range(10, 40)), "labels": [-100 if t % 2 else t for t in range(10, 40)]}
    whole = fim(learn="middle")([{**row, "labels": row["input_ids"]}])["labels"][0]
    batch = fim(learn="middle")([row])
    assert batch["labels"][0].tolist() == [-100 if t % 2 else t for t in whole.tolist()]
    assert (whole != -100).any()


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"input_ids": [1, 2], "labels": [1]}, "'labels' to be as long as 'input_ids'"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "'attention_mask' to be as long as 'input_ids'"),
        ({"input_ids": [1, 2], "attention_mask": [0.5, 1]}, "rows of integers"),
    ],
)
def test_rows_that_do_not_fit_together(row: dict[str, Any], text: str) -> None:
    with pytest.raises(RecordError) as caught:
        fim()(
            [
                {"input_ids": [1], "labels": [1], "attention_mask": [1]} | {k: [1] for k in row},
                {"labels": [1, 2], "attention_mask": [1, 1]} | row,
            ]
        )
    assert text in str(caught.value)
    assert caught.value.where == "row 1 of the batch"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fim(rate=-1), "`rate` in"),
        (lambda: fim(spm_rate=1.5), "`spm_rate` in"),
        (lambda: fim(learn="x"), "`learn` to be"),
    ],
)
def test_nonsense_is_refused(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


def test_missing_column_is_named() -> None:
    with pytest.raises(RecordError, match="a column 'input_ids'"):
        fim()([{"x": 1}])
