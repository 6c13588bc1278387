"""Preference pairs in every spelling and both layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock import RecordError, UsageError
from penstock.batching.preference import create_preference_collate

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


def test_refusals() -> None:
    with pytest.raises(RecordError, match="a row with 'rejected' or 'rejected_input_ids'") as caught:
        collate()([PAIRS[0], {"prompt": [1], "chosen": [2]}])
    assert caught.value.where == "row 1 of the batch"
    with pytest.raises(RecordError, match="'labels' of 'chosen' to be as long"):
        collate()([{"chosen": {"input_ids": [1], "labels": [1, 2]}, "rejected": [1]}])
    with pytest.raises(UsageError, match="`layout` to be"):
        collate(layout="both")
    with pytest.raises(UsageError, match="a list of rows"):
        collate()([])
