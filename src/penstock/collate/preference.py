"""Preference pairs: a chosen and a rejected answer to one prompt, padded side by side or one below the other.

A row has its answers' token ids in `chosen` (ids, or a mapping with `input_ids`, `labels`, `attention_mask`),
`chosen_ids` or `chosen_input_ids`, and the same for `rejected`; labels and mask may also be in `chosen_labels` and
`chosen_attention_mask`. A `prompt`, named in the same ways, is put before both answers, without labels unless it brings
them. Text and chat messages under these names are ignored: they are what the ids were made of. With a prompt this costs
one copy of each row more than padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.collate.batch import pad_columns, shifted_labels
from penstock.collate.columns import check_rows, columns_of, integer_rows, stack
from penstock.collate.options import Batch, CollateOptions
from penstock.collate.pad import UNREADABLE, as_row, unreadable
from penstock.core.errors import RecordError, UsageError

_ANSWERS = ("chosen", "rejected")
_FIELDS = ("input_ids", "attention_mask", "labels")
_PARTS = {
    part: {
        field: (f"{part}_{field}", f"{part}_ids") if field == "input_ids" else (f"{part}_{field}",) for field in _FIELDS
    }
    for part in (*_ANSWERS, "prompt")
}
_PAIR_FIELDS = frozenset(_PARTS) | {name for part in _PARTS.values() for names in part.values() for name in names}

Spellings = list[tuple[str, Any]]  # the names under which a row has one field, with their values


@dataclass(frozen=True)
class PreferenceCollate:
    """Made by `create_preference_collate`."""

    options: CollateOptions
    layout: Literal["concatenated", "separate"]
    shift: bool

    def __post_init__(self) -> None:
        if self.layout not in ("concatenated", "separate"):
            raise UsageError(
                "`layout` to be 'concatenated' or 'separate'", got=repr(self.layout), fix="use one of the two words"
            )

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        if isinstance(rows, Mapping) or not hasattr(rows, "__len__") or not len(rows):
            raise UsageError("a list of rows, at least one", got=type(rows).__name__, fix="pass rows, not columns")
        check_rows(rows)
        prompts = [_part(row, "prompt", i) for i, row in enumerate(rows)]
        answers = {
            name: [
                self._answer(row, name, i, prompt) for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True))
            ]
            for name in _ANSWERS
        }
        extra = columns_of([{k: v for k, v in row.items() if k not in _PAIR_FIELDS} for row in rows])
        batch: Batch = {}
        if self.layout == "concatenated":
            batch |= self._pad(answers["chosen"] + answers["rejected"])
        else:
            for name, parts in answers.items():
                batch |= {f"{name}_{key}": value for key, value in self._pad(parts).items()}
        taken = sorted(batch.keys() & extra.keys())
        if taken:
            raise UsageError(
                f"columns beside the pairs under other names than the batch's own: {', '.join(batch)}",
                got=", ".join(taken),
                fix="drop or rename these columns before collating",
            )
        batch |= {name: stack(column, name) for name, column in extra.items()}
        return self.options.finish(batch)

    def _pad(self, rows: list[dict[str, NDArray[Any]]]) -> Batch:
        batch = pad_columns(columns_of(rows), self.options)
        if self.shift:
            batch["labels"] = shifted_labels(batch, self.options)
        return batch

    def _answer(
        self, row: Mapping[str, Any], name: str, number: int, prompt: dict[str, NDArray[Any]] | None
    ) -> dict[str, NDArray[Any]]:
        answer = _part(row, name, number)
        if answer is None:
            raise RecordError(
                f"a row with {name!r} or '{name}_input_ids' (or '{name}_ids') as token ids",
                got=f"columns {', '.join(map(str, row)) or 'none'}" + (f", {name!r} as text" if name in row else ""),
                where=f"row {number} of the batch",
                fix="pass both answers of every pair as token ids",
                row=number,
            )
        if prompt is None:
            return {**answer, "labels": answer.get("labels", answer["input_ids"])}
        no_labels = np.full(len(prompt["input_ids"]), self.options.label_pad_token_id, np.int64)
        return {
            "input_ids": np.concatenate([prompt["input_ids"], answer["input_ids"]]),
            "attention_mask": np.concatenate([prompt["attention_mask"], answer["attention_mask"]]),
            "labels": np.concatenate([prompt.get("labels", no_labels), answer.get("labels", answer["input_ids"])]),
        }


def _part(row: Mapping[str, Any], name: str, number: int) -> dict[str, NDArray[Any]] | None:
    """The prompt, chosen or rejected part of a row as arrays; None where the row has no ids for it."""
    part = row.get(name)
    inside = part if isinstance(part, Mapping) else {}
    found_in: dict[str, Spellings] = {}
    for field, names in _PARTS[name].items():
        found_in[field] = [(flat, row[flat]) for flat in names if row.get(flat) is not None]
        if inside.get(field) is not None:
            found_in[field].append((f"{name}[{field!r}]", inside[field]))
    if part is not None and not _is_text(part):
        found_in["input_ids"].append((name, part))
    found = {field: _one(spellings, number) for field, spellings in found_in.items()}
    ids = found["input_ids"]
    if ids is None:
        lost = [spelling for spellings in found_in.values() for spelling, _ in spellings]
        if lost:
            raise RecordError(
                f"token ids of {name!r} beside {lost[0]!r}",
                got=f"columns {', '.join(map(str, row))}",
                where=f"row {number} of the batch",
                fix=f"add '{name}_input_ids'",
                row=number,
            )
        return None
    for field, values in found.items():
        if values is not None and len(values) != len(ids):
            raise RecordError(
                f"{field!r} of {name!r} to be as long as its 'input_ids'",
                got=f"{len(values)} and {len(ids)}",
                where=f"row {number} of the batch",
                fix="align the two",
                row=number,
            )
    present = {field: values for field, values in found.items() if values is not None}
    return {"attention_mask": np.ones(len(ids), np.int64), **present}


def _is_text(value: Any) -> bool:
    """Whether a value is what ids are made of, or where they lie: text, messages of a chat, a mapping."""
    if isinstance(value, str | bytes | Mapping):
        return True
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], str | bytes | Mapping)


def _one(spellings: Spellings, number: int) -> NDArray[Any] | None:
    """The values that one or more spellings of a field agree on; None where none has any."""
    found = [(name, _integers(value, name, number)) for name, value in spellings]
    if len(found) < 2:
        return found[0][1] if found else None
    full = [(name, values) for name, values in found if len(values)] or found[:1]  # empty lists contradict nothing
    for name, values in full[1:]:
        if not np.array_equal(values, full[0][1]):
            raise RecordError(
                f"{name!r} to say the same as {full[0][0]!r}",
                got=f"{len(values)} and {len(full[0][1])} values that differ",
                where=f"row {number} of the batch",
                fix="keep one of the two columns",
                row=number,
            )
    return full[0][1]


def _integers(value: Any, name: str, number: int) -> NDArray[Any]:
    """A value as a row of integers, or the error that names its row and spelling."""
    try:
        row = as_row(value)
    except UNREADABLE as error:
        raise unreadable(number, value, error, name) from error
    if row.ndim == 1 and row.dtype == np.int64:
        return row
    try:
        return integer_rows([value], name)[0]
    except RecordError as error:
        error.where, error.row = f"row {number} of the batch", number
        raise
