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
