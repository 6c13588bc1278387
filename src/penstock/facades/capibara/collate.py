"""The padding of Capibara's batches: documents truncated or padded to `max_length`, with mask and labels.

`Fill` pads all rows of a batch at once. With an overridden `_collate_fn`, `CollateOutput` passes it a list of dicts,
which costs Python time per example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.columns import columns_of, mask_rows, token_rows
from penstock.collate.layout import lay_out
from penstock.collate.pad import counts_of
from penstock.collate.tokens import IGNORE, pad_token_columns, ragged_tokens
from penstock.core.buffers import Aligned
from penstock.core.columns import Columns
from penstock.core.errors import UsageError, UserCodeError
from penstock.engine.output import Output
from penstock.outputs.arrays import is_jax_array
from penstock.outputs.jax import JaxOutput
from penstock.steps.base import BatchStep, Context
from penstock.steps.facts import RowFacts
from penstock.steps.node import Node
from penstock.steps.pad import Pad, Padding
from penstock.steps.picks import Picks
from penstock.steps.rows import Memory

Example = dict[str, Any]
_TOKENS = ("input_ids", "attention_mask", "labels")
_MEMORY = Memory(np.dtype(np.int32), Aligned())


@dataclass(frozen=True)
class Fill(BatchStep):
    """`.pad(to=length, truncate=True)`, under the name that Capibara's saved states know.

    Labels that the rows bring stay as they are, also at the last token that is kept.
    """

    length: int
    pad_id: int = 0

    def build(self, child: Node, context: Context) -> Node:
        return child

    def on_batches(self, facts: RowFacts) -> Padding:
        return Padding(Pad(self.length, pad_id=self.pad_id, truncate=True), own=False)

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        """Pads the columns of a batch that no plan has made."""
        return self.on_batches(RowFacts()).pad.padded(columns, picks, memory=_MEMORY)


class SameLabels(JaxOutput):
    """Batches in which `labels[t]` is `input_ids[t]`, and -100 on padding: for models that shift labels themselves."""

    expands = False

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        made = super().convert(columns, ids)
        return made | {"labels": same_labels(made)}


def same_labels(columns: Mapping[str, Any]) -> NDArray[Any]:
    """The tokens of padded columns, and -100 where they are masked or the row only fills up the batch."""
    tokens: NDArray[Any] = np.asarray(columns["input_ids"])
    seen = np.asarray(columns["attention_mask"]) != 0
    if "valid" in columns:
        seen &= np.asarray(columns["valid"], bool)[:, None]
    return np.where(seen, tokens, tokens.dtype.type(IGNORE))


def examples_of(columns: Columns, max_length: int, same: bool = False) -> list[Example]:
    """Returns one dict per row: `input_ids`, `attention_mask` and `labels` without padding, and the other columns.

    >>> from penstock.core.columns import Ragged
    >>> examples_of({"input_ids": Ragged.of([[5, 6, 7]])}, max_length=8)[0]["labels"]
    array([   6,    7, -100], dtype=int32)
    """
    ragged = {name: ragged_tokens(name, column) for name, column in columns.items()}
    padded = Fill(max_length).apply(ragged, Picks(np.empty(0, np.int64), 0), 0)
    if same:
        padded["labels"] = same_labels(padded)
    counts = np.minimum(counts_of(ragged["input_ids"]), max_length)
    out = []
    for i, count in enumerate(counts.tolist()):
        example = {name: column[i] for name, column in padded.items()}
        example |= {name: example[name][:count] for name in _TOKENS}
        if not example.get("valid", True):
            example["labels"] = np.full_like(example["labels"], IGNORE)
        out.append(example)
    return out


def collate(batch: Sequence[Example], max_length: int, pad_id: int, same: bool = False) -> dict[str, Any]:
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
    made = pad_token_columns(ids, layout, pad_id, mask=mask, labels=labels, dtype=np.int32)
    return made | {"labels": same_labels(made)} if same and labels is None else made


class CollateOutput(Output):
    """The last stage of a loader whose `_collate_fn` is the user's own. Runs in the loader's threads."""

    name = "jax"

    def __init__(
        self, place: JaxOutput, function: Callable[[list[Example]], dict[str, Any]], max_length: int, same: bool
    ) -> None:
        self.place, self.function, self.max_length, self.same = place, function, max_length, same

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def deliver(self, columns: Columns) -> dict[str, Any]:
        try:
            made = self.function(examples_of(columns, self.max_length, self.same))
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
