"""Rows to a batch: padding, attention masks, labels; for causal and encoder-decoder training.

Each `create_*` function gives a callable that takes a list of rows (mappings from name to list, NumPy, torch or JAX
array, or scalar) or a dict of columns, and gives a dict. The callables are plain data: they can be pickled into
workers and printed. All the work is one NumPy copy per row and column; the framework only wraps the result.

What the columns mean
- `input_ids`, and every column as long as it in every row, is padded (`pad_token_id`; other columns with 0, or with
  what `pad_values` says). Name a column in `pad_values` to have it padded always.
- `attention_mask` is 1 on a row's own values, and is made from the lengths where rows bring none.
- `labels` are `label_pad_token_id` wherever `attention_mask` is 0.
- Other columns pass through: scalars and equal shapes are stacked, text and everything else stays a list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from numbers import Number
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._errors import RecordError, UsageError
from penstock.batching.layout import Layout, Side, check_padding, lay_out, valid_mask
from penstock.batching.pad import as_row, counts_of, place
from penstock.batching.schema import OutputSchema
from penstock.columns import Ragged

Rows = Sequence[Mapping[str, Any]] | Mapping[str, Any]
Batch = dict[str, Any]
Tensors = bool | None | Literal["pt", "np", "jax"]

_KINDS: dict[Any, str] = {True: "pt", "pt": "pt", "torch": "pt", "np": "np", "numpy": "np", False: "np", None: "np"}
_KINDS["jax"] = "jax"
_NOT_ROWS = (str, bytes, Mapping, Number, type(None))


@dataclass(frozen=True)
class CollateOptions:
    """What every collate function is told; checked once, when it is made."""

    pad_token_id: int
    label_pad_token_id: int = -100
    padding_side: Side = "right"
    max_length: int | None = None
    return_tensors: Tensors = True
    pad_to_multiple_of: int | None = None
    truncation_side: Side = "right"
    schema: OutputSchema | None = None
    pad_values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_padding(
            side=self.padding_side,
            truncate=self.truncation_side,
            max_length=self.max_length,
            multiple=self.pad_to_multiple_of,
        )
        if isinstance(self.pad_token_id, bool) or not isinstance(self.pad_token_id, int | np.integer):
            raise UsageError(
                "`pad_token_id` to be an integer",
                got=repr(self.pad_token_id),
                fix="pass the tokenizer's padding id; where it has none, its end-of-text id",
            )
        if self.return_tensors not in _KINDS:
            raise UsageError(
                "`return_tensors` to be True or 'pt' (torch), False or 'np' (NumPy), or 'jax'",
                got=repr(self.return_tensors),
                fix="use one of these",
            )

    def lay_out(self, counts: list[int]) -> Layout:
        """Where rows of these lengths go."""
        return lay_out(
            counts,
            side=self.padding_side,
            length=self.max_length,
            max_length=self.max_length,
            multiple=self.pad_to_multiple_of,
            truncate=self.truncation_side,
        )

    def pad(self, rows: Sequence[Any] | Ragged, value: Any, dtype: Any = None) -> tuple[NDArray[Any], Layout]:
        """Rows padded as these options say."""
        layout = self.lay_out(counts_of(rows))
        return place(rows, layout, value, dtype), layout

    def finish(self, batch: Batch) -> Batch:
        """Dtypes from the schema, then the framework's arrays."""
        if self.schema is not None:
            batch = self.schema.check_batch(batch, where="collated batch")
        convert = _converter(_KINDS[self.return_tensors])
        return batch if convert is None else {name: _converted(value, convert) for name, value in batch.items()}


@cache
def _converter(kind: str) -> Callable[[NDArray[Any]], Any] | None:
    if kind == "np":
        return None
    # By name, at call time: this room lies below `outputs`, and frameworks are imported only there.
    outputs = importlib.import_module("penstock.outputs.convert")
    found: Callable[[NDArray[Any]], Any] = outputs.to_torch_tensor if kind == "pt" else outputs.to_jax_array
    return found


def _converted(value: Any, convert: Callable[[NDArray[Any]], Any]) -> Any:
    if isinstance(value, np.ndarray):
        return convert(value)
    return [convert(v) if isinstance(v, np.ndarray) and v.dtype.kind in "biufc" else v for v in value]


def columns_of(rows: Rows) -> dict[str, Any]:
    """Rows turned into one list per name. Only `attention_mask` and `labels` may be missing, or None, in some rows.

    >>> columns_of([{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    if isinstance(rows, Mapping):
        return dict(rows)
    if len(rows) == 0:
        raise UsageError("at least one row to collate", got="an empty list", fix="drop empty batches before collating")
    names = list(rows[0])
    for row in rows:
        if len(row) != len(names):
            names += [name for name in row if name not in names]
    out: dict[str, Any] = {}
    for name in names:
        try:
            out[name] = [row[name] for row in rows]
        except KeyError:
            if name != "attention_mask":
                i = next(i for i, row in enumerate(rows) if name not in row)
                raise RecordError(
                    f"every row to have the column {name!r}, as others of the batch do",
                    got=f"columns {', '.join(map(str, rows[i]))}",
                    where=f"row {i} of the batch",
                    fix="give all rows the same columns",
                    row=i,
                ) from None
            out[name] = [row.get(name) for row in rows]
    if "labels" in out and all(value is None for value in out["labels"]):
        del out["labels"]
    return out


def stack(values: Any) -> Any:
    """A pass-through column: scalars and equal shapes as one array, everything else as a list.

    >>> stack([1, 2]), stack(["a", "b"]), stack([[1, 2], [3, 4]]).shape
    (array([1, 2]), ['a', 'b'], (2, 2))
    """
    if isinstance(values, np.ndarray):
        return values if values.dtype.kind in "biufc" else values.tolist()
    if isinstance(values, Ragged):
        values = list(values)
    if all(isinstance(v, Number | np.generic) and not isinstance(v, np.str_ | np.bytes_) for v in values):
        return np.array(values)
    if any(v is None or isinstance(v, str | bytes | Mapping) for v in values):
        return list(values)
    try:
        arrays = [as_row(v) for v in values]
    except ValueError:
        return list(values)
    if any(a.dtype.kind not in "biufc" for a in arrays):
        return list(values)
    return np.stack(arrays) if len({a.shape for a in arrays}) == 1 else arrays


def flat_rows(column: Any) -> list[NDArray[Any]] | Ragged | None:
    """A column as flat rows of numbers, or None where it is something else: scalars, text, images."""
    if isinstance(column, Ragged):
        return column
    if isinstance(column, np.ndarray):
        return list(column) if column.ndim == 2 and column.dtype.kind in "biuf" else None
    out = []
    for value in column:
        if isinstance(value, _NOT_ROWS):
            return None
        try:
            row = as_row(value)
        except ValueError:  # nested lists of different lengths
            return None
        if row.ndim != 1 or (row.dtype.kind not in "biuf" and row.size):
            return None
        out.append(row)
    return out


def _quick_rows(column: Any) -> list[Any] | Ragged | None:
    """Like `flat_rows`, with lists of integers left as they are for `pad_rows`, which refuses what else they hold."""
    if isinstance(column, list):
        types = set(map(type, column))
        if types == {list} or (types == {np.ndarray} and {v.ndim for v in column} == {1}):
            return column
    return flat_rows(column)


def pad_tokens(columns: Mapping[str, Any], options: CollateOptions, skip: frozenset[str] = frozenset()) -> Batch:
    """`input_ids`, `attention_mask`, `labels` where there are any, and the other columns, but for those in `skip`."""
    if "input_ids" not in columns:
        raise RecordError(
            "rows with a column 'input_ids'",
            got=f"columns {', '.join(map(str, columns)) or 'none'}",
            where="row 0 of the batch",
            fix="tokenize the rows before collating, or rename the column",
        )
    rows = _quick_rows(columns["input_ids"])
    if rows is None:
        raise _not_flat("input_ids")
    layout = options.lay_out(counts_of(rows))
    ids = place(rows, layout, options.pad_token_id, np.int64)
    mask, whole = _attention(columns.get("attention_mask"), layout)
    batch: Batch = {"input_ids": ids, "attention_mask": mask}
    for name, column in columns.items():
        if name in batch or name in skip:
            continue
        rows = _quick_rows(column) if name == "labels" else flat_rows(column)
        if rows is None:
            batch[name] = stack(column)
        elif name == "labels":
            check_aligned(name, rows, layout)
            labels = place(rows, layout, options.label_pad_token_id, np.int64)
            batch[name] = labels if whole else hide(labels, mask, options.label_pad_token_id)
        elif counts_of(rows) == layout.full:
            batch[name] = place(rows, layout, options.pad_values.get(name, 0))
        elif name in options.pad_values:
            batch[name], _ = options.pad(rows, options.pad_values[name])
        else:
            batch[name] = stack(column)
    return batch


def _attention(column: Any, layout: Layout) -> tuple[NDArray[Any], bool]:
    """The padded attention mask, and whether it is 1 on all of every row."""
    if isinstance(column, list) and type(None) in set(map(type, column)):
        column = [np.ones(n, np.int64) if v is None else v for v, n in zip(column, layout.full, strict=True)]
    if column is None:
        return valid_mask(layout), True
    rows = _quick_rows(column)
    if rows is None:
        raise _not_flat("attention_mask")
    check_aligned("attention_mask", rows, layout)
    if _ones(rows):
        return valid_mask(layout), True
    return place(rows, layout, 0, np.int64), False


def _ones(rows: list[Any] | Ragged) -> bool:
    """Whether rows hold nothing but ones: by far the usual mask, and told from others faster than it is converted."""
    if len(rows) == 0:
        return True
    if isinstance(rows, list) and type(rows[0]) is list:
        return list(map(list.count, rows, repeat(1))) == list(map(len, rows))
    values = rows.values if isinstance(rows, Ragged) else np.concatenate(rows)
    return values.dtype.kind in "biu" and bool((values == 1).all())


def hide(labels: NDArray[Any], mask: NDArray[Any], value: int) -> NDArray[Any]:
    """`labels` with `value` wherever `mask` is 0, in place."""
    np.copyto(labels, value, where=mask == 0)
    return labels


def _not_flat(name: str) -> RecordError:
    return RecordError(
        f"{name!r} to be a flat sequence of integers in every row",
        got="scalars, text or nested sequences",
        where="collated batch",
        fix=f"give {name!r} as one list or one-dimensional array per row",
    )


def check_aligned(name: str, rows: Sequence[Any] | Ragged, layout: Layout, other: str = "input_ids") -> None:
    """Raises for rows of other lengths than the layout's, which are those of the column `other`."""
    lengths, counts = counts_of(rows), layout.full
    if lengths == counts:
        return
    row = next(i for i, (a, b) in enumerate(zip(lengths, counts, strict=True)) if a != b)
    own = "for labels of their own length use create_seq2seq_collate" if name == "labels" else "or leave it out"
    raise RecordError(
        f"{name!r} to be as long as {other!r} in every row",
        got=f"{lengths[row]} and {counts[row]}",
        where=f"row {row} of the batch",
        fix=f"align the two; {own}",
        row=row,
    )


def labels_of(batch: Batch, options: CollateOptions) -> NDArray[Any]:
    """The batch's labels, or its `input_ids` with padding hidden where it has none."""
    labels: NDArray[Any] | None = batch.get("labels")
    if labels is None:
        labels = hide(batch["input_ids"].copy(), batch["attention_mask"], options.label_pad_token_id)
    return labels


@dataclass(frozen=True)
class Collate:
    """Made by `create_collate_fn`."""

    options: CollateOptions
    make_labels: bool = False

    def __call__(self, rows: Rows) -> Batch:
        batch = pad_tokens(columns_of(rows), self.options)
        if self.make_labels:
            batch["labels"] = labels_of(batch, self.options)
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
    make_labels: bool = False,
) -> Collate:
    """A collate function that pads.

    `max_length` fixes the width of every batch and cuts longer rows on `truncation_side`; without it a batch is as
    wide as its longest row. `pad_to_multiple_of` rounds the width up. `return_tensors`: True or "pt" for torch, False
    or "np" for NumPy, "jax" for JAX. Rows without labels get none, unless `make_labels` copies them from `input_ids`.

    >>> collate = create_collate_fn(pad_token_id=0, return_tensors="np")
    >>> batch = collate([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}])
    >>> {name: value.tolist() for name, value in batch.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'input_ids': [[5, 6, 7], [8, 0, 0]], 'attention_mask': [[1, 1, 1], [1, 0, 0]],
     'labels': [[-100, 6, 7], [8, -100, -100]]}
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, truncation_side, schema, dict(pad_values or {}),
    )  # fmt: skip
    return Collate(options, make_labels)


@dataclass(frozen=True)
class CausalCollate:
    """Made by `create_causal_lm_collate`."""

    options: CollateOptions
    shift: bool = True

    def __call__(self, rows: Rows) -> Batch:
        batch = pad_tokens(columns_of(rows), self.options)
        labels = labels_of(batch, self.options)
        batch["labels"] = shift_left(labels, batch["attention_mask"], self.options) if self.shift else labels
        return self.options.finish(batch)


def shift_left(labels: NDArray[Any], mask: NDArray[Any], options: CollateOptions) -> NDArray[Any]:
    """Labels of the same position turned into labels of the next one; the last of each row has none."""
    out = np.full_like(labels, options.label_pad_token_id)
    out[:, :-1] = labels[:, 1:]
    # With padding on the left, the pad before a row's first token would otherwise be asked to predict it.
    return hide(out, mask, options.label_pad_token_id)


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
) -> CausalCollate:
    """A collate function for autoregressive training.

    With `shift=True`, `labels[t]` is the token after `input_ids[t]`, so a loop computes
    `cross_entropy(logits, labels)` with no slicing. Models of the transformers library shift inside their own loss:
    for them use `shift=False`, which gives `labels[t]` at the position of `input_ids[t]`. Rows that bring `labels`
    bring them unshifted, with `label_pad_token_id` where nothing is to be learnt; rows without learn every token.

    >>> collate = create_causal_lm_collate(pad_token_id=0, return_tensors="np")
    >>> collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])["labels"].tolist()
    [[6, 7, -100], [9, -100, -100]]
    >>> collate([{"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}])["labels"].tolist()
    [[-100, 7, -100]]
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, truncation_side, schema, dict(pad_values or {}),
    )  # fmt: skip
    return CausalCollate(options, shift)
