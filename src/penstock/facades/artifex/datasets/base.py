"""`BaseDataset`: the base class of all datasets here, and of your own.

A subclass defines `__len__` and one way to read records, of which the first it has is used:

- `read(indices) -> columns` (fastest: many records per call), `__getitem__(index) -> sample`, or
  `get_batch(batch_size, indices)`: random access;
- `__iter__`: loaders iterate it once per epoch, so that random transforms in it draw anew (see `datasets.passes`);
- only `get_batch(batch_size)`: loaders call it once per batch, and it decides which records those are.

The base class adds batches by index, batches that advance, iteration, and the methods of a source, so that
`penstock.Pipeline(dataset)` and every loader accept it.

`get_batch(n)` without indices goes through the data in shuffled epochs, every record once per epoch, in a different
order each epoch, drawn from the dataset's seed. With `indices=` it returns exactly those records and does not advance.
"""

from __future__ import annotations

import inspect
import json
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing, randomness
from penstock.core.arguments import explained_class
from penstock.core.columns import Columns, from_rows, rows_of
from penstock.core.errors import UsageError
from penstock.core.pickling import Portable
from penstock.facades.artifex.datasets.batches import batch_of_columns, collate, sample_of_columns
from penstock.facades.artifex.datasets.config import plain_config
from penstock.facades.artifex.datasets.cursor import Cursor
from penstock.facades.artifex.datasets.overrides import Access, use_own_methods
from penstock.facades.artifex.datasets.passes import Passes
from penstock.facades.artifex.datasets.rngs import as_streams, draws_of, next_seed, set_draws
from penstock.facades.artifex.datasets.scan import Scan
from penstock.plan import state as states
from penstock.sources.arrays import Arrays
from penstock.sources.base import PipelineLike

CHUNK = 64


class _NoLength(UsageError, TypeError):
    """No `__len__`: also a TypeError, so that `list(dataset)` works without one."""


class _NotInitialised(UsageError, AttributeError):
    """Also an AttributeError, so that `hasattr` and `getattr` with a default work."""


_SET_BY_INIT = frozenset({"config", "split", "rngs", "seed", "_cursor"})


@explained_class
class BaseDataset(Portable):
    """Records by number, with a configuration, a split and a seed.

    >>> class Squares(BaseDataset):
    ...     def __len__(self):
    ...         return 10
    ...
    ...     def __getitem__(self, index):
    ...         return {"x": index * index, "index": index}
    >>> squares = Squares(rngs=0)
    >>> squares.get_batch(indices=[3, 1])["x"].tolist()
    [9, 1]
    >>> sorted(squares.get_batch(6)["indices"].tolist() + squares.get_batch(4)["indices"].tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    _own_access: ClassVar[Access | None] = None  # as the methods that a subclass overrides ask for
    _own_collate: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("penstock."):
            use_own_methods(cls, BaseDataset)

    def __init__(self, config: Any = None, split: str = "train", *, rngs: Any = None) -> None:
        self.config = config
        self.split = split
        self.rngs = as_streams(rngs)  # an object with streams, such as nnx.Rngs, is kept as it is
        self.seed = next_seed(rngs)  # the integer seed derived from `rngs=`
        self._cursor = Cursor(randomness.key(self.seed, "get_batch", str(split)))

    def __getattr__(self, name: str) -> Any:
        """Called for attributes that are missing."""
        if name in _SET_BY_INIT:
            raise _NotInitialised(
                f"super().__init__(config, split, rngs=rngs) in {type(self).__name__}.__init__",
                got=f"an object without {name!r}",
                fix="call it first",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Methods that a subclass defines.

    def __len__(self) -> int:
        raise self._missing("__len__", _NoLength)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one sample; negative numbers count from the end."""
        place = self._place(index)
        read = None if self._own_access == "pass" else self._reader()
        if read is not None:
            return self.sample_from(read(self, np.array([place])), 0)
        return self._scanned([place])[0]

    def __iter__(self) -> Iterator[Any]:
        """Yields every sample once, in order."""
        read = self._reader()
        if read is not None and (self._defines("read") or not self._defines("__getitem__")):
            for start in range(0, len(self), CHUNK):
                columns = read(self, np.arange(start, min(start + CHUNK, len(self))))
                for row in range(rows_of(columns)):
                    yield self.sample_from(columns, row)
        elif self._defines("__getitem__"):
            for index in range(len(self)):
                yield self[index]
        else:
            raise self._missing("__iter__")

    # Batches.

    def get_batch(self, batch_size: int | None = None, indices: Any = None) -> dict[str, Any]:
        """Returns the records `indices`, or without them the next `batch_size` records of the shuffled epochs."""
        if indices is None:
            if batch_size is None:
                raise UsageError("a batch size or indices", got="neither", fix="get_batch(32)", where="get_batch")
            return self._drawn_batch(batch_size)
        chosen = self.check_indices(indices)
        if batch_size is not None and batch_size != len(chosen):
            raise UsageError(
                f"{batch_size} indices, as batch_size says", got=str(len(chosen)), fix="leave out batch_size"
            )
        return self.batch_at(chosen)

    def batch_at(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        """Returns the batch of exactly these records."""
        if self._defines("read") and not self._own_collate:
            return self.batch_from(self.read(indices))
        return self.collate_fn(self.samples_at(indices.tolist()))

    def _next_batch(self, batch_size: int) -> dict[str, Any]:
        """The next batch: one that the subclass's own `get_batch` makes, or the next records of shuffled epochs."""
        return self.get_batch(batch_size) if self.access() == "batches" else self._drawn_batch(batch_size)

    def _drawn_batch(self, batch_size: int) -> dict[str, Any]:
        """The next records of the shuffled epochs."""
        kind = "pass" if self._own_access == "pass" else self._access()
        if kind == "batches":
            raise self._missing("__getitem__")
        if kind == "index":
            return self.batch_at(self._cursor.take(batch_size, len(self)))
        passes: Passes = self.__dict__.setdefault("_passes", self._new_passes())
        return self._batch_of(passed_on(self._cursor, passes, batch_size))

    def _batch_of(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Builds a batch from the samples of a pass."""
        return self.collate_fn(samples)

    def collate_fn(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Builds a batch from samples."""
        return collate(samples)

    def batch_from(self, columns: Columns) -> dict[str, Any]:
        """Builds a batch from the columns of `read`."""
        return batch_of_columns(columns)

    def sample_from(self, columns: Columns, row: int) -> dict[str, Any]:
        """Returns one sample of the columns of `read`."""
        return sample_of_columns(columns, row)

    def get_sample(self, index: int) -> dict[str, Any]:
        """Returns one sample; raises IndexError outside [0, len)."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return self[index]

    def get_data_statistics(self) -> dict[str, Any]:
        """Returns size, split and configuration."""
        return {"size": len(self), "split": self.split, "config": self.config}

    # Methods of a source.

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Returns these records as NumPy columns, named as in a sample."""
        samples = self.samples_at(self.check_indices(indices).tolist())
        return from_rows([{name: _host(value) for name, value in sample.items()} for sample in samples])

    def fingerprint(self) -> str:
        """Returns an id of the content. By default this reads every record once and caches the result."""
        cached: str = self.__dict__.get("_fingerprint", "")
        if not cached and not any(map(self._defines, ("read", "__getitem__", "__iter__"))):
            return self._pass_id()
        if not cached:
            chunks = (np.arange(i, min(i + CHUNK, len(self))) for i in range(0, len(self), CHUNK))
            cached = hashing.content_id(Arrays(self.read(chunk)).fingerprint() for chunk in chunks)
            self.__dict__["_fingerprint"] = cached
        return cached

    def describe(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "records": len(self), "split": self.split}

    def locate(self, index: int) -> dict[str, Any]:
        return {"dataset": type(self).__name__, "split": self.split, "row": int(index)}

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of `get_batch` and the number of keys drawn, as plain JSON."""
        return states.write("dataset", {"position": self._cursor.position, "draws": draws_of(self.rngs)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved position."""
        saved = states.read(state, "dataset")
        counts = states.counts(saved.get("draws", {}), "draws")
        self._cursor.position = states.number(saved, "position")
        set_draws(self.rngs, counts)

    # Internal.

    def check_indices(self, indices: Any) -> NDArray[np.int64]:
        """Returns record numbers as an array; raises unless each is in [0, len)."""
        array = np.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise UsageError(
                "a list of record numbers", got=f"{array.dtype} of shape {array.shape}", fix="indices=[0, 1, 2]"
            )
        chosen = array.astype(np.int64)
        size = len(self)
        if chosen.size and (chosen.min() < 0 or chosen.max() >= size):
            outside = chosen[(chosen < 0) | (chosen >= size)]
            raise UsageError(
                f"record numbers in [0, {size})",
                got=str(int(outside[0])),
                where=type(self).__name__,
                fix=f"use indices in [0, {size})",
            )
        return chosen

    def identity(self) -> dict[str, Any]:
        """The part of the identity that all generated datasets share."""
        return {"seed": self.seed, "split": self.split, "config": plain_config(self.config)}

    def access(self) -> Access:
        """How records are read: by number, in passes of `__iter__`, or only as batches of `get_batch`."""
        return self._own_access or self._access()

    def _access(self) -> Access:
        if self._defines("read") or self._defines("__getitem__") or takes_indices(self):
            return "index"
        if self._defines("__iter__"):
            return "pass"
        if self._defines("get_batch"):
            return "batches"
        raise self._missing("__getitem__")

    def _pass(self) -> Iterator[Any]:
        """Starts a pass: sample i is record i."""
        return (self._sample(sample, "__iter__") for sample in self)

    def _valid(self) -> Callable[[Columns], NDArray[np.bool_]] | None:
        """Tells which records, by the numbers in the column `row`, are valid; None if all are."""
        return None

    def _new_passes(self) -> Passes:
        return Passes(self._pass, len(self), type(self).__name__, lambda: draws_of(self.rngs))

    def _place(self, index: int) -> int:
        place = operator.index(index)
        size = len(self)
        if not -size <= place < size:
            raise IndexError(f"record {place} of {size}")
        return place % size

    def _defines(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(BaseDataset, name)

    def samples_at(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns these samples, read together if the dataset can."""
        if self._own_access == "pass":
            return self._scanned(indices)
        if self._defines("__getitem__"):
            return [self._sample(self[index], "__getitem__") for index in indices]
        if self._defines("read"):
            columns = self.read(np.asarray(indices, np.int64))
            return [self.sample_from(columns, row) for row in range(len(indices))]
        return self._scanned(indices)

    def _reader(self) -> Callable[..., Columns] | None:
        """The `read` of the nearest class that has one."""
        found = (vars(one).get("read", BaseDataset.read) for one in type(self).__mro__)
        return next((read for read in found if read is not BaseDataset.read), None)

    def _scanned(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        if not self._defines("__iter__"):
            raise self._missing("__getitem__")
        scan: Scan = self.__dict__.setdefault("_scan", Scan(self.__iter__))
        return scan.take(indices)

    def _sample(self, sample: Any, method: str) -> dict[str, Any]:
        """One sample that the subclass returned; raises unless it is a dict."""
        if isinstance(sample, Mapping):
            return dict(sample)
        raise not_a_dict(sample, f"{type(self).__name__}.{method}")

    def _pass_id(self) -> str:
        """An id that reads no record: class, length, seed, configuration, and the names in attributes, as of files.

        A `fingerprint` that the subclass defines is used instead.
        """
        if self._defines("fingerprint"):
            return self.fingerprint()
        names = {
            name: [os.path.basename(one) for one in values]
            for name, value in sorted(vars(self).items())
            if (values := [value] if isinstance(value, str) else value)
            and isinstance(values, list | tuple)
            and all(isinstance(one, str) for one in values)
        }
        inner = [value._pass_id() for value in vars(self).values() if isinstance(value, BaseDataset)]
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        facts = json.dumps([kind, len(self), self.identity(), names, inner], sort_keys=True, default=repr)
        return hashing.content_id(["passes", facts])

    def _missing(self, method: str, kind: type[UsageError] = UsageError) -> UsageError:
        return kind(
            f"{method} in {type(self).__name__}, to read its records",
            got="a class without it",
            fix="define __len__ and one of read(indices), __getitem__(index), __iter__() and get_batch(batch_size)",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_scan", "_passes")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(split={self.split!r})"


def _host(value: Any) -> Any:
    """Converts JAX arrays to NumPy; returns everything else unchanged."""
    return np.asarray(value) if hasattr(value, "__array__") else value


def not_a_dict(sample: Any, where: str) -> UsageError:
    """The error for a sample that is not a dict."""
    if isinstance(sample, tuple):
        names = ", ".join(f'"{name}": sample[{i}]' for i, name in enumerate(("images", "labels")[: len(sample)]))
        fix = f"name the parts: {{{names}}}" + (", ..." if len(sample) > 2 else "")
        return UsageError("a dict as each sample", got=f"a tuple of {len(sample)}", where=where, fix=fix)
    return UsageError("a dict as each sample", got=type(sample).__name__, where=where, fix='{"data": sample}')


class _Sequence(BaseDataset):
    """A plain sequence of samples as a dataset."""

    def __init__(self, items: Any) -> None:
        super().__init__(getattr(items, "config", None), getattr(items, "split", "train"))
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.items[index]
        if isinstance(sample, tuple):
            raise not_a_dict(sample, f"sample {index} of a {type(self.items).__name__}")
        return dict(sample) if isinstance(sample, Mapping) else {"data": sample}


class _Iterable(BaseDataset):
    """An object that can be iterated any number of times, as a dataset."""

    def __init__(self, items: Any) -> None:
        super().__init__(getattr(items, "config", None), getattr(items, "split", "train"))
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class _Batched(BaseDataset):
    """An object that makes batches, as a dataset."""

    def __init__(self, items: Any) -> None:
        super().__init__(getattr(items, "config", None), getattr(items, "split", "train"))
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def get_batch(self, batch_size: int | None = None) -> Any:  # type: ignore[override]
        return self.items.get_batch(batch_size)


def as_dataset(dataset: Any) -> BaseDataset:
    """Returns a `BaseDataset` as it is, and a list or other dataset of samples wrapped into one.

    >>> as_dataset([{"x": 1}, {"x": 2}]).get_batch(indices=[1])["x"].tolist()
    [2]
    """
    if isinstance(dataset, BaseDataset):
        return dataset
    plain = isinstance(dataset, str | bytes | Mapping | set | frozenset | PipelineLike)
    if hasattr(dataset, "__len__") and not plain:
        if hasattr(dataset, "__getitem__"):
            return _Sequence(dataset)
        if hasattr(dataset, "__iter__"):
            return _Iterable(dataset)
        if hasattr(dataset, "get_batch"):
            return _Batched(dataset)
    raise UsageError(
        "a dataset: a BaseDataset, or anything with __len__ and one of __getitem__, __iter__ and get_batch",
        got=type(dataset).__name__,
        fix="extend penstock.BaseDataset, or pass a list of samples",
    )


def batch_at(dataset: BaseDataset, indices: NDArray[np.int64]) -> dict[str, Any]:
    """Returns the batch of exactly these records.

    A subclass's own `get_batch` is called if it takes `indices`; otherwise the samples are read and collated.
    """
    if not takes_indices(dataset):
        return dataset.batch_at(indices)
    first = next(iter(inspect.signature(dataset.get_batch).parameters))
    batch: dict[str, Any] = (
        dataset.get_batch(indices=indices) if first == "indices" else dataset.get_batch(len(indices), indices=indices)
    )
    return batch


def takes_indices(dataset: BaseDataset) -> bool:
    """Whether a subclass has a `get_batch` of its own that takes the records to return."""
    own = type(dataset).get_batch
    return own is not BaseDataset.get_batch and "indices" in inspect.signature(own).parameters


def passed_on(cursor: Cursor, passes: Passes, count: int) -> list[dict[str, Any]]:
    """The next `count` samples of shuffled passes."""
    turn, rows = cursor.take_turns(count, passes.size, passes.window)
    return [s for one in np.unique(turn).tolist() for s in passes.take(one, rows[turn == one].tolist())]
