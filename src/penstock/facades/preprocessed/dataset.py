"""`PreprocessedDataset`: records through a prompt engine as a map-style torch dataset, with a cache of its rows.

A row is made on first access and cached in memory up to `cache_bytes`. Nothing is evicted: an epoch reads all rows, so
a cache that evicts would never hit. A row whose size is unknown (an image object, an array of objects: see `row_cache`)
is not cached. Access costs a dictionary look-up and a copy of the row, so that callers cannot change the cache. Safe
from many threads; a pickled copy (in a DataLoader worker) has the records and the engine but an empty cache. Skipped
records are marked in shared memory, one byte each, so that a process knows what its workers have skipped.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing, randomness
from penstock.core.arguments import explained_class
from penstock.core.errors import DataError, UsageError
from penstock.core.ledger import Ledger
from penstock.facades.preprocessed.preprocess import Preprocess, RowCollate, Skip
from penstock.facades.preprocessed.row_cache import copied, size_of
from penstock.order.shuffle import permute
from penstock.outputs.arrays import torch_tensor
from penstock.sources.records import Records, read_each, records_of
from penstock.torch_data.framework import data, torch
from penstock.torch_data.user_objects import overrides

CACHE_BYTES = 1 << 30
MAX_TRIES = 10_000
_MAX_MARKS = 1 << 24  # records that are marked one by one as skipped, at a byte each
_MAX_REASONS = 1000
_SPARE = randomness.key("preprocessed", "spare")

Row = dict[str, Any]


@explained_class
class PreprocessedDataset(data.Dataset):  # type: ignore[misc]
    """Rows by number.

    `hf_dataset`: a datasets.Dataset, a list or other sequence of dicts, a JSON-lines path, a pipeline. `prompt_engine`:
    a `PromptEngine` or any function from a record to a dict. `cache_enabled=False` makes a row on every access.
    `return_tensors="pt"`: arrays and lists of numbers in a row are torch tensors. `storage_options` are for URLs.

    A record that the engine skips (it returns None), or that fails with `skip_errors=True`, is replaced at its position
    by another record of this dataset. The choice depends on the position alone, so no other row moves. `skipped` counts
    such records and `ledger` names them, including those that DataLoader workers skipped. Without `skip_errors` a
    failing record raises an error that names it.

    >>> dataset = PreprocessedDataset([{"n": 1}, {"n": 2}, {"n": 3}], lambda r: {"double": 2 * r["n"]})
    >>> dataset[-1], dataset.select([2, 0])[0], [row["double"] for row in dataset[1:]]
    ({'double': 6}, {'double': 6}, [4, 6])
    """

    def __init__(
        self,
        hf_dataset: Any,
        prompt_engine: Callable[..., Any],
        cache_enabled: bool = True,
        cache_bytes: int = CACHE_BYTES,
        *,
        skip_errors: bool = False,
        return_tensors: Literal["np", "pt"] = "np",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if return_tensors not in ("np", "pt"):
            raise UsageError('return_tensors="np" or "pt"', got=repr(return_tensors), fix='"pt" for torch tensors')
        if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise UsageError("cache_bytes of 0 or more", got=repr(cache_bytes), fix="cache_bytes=2**30 is 1 GiB")
        records = records_of(hf_dataset, storage_options=storage_options)
        if not len(records):
            raise UsageError("at least one record", got="an empty dataset", fix="check how it was loaded or filtered")
        limit = cache_bytes if cache_enabled else 0
        self._cached = _CachedRows(records, Preprocess(prompt_engine, skip_errors), limit)
        self._numbers: NDArray[np.int64] | range = range(len(records))
        self._tensors = return_tensors == "pt"

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        """A row; for a slice, a dataset of those rows; for a list of numbers, a list of rows."""
        if isinstance(index, slice):
            return self._view(np.arange(*index.indices(len(self))))
        if isinstance(index, list | tuple | np.ndarray) or (isinstance(index, torch.Tensor) and index.ndim):
            return self.__getitems__(index)
        return self._rows([index])[0]

    def __getitems__(self, indices: Any) -> list[Row]:
        """Many rows in one call, as torch's DataLoader reads them; those not in the cache are read together.

        A subclass's own `__getitem__` is called for each.
        """
        if overrides(self, PreprocessedDataset, "__getitem__"):
            return [self[p] for p in self._positions(indices)]
        return self._rows(indices)

    def _rows(self, indices: Any) -> list[Row]:
        positions = self._positions(indices)
        rows = self._cached.rows([int(self._numbers[p]) for p in positions])
        made = [self._spare(p) if row is None else row for p, row in zip(positions, rows, strict=True)]
        return [{name: _tensor(value) for name, value in row.items()} for row in made] if self._tensors else made

    def __iter__(self) -> Iterator[Row]:
        return (self[i] for i in range(len(self)))

    def select(self, indices: Any) -> PreprocessedDataset:
        """A dataset of these rows, in this order; nothing is copied and the cache is shared."""
        return self._view(np.array(self._positions(indices), np.int64))

    def _view(self, positions: NDArray[np.int64]) -> PreprocessedDataset:
        view = copy.copy(self)
        view._numbers = np.asarray(self._numbers, np.int64)[positions]
        return view

    def _positions(self, indices: Any) -> list[int]:
        n = len(self)
        out = []
        for index in indices.tolist() if hasattr(indices, "tolist") else indices:
            if isinstance(index, bool) or not hasattr(index, "__index__"):
                raise TypeError(f"row numbers must be integers, not {type(index).__name__}")
            at = index.__index__()
            if not -n <= at < n:
                raise IndexError(f"row {at} of {n}")
            out.append(at % n)
        return out

    def _spare(self, position: int) -> Row:
        """The replacement of a skipped record: the first good row of a permutation keyed by the position."""
        n = len(self)
        tries = min(n, MAX_TRIES)
        for lo in range(0, tries, 64):
            turns = np.arange(lo, min(tries, lo + 64))
            for at in permute(turns, n, randomness.key(_SPARE, position)).tolist():
                (row,) = self._cached.rows([int(self._numbers[at])])
                if row is not None:
                    return row
        why = ", ".join(f"{reason}: {count}" for reason, count in self._cached.ledger.by_reason.most_common(3))
        raise DataError(
            "a record that the prompt engine keeps",
            got=f"none among {tries} tried for one row; {self.skipped} skipped in all",
            where=f"row {position}: {self.locate(position)}",
            fix=f"check template, max_length and data; look at .ledger for the reasons: not {why}",
        )

    def locate(self, index: int) -> str:
        """The record at a position, as text: its number, or its file and line."""
        return self._cached.records.name(int(self._numbers[self._positions([index])[0]]))

    @property
    def skipped(self) -> int:
        """Number of different records skipped so far, by this dataset, its selections and its DataLoader workers."""
        return self._cached.skipped

    @property
    def ledger(self) -> Ledger:
        """Skipped records and reasons. Records that only a worker skipped are processed again here, at most 1000."""
        self._cached.explain()
        return self._cached.ledger

    @property
    def cached_bytes(self) -> int:
        """Memory of the cached rows, as counted against `cache_bytes`."""
        return self._cached.held

    @property
    def collate_fn(self) -> RowCollate:
        """The collate function that `DataLoaderBuilder` uses by default."""
        return RowCollate(self._cached.engine.pad_token_id())

    def fingerprint(self) -> str:
        """Identity of records, selection and engine; reads all records once."""
        chosen = None if isinstance(self._numbers, range) else self._numbers
        return hashing.content_id(
            [
                "preprocessed",
                self._cached.records.fingerprint(),
                self._cached.engine.identity,
                *([] if chosen is None else [chosen]),
            ]
        )

    def __repr__(self) -> str:
        return f"PreprocessedDataset({len(self)} rows, {self.skipped} skipped, {self.cached_bytes} bytes cached)"


def _tensor(value: Any) -> Any:
    """Arrays and lists of numbers as torch tensors; anything else as it is."""
    numbers = isinstance(value, list) and value and all(type(v) in (int, float, bool) for v in value)
    array = np.asarray(value) if numbers else value
    return torch_tensor(array) if isinstance(array, np.ndarray) and array.dtype.kind in "biuf" else value


class _CachedRows:
    """Rows by record number, made on demand and cached; None for a skipped record."""

    def __init__(self, records: Records, engine: Preprocess, limit: int) -> None:
        self.records, self.engine, self.limit = records, engine, limit
        self.ledger = Ledger()
        self._marks = torch.zeros(min(len(records), _MAX_MARKS), dtype=torch.uint8).share_memory_()
        self._start()

    def _start(self) -> None:
        self.held = 0
        self._cache: dict[int, Row] = {}
        self._refused: set[int] = set()
        self._lock = threading.Lock()

    def rows(self, numbers: Sequence[int]) -> list[Row | None]:
        cache, refused = self._cache, self._refused
        missing = [n for n in dict.fromkeys(numbers) if n not in cache and n not in refused]
        records = read_each(self.records, missing) if missing else []
        fresh = {n: self._make(n, record) for n, record in zip(missing, records, strict=True)}
        once = len(missing) == len(numbers)  # a row that is neither cached nor returned twice needs no further copy
        out: list[Row | None] = []
        for n in numbers:
            row, hit = fresh.get(n), cache.get(n)
            if row is None or hit is not None or not once:
                row = row if hit is None else hit
                row = None if row is None else copied(row)
            out.append(row)
        return out

    def _make(self, number: int, record: Any) -> Row | None:
        made = self.engine(record, lambda: self.records.name(number))
        if isinstance(made, Skip):
            self._refuse(number, made)
            return None
        row: Row = copied(made)  # the engine may reuse its arrays for the next record
        self._keep(number, row)
        return row

    def _refuse(self, number: int, why: Skip) -> None:
        with self._lock:
            if number in self._refused:
                return
            self._refused.add(number)
        self._marks[number % len(self._marks)] = 1
        self.ledger.add(self.records.name(number), number, why.reason, why.detail)

    @property
    def skipped(self) -> int:
        """Over all processes; in datasets of more than _MAX_MARKS records, at least those of this process."""
        return max(int(self._marks.sum()), self.ledger.total)

    def explain(self) -> None:
        """Adds records that workers have skipped to the ledger of this process."""
        for number in np.flatnonzero(self._marks.numpy()).tolist():
            if self.ledger.total >= _MAX_REASONS:
                return
            self.rows([number])

    def _keep(self, number: int, row: Row) -> None:
        if not self.limit:
            return
        size = size_of(row)
        if size is None:
            return
        with self._lock:
            if number not in self._cache and self.held + size <= self.limit:
                self._cache[number] = row
                self.held += size

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("held", "_cache", "_refused", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.ledger = Ledger()
        self._start()
