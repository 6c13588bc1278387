"""Encoder-decoder batches: the source padded one way, the target another, and the decoder's inputs made from labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.causal_lm import pad_tokens
from penstock.collate.columns import Rows, columns_of, token_rows
from penstock.collate.layout import Layout, Side, valid_mask
from penstock.collate.options import Batch, CollateOptions, Tensors, check_token_id
from penstock.collate.pad import counts_of, place
from penstock.collate.schema import OutputSchema
from penstock.collate.tokens import TOKEN_COLUMNS, check_aligned, hide
from penstock.core.errors import RecordError

_TARGET = ("labels", "decoder_input_ids", "decoder_attention_mask")


@dataclass(frozen=True)
class Seq2SeqCollate:
    """Made by `create_seq2seq_collate`."""

    options: CollateOptions
    target: CollateOptions
    decoder_start_token_id: int

    def __call__(self, rows: Rows) -> Batch:
        columns = columns_of(rows)
        if "labels" not in columns and "decoder_input_ids" not in columns:
            raise RecordError(
                "rows with a column 'labels': the target's tokens",
                got=f"columns {', '.join(map(str, columns))}",
                where="row 0 of the batch",
                fix="put the target's tokens in 'labels', without a start token",
            )
        batch = pad_tokens(columns, self.options, skip=frozenset(_TARGET))
        given = {name: token_rows(columns[name], name) for name in _TARGET if name in columns}
        target = "labels" if "labels" in given else "decoder_input_ids"
        layout = self.target.lay_out(counts_of(given[target]))
        for name, column in given.items():
            check_aligned(name, column, layout.full, target)
        if "labels" in given:
            batch["labels"] = place(given["labels"], layout, self.target.label_pad_token_id, np.int64, name="labels")
        if "decoder_input_ids" in given:
            inputs = place(
                given["decoder_input_ids"], layout, self.target.pad_token_id, np.int64, name="decoder_input_ids"
            )
        else:
            inputs = self._shift_right(batch["labels"], layout)
        batch["decoder_input_ids"] = inputs
        if "decoder_attention_mask" in given:
            mask = place(given["decoder_attention_mask"], layout, 0, np.int64, name="decoder_attention_mask")
        else:
            mask = valid_mask(layout)
        batch["decoder_attention_mask"] = mask
        if "labels" in batch:
            hide(batch["labels"], mask, self.target.label_pad_token_id)
        return self.options.finish(batch)

    def _shift_right(self, labels: NDArray[Any], layout: Layout) -> NDArray[Any]:
        out = np.full_like(labels, self.target.pad_token_id)
        width = labels.shape[1]
        if width == 0:
            return out
        out[:, 1:] = labels[:, :-1]
        out[out == self.target.label_pad_token_id] = self.target.pad_token_id
        first = np.array(layout.starts())
        filled = first < width
        out[np.flatnonzero(filled), first[filled]] = self.decoder_start_token_id
        return out


def create_seq2seq_collate(
    pad_token_id: int,
    label_pad_token_id: int = -100,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    *,
    decoder_start_token_id: int | None = None,
    max_target_length: int | None = None,
    target_padding_side: Side = "right",
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
) -> Seq2SeqCollate:
    """A collate function for encoder-decoder training.

    Rows have `input_ids` for the encoder and `labels` for the decoder, each of its own length. The batch has
    `input_ids`, `attention_mask`, `labels`, `decoder_input_ids` (labels moved one to the right behind
    `decoder_start_token_id`, which is `pad_token_id` unless told, as in T5) and `decoder_attention_mask`, which is 1
    where there is a label. `max_length` fixes the encoder's width, `max_target_length` the decoder's. `pad_values` and
    `stack_columns` as in `create_collate_fn`.

    >>> collate = create_seq2seq_collate(pad_token_id=0, return_tensors="np")
    >>> batch = collate([{"input_ids": [5, 6], "labels": [7, 8, 1]}, {"input_ids": [9], "labels": [1]}])
    >>> batch["decoder_input_ids"].tolist(), batch["labels"].tolist()
    ([[0, 7, 8], [0, 1, 0]], [[7, 8, 1], [1, -100, -100]])
    >>> batch["decoder_attention_mask"].tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns,
        token_labels=True, own=TOKEN_COLUMNS | set(_TARGET),
    )  # fmt: skip
    target = replace(options, padding_side=target_padding_side, max_length=max_target_length)
    if decoder_start_token_id is not None:
        check_token_id("decoder_start_token_id", decoder_start_token_id)
    start = pad_token_id if decoder_start_token_id is None else decoder_start_token_id
    return Seq2SeqCollate(options, target, start)
