"""Masked-language-model batches: some tokens are masked, and their originals are the labels.

Which tokens are masked, and by what, is a function of (seed, epoch, record, position): not of the batch, its padding
or its order. Costs a few passes over the batch's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.batch import pad_columns
from penstock.collate.columns import Rows, columns_of, mask_rows
from penstock.collate.layout import Layout
from penstock.collate.options import Batch, CollateOptions, check_token_id
from penstock.collate.pad import counts_of, place
from penstock.collate.record_id import check_ids, record_keys
from penstock.core import randomness
from penstock.core.errors import UsageError

_MASKS = frozenset({"attention_mask", "special_tokens_mask"})
MADE_BY_MLM = frozenset({"labels", "special_tokens_mask"})


@dataclass(frozen=True)
class MlmCollate:
    """Made by `create_mlm_collate`."""

    options: CollateOptions
    mask_token_id: int
    vocab_size: int
    special_token_ids: tuple[int, ...]
    probability: float
    mask_share: float
    random_share: float
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        if (
            not 0 <= self.probability <= 1
            or min(self.mask_share, self.random_share) < 0
            or self.mask_share + self.random_share > 1 + 1e-9
        ):
            raise UsageError(
                "`probability` in [0, 1], and shares of 0 or more that sum to at most 1",
                got=f"probability={self.probability}, mask_share={self.mask_share}, random_share={self.random_share}",
                fix="the usual values are 0.15, 0.8 and 0.1",
            )
        check_token_id("mask_token_id", self.mask_token_id)
        check_token_id("vocab_size", self.vocab_size, "pass the tokenizer's full vocabulary size")
        for token in self.special_token_ids:
            check_token_id("special_token_ids", token)
        if not len(_ordinary(self.vocab_size, self._special)):
            raise UsageError(
                "a vocabulary with ordinary tokens beside the special ones",
                got=f"vocab_size={self.vocab_size} and {len(self._special)} special tokens",
                fix="pass the tokenizer's full vocabulary size",
            )

    @property
    def _special(self) -> tuple[int, ...]:
        pad = self.options.pad_token_id
        return tuple(sorted({*map(int, self.special_token_ids), int(pad), int(self.mask_token_id)}))

    def at_epoch(self, epoch: int) -> MlmCollate:
        """The same function for another epoch, with other tokens masked."""
        return replace(self, epoch=epoch)

    def __call__(self, rows: Rows) -> Batch:
        columns, special_ids = columns_of(rows, _MASKS), self._special
        check_ids(columns)
        batch = pad_columns(columns, self.options, skip=MADE_BY_MLM)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        layout = self.options.lay_out(counts_of(columns["input_ids"]))
        open_ = (mask != 0) & ~np.isin(ids, np.array(special_ids, np.int64))
        special = mask_rows(columns.get("special_tokens_mask"), "special_tokens_mask", layout.full, absent=0)
        if special is not None:
            open_ &= place(special, layout, 1, np.int64, name="special_tokens_mask") == 0
        row, at = np.nonzero(open_)
        keys = record_keys(columns, self.seed, "mlm", self.epoch)
        draws = randomness.mix64(keys[row] + randomness.mix64(_position(layout, row, at)))
        chosen = randomness.uniform(draws, 0) < self.probability
        row, at, draws = row[chosen], at[chosen], draws[chosen]
        labels = np.full_like(ids, self.options.label_pad_token_id)
        labels[row, at] = ids[row, at]
        how = randomness.uniform(draws, 1)
        hidden = how < self.mask_share
        swapped = ~hidden & (how < self.mask_share + self.random_share)
        ids[row[hidden], at[hidden]] = self.mask_token_id
        ordinary = _ordinary(self.vocab_size, special_ids)
        ids[row[swapped], at[swapped]] = ordinary[randomness.integers(draws[swapped], 2, len(ordinary))]
        batch["labels"] = labels
        return self.options.finish(batch)


@lru_cache(maxsize=8)
def _ordinary(vocab_size: int, special: tuple[int, ...]) -> NDArray[np.int64]:
    """The tokens that may be drawn as replacements. Kept: it is as long as the vocabulary."""
    return np.setdiff1d(np.arange(vocab_size, dtype=np.int64), np.array(special, np.int64))


def _position(layout: Layout, row: Any, at: Any) -> randomness.U64:
    """The token's position in its own row, before padding and truncation."""
    cut = np.array(layout.full) - layout.lengths() if layout.truncate == "left" else 0
    return np.asarray(at + (cut - np.array(layout.starts(), np.int64))[row], np.uint64)
