"""Examples and batches as people override them: a list of dicts in, a dict of arrays out.

This path runs only when `_collate_fn` is overridden; it costs Python per example. Otherwise batches are padded whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.core.columns import Columns, rows_of
from penstock.core.errors import UsageError, UserCodeError
from penstock.outputs.jax import JaxOutput
from penstock.outputs.jax_arrays import is_jax_array
from penstock.steps.pad import IGNORE

Example = dict[str, Any]


def examples_of(columns: Columns, max_length: int) -> list[Example]:
    """One dict per row: `input_ids`, `attention_mask` and `labels` without padding, and what else the rows have.

    >>> from penstock.core.columns import Ragged
    >>> examples_of({"input_ids": Ragged.of([[5, 6, 7]])}, max_length=8)[0]["labels"]
    array([   6,    7, -100], dtype=int32)
    """
    out = []
    for i in range(rows_of(columns)):
        example = {name: column[i] for name, column in columns.items()}
        ids = np.asarray(example["input_ids"])[:max_length].astype(np.int32)
        labels = example.get("labels")
        if labels is None:
            labels = np.append(ids[1:], IGNORE) if len(ids) else ids
        labels = np.asarray(labels)[:max_length].astype(np.int32)
        if not example.get("valid", True):
            labels = np.full_like(labels, IGNORE)
        out.append(example | {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels})
    return out


def collate(batch: Sequence[Example], max_length: int, pad_id: int) -> dict[str, Any]:
    """Pads examples to `max_length` and stacks them: int32 arrays of NumPy.

    >>> collate([{"input_ids": [5, 6]}], max_length=3, pad_id=0)["labels"].tolist()
    [[6, -100, -100]]
    """
    if not batch or not all(isinstance(one, dict) and "input_ids" in one for one in batch):
        raise UsageError("examples with input_ids", got=f"{str(batch)[:80]}", fix='[{"input_ids": [...]}, ...]')
    shape = (len(batch), max_length)
    ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
    labels = np.full(shape, IGNORE, np.int32)
    for row, example in enumerate(batch):
        tokens = np.asarray(example["input_ids"])[:max_length]
        ids[row, : len(tokens)] = tokens
        seen = np.asarray(example.get("attention_mask", np.ones(len(tokens), np.int32)))[:max_length]
        mask[row, : len(tokens)] = seen
        given = example.get("labels")
        target = np.append(tokens[1:], IGNORE) if given is None else np.asarray(given)[:max_length]
        labels[row, : len(tokens)] = target[: len(tokens)]
    labels[mask == 0] = IGNORE
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class CollateOutput:
    """The last stage of a loader whose `_collate_fn` is the user's own. Runs in the loader's threads."""

    name = "jax"

    def __init__(self, place: JaxOutput, function: Callable[[list[Example]], dict[str, Any]], max_length: int) -> None:
        self.place, self.function, self.max_length = place, function, max_length

    def block(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def batch(self, columns: Columns) -> dict[str, Any]:
        try:
            made = self.function(examples_of(columns, self.max_length))
        except Exception as error:
            raise UserCodeError(
                "_collate_fn to return", got=f"{type(error).__name__}: {str(error)[:300]}", fix="mend the function"
            ) from error
        if not isinstance(made, dict):
            raise UserCodeError("a dict of arrays from _collate_fn", got=type(made).__name__)
        here = self.place.sharding is None and self.place.micro_batches == 1
        kept = {name: value for name, value in made.items() if here and is_jax_array(value)}
        rest: Columns = {name: np.asarray(value) for name, value in made.items() if name not in kept}
        return kept | self.place.batch(self.place.block(rest, frozenset()))

    def nbytes(self, batch: dict[str, Any]) -> int:
        return sum(int(getattr(value, "nbytes", 0)) for value in batch.values())
