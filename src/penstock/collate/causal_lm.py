"""Batches for training on the rows' own tokens: padded as they are, or with next-token labels."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.collate.batch import pad_columns, shifted_labels, unshifted_labels
from penstock.collate.columns import Rows, columns_of
from penstock.collate.options import Batch, CollateOptions


@dataclass(frozen=True)
class PadCollate:
    """Pads rows. Rows without labels get none, unless `make_labels` copies them from `input_ids`."""

    options: CollateOptions
    make_labels: bool = False

    def __call__(self, rows: Rows) -> Batch:
        batch = pad_columns(columns_of(rows), self.options)
        if self.make_labels:
            batch["labels"] = unshifted_labels(batch, self.options)
        return self.options.finish(batch)


@dataclass(frozen=True)
class CausalCollate:
    """Pads rows; `labels[t]` is the token after `input_ids[t]`, or with `shift=False` `input_ids[t]` itself."""

    options: CollateOptions
    shift: bool = True

    def __call__(self, rows: Rows) -> Batch:
        batch = pad_columns(columns_of(rows), self.options)
        batch["labels"] = (shifted_labels if self.shift else unshifted_labels)(batch, self.options)
        return self.options.finish(batch)
