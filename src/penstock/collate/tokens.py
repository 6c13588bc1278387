"""Pads token columns into one rectangle: `input_ids`, `attention_mask` and `labels`.

The only implementation of these rules; `.pad()`, the collate functions and the facades call it.

- `attention_mask` is 1 on a row's tokens and 0 on padding. A mask that the rows bring is kept and padded with 0.
- Labels that the rows bring are kept. Made labels are next tokens: `labels[t]` is `input_ids[t + 1]`.
- Labels are `IGNORE` wherever `attention_mask` is 0. A made label is also `IGNORE` at the last token of a row and
  where the next token is masked.

Costs one copy of each column, plus one masked copy for made labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.layout import Layout, valid_mask
from penstock.collate.pad import counts_of, place
from penstock.core.buffers import Empty
from penstock.core.columns import Column, Ragged
from penstock.core.errors import RecordError

IGNORE = -100  # the label that the losses of torch and transformers leave out
TOKEN_COLUMNS = frozenset({"input_ids", "attention_mask", "labels"})

TokenRows = Sequence[Any] | Ragged


def pad_token_columns(
    ids: TokenRows,
    layout: Layout,
    pad_id: int,
    *,
    mask: TokenRows | None = None,
    labels: TokenRows | None = None,
    make_labels: bool = True,
    cut_labels: bool = False,
    dtype: Any = np.int64,
    mask_dtype: Any = None,
    empty: Empty = np.empty,
) -> dict[str, NDArray[Any]]:
    """Pads `ids`, `mask` and `labels` by the rules above.

    `make_labels` makes next-token labels where rows bring none. `cut_labels` says that the labels are next tokens
    already: the last kept token of a truncated row then has no label, as with made ones. `mask_dtype` is `dtype` unless
    given; `empty` allocates the results.

    >>> from penstock.collate.layout import lay_out
    >>> made = pad_token_columns([[5, 6, 7], [8, 9]], lay_out([3, 2], side="left"), pad_id=0)
    >>> {name: column.tolist() for name, column in made.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'input_ids': [[5, 6, 7], [0, 8, 9]], 'attention_mask': [[1, 1, 1], [0, 1, 1]],
     'labels': [[6, 7, -100], [-100, 9, -100]]}
    """
    mask_dtype = np.dtype(dtype if mask_dtype is None else mask_dtype)
    out = {"input_ids": place(ids, layout, pad_id, dtype, empty, "input_ids")}
    if mask is None:
        out["attention_mask"] = seen = _all_seen(layout, mask_dtype, empty)
    else:
        check_aligned("attention_mask", mask, layout.full)
        out["attention_mask"] = seen = place(mask, layout, 0, mask_dtype, empty, "attention_mask")
    if labels is not None:
        check_aligned("labels", labels, layout.full)
        out["labels"] = place(labels, layout, IGNORE, dtype, empty, "labels")
        if cut_labels:
            _hide_cut_ends(out["labels"], layout)
        if mask is not None:
            hide(out["labels"], seen)
    elif make_labels:
        has_next = _has_next(valid_mask(layout, np.bool_) if mask is None else seen != 0)
        out["labels"] = _next_where(out["input_ids"], has_next, IGNORE, empty)
    return out


def _all_seen(layout: Layout, dtype: np.dtype[Any], empty: Empty) -> NDArray[Any]:
    if empty is np.empty:
        return valid_mask(layout, dtype)
    out = empty(layout.shape, dtype)
    np.copyto(out, valid_mask(layout, np.bool_), casting="unsafe")
    return out


def next_tokens(tokens: NDArray[Any], mask: NDArray[Any], ignore: int = IGNORE) -> NDArray[Any]:
    """The token after each one of a padded batch; `ignore` where there is none or either of the two is masked.

    >>> next_tokens(np.array([[5, 6, 7, 0]]), np.array([[1, 1, 1, 0]])).tolist()
    [[6, 7, -100, -100]]
    """
    return _next_where(tokens, _has_next(mask != 0), ignore, np.empty)


def _has_next(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each position but the last of a row, and the position after it, are both seen."""
    both: NDArray[np.bool_] = seen[:, :-1] & seen[:, 1:]
    return both


def _next_where(tokens: NDArray[Any], has_next: NDArray[np.bool_], ignore: int, empty: Empty) -> NDArray[Any]:
    out = empty(tokens.shape, tokens.dtype)
    out.fill(ignore)
    np.copyto(out[:, :-1], tokens[:, 1:], where=has_next)
    return out


def hide(labels: NDArray[Any], mask: NDArray[Any], ignore: int = IGNORE) -> NDArray[Any]:
    """Writes `ignore` into `labels` wherever `mask` is 0, and returns them."""
    np.copyto(labels, ignore, where=mask == 0)
    return labels


def _hide_cut_ends(labels: NDArray[Any], layout: Layout) -> None:
    """Removes the label of the last kept token of truncated rows: the next token is no longer there."""
    lengths = layout.lengths()
    rows = np.flatnonzero(lengths < np.array(layout.full))
    last = lengths[rows] - 1 if layout.side == "right" else np.full(len(rows), layout.width - 1)
    labels[rows, last] = IGNORE


def ragged_tokens(name: str, column: Column) -> Column:
    """A token column as `Ragged`, also where all rows of a block happen to be equally long; other columns unchanged."""
    if name not in TOKEN_COLUMNS or isinstance(column, Ragged) or column.ndim != 2 or column.dtype.kind not in "biu":
        return column
    rows, width = column.shape
    return Ragged(column.reshape(-1), np.arange(rows + 1, dtype=np.int64) * width)


def check_aligned(name: str, rows: TokenRows, full: list[int], other: str = "input_ids", fix: str = "") -> None:
    """Raises `RecordError` for the first row whose length differs from `full`, the lengths of the column `other`."""
    lengths = counts_of(rows)
    if lengths == full:
        return
    row = next(i for i, (a, b) in enumerate(zip(lengths, full, strict=True)) if a != b)
    raise RecordError(
        f"{name!r} to be as long as {other!r} in every row",
        got=f"{lengths[row]} and {full[row]} values",
        where=f"row {row} of the batch",
        fix=fix or f"pass one value per token, or leave {name!r} out",
        row=row,
    )
