"""Labels that are not one integer per token: classes, vectors of classes, numbers per token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock import RecordError
from penstock.core.columns import Ragged
from penstock.facades.preprocessed.collate import create_causal_lm_collate, create_collate_fn, create_fim_collate

VECTORS = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.5]]


def rows(labels: list[Any], lengths: tuple[int, ...] = (2, 4)) -> list[dict[str, Any]]:
    return [{"input_ids": [7] * n, "labels": own} for n, own in zip(lengths, labels, strict=True)]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
@pytest.mark.parametrize("lengths", [(2, 4), (3, 4), (2, 2)])
def test_a_vector_of_floats_per_row_is_stacked(make: Any, lengths: tuple[int, ...]) -> None:
    batch = create_collate_fn(0, max_length=8)(rows([make(v) for v in VECTORS], lengths))
    assert batch["labels"].tolist() == VECTORS
    assert batch["labels"].dtype == (torch.float64 if make is np.array else torch.float32)


def test_named_as_stacked_it_is_so_beside_as_many_tokens() -> None:
    chance = rows(VECTORS, (3, 3))
    assert create_collate_fn(0, max_length=8)(chance)["labels"].shape == (2, 8)
    named = create_collate_fn(0, max_length=8, stack_columns=["labels"])
    assert named(chance)["labels"].tolist() == named(rows(VECTORS))["labels"].tolist() == VECTORS
    classes = [[0, 1, 1], [1, 0, 0]]
    assert named(rows(classes))["labels"].tolist() == classes


def test_a_mask_hides_no_label_of_a_whole_row() -> None:
    data = [{**row, "attention_mask": [0, 1, 1]} for row in rows(VECTORS, (3, 3))]
    batch = create_collate_fn(0, stack_columns=["labels"])(data)
    assert batch["attention_mask"].tolist() == [[0, 1, 1]] * 2
    assert batch["labels"].tolist() == VECTORS


def test_a_float_per_token_is_padded_and_hidden() -> None:
    data = rows([[0.5, 1.5], [2.5, 3.5, 4.5, 5.5]])
    data[1]["attention_mask"] = [1, 1, 1, 0]
    batch = create_collate_fn(0)(data)
    assert batch["labels"].tolist() == [[0.5, 1.5, -100, -100], [2.5, 3.5, 4.5, -100]]
    assert batch["labels"].dtype == torch.float32
    ragged = {"input_ids": [[7, 7], [7]], "labels": Ragged.of([[0.5, 1.5], [2.5]])}
    assert create_collate_fn(0, return_tensors="np")(ragged)["labels"].tolist() == [[0.5, 1.5], [2.5, -100.0]]


def test_one_float_per_row() -> None:
    batch = create_collate_fn(0)(rows([0.5, 1.5]))
    assert batch["labels"].tolist() == [0.5, 1.5]
    assert batch["labels"].dtype == torch.float32


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([[0, 1, 1], [1, 0, 0]], "'labels' to be as long as 'input_ids'"),
        ([[0.5, 1.5, 1.5], [1.5]], "'labels' to be as long as 'input_ids'"),
        ([[2**63, 1], [1, 1, 1, 1]], "rows of integers, one-dimensional, in 'labels'"),
        ([[None, 1], [1, 1, 1, 1]], "rows of integers, one-dimensional, in 'labels'"),
        ([["a", "b"], [1, 1, 1, 1]], "rows of integers, one-dimensional, in 'labels'"),
        ([[[1], [2]], [1, 1, 1, 1]], "rows of integers, one-dimensional, in 'labels'"),
    ],
)
def test_what_is_neither_is_refused(labels: list[Any], text: str) -> None:
    with pytest.raises(RecordError) as caught:
        create_collate_fn(0)(rows(labels))
    assert text in str(caught.value)
    assert "row 0 of the batch" in str(caught.value)
    if "as long" in text:
        assert "create_seq2seq_collate" in caught.value.fix
        assert "stack_columns=['labels']" in caught.value.fix


@pytest.mark.parametrize("collate", [create_causal_lm_collate(0), create_fim_collate(0, 1, 2, 3)])
@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([1, 0], "'labels' to be a flat sequence of integers"),
        ([0.5, 1.5], "'labels' to be a flat sequence of integers"),
        (["a", "b"], "'labels' to be a flat sequence of integers"),
        ([[0.5, 1.5], [0.5] * 4], "rows of integers"),
        (VECTORS, "'labels' to be as long as 'input_ids'|rows of integers"),
    ],
)
def test_token_labels_are_asked_for_where_labels_are_tokens(collate: Any, labels: list[Any], text: str) -> None:
    with pytest.raises(RecordError, match=text) as caught:
        collate(rows(labels))
    assert "row 0 of the batch" in str(caught.value)
