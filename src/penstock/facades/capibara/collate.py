"""The path of an overridden `_collate_fn`: a list of dicts in, a dict of arrays out.

It costs Python time per example. Without an override, `fill.py` pads all rows of a batch at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.collate.columns import columns_of, mask_rows, token_rows
from penstock.collate.layout import lay_out
from penstock.collate.pad import counts_of
from penstock.collate.tokens import IGNORE, pad_token_columns, ragged_tokens
from penstock.core.columns import Columns
from penstock.core.errors import UsageError, UserCodeError
from penstock.engine.output import Output
from penstock.facades.capibara.fill import Fill
from penstock.outputs.arrays import is_jax_array
from penstock.outputs.jax import JaxOutput
from penstock.steps.picks import Picks

Example = dict[str, Any]
_TOKENS = ("input_ids", "attention_mask", "labels")


def examples_of(columns: Columns, max_length: int) -> list[Example]:
    """One dict per row: `input_ids`, `attention_mask` and `labels` without padding, and the row's other columns.

    >>> from penstock.core.columns import Ragged
    >>> examples_of({"input_ids": Ragged.of([[5, 6, 7]])}, max_length=8)[0]["labels"]
    array([   6,    7, -100], dtype=int32)
    """
    ragged = {name: ragged_tokens(name, column) for name, column in columns.items()}
    padded = Fill(max_length).apply(ragged, Picks(np.empty(0, np.int64), 0), 0)
    counts = np.minimum(counts_of(ragged["input_ids"]), max_length)
    out = []
    for i, count in enumerate(counts.tolist()):
        example = {name: column[i] for name, column in padded.items()}
        example |= {name: example[name][:count] for name in _TOKENS}
        if not example.get("valid", True):
            example["labels"] = np.full_like(example["labels"], IGNORE)
        out.append(example)
    return out


def collate(batch: Sequence[Example], max_length: int, pad_id: int) -> dict[str, Any]:
    """Pads examples to `max_length` and stacks them: int32 NumPy arrays.

    >>> collate([{"input_ids": [5, 6]}], max_length=3, pad_id=0)["labels"].tolist()
    [[6, -100, -100]]
    """
    if not batch or not all(isinstance(one, dict) and "input_ids" in one for one in batch):
        raise UsageError("examples with input_ids", got=f"{str(batch)[:80]}", fix='[{"input_ids": [...]}, ...]')
    columns = columns_of([{name: one[name] for name in _TOKENS if name in one} for one in batch])
    ids = token_rows(columns["input_ids"], "input_ids")
    layout = lay_out(counts_of(ids), length=max_length, max_length=max_length)
    mask = mask_rows(columns.get("attention_mask"), "attention_mask", layout.full, absent=1)
    labels = token_rows(columns["labels"], "labels") if "labels" in columns else None
    return pad_token_columns(ids, layout, pad_id, mask=mask, labels=labels, dtype=np.int32)


class CollateOutput(Output):
    """The last stage of a loader whose `_collate_fn` is the user's own. Runs in the loader's threads."""

    name = "jax"

    def __init__(self, place: JaxOutput, function: Callable[[list[Example]], dict[str, Any]], max_length: int) -> None:
        self.place, self.function, self.max_length = place, function, max_length

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def deliver(self, columns: Columns) -> dict[str, Any]:
        try:
            made = self.function(examples_of(columns, self.max_length))
        except Exception as error:
            raise UserCodeError(
                "_collate_fn to return", got=f"{type(error).__name__}: {str(error)[:300]}", fix="fix the function"
            ) from error
        if not isinstance(made, dict):
            raise UserCodeError("a dict of arrays from _collate_fn", got=type(made).__name__)
        here = self.place.sharding is None and self.place.micro_batches == 1
        kept = {name: value for name, value in made.items() if here and is_jax_array(value)}
        rest: Columns = {name: np.asarray(value) for name, value in made.items() if name not in kept}
        return kept | self.place.deliver(self.place.convert(rest, frozenset()))

    def nbytes(self, batch: dict[str, Any]) -> int:
        return sum(int(getattr(value, "nbytes", 0)) for value in batch.values())
