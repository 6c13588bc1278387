"""The options that all collate functions share, checked when the function is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.layout import Layout, Side, check_padding, lay_out
from penstock.collate.pad import counts_of, place
from penstock.collate.schema import OutputSchema
from penstock.collate.tokens import IGNORE, TOKEN_COLUMNS
from penstock.core.buffers import keep_freed_blocks
from penstock.core.columns import Ragged
from penstock.core.errors import RecordError, UsageError

Batch = dict[str, Any]
Convert = Callable[[NDArray[Any]], Any]  # a NumPy array as a framework's


@dataclass(frozen=True)
class CollateOptions:
    """How a collate function pads and converts.

    `convert` turns each NumPy array into a framework's array; None keeps NumPy. `own` are the columns the function pads
    by its own rules, which `pad_values` cannot name. With `token_labels`, labels must be one integer per token.
    """

    pad_token_id: int
    label_pad_token_id: int = IGNORE
    padding_side: Side = "right"
    max_length: int | None = None
    convert: Convert | None = None
    pad_to_multiple_of: int | None = None
    truncation_side: Side = "right"
    schema: OutputSchema | None = None
    pad_values: Mapping[str, Any] = field(default_factory=dict)
    stack_columns: Collection[str] = frozenset()
    token_labels: bool = False
    own: frozenset[str] = TOKEN_COLUMNS
    padding: bool = True

    def __post_init__(self) -> None:
        keep_freed_blocks()
        check_padding(
            side=self.padding_side,
            truncate=self.truncation_side,
            max_length=self.max_length,
            multiple=self.pad_to_multiple_of,
        )
        check_token_id(
            "pad_token_id", self.pad_token_id, "pass the tokenizer's padding id; where it has none, its end-of-text id"
        )
        check_token_id("label_pad_token_id", self.label_pad_token_id, "use -100, which losses leave out")
        object.__setattr__(self, "pad_values", _checked_values(self.pad_values))
        object.__setattr__(self, "stack_columns", _checked_names(self.stack_columns))
        self._check_named()

    def _check_named(self) -> None:
        owned = sorted(self.own & self.pad_values.keys())
        if owned:
            raise UsageError(
                "`pad_values` to name columns other than those this function pads itself",
                got=", ".join(owned),
                fix="leave them out; `pad_token_id` and `label_pad_token_id` say what pads tokens and labels",
            )
        fixed = self.own if self.token_labels else self.own - {"labels"}
        owned = sorted(fixed & frozenset(self.stack_columns))
        if owned:
            raise UsageError(
                "`stack_columns` to name columns that are not one value per token",
                got=", ".join(owned),
                fix="leave them out; for labels of one vector per row use create_collate_fn",
            )
        both = sorted(self.pad_values.keys() & frozenset(self.stack_columns))
        if both:
            raise UsageError(
                "a column in `pad_values` or in `stack_columns`", got=f"{', '.join(both)} in both", fix="choose one"
            )

    def typed(self, name: str) -> bool:
        """Whether the schema states the type of a column."""
        return self.schema is not None and name in self.schema.fields

    def fill(self, name: str, dtype: np.dtype[Any]) -> Any:
        """What column `name` is padded with; refuses what its dtype cannot hold."""
        value = self.pad_values.get(name, 0)
        if not _holds(dtype, value):
            raise UsageError(
                f"a value in `pad_values` for {name!r} that fits its dtype, {dtype}",
                got=repr(value),
                fix="choose another value, or pass the column in a dtype that holds it, such as float32",
            )
        return value

    def lay_out(self, counts: list[int]) -> Layout:
        """Where rows of these lengths go."""
        if not self.padding:
            return self._lay_out_equal(counts)
        return lay_out(
            counts,
            side=self.padding_side,
            length=self.max_length,
            max_length=self.max_length,
            multiple=self.pad_to_multiple_of,
            truncate=self.truncation_side,
        )

    def _lay_out_equal(self, counts: list[int]) -> Layout:
        layout = lay_out(counts, max_length=self.max_length, truncate=self.truncation_side)
        different = [i for i, n in enumerate(layout.counts) if n != layout.counts[0]]
        if different:
            raise RecordError(
                "rows of one length, as padding=False is set",
                got=f"{layout.counts[0]} values in row 0, {layout.counts[different[0]]} in row {different[0]}",
                where=f"row {different[0]} of the batch",
                fix="leave out padding=False",
                row=different[0],
            )
        return layout

    def pad(self, rows: Sequence[Any] | Ragged, value: Any, dtype: Any = None) -> tuple[NDArray[Any], Layout]:
        """Rows padded as these options say."""
        layout = self.lay_out(counts_of(rows))
        return place(rows, layout, value, dtype), layout

    def finish(self, batch: Batch) -> Batch:
        """Casts to the schema's dtypes, then converts to the framework's arrays."""
        if self.schema is not None:
            batch = self.schema.check_batch(batch, where="collated batch")
        convert = self.convert
        return batch if convert is None else {name: _converted(value, convert) for name, value in batch.items()}


def check_token_id(name: str, value: Any, fix: str = "pass the tokenizer's id of this token") -> None:
    """Raises `UsageError` for what is not a 64-bit integer.

    >>> check_token_id("mask_token_id", "[MASK]")
    Traceback (most recent call last):
    ...
    penstock.core.errors.UsageError: expected `mask_token_id` to be an integer
      got:   '[MASK]'
      fix:   pass the tokenizer's id of this token
    """
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integer or not _holds(np.dtype(np.int64), value):
        raise UsageError(f"`{name}` to be an integer" + (" of 64 bits" if integer else ""), got=repr(value), fix=fix)


def _holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether an array of `dtype` can hold a number: integers exactly, floats but for what becomes infinite."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return not math.isfinite(value) or bool(np.isfinite(dtype.type(value)))
    if not math.isfinite(value) or value != int(value):
        return False
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(low <= int(value) <= high)


def _checked_values(values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise UsageError(
            "`pad_values` to be a mapping from column to number", got=repr(values), fix="for example {'box': -1}"
        )
    for name, value in values.items():
        if not isinstance(value, Real):
            raise UsageError(
                f"a number in `pad_values` for {name!r}",
                got=repr(value),
                fix="pass the number to pad the column with, or leave it out to pad with 0",
            )
    return dict(values)


def _checked_names(names: Any) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise UsageError("`stack_columns` to be a list of names", got=repr(names), fix='for example ["box"]')
    return frozenset(names)


def _converted(value: Any, convert: Convert) -> Any:
    if isinstance(value, np.ndarray):
        return convert(value)
    return [convert(v) if isinstance(v, np.ndarray) and v.dtype.kind in "biufc" else v for v in value]
