"""The same tensors as transformers' collators, where both mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from penstock.core.errors import RecordError
from penstock.facades.preprocessed.collate import create_causal_lm_collate, create_collate_fn, create_seq2seq_collate
from tokenizers import Tokenizer, models


def tokenizer(side: str = "right") -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", padding_side=side)


def rows(seed: int, *, labels: bool = False, target: bool = False, masks: bool = True) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    out = []
    for n in rng.integers(1, 40, 8):
        row: dict[str, Any] = {"input_ids": rng.integers(1, 500, n).tolist()}
        if masks:
            row["attention_mask"] = [1] * int(n)
        if labels:
            row["labels"] = np.where(np.arange(n) < n // 2, -100, row["input_ids"]).tolist()
        if target:
            row["labels"] = rng.integers(1, 500, rng.integers(1, 30)).tolist()
        out.append(row)
    return out


def same(ours: dict[str, Any], theirs: Any) -> None:
    names = [name for name in theirs if theirs[name] is not None]
    assert names
    for name in names:
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("seed", range(3))
def test_padding(side: Any, multiple: int | None, seed: int) -> None:
    theirs = DataCollatorWithPadding(tokenizer(side), pad_to_multiple_of=multiple)
    ours = create_collate_fn(0, padding_side=side, pad_to_multiple_of=multiple)
    for masks in (True, False):
        data = rows(seed, masks=masks)
        same(ours(data), theirs(data))


def test_fixed_length() -> None:
    theirs = DataCollatorWithPadding(tokenizer(), padding="max_length", max_length=64)
    same(create_collate_fn(0, max_length=64)(rows(1)), theirs(rows(1)))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
def test_labels_of_the_same_length(side: Any, multiple: int | None) -> None:
    theirs = DataCollatorForSeq2Seq(tokenizer(side), pad_to_multiple_of=multiple)
    ours = create_collate_fn(0, padding_side=side, pad_to_multiple_of=multiple)
    same(ours(rows(5, labels=True)), theirs(rows(5, labels=True)))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("seed", range(3))
def test_classes_of_tokens(side: Any, multiple: int | None, seed: int) -> None:
    theirs = DataCollatorForTokenClassification(tokenizer(side), pad_to_multiple_of=multiple)
    ours = create_collate_fn(0, padding_side=side, pad_to_multiple_of=multiple)
    same(ours(rows(seed, labels=True)), theirs(rows(seed, labels=True)))


@pytest.mark.parametrize(
    "labels",
    [
        lambda rng: int(rng.integers(5)),
        lambda rng: float(rng.random()),
        lambda rng: rng.integers(0, 2, 45).astype(float).tolist(),  # longer than any row
    ],
)
def test_classes_and_numbers_of_rows(labels: Any) -> None:
    rng = np.random.default_rng(2)
    data = [{**row, "labels": labels(rng)} for row in rows(8)]
    ours, theirs = create_collate_fn(0)(data), DataCollatorWithPadding(tokenizer())(data)
    assert "labels" in theirs
    same(ours, theirs)


@pytest.mark.parametrize("side", ["right", "left"])
def test_causal_without_shift(side: Any) -> None:
    theirs = DataCollatorForLanguageModeling(tokenizer(side), mlm=False)
    ours = create_causal_lm_collate(0, shift=False, padding_side=side)
    same(ours(rows(6)), theirs(rows(6)))


def test_shift_is_what_a_model_of_theirs_does_inside() -> None:
    plain, shifted = (create_causal_lm_collate(0, shift=shift)(rows(7)) for shift in (False, True))
    assert torch.equal(shifted["labels"][:, :-1], plain["labels"][:, 1:])
    assert (shifted["labels"][:, -1] == -100).all()


@pytest.mark.parametrize("multiple", [None, 8])
def test_seq2seq_with_a_model_that_shifts(multiple: int | None) -> None:
    config = T5Config(
        vocab_size=512, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=3, pad_token_id=0
    )
    theirs = DataCollatorForSeq2Seq(tokenizer(), T5ForConditionalGeneration(config), pad_to_multiple_of=multiple)
    ours = create_seq2seq_collate(0, decoder_start_token_id=3, pad_to_multiple_of=multiple)
    for seed in range(4):
        same(ours(rows(seed, target=True)), theirs(rows(seed, target=True)))


def test_bare_rows_are_input_ids() -> None:
    data = [[5, 6, 7], [8]]
    expected = create_collate_fn(0)([{"input_ids": row} for row in data])
    for bare in (data, [tuple(r) for r in data], [np.array(r) for r in data], [torch.tensor(r) for r in data]):
        same(create_collate_fn(0)(bare), expected)
    same(
        create_collate_fn(0)(np.array([[1, 2], [3, 4]])),
        create_collate_fn(0)([{"input_ids": [1, 2]}, {"input_ids": [3, 4]}]),
    )
    theirs = DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    same(create_causal_lm_collate(0, shift=False)(data), theirs(data))


@pytest.mark.parametrize("side", ["right", "left"])
def test_masks_of_pairs_of_tokens_are_padded_in_both_directions(side: Any) -> None:
    lengths = [3, 1, 5]
    masks = [np.tri(n, dtype=np.int64) for n in lengths]
    data = [{"input_ids": list(range(1, n + 1)), "attention_mask": m} for n, m in zip(lengths, masks, strict=True)]
    plain = [{"input_ids": row["input_ids"]} for row in data]
    for make in (create_collate_fn, create_causal_lm_collate):
        for more in ({}, {"max_length": 4, "truncation_side": "left"}, {"max_length": 8}):
            flat = make(0, padding_side=side, **more)(plain)
            for heads in ((), (1,), (2,)):
                given = [
                    row
                    | {"attention_mask": np.broadcast_to(row["attention_mask"], (*heads, *row["attention_mask"].shape))}
                    for row in data
                ]
                batch = make(0, padding_side=side, **more)(given)
                seen = flat["attention_mask"].bool()
                square = batch.pop("attention_mask")
                same(batch, {name: value for name, value in flat.items() if name != "attention_mask"})
                expected = torch.tril(seen[:, :, None] & seen[:, None, :]).long()
                assert square.shape == (3, *heads, *expected.shape[1:])
                assert torch.equal(square.reshape(3, -1, *expected.shape[1:])[:, -1], expected)
    for wrong in (np.zeros((2, 3)), np.zeros((3, 3), np.float32)):
        with pytest.raises(RecordError, match=r"shape \(3, 3\) for a row of 3 tokens"):
            create_collate_fn(0)([data[0] | {"attention_mask": wrong}])


def test_without_padding_rows_must_be_equal() -> None:
    collate = create_collate_fn(0, padding=False)
    same(collate([[1, 2], [3, 4]]), {"input_ids": torch.tensor([[1, 2], [3, 4]])})
    with pytest.raises(RecordError, match="(?s)padding=False.*2 values in row 0, 1 in row 1"):
        collate([[1, 2], [3]])
    assert create_collate_fn(0, padding=False, max_length=2)([[1, 2, 3], [4, 5]])["input_ids"].tolist() == [
        [1, 2],
        [4, 5],
    ]
