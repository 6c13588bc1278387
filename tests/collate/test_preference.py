"""Preference pairs in every spelling and both layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock import RecordError, UsageError
from penstock.facades.preprocessed.collate import create_preference_collate

PAIRS = [
    {"prompt": [1, 2], "chosen": [3, 4, 5], "rejected": [6], "margin": 0.5},
    {"prompt": [7], "chosen": [8], "rejected": [9, 10, 11, 12], "margin": 1.5},
]


def collate(**options: Any) -> Any:
    return create_preference_collate(0, **{"return_tensors": "np", **options})


def test_concatenated_has_the_chosen_first() -> None:
    batch = collate()(PAIRS)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5], [7, 8, 0, 0, 0], [1, 2, 6, 0, 0], [7, 9, 10, 11, 12]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1] * 5]
    assert batch["labels"].tolist() == [
        [-100, -100, 3, 4, 5],
        [-100, 8, -100, -100, -100],
        [-100, -100, 6, -100, -100],
        [-100, 9, 10, 11, 12],
    ]
    assert batch["margin"].tolist() == [0.5, 1.5]


def test_separate_has_widths_of_its_own() -> None:
    both, apart = collate(padding_side="left")(PAIRS), collate(layout="separate", padding_side="left")(PAIRS)
    assert apart["chosen_input_ids"].tolist() == [[1, 2, 3, 4, 5], [0, 0, 0, 7, 8]]
    assert apart["rejected_labels"].tolist() == [[-100, -100, -100, -100, 6], [-100, 9, 10, 11, 12]]
    assert both["input_ids"][:2].tolist() == apart["chosen_input_ids"].tolist()
    assert "input_ids" not in apart


def test_every_spelling_gives_the_same() -> None:
    expected = collate()(PAIRS)
    flat = [
        {
            "prompt_input_ids": np.array(p["prompt"]),
            "chosen_input_ids": torch.tensor(p["chosen"]),
            "rejected_input_ids": p["rejected"],
            "prompt": "the text",
            "margin": p["margin"],
        }
        for p in PAIRS
    ]
    short = [{f"{k}_ids" if k != "margin" else k: v for k, v in p.items()} for p in PAIRS]
    whole = []
    for p in PAIRS:
        row: dict[str, Any] = {"margin": p["margin"]}
        for name in ("chosen", "rejected"):
            row[name] = {"input_ids": p["prompt"] + p[name], "labels": [-100] * len(p["prompt"]) + p[name]}
        whole.append(row)
    for rows in (flat, short, whole):
        found = collate()(rows)
        assert set(found) == set(expected)
        assert all(found[name].tolist() == expected[name].tolist() for name in expected)


def test_shift_and_truncation() -> None:
    assert collate(shift=True)(PAIRS)["labels"][0].tolist() == [-100, 3, 4, 5, -100]
    cut = collate(max_length=3, truncation_side="left")(PAIRS)
    assert cut["input_ids"].tolist() == [[3, 4, 5], [7, 8, 0], [1, 2, 6], [10, 11, 12]]
    assert isinstance(collate(return_tensors=True)(PAIRS)["input_ids"], torch.Tensor)


LABELS = [-100, 2, 3]


@pytest.mark.parametrize(
    "chosen",
    [
        {"chosen": [1, 2, 3], "chosen_labels": LABELS},
        {"chosen_ids": [1, 2, 3], "chosen_labels": LABELS},
        {"chosen_input_ids": [1, 2, 3], "chosen_labels": LABELS},
        {"chosen": {"input_ids": [1, 2, 3]}, "chosen_labels": LABELS},
        {"chosen": {"input_ids": [1, 2, 3], "labels": LABELS}},
        {"chosen": "the text", "chosen_ids": [1, 2, 3], "chosen_labels": LABELS},
        {"chosen": None, "chosen_ids": [1, 2, 3], "chosen_labels": np.array(LABELS)},
        {"chosen": [{"role": "user", "content": "x"}], "chosen_input_ids": [1, 2, 3], "chosen_labels": LABELS},
        {"chosen": ["a", "b"], "chosen_input_ids": torch.tensor([1, 2, 3]), "chosen_labels": LABELS},
        {"chosen": {"role": "user", "content": "x"}, "chosen_ids": [1, 2, 3], "chosen_labels": LABELS},
        {"chosen": [], "chosen_ids": [1, 2, 3], "chosen_labels": LABELS},
        {"chosen": [1, 2, 3], "chosen_input_ids": [1, 2, 3], "chosen_labels": LABELS},
    ],
)
def test_labels_of_an_answer_are_kept_however_its_ids_are_spelled(chosen: dict[str, Any]) -> None:
    batch = collate()([{**chosen, "rejected": [1, 4]}])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [1, 4, 0]]
    assert batch["labels"].tolist() == [[-100, 2, 3], [1, 4, -100]]


@pytest.mark.parametrize("text", ["text", None, [{"role": "user", "content": "x"}], [], {"role": "user"}])
@pytest.mark.parametrize("name", ["prompt_ids", "prompt_input_ids"])
def test_a_prompt_is_kept_beside_its_text(text: Any, name: str) -> None:
    batch = collate()([{"prompt": text, name: [1], "chosen_ids": [2], "rejected_ids": [3]}])
    assert batch["input_ids"].tolist() == [[1, 2], [1, 3]]
    assert batch["labels"].tolist() == [[-100, 2], [-100, 3]]


def test_masks_are_kept_and_hide_labels() -> None:
    row = {
        "prompt_ids": [1, 2],
        "prompt_attention_mask": [0, 1],
        "chosen": {"input_ids": [3, 4, 0], "attention_mask": [1, 1, 0]},
        "rejected": [5, 0],
        "rejected_attention_mask": [1, 0],
    }
    batch = collate()([row])
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1, 0], [0, 1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 3, 4, -100], [-100, -100, 5, -100, -100]]
    learnt = collate()([{**row, "prompt_labels": [1, 2]}])
    assert learnt["labels"][1].tolist() == [-100, 2, 5, -100, -100]
    none = collate()([{"chosen": [1], "rejected": [2], "chosen_labels": None, "rejected_attention_mask": None}])
    assert none["labels"].tolist() == [[1], [2]]


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "labels"])
def test_a_column_may_not_take_the_place_of_the_batch(name: str) -> None:
    rows = [{**pair, name: [1, 2]} for pair in PAIRS]
    with pytest.raises(UsageError, match="under other names than the batch's own") as caught:
        collate()(rows)
    assert caught.value.got == name
    assert caught.value.fix
    assert collate(layout="separate")(rows)[name].tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            {"chosen": "text", "rejected": [1]},
            "a row with 'chosen' or 'chosen_input_ids' (or 'chosen_ids') as token ids",
        ),
        ({"chosen": [{"role": "user"}], "rejected": [1]}, "'chosen_ids') as token ids"),
        ({"chosen": [1], "chosen_ids": [2], "rejected": [1]}, "'chosen' to say the same as 'chosen_ids'"),
        (
            {"chosen": {"input_ids": [1], "labels": [1]}, "chosen_labels": [2], "rejected": [1]},
            "\"chosen['labels']\" to say the same as 'chosen_labels'",
        ),
        ({"chosen": [1.5], "rejected": [1]}, "rows of integers"),
        ({"chosen": [[1, 2]], "rejected": [1]}, "one-dimensional"),
        ({"chosen": [[1], [2, 3]], "rejected": [1]}, "values of 'chosen' that make a NumPy array"),
        ({"chosen": np.array(3), "rejected": [1]}, "'chosen' to be a flat sequence of integers"),
        ({"chosen": [2**63], "rejected": [1]}, "rows of integers, one-dimensional, in 'chosen'"),
        ({"chosen": 3, "rejected": [1]}, "'chosen' to be a flat sequence of integers"),
        ({"chosen_ids": "text", "rejected": [1]}, "'chosen_ids' to be a flat sequence of integers"),
        ({"chosen": [1], "rejected": [1], "prompt_labels": [1]}, "token ids of 'prompt' beside 'prompt_labels'"),
        ({"chosen": [1], "rejected": [1], "rejected_attention_mask": [1, 1]}, "'attention_mask' of 'rejected'"),
        ({"chosen": [1], "rejected": [1], "prompt": [1], "prompt_attention_mask": []}, "'attention_mask' of 'prompt'"),
    ],
)
def test_what_a_row_says_twice_or_not_at_all(row: dict[str, Any], text: str) -> None:
    with pytest.raises(RecordError) as caught:
        collate()([{"chosen": [1], "rejected": [2]}, row])
    assert text in str(caught.value)
    assert caught.value.where == "row 1 of the batch"
    assert caught.value.row == 1
    assert caught.value.fix


def test_refusals() -> None:
    with pytest.raises(RecordError, match="a row with 'rejected' or 'rejected_input_ids'") as caught:
        collate()([PAIRS[0], {"prompt": [1], "chosen": [2]}])
    assert caught.value.where == "row 1 of the batch"
    with pytest.raises(RecordError, match="'labels' of 'chosen' to be as long"):
        collate()([{"chosen": {"input_ids": [1], "labels": [1, 2]}, "rejected": [1]}])
    with pytest.raises(UsageError, match="`layout` to be"):
        collate(layout="both")
    for nothing in ([], {}, None, 3):
        with pytest.raises(UsageError, match="a list of rows"):
            collate()(nothing)
