"""Rows to a batch: padding, attention masks, labels; for causal and encoder-decoder training.

Each `create_*` function gives a callable that takes a list of rows (mappings from name to list, NumPy, torch or JAX
array, or scalar) or a dict of columns, and gives a dict. The callables are plain data: they can be pickled into
workers and printed. All the work is one NumPy copy per row and column; the framework only wraps the result.

What the columns mean
- `input_ids`, and every column as long as it in every row, is padded (`pad_token_id`; other columns with 0, or with
  what `pad_values` says). Name a column in `pad_values` to have it padded always, in `stack_columns` to have it never.
- `attention_mask` is 1 on a row's own values, and is made from the lengths where rows bring none.
- `labels` that are one value per token are `label_pad_token_id` wherever `attention_mask` is 0. A scalar per row, or a
  vector of floats that is not as long as the tokens, is stacked: classes, and classes of which several may hold.
- Other columns pass through: scalars and equal shapes are stacked, text and everything else stays a list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.columns import Rows, columns_of, flat_rows, mask_rows, not_flat, stack, token_rows
from penstock.collate.layout import Layout, Side
from penstock.collate.options import Batch, CollateOptions, Tensors
from penstock.collate.pad import counts_of, dtype_of, place
from penstock.collate.schema import OutputSchema
from penstock.collate.tokens import check_aligned, hide, next_tokens, pad_token_columns
from penstock.core.columns import Ragged
from penstock.core.errors import RecordError

_LABELS_FIX = (
    "align the two; for labels of their own length use create_seq2seq_collate; "
    "for one vector per row stack_columns=['labels']"
)


def pad_tokens(columns: Mapping[str, Any], options: CollateOptions, skip: frozenset[str] = frozenset()) -> Batch:
    """`input_ids`, `attention_mask`, `labels` where there are any, and the other columns, but for those in `skip`."""
    rows = token_rows(input_ids_of(columns), "input_ids")
    layout = options.lay_out(counts_of(rows))
    mask = mask_rows(columns.get("attention_mask"), "attention_mask", layout.full, absent=1)
    mask = None if mask is None or _ones(mask) else mask
    batch: Batch = pad_token_columns(rows, layout, options.pad_token_id, mask=mask, make_labels=False)
    for name, column in columns.items():
        if name in batch or name in skip:
            continue
        if name == "labels":
            labels, per_token = _labels(column, layout, options)
            if mask is not None and per_token:
                hide(labels, batch["attention_mask"], options.label_pad_token_id)
            batch[name] = labels
        else:
            batch[name] = _other(name, column, layout, options)
    return batch


def input_ids_of(columns: Mapping[str, Any]) -> Any:
    """The column every batch is made around."""
    if "input_ids" not in columns:
        raise RecordError(
            "rows with a column 'input_ids'",
            got=f"columns {', '.join(map(str, columns)) or 'none'}",
            where="row 0 of the batch",
            fix="tokenize the rows before collating, or rename the column",
        )
    return columns["input_ids"]


def _ones(rows: list[Any] | Ragged) -> bool:
    """Whether rows hold nothing but ones: by far the usual mask, and told from others faster than it is converted."""
    if len(rows) == 0:
        return True
    if isinstance(rows, list) and type(rows[0]) is list:
        return list(map(list.count, rows, repeat(1))) == list(map(len, rows))
    values = rows.values if isinstance(rows, Ragged) else np.concatenate(rows)
    return values.dtype.kind in "biu" and bool((values == 1).all())


def _labels(column: Any, layout: Layout, options: CollateOptions) -> tuple[Any, bool]:
    """Labels for a batch, and whether they are one value per token."""
    if "labels" in options.stack_columns:
        return _single(stack(column, "labels"), column), False
    try:
        rows = token_rows(column, "labels")
    except RecordError:
        if options.token_labels:
            raise
        return _single(stack(column, "labels"), column), False
    try:
        check_aligned("labels", rows, layout.full, fix=_LABELS_FIX)
        return place(rows, layout, options.label_pad_token_id, np.int64, name="labels"), True
    except RecordError:  # asked only now, as labels are integers of tokens in almost every batch
        flat = None if options.token_labels else flat_rows(column, "labels")
        if flat is None or not _has_floats(flat):
            raise
        if counts_of(flat) == layout.full:
            padded = place(flat, layout, options.label_pad_token_id, dtype_of(flat))
            return _single(padded, column), True
        if len(set(counts_of(flat))) > 1:
            raise
        return _single(stack(flat), column), False


def _has_floats(rows: list[NDArray[Any]] | Ragged) -> bool:
    return rows.dtype.kind == "f" if isinstance(rows, Ragged) else any(row.dtype.kind == "f" for row in rows)


def _single(labels: Any, column: Any) -> Any:
    """Labels from Python's floats in single precision, as torch and transformers make them: what models compute in."""
    python = isinstance(column, list) and all(type(value) in (float, int, list, tuple) for value in column)
    return labels.astype(np.float32) if python and getattr(labels, "dtype", None) == np.float64 else labels


def _other(name: str, column: Any, layout: Layout, options: CollateOptions) -> Any:
    """A column that is neither tokens, mask nor labels."""
    rows = per_token(name, column, layout.full, options)
    if rows is not None:
        dtype = dtype_of(rows)
        return place(rows, layout, options.fill(name, dtype), dtype)
    return of_its_own(name, column, options)


def of_its_own(name: str, column: Any, options: CollateOptions) -> Any:
    """A column that does not go along with the tokens: stacked, or padded to a width of its own."""
    if name not in options.pad_values:
        return stack(column, name)
    rows = flat_rows(column, name)
    if rows is None:
        raise not_flat(column, name, "numbers")
    dtype = dtype_of(rows)
    return options.pad(rows, options.fill(name, dtype), dtype)[0]


def per_token(name: str, column: Any, full: list[int], options: CollateOptions) -> list[NDArray[Any]] | Ragged | None:
    """The rows of a column that goes along with the tokens: as long as `input_ids` in every row, and not stacked."""
    rows = None if name in options.stack_columns else flat_rows(column, name)
    return rows if rows is not None and counts_of(rows) == full else None


def unshifted_labels(batch: Batch, options: CollateOptions) -> NDArray[Any]:
    """The batch's labels, or its `input_ids` with padding hidden where it has none."""
    labels: NDArray[Any] | None = batch.get("labels")
    if labels is None:
        labels = hide(batch["input_ids"].copy(), batch["attention_mask"], options.label_pad_token_id)
    return labels


def shifted_labels(batch: Batch, options: CollateOptions) -> NDArray[Any]:
    """The batch's labels, or its `input_ids`, moved to the position before them: what `input_ids[t]` predicts."""
    tokens: NDArray[Any] = batch["labels" if "labels" in batch else "input_ids"]
    return next_tokens(tokens, batch["attention_mask"], options.label_pad_token_id)


@dataclass(frozen=True)
class Collate:
    """Made by `create_collate_fn`."""

    options: CollateOptions
    make_labels: bool = False

    def __call__(self, rows: Rows) -> Batch:
        batch = pad_tokens(columns_of(rows), self.options)
        if self.make_labels:
            batch["labels"] = unshifted_labels(batch, self.options)
        return self.options.finish(batch)


def create_collate_fn(
    pad_token_id: int,
    label_pad_token_id: int = -100,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    *,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
    make_labels: bool = False,
) -> Collate:
    """A collate function that pads.

    `max_length` fixes the width of every batch and cuts longer rows on `truncation_side`; without it a batch is as
    wide as its longest row. `pad_to_multiple_of` rounds the width up. `return_tensors`: True or "pt" for torch, False
    or "np" for NumPy, "jax" for JAX. Rows without labels get none, unless `make_labels` copies them from `input_ids`.
    Labels are in all rows or in none (None is none).

    A column as long as `input_ids` in every row is padded with 0, or with its number in `pad_values`; a column named
    there is padded whatever its length. A column in `stack_columns` is never padded: name those of a fixed length of
    their own (a box, classes as a vector in `labels`), which all rows of a batch may share with the tokens by chance.

    >>> collate = create_collate_fn(pad_token_id=0, return_tensors="np")
    >>> batch = collate([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}])
    >>> {name: value.tolist() for name, value in batch.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'input_ids': [[5, 6, 7], [8, 0, 0]], 'attention_mask': [[1, 1, 1], [1, 0, 0]],
     'labels': [[-100, 6, 7], [8, -100, -100]]}
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns,
    )  # fmt: skip
    return Collate(options, make_labels)


@dataclass(frozen=True)
class CausalCollate:
    """Made by `create_causal_lm_collate`."""

    options: CollateOptions
    shift: bool = True

    def __call__(self, rows: Rows) -> Batch:
        batch = pad_tokens(columns_of(rows), self.options)
        batch["labels"] = (shifted_labels if self.shift else unshifted_labels)(batch, self.options)
        return self.options.finish(batch)


def create_causal_lm_collate(
    pad_token_id: int,
    label_pad_token_id: int = -100,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    *,
    shift: bool = True,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
) -> CausalCollate:
    """A collate function for autoregressive training.

    With `shift=True`, `labels[t]` is the token after `input_ids[t]`, so a loop computes
    `cross_entropy(logits, labels)` with no slicing. Models of the transformers library shift inside their own loss:
    for them use `shift=False`, which gives `labels[t]` at the position of `input_ids[t]`. Rows that bring `labels`
    bring them unshifted, one integer per token, with `label_pad_token_id` where nothing is to be learnt; rows without
    learn every token. `pad_values` and `stack_columns` as in `create_collate_fn`.

    >>> collate = create_causal_lm_collate(pad_token_id=0, return_tensors="np")
    >>> collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])["labels"].tolist()
    [[6, 7, -100], [9, -100, -100]]
    >>> collate([{"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}])["labels"].tolist()
    [[-100, 7, -100]]
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns, token_labels=True,
    )  # fmt: skip
    return CausalCollate(options, shift)
