"""`.pad()`: one rule for masks and labels, also where a plan pads; what it cannot pad it names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from tests.steps.test_bucket import tokens
from tests.steps.test_pack import documents, store

Lists = dict[str, list[list[int]]]


def records(**columns: list[list[int]]) -> ps.Pipeline:
    return ps.from_arrays({name: Ragged.of(rows) for name, rows in columns.items()})


def one(pipeline: ps.Pipeline) -> dict[str, Any]:
    (batch,) = list(pipeline.to_numpy(threads=0))
    return batch


IDS, MASK, LABELS = [[1, 2, 3], [4, 5]], [[1, 0, 1], [1, 1]], [[1, 2, 3], [4, 5]]
WAYS = {
    "pad": lambda p: p.batch(2).pad(),
    "pad to": lambda p: p.pad(to=3).batch(2),
    "bucket": lambda p: p.bucket([3], 2),
    "batch_tokens": lambda p: p.batch_tokens(6),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", ["input_ids", "attention_mask"])
def test_no_label_counts_where_attention_is_0(way: str, first: str) -> None:
    columns: Lists = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}
    ordered = {first: columns[first]} | columns
    batch = one(WAYS[way](records(**ordered)))
    rows = np.argsort(batch["input_ids"][:, 0])
    assert batch["attention_mask"][rows].tolist() == [[1, 0, 1], [1, 1, 0]]
    assert batch["labels"][rows].tolist() == [[1, -100, 3], [4, 5, -100]]
    assert int(batch.get("valid_labels", 4)) == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [1, 2])
def test_made_labels_follow_the_mask(way: str, world: int) -> None:
    pipeline = WAYS[way](records(attention_mask=[[1, 0, 1, 1, 1], [1, 1]], input_ids=[[1, 2, 3, 4, 5], [6, 7]]))
    if way != "pad":
        pipeline = records(attention_mask=[[1, 0, 1], [1, 1]], input_ids=[[3, 4, 5], [6, 7]])
        pipeline = WAYS[way](pipeline)
    ranks = [one(pipeline.shard(r, world)) for r in range(world)]
    found = {int(i[0]): row.tolist() for b in ranks for i, row in zip(b["input_ids"], b["labels"], strict=True)}
    # Neither a masked token nor the one before it, whose label it is, is learnt.
    want = {1: [-100, -100, 4, 5, -100], 6: [7, -100, -100, -100, -100]}
    assert found == (want if way == "pad" else {3: [-100, -100, -100], 6: [7, -100, -100]})
    if "valid_labels" in ranks[0]:
        assert {int(b["valid_labels"]) for b in ranks} == {1}


@pytest.mark.parametrize("side", ["left", "right"])
def test_sides(side: str) -> None:
    batch = one(records(input_ids=[[1, 2, 3], [4]]).pad(side=side, pad_id=9, multiple=4).batch(2))
    right = side == "right"
    assert batch["input_ids"].tolist() == ([[1, 2, 3, 9], [4, 9, 9, 9]] if right else [[9, 1, 2, 3], [9, 9, 9, 4]])
    assert batch["attention_mask"].tolist() == ([[1, 1, 1, 0], [1, 0, 0, 0]] if right else [[0, 1, 1, 1], [0, 0, 0, 1]])
    none, pad = [-100] * 4, [-100]
    assert batch["labels"].tolist() == [[2, 3, *pad * 2] if right else [*pad, 2, 3, *pad], none]


@pytest.mark.parametrize("verb", ["bucket", "batch_tokens"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_sides_of_planned_batches(verb: str, side: str) -> None:
    source = tokens([3, 1])
    pipeline = source.bucket([4], 2, pad_id=9, side=side) if verb == "bucket" else source.batch_tokens(
        8, multiple=4, pad_id=9, side=side
    )  # fmt: skip
    batch = one(pipeline)
    assert batch["input_ids"].shape == (2, 4)
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        token = int(ids[0] if side == "right" else ids[-1])
        n = [3, 1][token - 1]
        parts = [token] * n, [9] * (4 - n)
        assert ids.tolist() == (parts[0] + parts[1] if side == "right" else parts[1] + parts[0])
        assert mask.tolist() == (ids != 9).tolist()
        learnt = [token] * (n - 1) + [-100]
        assert labels.tolist() == (learnt + [-100] * (4 - n) if side == "right" else [-100] * (4 - n) + learnt)


def test_labels_may_be_left_out() -> None:
    assert "labels" not in one(records(input_ids=IDS).pad(labels=False).batch(2))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("verb", ["pad", "batch_tokens"])
def test_given_labels_are_cut_as_tokens_are_and_nothing_else(verb: str, side: str) -> None:
    for labels in ([2, 3, -100], [1, 2, 3]):  # shifted by the user, and not
        source = records(input_ids=[[1, 2, 3]], labels=[labels])
        cut = (
            source.pad(to=2, truncate=True, side=side).batch(1)
            if verb == "pad"
            else source.batch_tokens(2, overlong="truncate", side=side)
        )
        batch = one(cut)
        assert batch["input_ids"].tolist() == [[1, 2]] and batch["labels"].tolist() == [labels[:2]]
        assert int(batch.get("valid_labels", 2)) == 2


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("verb", ["pad", "batch_tokens"])
@pytest.mark.parametrize("masked", [False, True])
def test_made_labels_have_none_at_the_last_token_kept(tmp_path, verb: str, side: str, masked: bool) -> None:
    masks = [np.array([False, True, True, True]), np.array([True, True])] if masked else None
    source = store(tmp_path, [4, 2], masks)
    cut = (
        source.pad(to=3, truncate=True, side=side).batch(2)
        if verb == "pad"
        else source.batch_tokens(6, shapes=[3], overlong="truncate", side=side)
    )
    batch = one(cut)
    long, short = (row.tolist() for row in batch["labels"][np.argsort(batch["input_ids"].max(1))])
    first, second = documents([4, 2])
    assert long == [*first[1:3], -100]
    assert sorted(short) == sorted([second[1], -100, -100])
    assert int(batch.get("valid_labels", 3)) == 3


WRONG = {
    "labels": ({"labels": [[1, 2, 3], [4]]}, "'labels' to be as long as 'input_ids'", "1 and 2"),
    "mask": ({"attention_mask": [[1], [1, 1]]}, "'attention_mask' to be as long as 'input_ids'", "1 and 3"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", WRONG)
def test_columns_of_other_lengths_are_refused_with_the_record(way: str, kind: str) -> None:
    columns, text, got = WRONG[kind]
    with pytest.raises(ps.PenstockError) as caught:
        one(WAYS[way](records(input_ids=IDS, **columns)))
    assert text in str(caught.value) and got in str(caught.value)
    assert f"record {1 if kind == 'labels' else 0}" in str(caught.value)


def test_too_long_a_row_is_named_with_the_words_of_the_verb() -> None:
    with pytest.raises(ps.PenstockError) as caught:
        one(records(input_ids=[[1], [1, 2, 3]]).pad(to=2).batch(2))
    for text in ("at most 2 values", ".pad(to=2)", "record 1", ".pad(to=3)", "truncate=True"):
        assert text in str(caught.value)
    assert "max_length" not in str(caught.value)


def test_rows_that_happen_to_be_equal_are_padded_like_any_others() -> None:
    """What a function gives is one array where a block's rows are equal in length, which depends on the block."""
    lengths = ps.from_arrays({"n": np.array([2, 2, 2, 2, 3, 1])})
    loader = lengths.map(lambda r: {"input_ids": np.arange(r["n"]) + 1}).pad().batch(2).to_numpy(threads=0)
    whole = list(loader)
    assert [sorted(b) for b in whole] == [["attention_mask", "input_ids", "labels"]] * 3
    for i, batch in enumerate(whole):
        assert {k: v.tolist() for k, v in batch.items()} == {k: v.tolist() for k, v in loader.batch_at(i).items()}


def test_packs_are_left_as_they_are() -> None:
    source = tokens([3, 4, 2]).pack(8)
    assert sorted(one(source.batch(2, remainder="short").pad())) == sorted(one(source.batch(2, remainder="short")))


@pytest.mark.parametrize("to", ["longest", 8])
@pytest.mark.parametrize("ids", ["int16", "int32", "int64"])
def test_the_mask_has_one_dtype_whatever_the_ids_have(to: int | str, ids: str) -> None:
    tokens = ps.open_tokens(np.arange(30, dtype=np.uint16), [0, 5, 9, 17, 30], vocab_size=100)
    batch = next(iter(tokens.take(3).batch(3).pad(to=to).to_numpy(ids=ids, threads=0)))
    assert batch["attention_mask"].dtype == np.int64
    assert next(iter(tokens.take(3).batch(3).pad(to=to).to_jax(threads=0)))["attention_mask"].dtype == np.int32
