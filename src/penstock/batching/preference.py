"""Preference pairs: a chosen and a rejected answer to one prompt, padded side by side or one below the other.

A row says its answers as `chosen` and `rejected` (token ids, or a mapping with `input_ids`, `labels`,
`attention_mask`), or flat, as `chosen_input_ids`, `chosen_labels` and so on. A `prompt` (or `prompt_input_ids`) is put
before both, without labels. Costs one copy of each row more than padding, when there is a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._errors import RecordError, UsageError
from penstock.batching.collate import Batch, CollateOptions, Tensors, columns_of, pad_tokens, shift_left, stack
from penstock.batching.layout import Side
from penstock.batching.pad import as_row
from penstock.batching.schema import OutputSchema

_ANSWERS = ("chosen", "rejected")
_FIELDS = ("input_ids", "attention_mask", "labels")


@dataclass(frozen=True)
class PreferenceCollate:
    """Made by `create_preference_collate`."""

    options: CollateOptions
    layout: Literal["concatenated", "separate"]
    shift: bool

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        if isinstance(rows, Mapping) or not len(rows):
            raise UsageError("a list of rows, at least one", got=type(rows).__name__, fix="pass rows, not columns")
        answers = {name: [self._answer(row, name, i) for i, row in enumerate(rows)] for name in _ANSWERS}
        extra = columns_of([{k: v for k, v in row.items() if not _is_pair_field(k)} for row in rows])
        batch: Batch = {}
        if self.layout == "concatenated":
            batch |= self._pad(answers["chosen"] + answers["rejected"])
        else:
            for name, parts in answers.items():
                batch |= {f"{name}_{key}": value for key, value in self._pad(parts).items()}
        batch |= {name: stack(column) for name, column in extra.items()}
        return self.options.finish(batch)

    def _pad(self, rows: list[dict[str, NDArray[Any]]]) -> Batch:
        batch = pad_tokens(columns_of(rows), self.options)
        if self.shift:
            batch["labels"] = shift_left(batch["labels"], batch["attention_mask"], self.options)
        return batch

    def _answer(self, row: Mapping[str, Any], name: str, number: int) -> dict[str, NDArray[Any]]:
        given = _part(row, name)
        if "input_ids" not in given:
            raise RecordError(
                f"a row with {name!r} or '{name}_input_ids'",
                got=f"columns {', '.join(map(str, row)) or 'none'}",
                where=f"row {number} of the batch",
                fix="give both answers of every pair as token ids",
                row=number,
            )
        ids = as_row(given["input_ids"])
        mask = as_row(given.get("attention_mask", np.ones(len(ids), np.int64)))
        labels = as_row(given.get("labels", ids))
        for field, values in (("attention_mask", mask), ("labels", labels)):
            if len(values) != len(ids):
                raise RecordError(
                    f"{field!r} of {name!r} to be as long as its 'input_ids'",
                    got=f"{len(values)} and {len(ids)}",
                    where=f"row {number} of the batch",
                    fix="align the two",
                    row=number,
                )
        prompt = as_row(_part(row, "prompt").get("input_ids", []))
        if len(prompt):
            ids = np.concatenate([prompt, ids])
            mask = np.concatenate([np.ones(len(prompt), np.int64), mask])
            labels = np.concatenate([np.full(len(prompt), self.options.label_pad_token_id, np.int64), labels])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _part(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One of prompt, chosen, rejected as a mapping of fields, whichever way the row says it."""
    value = row.get(name, row.get(f"{name}_ids"))
    if isinstance(value, Mapping):
        return dict(value)
    if value is not None and not isinstance(value, str):
        return {"input_ids": value}
    return {field: row[f"{name}_{field}"] for field in _FIELDS if f"{name}_{field}" in row}


def _is_pair_field(name: str) -> bool:
    return any(
        name in (part, f"{part}_ids", *(f"{part}_{field}" for field in _FIELDS)) for part in (*_ANSWERS, "prompt")
    )


def create_preference_collate(
    pad_token_id: int,
    *,
    layout: Literal["concatenated", "separate"] = "concatenated",
    shift: bool = False,
    label_pad_token_id: int = -100,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
) -> PreferenceCollate:
    """A collate function for preference training.

    `layout="concatenated"`: `input_ids`, `attention_mask`, `labels` of 2B rows, the B chosen first, then the B
    rejected, so that one forward pass does both. `layout="separate"`: `chosen_input_ids`, `rejected_input_ids` and so
    on, each of B rows and of its own width. Labels are the answer's tokens unless the row brings its own; `shift` as in
    `create_causal_lm_collate`. Text fields named prompt, chosen or rejected are left out of the batch.

    >>> collate = create_preference_collate(pad_token_id=0, return_tensors="np")
    >>> batch = collate([{"prompt": [1, 2], "chosen": [3, 4], "rejected": [5]}])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 2, 3, 4], [1, 2, 5, 0]], [[-100, -100, 3, 4], [-100, -100, 5, -100]])
    """
    if layout not in ("concatenated", "separate"):
        raise UsageError(
            "`layout` to be 'concatenated' or 'separate'", got=repr(layout), fix="use one of the two words"
        )
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, truncation_side, schema,
    )  # fmt: skip
    return PreferenceCollate(options, layout, shift)
