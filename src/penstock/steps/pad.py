"""`pad`: ragged rows become one array, with an attention mask and next-token labels.

Every ragged column is padded to one width: `input_ids` with `pad_id`, `labels` with -100, others with 0. An
`attention_mask` that the rows bring is kept, and no label counts where it is 0. Where there are `input_ids` but no
labels, `labels[t]` is the token after `input_ids[t]`, and -100 where there is none or either of the two is masked.

With `truncate` longer rows are cut at their end. Labels that the rows bring are cut just as `input_ids` are; labels
that Penstock makes (these, and those of a store with loss masks) are -100 at the last token that is kept.

Columns with an array per row that differ in their last axis (features of `decode_audio`) are padded there with 0.

Other columns are padded if they are declared ragged, by a source or a step, or named in `columns`. One of a user's
function is neither: its rows may be equally long in one batch by chance, and look like rows of a fixed size. Where that
would make another batch of it (`to=n`, `multiple`), a batch whose rows differ is refused with the line to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.collate.last_axis import is_uneven, pad_last_axis
from penstock.collate.layout import Layout, Side, check_padding, lay_out
from penstock.collate.pad import counts_of, place
from penstock.collate.tokens import IGNORE, TOKEN_COLUMNS, pad_token_columns, ragged_tokens
from penstock.core.buffers import Buffers
from penstock.core.columns import Column, Columns, Ragged, Uneven, strings
from penstock.core.errors import RecordError, UsageError
from penstock.steps.base import BatchStep, Context, integer_field
from penstock.steps.facts import RowFacts
from penstock.steps.node import Node
from penstock.steps.pad_rows import PadNode, PadRecipe
from penstock.steps.picks import Picks
from penstock.steps.rows import Memory

_MEMORY = Memory(np.dtype(np.int64), Buffers(64 << 20))


@dataclass(frozen=True)
class Pad(BatchStep):
    """Pads to a number of values, or to the longest row of the global batch (rounded up to `multiple`)."""

    to: int | Literal["longest"] = "longest"
    pad_id: int = 0
    side: Side = "right"
    multiple: int | None = None
    truncate: bool = False
    labels: bool = True
    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.columns, str) or not all(isinstance(name, str) for name in self.columns):
            raise UsageError("names of columns in .pad(columns=)", got=repr(self.columns), fix='columns=["features"]')
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.to != "longest":
            integer_field(self, "to", 1, 'a length or "longest" in .pad()', '.pad(to="longest")')
        integer_field(self, "pad_id", None, "an integer for pad_id in .pad()")
        if self.side not in ("right", "left"):
            raise UsageError('side="right" or "left" in .pad()', got=repr(self.side))
        check_padding(multiple=self.multiple)
        if self.truncate and self.to == "longest":
            raise UsageError(".pad(to=n) with truncate=True", got='to="longest"', fix="pass the length to cut at")

    def spec(self) -> dict[str, Any]:
        """Without `columns` if there are none: then it is the step of earlier versions."""
        return {name: value for name, value in super().spec().items() if name != "columns" or value}

    @property
    def needs_global_batch(self) -> bool:
        """The longest row of the batch may be on another rank."""
        return self.to == "longest"

    def build(self, child: Node, context: Context) -> Node:
        return child

    def on_batches(self, facts: RowFacts) -> Padding:
        return Padding(self, facts.own_labels)

    def padded(self, columns: Columns, picks: Picks, own: bool = False, memory: Memory | None = None) -> Columns:
        """The columns of the rows of `picks`; `own`: Penstock made their labels.

        With `memory`, tokens, mask and labels come in its dtype, unless that cannot hold -100.
        """
        try:
            return self._padded(columns, own, memory if memory is not None and memory.ids.kind == "i" else _MEMORY)
        except RecordError as error:
            error.where = _where(picks, error.row)
            raise

    def _padded(self, columns: Columns, own: bool, memory: Memory) -> Columns:
        columns = columns | {name: self._uneven(name, columns) for name in self.columns}
        tokens = columns if "segment_ids" in columns else {name: ragged_tokens(name, c) for name, c in columns.items()}
        ragged = {name: column for name, column in tokens.items() if isinstance(column, Ragged)}
        self._refuse_undeclared(ragged)
        out: Columns = {name: column for name, column in columns.items() if name not in ragged}
        if columns and all(isinstance(c, np.ndarray) and c.dtype.kind in "OUS" for c in columns.values()):
            raise UsageError(
                "columns of numbers for .pad()",
                got=f"text or objects in {', '.join(map(repr, columns))}",
                fix=".tokenize(tokenizer) before .pad()",
            )
        ids = ragged.pop("input_ids", None)
        if ids is not None:
            mask, labels = ragged.pop("attention_mask", None), ragged.pop("labels", None)
            out |= pad_token_columns(
                ids,
                self._lay_out("input_ids", ids),
                self.pad_id,
                mask=mask,
                labels=labels,
                make_labels=self.labels and "labels" not in columns,
                cut_labels=own,
                dtype=memory.ids,
                mask_dtype=np.int64 if mask is None else mask.dtype,
                empty=memory.buffers.roomy,
            )
        for name, column in out.items():
            if is_uneven(column):
                out[name] = self._last_axis(name, column)
        for name, column in ragged.items():
            fill, dtype = (IGNORE, np.int64) if name == "labels" else (0, None)
            out[name] = place(column, self._lay_out(name, column), fill, dtype, memory.buffers.roomy, name)
        return out

    def _refuse_undeclared(self, ragged: dict[str, Ragged]) -> None:
        """Raises for columns that would be padded in this batch, and not in one whose rows are equally long."""
        if self.to == "longest" and (self.multiple or 1) == 1:
            return
        found = [n for n, c in ragged.items() if isinstance(c, Uneven) and n not in {*TOKEN_COLUMNS, *self.columns}]
        if found:
            first = ragged[found[0]].lengths
            names = ", ".join(f'"{name}"' for name in [*self.columns, *found])
            raise UsageError(
                "columns= with the names of all columns of functions that .pad() is to pad",
                got=f"column {found[0]!r} with rows of {first.min()} to {first.max()} values",
                fix=f".pad(..., columns=[{names}]): in a batch whose rows are equally long it would not be padded",
            )

    def _uneven(self, name: str, columns: Columns) -> Column:
        """A column that is padded even where its rows happen to be equally long."""
        column = columns.get(name)
        if column is None:
            have = ", ".join(map(repr, columns))
            raise UsageError(
                "columns of the batch in .pad(columns=)", got=f"{name!r}, and {have}", fix="check the name"
            )
        if isinstance(column, Ragged) or column.dtype == object:
            return column
        if column.ndim < 2 or column.dtype.kind not in "biuf":
            got = f"column {name!r} of {column.dtype} and shape {column.shape}"
            raise UsageError("arrays of numbers in .pad(columns=)", got=got, fix="leave the column out")
        if column.ndim == 2:
            return Ragged(column.reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * column.shape[1])
        return strings(list(column))

    def _last_axis(self, name: str, column: Column) -> NDArray[Any]:
        """An object column of arrays that differ in their last axis, such as spectrograms, filled up with zeros."""
        rows = [np.asarray(row) for row in column]
        layout = self._check_counts(name, [row.shape[-1] for row in rows])
        return pad_last_axis(rows, layout)

    def _lay_out(self, name: str, column: Ragged) -> Layout:
        return self._check_counts(name, counts_of(column))

    def _check_counts(self, name: str, counts: list[int]) -> Layout:
        length = None if self.to == "longest" else int(self.to)
        if length is not None and not self.truncate and max(counts, default=0) > length:
            row = counts.index(max(counts))
            raise RecordError(
                f"rows of at most {length} values in {name!r} for .pad(to={length})",
                got=f"{counts[row]} values",
                fix=f".pad(to={counts[row]}), or truncate=True to cut longer rows",
                row=row,
            )
        return lay_out(
            counts, side=self.side, length=length, multiple=self.multiple, max_length=length if self.truncate else None
        )


@dataclass(frozen=True)
class Padding:
    """`Pad` over batches; `own`: Penstock made their labels."""

    pad: Pad
    own: bool
    changes_content: ClassVar[bool] = False

    @property
    def needs_global_batch(self) -> bool:
        return self.pad.needs_global_batch

    @property
    def pad_id(self) -> int:
        return self.pad.pad_id

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        return self.pad.padded(columns, picks, own=self.own)

    def on_rows(self, child: Node) -> Node | None:
        pad = self.pad
        if pad.to == "longest":
            return None
        length = -(-int(pad.to) // (pad.multiple or 1)) * (pad.multiple or 1)
        plain = (
            not pad.columns
            and pad.side == "right"
            and pad.truncate
            and pad.labels
            and not self.own
            and length == pad.to
        )
        recipe = PadRecipe(length, pad.pad_id) if plain else None
        return PadNode(child, partial(pad.padded, own=self.own), recipe, pad.pad_id, length)


def _where(picks: Picks, row: int) -> str:
    if row >= len(picks):
        return f"row {row} of the batch"  # padded without a plan
    source = "" if picks.leaf is None else f" of source {int(picks.leaf[row])}"
    return f"record {int(picks.record[row])}{source}, row {row} of the batch"
