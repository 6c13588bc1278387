"""`to_hf`: the rows of a pipeline as a dataset of Hugging Face, for trainers that take nothing else.

The rows are those that `prepare` would store: of the first epoch, in order, without rejected records. A map-style
dataset is written once, as Arrow files in HF's cache, and found there again by the fingerprint of the pipeline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.core.columns import row
from penstock.core.errors import PenstockError, UsageError
from penstock.core.ledger import Ledger
from penstock.core.optional import need
from penstock.core.os_errors import storage_errors
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptRows, nothing_kept
from penstock.storage.filesystem import local_only

PARTS = 64  # of a streaming dataset: the most workers and ranks that can share it


def hf_dataset(definition: Definition, streaming: bool, cache_dir: Any) -> Any:
    """A `datasets.Dataset`, or with `streaming` a `datasets.IterableDataset` that reads when it is iterated."""
    definition.refuse_shard(".to_hf()")
    if cache_dir is not None:
        cache_dir = local_only(cache_dir, "cache_dir, where datasets writes Arrow files")
    datasets = need("datasets", extra="hf", purpose="for .to_hf()")
    rows = KeptRows(definition, ".to_hf()")
    if streaming:
        parts = min(PARTS, max(1, rows.size))
        return datasets.IterableDataset.from_generator(
            _examples, gen_kwargs={"rows": _Rows(rows), "parts": [(part, parts) for part in range(parts)]}
        )
    plan = rows._plan()
    found = hashlib.sha256(f"{plan.fingerprint} {definition.code_id()}".encode()).hexdigest()[:32]
    with storage_errors(cache_dir or datasets.config.HF_DATASETS_CACHE, "written"):
        try:
            return datasets.Dataset.from_generator(
                _examples, gen_kwargs={"rows": _Rows(rows), "parts": [(0, 1)]}, cache_dir=cache_dir, fingerprint=found
            )
        except datasets.exceptions.DatasetGenerationError as error:
            if isinstance(error.__cause__, PenstockError | OSError):  # what datasets hides behind "An error occurred"
                raise error.__cause__ from None
            raise UsageError(
                "values that datasets can store", got=f"{type(error.__cause__).__name__}: {error.__cause__}"[:200],
                fix="convert the column with .map(), or leave it out with .drop()",
            ) from error  # fmt: skip


class _Rows:
    """The rows, and what came of each part that this process has read; datasets read each part by a call of its own."""

    def __init__(self, rows: KeptRows) -> None:
        self.rows = rows
        self.skipped: dict[int, int] = {}
        self.kept: dict[int, int] = {}

    def __getstate__(self) -> KeptRows:
        return self.rows

    def __setstate__(self, rows: KeptRows) -> None:
        self.__init__(rows)  # type: ignore[misc]

    def examples(self, part: int, of: int) -> Iterator[dict[str, Any]]:
        """The rows of one part. What is skipped in all parts counts against the budget together."""
        self.skipped[part] = kept = 0
        size = self.rows.size
        for block in self.rows.blocks(size * part // of, stop=size * (part + 1) // of):
            self.skipped[part] += len(block.skipped)
            if block.skipped:
                ledger = Ledger(self.rows.budget)
                ledger.entries += block.skipped
                ledger.count("bad records", sum(self.skipped.values()))
            kept += len(block.positions)
            for i in range(len(block.positions)):
                yield {name: _plain(value) for name, value in row(block.columns, i).items()}
        self.kept[part] = kept
        if len(self.kept) == of and not any(self.kept.values()):
            skipped = sum(self.skipped.values())
            raise nothing_kept("pass to .to_hf()", skipped, size - skipped)


def _examples(rows: _Rows, parts: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for part, of in parts:
        yield from rows.examples(part, of)


def _plain(value: Any) -> Any:
    """Unsigned token ids as int64, which every collator accepts; scalars as Python's."""
    if isinstance(value, np.ndarray):
        return value.astype(np.int64) if value.dtype.kind == "u" and value.dtype.itemsize > 1 else value
    return value.item() if isinstance(value, np.generic) else value
