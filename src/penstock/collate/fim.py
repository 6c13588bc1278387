"""Fill-in-the-middle batches: a document is split in three and rearranged so that its middle comes last.

Whether, where and in which form a document is split is a function of (seed, epoch, record). A rearranged row is three
tokens longer. Every column with one value per token (labels, attention mask, others) moves with the tokens.
Costs two copies of each row and column more than padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.collate.batch import input_ids_of, pad_columns, per_token, shifted_labels, unaligned_column
from penstock.collate.columns import Rows, columns_of, integer_rows, mask_rows
from penstock.collate.options import Batch, CollateOptions, check_token_id
from penstock.collate.pad import dtype_of
from penstock.collate.record_id import record_keys
from penstock.collate.tokens import TOKEN_COLUMNS, check_aligned
from penstock.core import randomness
from penstock.core.errors import UsageError

Places = NDArray[np.int64]
_NEW = np.arange(3)  # prefix, middle and suffix token


@dataclass(frozen=True)
class FimCollate:
    """Made by `create_fim_collate`."""

    options: CollateOptions
    prefix_token_id: int
    middle_token_id: int
    suffix_token_id: int
    eos_token_id: int | None
    rate: float
    spm_rate: float
    learn: Literal["all", "middle"]
    shift: bool
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        for name, number in (("rate", self.rate), ("spm_rate", self.spm_rate)):
            if not 0 <= number <= 1:
                raise UsageError(f"`{name}` in [0, 1]", got=repr(number), fix="0.5 is usual")
        if self.learn not in ("all", "middle"):
            raise UsageError("`learn` to be 'all' or 'middle'", got=repr(self.learn), fix="use one of the two words")
        for name in ("prefix_token_id", "middle_token_id", "suffix_token_id", "eos_token_id"):
            token = getattr(self, name)
            if token is not None or name != "eos_token_id":
                check_token_id(name, token)

    def at_epoch(self, epoch: int) -> FimCollate:
        """The same function for another epoch, with other splits."""
        return replace(self, epoch=epoch)

    def __call__(self, rows: Rows) -> Batch:
        columns = columns_of(rows)
        ids = integer_rows(input_ids_of(columns), "input_ids")
        full = list(map(len, ids))
        mask = mask_rows(columns.get("attention_mask"), "attention_mask", full, absent=1)
        masks = None if mask is None else integer_rows(mask, "attention_mask")
        own = None if masks is None else [_attended(m) for m in masks]
        texts = ids if own is None else [row[places] for row, places in zip(ids, own, strict=True)]
        keys = record_keys({**columns, "input_ids": texts}, self.seed, "fim", self.epoch)
        wanted = randomness.uniform(keys, 0) < self.rate
        form = randomness.uniform(keys, 1) < self.spm_rate
        orders = [
            self._rearrange(text, keys[i : i + 1], bool(form[i])) if wanted[i] else _as_it_is(len(text))
            for i, text in enumerate(texts)
        ]
        # From here on a row is the list of places its values come from; the three new tokens are behind its end.
        sources = [order.places for order in orders]
        if own is not None:
            behind = [np.concatenate([places, n + _NEW]) for places, n in zip(own, full, strict=True)]
            sources = [places[source] for places, source in zip(behind, sources, strict=True)]
        moved = self._moved(columns, ids, masks, sources)
        for labels, order in zip(moved["labels"], orders, strict=True):
            labels[: order.masked] = self.options.label_pad_token_id
        batch = pad_columns(moved, self.options)
        rest = [name for name in columns if name not in batch]
        batch |= {name: unaligned_column(name, columns[name], self.options) for name in rest}
        if self.shift:
            batch["labels"] = shifted_labels(batch, self.options)
        return self.options.finish(batch)

    def _moved(
        self, columns: dict[str, Any], ids: list[NDArray[Any]], masks: list[NDArray[Any]] | None, sources: list[Places]
    ) -> dict[str, Any]:
        """The columns of one value per token, in the order of `sources`."""
        full = list(map(len, ids))
        new = [self.prefix_token_id, self.middle_token_id, self.suffix_token_id]
        moved: dict[str, Any] = {"input_ids": _take(ids, new, sources)}
        if "labels" in columns:
            labels = integer_rows(columns["labels"], "labels")
            check_aligned("labels", labels, full)
            moved["labels"] = _take(labels, new, sources)
        else:
            moved["labels"] = [row.copy() for row in moved["input_ids"]]
        if masks is not None:
            moved["attention_mask"] = _take(masks, [1, 1, 1], sources)
        for name, column in columns.items():
            rows = None if name in TOKEN_COLUMNS else per_token(name, column, full, self.options)
            if rows is not None:
                dtype = dtype_of(rows)
                moved[name] = _take(rows, [self.options.fill(name, dtype)] * 3, sources, dtype)
        return moved

    def _rearrange(self, ids: NDArray[Any], key: randomness.U64, suffix_first: bool) -> _Order:
        n = len(ids)
        tail = int(self.eos_token_id is not None and n > 0 and ids[-1] == self.eos_token_id)
        body, room = n - tail, self.options.max_length
        if room is not None:
            if room < 3 + tail:
                return _as_it_is(n)
            # Truncate before rearranging: afterwards it would remove the middle, which is what to train on.
            body = min(body, room - 3 - tail)
        a, b = sorted(int(randomness.integers(key, draw, body + 1)[0]) for draw in (2, 3))
        pre, mid, suf = ([n + place] for place in _NEW.tolist())
        prefix, middle, suffix, end = np.arange(a), np.arange(a, b), np.arange(b, body), np.arange(n - tail, n)
        parts = (
            [pre, suf, suffix, mid, prefix, middle, end]
            if suffix_first
            else [pre, prefix, suf, suffix, mid, middle, end]
        )
        places = np.concatenate([np.asarray(part, np.int64) for part in parts])
        return _Order(places, len(places) - len(middle) - tail if self.learn == "middle" else 0)


@dataclass(frozen=True)
class _Order:
    """The places a row's values come from; those behind the text's end are the three tokens.

    The first `masked` values have no label.
    """

    places: Places
    masked: int


def _as_it_is(n: int) -> _Order:
    return _Order(np.arange(n), 0)


def _attended(mask: NDArray[Any]) -> Places:
    """The places from the first to the last attended token: a row without the padding it came with."""
    found = np.flatnonzero(mask)
    return np.arange(found[0], found[-1] + 1) if len(found) else found


def _take(rows: Iterable[NDArray[Any]], new: list[Any], sources: list[Places], dtype: Any = np.int64) -> Any:
    """The values of each row at the places of its source, with `new` behind its end."""
    more = np.array(new, dtype)
    return [np.concatenate([row, more], dtype=dtype)[source] for row, source in zip(rows, sources, strict=True)]
