"""Encoder-decoder batches: source and target padded separately, and the decoder's inputs made from the labels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.batch import pad_columns
from penstock.collate.columns import Rows, columns_of, token_rows
from penstock.collate.layout import Layout, Side, valid_mask
from penstock.collate.options import Batch, CollateOptions, check_token_id
from penstock.collate.pad import counts_of, place
from penstock.collate.tokens import check_aligned, hide
from penstock.core.errors import RecordError

_ORDER = ("labels", "decoder_input_ids", "decoder_attention_mask")
TARGET_COLUMNS = frozenset(_ORDER)


@dataclass(frozen=True)
class Seq2SeqCollate:
    """Made by `create_seq2seq_collate`."""

    options: CollateOptions
    decoder_start_token_id: int
    max_target_length: int | None = None
    target_padding_side: Side = "right"
    target: CollateOptions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_token_id("decoder_start_token_id", self.decoder_start_token_id)
        target = replace(self.options, padding_side=self.target_padding_side, max_length=self.max_target_length)
        object.__setattr__(self, "target", target)

    def __call__(self, rows: Rows) -> Batch:
        columns = columns_of(rows)
        batch = pad_columns(columns, self.options, skip=TARGET_COLUMNS)
        present = {name: token_rows(columns[name], name) for name in _ORDER if name in columns}
        if not {"labels", "decoder_input_ids"} & present.keys():
            if present:
                raise RecordError(
                    "rows with 'labels' or 'decoder_input_ids', as they have a 'decoder_attention_mask'",
                    got=f"columns {', '.join(map(str, columns))}",
                    where="row 0 of the batch",
                    fix="put the target's tokens in 'labels', without a start token",
                )
            return self.options.finish(batch)  # only the encoder's input, to generate from
        target = "labels" if "labels" in present else "decoder_input_ids"
        layout = self.target.lay_out(counts_of(present[target]))
        for name, column in present.items():
            check_aligned(name, column, layout.full, target)
        if "labels" in present:
            batch["labels"] = place(present["labels"], layout, self.target.label_pad_token_id, np.int64, name="labels")
        if "decoder_input_ids" in present:
            inputs = place(
                present["decoder_input_ids"], layout, self.target.pad_token_id, np.int64, name="decoder_input_ids"
            )
        else:
            inputs = self._shift_right(batch["labels"], layout)
        batch["decoder_input_ids"] = inputs
        if "decoder_attention_mask" in present:
            mask = place(present["decoder_attention_mask"], layout, 0, np.int64, name="decoder_attention_mask")
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
