"""`write(..., "store")`: rows that hold token ids as a token store, with their other columns beside the documents.

The rows go the way of every preparation: in groups, resumed after an interruption, the same bytes whatever happened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.columns import Column, Columns, Ragged
from penstock.core.errors import DataError, UsageError
from penstock.plan.branches import Combined
from penstock.plan.definition import Definition
from penstock.preparation.maker import Made
from penstock.preparation.pipeline_texts import KEPT, ROW, AllColumns, PipelineTexts
from penstock.preparation.run import Prepared, make_store
from penstock.preparation.tokenize import skip_policy
from penstock.sources.base import TextSource, TokenSource
from penstock.sources.lines import Chunk
from penstock.sources.token_documents import same_tokenizer
from penstock.store.layout import token_dtype

IDS = f"{ROW}input_ids"
UNKNOWN = 1 << 31  # no vocabulary is larger; JAX has 32-bit ids


@dataclass(frozen=True)
class TokenRows(AllColumns):
    """No text; `input_ids` as ragged ids, and all other columns under their own names."""

    def kept(self, columns: Columns) -> Columns:
        ids = _ragged_ids(columns)
        out: Columns = {f"{KEPT}{IDS}": Ragged(ids.values.astype(np.int64), ids.offsets)}
        for name, column in columns.items():
            if name != "input_ids":
                out[f"{KEPT}{name}"] = _per_token(column, ids)
        return out


def write_tokens(
    definition: Definition, out: str | os.PathLike[str], *, vocab_size: int | None = None, restart: bool = False,
    show_progress: bool | None = None, storage_options: Mapping[str, Any] | None = None, single_writer: bool = False,
) -> Prepared:  # fmt: skip
    """Writes the rows of a pipeline as documents of a token store."""
    policy = skip_policy(definition, None, None)
    rows = PipelineTexts(definition, TokenRows(), policy.last, ".write()")
    return make_store(
        rows, _Tokens(definition, vocab_size), out, on_error="skip" if policy.skips else "raise", budget=rows.budget,
        restart=restart, show_progress=show_progress, storage_options=storage_options, single_writer=single_writer,
    )  # fmt: skip


class _Tokens:
    """Documents that are tokens already."""

    engine = "tokens"

    def __init__(self, definition: Definition, vocab_size: int | None) -> None:
        if vocab_size is not None and (isinstance(vocab_size, bool) or not isinstance(vocab_size, int)):
            raise UsageError("vocab_size= as a number of ids", got=repr(vocab_size), fix="vocab_size=50_257")
        origin = _one_origin(definition)
        facts = {} if origin is None else origin.describe()
        known = None if origin is None else origin.vocab_size
        if vocab_size is None and known is None and origin is not None and origin.dtype.kind == "u":
            known = min(int(np.iinfo(origin.dtype).max) + 1, UNKNOWN)
        self.vocab_size = vocab_size if vocab_size is not None else known or UNKNOWN
        self.dtype = token_dtype(self.vocab_size)
        self.eos: int | None = facts.get("eos_id")
        self.tokenizer = facts.get("tokenizer") if isinstance(facts.get("tokenizer"), dict) else {"kind": "tokens"}

    def job(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "eos": self.eos, "vocab_size": self.vocab_size}

    def check(self, source: TextSource, *, wait: bool = True) -> None:
        """Every id is checked when it is written."""

    def documents(self, chunks: Iterable[Chunk]) -> Iterator[Made]:
        for chunk in chunks:
            columns = dict(chunk.columns)
            ids = columns.pop(IDS, None)
            if not isinstance(ids, Ragged):  # a chunk without rows
                ids = Ragged(np.empty(0, self.dtype), np.zeros(1, np.int64))
            yield Made(chunk, self._checked(ids, chunk), columns)

    def _checked(self, ids: Ragged, chunk: Chunk) -> Ragged:
        values = ids.values[ids.offsets[0] : ids.offsets[-1]]
        wrong = np.flatnonzero((values < 0) | (values >= self.vocab_size))
        if len(wrong):
            row = int(np.searchsorted(ids.offsets - ids.offsets[0], wrong[0], "right")) - 1
            raise DataError(
                f"token ids in [0, {self.vocab_size}), the vocabulary", got=f"id {int(values[wrong[0]])}",
                where=f"row {chunk.positions[row][2]}", fix="vocab_size= of the tokenizer that made these ids",
            )  # fmt: skip
        return Ragged(values.astype(self.dtype), ids.offsets - ids.offsets[0])

    def close(self) -> None:
        """Holds nothing."""


def _one_origin(definition: Definition) -> TokenSource | None:
    """The token source of all rows, or one of several that agree on tokenizer and vocabulary; None without any."""
    found = list(_origins(definition))
    sources = [one for one in found if isinstance(one, TokenSource)]
    if not sources or len(sources) < len(found):
        return None
    same_tokenizer(sources)
    return sources[0]


def _origins(definition: Definition) -> Iterator[object]:
    if isinstance(definition.origin, Combined):
        for branch in definition.origin.branches:
            yield from _origins(branch)
    else:
        yield definition.origin


def _ragged_ids(columns: Columns) -> Ragged:
    ids = columns.get("input_ids")
    found = None if ids is None else _ragged(ids)
    if found is None or found.dtype.kind not in "iu":
        got = f"columns {', '.join(columns)}" if ids is None else f"{ids.dtype}"
        raise UsageError(
            'a column "input_ids" of token ids for .write(..., "store")',
            got=got,
            fix='.tokenize(tokenizer) for texts, .rename({"tokens": "input_ids"}) for another column',
        )
    return found


def _per_token(column: Column, ids: Ragged) -> Column:
    """A column with a value for each token is ragged, also where these rows happen to be equally long."""
    found = _ragged(column)
    return column if found is None or not np.array_equal(found.lengths, ids.lengths) else found


def _ragged(column: Column) -> Ragged | None:
    if isinstance(column, Ragged):
        return column
    if column.ndim == 2 and column.dtype.kind in "biuf":
        offsets = np.arange(len(column) + 1, dtype=np.int64) * column.shape[1]
        return Ragged(np.ascontiguousarray(column).reshape(-1), offsets)
    return None
