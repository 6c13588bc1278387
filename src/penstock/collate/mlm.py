"""Masked-language-model batches: some tokens hidden, their originals as labels.

Which tokens are hidden, and by what, is a function of (seed, epoch, record, position): not of the batch, its padding
or its order. Costs a few passes over the batch's tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.causal_lm import pad_tokens
from penstock.collate.columns import Rows, columns_of, mask_rows
from penstock.collate.layout import Layout, Side
from penstock.collate.options import Batch, CollateOptions, Tensors, check_token_id
from penstock.collate.pad import counts_of, place
from penstock.collate.record_id import record_keys
from penstock.collate.schema import OutputSchema
from penstock.collate.tokens import TOKEN_COLUMNS
from penstock.core import randomness
from penstock.core.errors import UsageError

_MASKS = frozenset({"attention_mask", "special_tokens_mask"})
_MADE = frozenset({"labels", "special_tokens_mask"})


@dataclass(frozen=True)
class MlmCollate:
    """Made by `create_mlm_collate`."""

    options: CollateOptions
    mask_token_id: int
    special_token_ids: tuple[int, ...]
    probability: float
    mask_share: float
    random_share: float
    seed: int
    epoch: int
    replacements: NDArray[np.int64] = field(repr=False)

    def at_epoch(self, epoch: int) -> MlmCollate:
        """The same function for another pass, with other tokens hidden."""
        return replace(self, epoch=epoch)

    def __call__(self, rows: Rows) -> Batch:
        columns = columns_of(rows, _MASKS)
        batch = pad_tokens(columns, self.options, skip=_MADE)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        layout = self.options.lay_out(counts_of(columns["input_ids"]))
        open_ = (mask != 0) & ~np.isin(ids, np.array(self.special_token_ids, np.int64))
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
        other = self.replacements[randomness.integers(draws[swapped], 2, len(self.replacements))]
        ids[row[swapped], at[swapped]] = other
        batch["labels"] = labels
        return self.options.finish(batch)


def _position(layout: Layout, row: Any, at: Any) -> randomness.U64:
    """The token's number inside its own row, before padding and cutting."""
    cut = np.array(layout.full) - layout.lengths() if layout.truncate == "left" else 0
    return np.asarray(at + (cut - np.array(layout.starts(), np.int64))[row], np.uint64)


def create_mlm_collate(
    pad_token_id: int,
    mask_token_id: int,
    vocab_size: int,
    *,
    special_token_ids: Sequence[int] = (),
    probability: float = 0.15,
    mask_share: float = 0.8,
    random_share: float = 0.1,
    seed: int = 0,
    epoch: int = 0,
    label_pad_token_id: int = -100,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
) -> MlmCollate:
    """A collate function for masked-language-model training.

    Each token is chosen with `probability`; of the chosen, `mask_share` become `mask_token_id`, `random_share` become
    another ordinary token, the rest stay. Labels hold the originals of the chosen and `label_pad_token_id` elsewhere.
    Special tokens are never chosen, nor drawn as replacements: those in `special_token_ids`, padding, the mask token,
    and the ones a row's `special_tokens_mask` marks, where it has one. Labels that rows bring are not looked at. A row
    is known by its `index` or `record` column, else by its content; an `epoch` column, or `at_epoch(n)`, gives other
    choices in another pass. `pad_values` and `stack_columns` as in `create_collate_fn`.

    >>> collate = create_mlm_collate(0, mask_token_id=4, vocab_size=100, special_token_ids=[1, 2], return_tensors="np")
    >>> rows = [{"index": 7, "input_ids": [1, *range(10, 30), 2]}, {"index": 8, "input_ids": [1, 50, 51, 2]}]
    >>> one, two = collate(rows), collate(rows[::-1])
    >>> bool((one["input_ids"] == two["input_ids"][::-1]).all())
    True
    """
    if not 0 <= probability <= 1 or min(mask_share, random_share) < 0 or mask_share + random_share > 1 + 1e-9:
        raise UsageError(
            "`probability` in [0, 1], and shares of 0 or more that sum to at most 1",
            got=f"probability={probability}, mask_share={mask_share}, random_share={random_share}",
            fix="the usual values are 0.15, 0.8 and 0.1",
        )
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns,
        token_labels=True, own=TOKEN_COLUMNS | _MADE,
    )  # fmt: skip
    check_token_id("mask_token_id", mask_token_id)
    check_token_id("vocab_size", vocab_size, "pass the tokenizer's full vocabulary size")
    for token in special_token_ids:
        check_token_id("special_token_ids", token)
    special = tuple(sorted({*map(int, special_token_ids), int(pad_token_id), int(mask_token_id)}))
    ordinary = np.setdiff1d(np.arange(vocab_size, dtype=np.int64), np.array(special, np.int64))
    if not len(ordinary):
        raise UsageError(
            "a vocabulary with ordinary tokens beside the special ones",
            got=f"vocab_size={vocab_size} and {len(special)} special tokens",
            fix="pass the tokenizer's full vocabulary size",
        )
    return MlmCollate(options, mask_token_id, special, probability, mask_share, random_share, seed, epoch, ordinary)
