"""The one padding of token columns: against a plain definition, and the same answer from everyone who pads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import RecordError, create_causal_lm_collate
from penstock.collate.layout import lay_out
from penstock.collate.tokens import IGNORE, pad_token_columns
from penstock.core.columns import Ragged
from penstock.facades.capibara.collate import Fill, collate, examples_of
from penstock.steps.pad import Pad
from penstock.steps.picks import Picks

PAD = 9
PICKS = Picks(np.empty(0, np.int64), 0)


@st.composite
def batches(draw: Any) -> dict[str, Any]:
    rows = draw(st.lists(st.lists(st.integers(0, 60_000), max_size=9), min_size=1, max_size=5))
    if draw(st.booleans()):  # long rows are copied in another way
        rows = [row * 40 for row in rows]
    mask = [[draw(st.integers(0, 1)) for _ in row] for row in rows] if draw(st.booleans()) else None
    return {"ids": rows, "mask": mask}


def by_definition(rows: list[list[int]], masks: list[list[int]] | None, width: int, side: str) -> dict[str, Any]:
    out: dict[str, Any] = {"input_ids": [], "attention_mask": [], "labels": []}
    for i, full in enumerate(rows):
        ids, mask = full[:width], ([1] * len(full) if masks is None else masks[i])[:width]
        labels = [
            ids[t + 1] if t + 1 < len(ids) and mask[t] == mask[t + 1] == 1 else IGNORE for t in range(len(ids))
        ]  # fmt: skip
        for name, row, fill in (("input_ids", ids, PAD), ("attention_mask", mask, 0), ("labels", labels, IGNORE)):
            padding = [fill] * (width - len(row))
            out[name].append(row + padding if side == "right" else padding + row)
    return out


def lists(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(batch[name]).tolist() for name in ("input_ids", "attention_mask", "labels")}


@settings(deadline=None, max_examples=80)
@given(batch=batches(), width=st.integers(1, 400), side=st.sampled_from(["right", "left"]))
def test_everyone_pads_by_the_same_rules(batch: dict[str, Any], width: int, side: Any) -> None:
    rows, mask = batch["ids"], batch["mask"]
    want = by_definition(rows, mask, width, side)
    layout = lay_out(list(map(len, rows)), side=side, length=width, max_length=width)
    columns = {"input_ids": Ragged.of(rows, np.uint16)}
    examples: list[dict[str, Any]] = [{"input_ids": row} for row in rows]
    if mask is not None:
        columns["attention_mask"] = Ragged.of(mask, np.int64)
        examples = [{**one, "attention_mask": m} for one, m in zip(examples, mask, strict=True)]
    made = {
        "lists": pad_token_columns(rows, layout, PAD, mask=mask),
        "ragged": pad_token_columns(columns["input_ids"], layout, PAD, mask=columns.get("attention_mask")),
        ".pad()": Pad(to=width, pad_id=PAD, side=side, truncate=True).padded(dict(columns), PICKS),
        "collate": create_causal_lm_collate(PAD, padding_side=side, max_length=width, return_tensors="np")(examples),
    }
    if side == "right":
        made["capibara"] = Fill(width, PAD).apply(dict(columns), PICKS, 0)
        made["capibara collate"] = collate(examples, width, PAD)
        made["capibara examples"] = collate(examples_of(dict(columns), width), width, PAD)
    for who, found in made.items():
        assert lists(found) == want, who


@pytest.mark.parametrize("side", ["right", "left"])
def test_labels_that_rows_bring_are_kept(side: Any) -> None:
    layout = lay_out([3, 2], side=side, multiple=4)
    made = pad_token_columns([[1, 2, 3], [4, 5]], layout, 0, labels=[[7, 8, 9], [5, 6]], mask=[[1, 0, 1], [1, 1]])
    assert made["labels"].tolist() == (
        [[7, IGNORE, 9, IGNORE], [5, 6, IGNORE, IGNORE]]
        if side == "right"
        else [[IGNORE, 7, IGNORE, 9], [IGNORE, IGNORE, 5, 6]]
    )


def test_capibara_refuses_labels_of_another_length() -> None:
    columns: Any = {"input_ids": Ragged.of([[1, 2], [3, 4]]), "labels": Ragged.of([[1, 2], [3]])}
    with pytest.raises(RecordError, match="'labels' to be as long as 'input_ids'(.|\n)*got:   1 and 2"):
        Fill(4).apply(columns, PICKS, 0)


@pytest.mark.parametrize("wide", [np.array([1, 2**31]), np.array([2**31], np.uint32), np.array([-(2**31) - 1])])
def test_ids_that_32_bits_cannot_hold_are_refused(wide: Any) -> None:
    with pytest.raises(RecordError, match="with values outside int32(.|\n)*row 1 of the batch"):
        Fill(4).apply({"input_ids": Ragged.of([np.array([5], wide.dtype), wide])}, PICKS, 0)
    with pytest.raises(RecordError, match="with values outside int32(.|\n)*row 1 of the batch"):
        collate([{"input_ids": [5]}, {"input_ids": wide}], 4, 0)
