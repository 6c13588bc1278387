"""Pads the columns of a batch around `input_ids`. Every collate function is built on `pad_columns`.

- `input_ids`, and every column as long as it in every row, is padded: with `pad_token_id`, or for other columns with 0
  or their number in `pad_values`. A column named in `pad_values` is always padded, one in `stack_columns` never.
- `attention_mask` is 1 on a row's own values, and is made from the lengths where rows bring none. One with a value for
  each pair of tokens, (L, L) or (heads, L, L), is padded with 0 in both directions.
- `labels` with one value per token are `label_pad_token_id` wherever `attention_mask` is 0. A scalar per row, or a
  vector of floats of another length than the tokens, is stacked: class labels, single or multi-hot.
- Other columns pass through: scalars and equal shapes are stacked, text and everything else stays a list.

Costs one NumPy copy per row and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.columns import check_type, flat_rows, mask_rows, not_flat, square_masks, stack, token_rows
from penstock.collate.layout import Layout
from penstock.collate.options import Batch, CollateOptions
from penstock.collate.pad import counts_of, dtype_of, place
from penstock.collate.tokens import check_aligned, hide, next_tokens, pad_token_columns
from penstock.core.columns import Ragged
from penstock.core.errors import RecordError

_LABELS_FIX = (
    "align the two; for labels of their own length use create_seq2seq_collate; "
    "for one vector per row stack_columns=['labels']"
)


def pad_columns(columns: Mapping[str, Any], options: CollateOptions, skip: frozenset[str] = frozenset()) -> Batch:
    """`input_ids`, `attention_mask`, `labels` where there are any, and the other columns, but for those in `skip`."""
    rows = token_rows(input_ids_of(columns), "input_ids")
    layout = options.lay_out(counts_of(rows))
    square = square_masks(columns.get("attention_mask"), layout)
    own_mask = None if square is not None else columns.get("attention_mask")
    mask = mask_rows(own_mask, "attention_mask", layout.full, absent=1)
    mask = None if mask is None or _ones(mask) else mask
    batch: Batch = pad_token_columns(rows, layout, options.pad_token_id, mask=mask, make_labels=False)
    if square is not None:
        batch["attention_mask"] = square
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
    """The `input_ids` column, which every batch needs."""
    if "input_ids" not in columns:
        raise RecordError(
            "rows with a column 'input_ids'",
            got=f"columns {', '.join(map(str, columns)) or 'none'}",
            where="row 0 of the batch",
            fix="tokenize the rows before collating, or rename the column",
        )
    return columns["input_ids"]


def _ones(rows: list[Any] | Ragged) -> bool:
    """Whether rows hold nothing but ones: the usual mask, and this check costs less than converting it."""
    if len(rows) == 0:
        return True
    if isinstance(rows, list) and type(rows[0]) is list:
        return list(map(list.count, rows, repeat(1))) == list(map(len, rows))
    values = rows.values if isinstance(rows, Ragged) else np.concatenate(rows)
    return values.dtype.kind in "biu" and bool((values == 1).all())


def _labels(column: Any, layout: Layout, options: CollateOptions) -> tuple[Any, bool]:
    """Labels for a batch, and whether they are one value per token."""
    if "labels" in options.stack_columns:
        return _single(stack(column, "labels", options.typed("labels")), column), False
    try:
        rows = token_rows(column, "labels")
    except RecordError:
        if options.token_labels:
            raise
        return _single(stack(column, "labels", options.typed("labels")), column), False
    try:
        check_aligned("labels", rows, layout.full, fix=_LABELS_FIX)
        return place(rows, layout, options.label_pad_token_id, np.int64, name="labels"), True
    except RecordError:  # checked only now: almost every batch has integer labels per token
        flat = None if options.token_labels else flat_rows(column, "labels")
        if flat is None or not _has_floats(flat):
            raise
        if not options.typed("labels"):
            check_type("labels", flat)
        if counts_of(flat) == layout.full:
            padded = place(flat, layout, options.label_pad_token_id, dtype_of(flat))
            return _single(padded, column), True
        if len(set(counts_of(flat))) > 1:
            raise
        return _single(stack(flat, "labels", True), column), False


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
    return unaligned_column(name, column, options)


def unaligned_column(name: str, column: Any, options: CollateOptions) -> Any:
    """A column that is not aligned with the tokens: stacked, or padded to a width of its own."""
    if name not in options.pad_values:
        return stack(column, name, options.typed(name))
    rows = flat_rows(column, name)
    if rows is None:
        raise not_flat(column, name, "numbers")
    if not options.typed(name):
        check_type(name, rows)
    dtype = dtype_of(rows)
    return options.pad(rows, options.fill(name, dtype), dtype)[0]


def per_token(name: str, column: Any, full: list[int], options: CollateOptions) -> list[NDArray[Any]] | Ragged | None:
    """The rows of a column that is as long as `input_ids` in every row and not in `stack_columns`; otherwise None."""
    rows = None if name in options.stack_columns else flat_rows(column, name)
    if rows is None or counts_of(rows) != full:
        return None
    if not options.typed(name):
        check_type(name, rows)
    return rows


def unshifted_labels(batch: Batch, options: CollateOptions) -> NDArray[Any]:
    """The batch's labels, or its `input_ids` with padding hidden where it has none."""
    labels: NDArray[Any] | None = batch.get("labels")
    if labels is None:
        labels = hide(batch["input_ids"].copy(), _seen(batch), options.label_pad_token_id)
    return labels


def shifted_labels(batch: Batch, options: CollateOptions) -> NDArray[Any]:
    """The batch's labels, or its `input_ids`, moved to the position before them: what `input_ids[t]` predicts."""
    tokens: NDArray[Any] = batch["labels" if "labels" in batch else "input_ids"]
    return next_tokens(tokens, _seen(batch), options.label_pad_token_id)


def _seen(batch: Batch) -> NDArray[Any]:
    """1 at tokens and 0 at padding; where the mask is of pairs of tokens, a token that sees nothing is padding."""
    mask: NDArray[Any] = batch["attention_mask"]
    if mask.ndim == 2:
        return mask
    return np.asarray(mask.reshape(len(mask), -1, *mask.shape[-2:]).any((1, 3)))
