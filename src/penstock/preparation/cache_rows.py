"""`.cache()`: the rows of a pipeline, computed once and kept on disk, keyed by content.

They are columns of a store without tokens: written by many ranges, resumed after an interruption, checked page by page,
evicted and repaired as the stores of `.tokenize()`. Reading a row maps a file: what is used often stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged, concat, nbytes
from penstock.core.errors import DataError, LimitError, UsageError
from penstock.core.hashing import content_id
from penstock.core.ledger import Ledger
from penstock.core.progress import progress
from penstock.core.sizes import size
from penstock.plan.build import build
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptRows, nothing_kept
from penstock.preparation.cache import cache_folder, kept_store, place
from penstock.preparation.kept_columns import ColumnKind, kinds_of
from penstock.preparation.maker import Made
from penstock.preparation.pipeline_texts import ROW, AllColumns, PipelineTexts
from penstock.preparation.run import make_store
from penstock.preparation.tokenize import skip_policy
from penstock.sources.arrays import Arrays
from penstock.sources.base import TextSource
from penstock.sources.lines import Chunk
from penstock.sources.tokens import TokenStore
from penstock.steps.renumbered import refuse_moved
from penstock.storage import cache_entries

_BLOCK = 1024
_OF_STORE = ("shard", "document", "document_in_shard", "start", "tokens", "byte")


def cached_rows(definition: Definition, cache_dir: Any, show: bool | None) -> Definition:
    """A definition whose source is the cached rows; they are computed now if the cache does not have them."""
    _refuse_random(definition)
    policy = skip_policy(definition, None, None)
    rows = PipelineTexts(definition, AllColumns(), policy.last, ".cache()")
    budget = rows.budget
    on_error: Any = "skip" if policy.skips else "raise"

    def fill(folder: Any) -> None:
        make_store(rows, _Rows(), folder, on_error=on_error, budget=budget, show_progress=show)

    root = cache_folder(cache_dir) / "rows"
    key = content_id(["rows 2", rows.fingerprint(), on_error])
    store = kept_store(root, key, fill, budget, cache_entries.limit_of(None))
    store.place_of_row = partial(place, rows)
    return Definition(CachedRows(store), (), definition.rank, definition.world, definition.sharded)


def _refuse_random(definition: Definition) -> None:
    facts = build(definition).root
    refuse_moved(facts, ".cache()")
    if facts.facts.draws:
        raise UsageError(
            "no random draws before .cache(): they would be the same in every epoch",
            got="a random crop, or a function with `rng` or `keys`",
            fix="put .cache() before the random step",
        )


def rows_in_memory(definition: Definition, most: int, cache_dir: Any, show: bool | None) -> Definition:
    """A definition whose source is the rows in memory, of at most `most` bytes."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError("memory= of at least 1 byte in .cache()", got=repr(most), fix=".cache(memory=2 << 30)")
    if cache_dir is not None:
        raise UsageError("memory= or cache_dir= in .cache()", got="both", fix="leave one of them out")
    _refuse_random(definition)
    rows = KeptRows(definition, ".cache()")
    ledger, parts, used = Ledger(rows.budget), [], 0
    kinds: tuple[ColumnKind, ...] = ()
    with progress(rows.size, "rows", "caching", show) as bar:
        begin = 0
        for block in rows.blocks(0, _BLOCK):
            ledger.see(block.stop - begin)
            if block.skipped:
                ledger.count("bad records", len(block.skipped))
                ledger.check()
            if len(block.positions):
                kinds = kinds or kinds_of({f"{ROW}{name}": column for name, column in block.columns.items()})
                parts.append(_of_kinds(kinds, block.columns))
                used += nbytes(parts[-1])
            if used > most:
                raise LimitError(
                    f"rows of at most {size(most)} for .cache(memory={most})",
                    got=f"{size(used)} after {block.stop:,} of {rows.size:,} rows",
                    fix=f"memory={used * rows.size // block.stop}, or .cache() on disk",
                )
            bar.update(block.stop - begin)
            begin = block.stop
    if not parts:
        raise nothing_kept("cache", ledger.total, rows.size - ledger.total)
    source = Arrays(concat(parts))
    return Definition(source, (), definition.rank, definition.world, definition.sharded)


def _of_kinds(kinds: tuple[ColumnKind, ...], columns: Columns) -> Columns:
    """The columns, numbers in the kinds of the first rows: a column has one dtype from the first row to the last."""
    out: Columns = {}
    for kind in kinds:
        name = kind.name.removeprefix(ROW)
        if name not in columns:
            raise DataError(
                f"a column {name!r} as in the first rows", got=", ".join(columns), fix="in .map(), return it"
            )
        out[name] = columns[name] if kind.dtype is None else kind.encode(columns[name])
    return out


class CachedRows:
    """The rows of a store of `.cache()` as a `Source`."""

    def __init__(self, store: TokenStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store)

    @property
    def columns(self) -> list[str]:
        return [name.removeprefix(ROW) for name in self.store.columns if name.startswith(ROW)]

    def read(self, indices: NDArray[np.int64]) -> Columns:
        found = self.store.read(indices)
        return {name.removeprefix(ROW): column for name, column in found.items() if name.startswith(ROW)}

    def fingerprint(self) -> str:
        return f"cached:{self.store.fingerprint()}"

    def describe(self) -> dict[str, Any]:
        return {"kind": "cached rows", "records": len(self), "bytes": self.store.manifest.bytes}

    def locate(self, index: int) -> dict[str, Any]:
        found = self.store.locate(index)
        facts = {name: fact for name, fact in found.items() if name not in _OF_STORE}
        return {"row": index, "cached_row": facts.pop("pipeline_row", index)} | facts


class _Rows:
    """Documents without tokens, with the columns of their rows."""

    vocab_size = 1
    eos: int | None = None
    engine = "rows"

    def job(self) -> dict[str, Any]:
        return {"tokenizer": {"kind": "rows"}, "rows": 1}

    def check(self, source: TextSource, *, wait: bool = True) -> None:
        """Nothing to compare."""

    def documents(self, chunks: Iterable[Chunk]) -> Iterator[Made]:
        for chunk in chunks:
            yield Made(chunk, Ragged(np.empty(0, np.uint8), np.zeros(len(chunk.texts) + 1, np.int64)), chunk.columns)

    def close(self) -> None:
        """Holds nothing."""
