"""Fill-in-the-middle batches: a document cut in three and put together so that its middle comes last.

Whether, where and in which form a document is cut is a function of (seed, epoch, record). A rearranged row is three
tokens longer. Costs one copy of each row more than padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock import _rng
from penstock._errors import UsageError
from penstock.batching.collate import Batch, CollateOptions, Rows, Tensors, columns_of, pad_tokens, shift_left, stack
from penstock.batching.layout import Side
from penstock.batching.pad import as_row
from penstock.batching.record_id import record_keys
from penstock.batching.schema import OutputSchema

_TOKEN_COLUMNS = frozenset({"input_ids", "attention_mask", "labels"})


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

    def at_epoch(self, epoch: int) -> FimCollate:
        """The same function for another pass, with other cuts."""
        return replace(self, epoch=epoch)

    def __call__(self, rows: Rows) -> Batch:
        columns = columns_of(rows)
        if "input_ids" not in columns:
            return pad_tokens(columns, self.options)  # words the missing column
        keys = record_keys(columns, self.seed, "fim", self.epoch)
        wanted = _rng.uniform(keys, 0) < self.rate
        form = _rng.uniform(keys, 1) < self.spm_rate
        made = [
            self._rearrange(as_row(row), keys[i : i + 1], bool(form[i])) if wanted[i] else self._plain(as_row(row))
            for i, row in enumerate(columns["input_ids"])
        ]
        tokens = {"input_ids": [ids for ids, _ in made], "labels": [labels for _, labels in made]}
        batch = pad_tokens(tokens, self.options)
        if self.shift:
            batch["labels"] = shift_left(batch["labels"], batch["attention_mask"], self.options)
        batch |= {name: stack(column) for name, column in columns.items() if name not in _TOKEN_COLUMNS}
        return self.options.finish(batch)

    def _plain(self, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return ids, ids

    def _rearrange(self, ids: NDArray[Any], key: _rng.U64, suffix_first: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        ends = self.eos_token_id is not None and len(ids) > 0 and ids[-1] == self.eos_token_id
        body, tail = (ids[:-1], ids[-1:]) if ends else (ids, ids[:0])
        room = self.options.max_length
        if room is not None:
            # Cut before rearranging: cutting after would take away the middle, which is what is to be learnt.
            body = body[: max(0, room - 3 - len(tail))]
            if room < 3 + len(tail):
                return self._plain(ids)
        a, b = sorted(int(_rng.integers(key, draw, len(body) + 1)[0]) for draw in (2, 3))
        prefix, middle, suffix = body[:a], body[a:b], body[b:]
        pre, mid, suf = ([t] for t in (self.prefix_token_id, self.middle_token_id, self.suffix_token_id))
        parts = (
            [pre, suf, suffix, mid, prefix, middle, tail]
            if suffix_first
            else [pre, prefix, suf, suffix, mid, middle, tail]
        )
        out = np.concatenate([np.asarray(part, np.int64) for part in parts])
        labels = out
        if self.learn == "middle":
            labels = out.copy()
            labels[: len(out) - len(tail) - len(middle)] = self.options.label_pad_token_id
        return out, labels


def create_fim_collate(
    pad_token_id: int,
    prefix_token_id: int,
    middle_token_id: int,
    suffix_token_id: int,
    *,
    eos_token_id: int | None = None,
    rate: float = 0.5,
    spm_rate: float = 0.5,
    learn: Literal["all", "middle"] = "all",
    shift: bool = True,
    seed: int = 0,
    epoch: int = 0,
    label_pad_token_id: int = -100,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    pad_to_multiple_of: int | None = None,
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
) -> FimCollate:
    """A collate function for fill-in-the-middle training.

    A share `rate` of the documents is cut at two places, any two, into prefix, middle and suffix. A share `spm_rate`
    of those becomes `<pre><suf> suffix <mid> prefix middle`, the others `<pre> prefix <suf> suffix <mid> middle`. An
    `eos_token_id` at the end of a row stays at the end. With `max_length`, a document is cut to leave room for the
    three tokens. `learn="middle"` keeps labels on the middle and the end token of rearranged rows only. `shift` as in
    `create_causal_lm_collate`.

    >>> collate = create_fim_collate(0, 101, 102, 103, rate=1.0, spm_rate=0.0, shift=False, return_tensors="np")
    >>> row = collate([{"index": 3, "input_ids": list(range(1, 9))}])["input_ids"][0].tolist()
    >>> row[0], sorted(row) == [*range(1, 9), 101, 102, 103]
    (101, True)
    """
    for name, number in (("rate", rate), ("spm_rate", spm_rate)):
        if not 0 <= number <= 1:
            raise UsageError(f"`{name}` in [0, 1]", got=repr(number), fix="0.5 is usual")
    if learn not in ("all", "middle"):
        raise UsageError("`learn` to be 'all' or 'middle'", got=repr(learn), fix="use one of the two words")
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, return_tensors,
        pad_to_multiple_of, "right", schema, dict(pad_values or {}),
    )  # fmt: skip
    return FimCollate(
        options,
        prefix_token_id,
        middle_token_id,
        suffix_token_id,
        eos_token_id,
        rate,
        spm_rate,
        learn,
        shift,
        seed,
        epoch,
    )
