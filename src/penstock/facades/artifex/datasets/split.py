"""A subset of a dataset, and a split into disjoint training and validation sets.

The split is a function of (number of records, ratio, seed): the same in every process, and every record is in exactly
one part. A larger ratio only adds records to the training part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing, randomness
from penstock.core.arguments import explained_call, explained_class
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.base import CHUNK, BaseDataset, as_dataset, batch_at
from penstock.facades.artifex.datasets.overrides import Access
from penstock.order.shuffle import permute


@explained_class
class SubsetDataset(BaseDataset):
    """The records `indices` of `dataset`, in that order, and no others.

    >>> subset = SubsetDataset([{"x": 10}, {"x": 20}, {"x": 30}], [2, 0])
    >>> [sample["x"] for sample in subset], len(subset)
    ([30, 10], 2)
    """

    def __init__(self, dataset: Any, indices: Any, split: str | None = None, *, rngs: Any = None) -> None:
        self.dataset = as_dataset(dataset)
        base = self.dataset
        super().__init__(base.config, split or base.split, rngs=base.seed if rngs is None else rngs)
        if rngs is None:
            self.rngs = base.rngs
        if base.access() == "batches":
            raise UsageError(
                f"a dataset whose records can be distinguished, to take some of {type(base).__name__}",
                got="a class with only get_batch(batch_size)",
                fix="define __getitem__(index) or __iter__() too",
            )
        self.indices = base.check_indices(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.dataset[int(self.indices[self._place(index)])]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._access() == "pass":
            yield from SubsetDataset._pass(self)  # not that of a subclass, which may call this one
            return
        for start in range(0, len(self), CHUNK):
            yield from SubsetDataset.samples_at(self, range(start, min(start + CHUNK, len(self))))

    def _access(self) -> Access:
        return self.dataset.access()

    def _valid(self) -> Callable[[Columns], NDArray[np.bool_]] | None:
        inner, indices = self.dataset._valid(), self.indices
        return None if inner is None else lambda columns: inner({"row": indices[np.asarray(columns["row"])]})

    def _pass(self) -> Iterator[dict[str, Any]]:
        """One pass over the dataset; samples that come before their place here are held until then."""
        uses = Counter(self.indices.tolist())
        held: dict[int, dict[str, Any]] = {}
        samples = enumerate(self.dataset._pass())
        for wanted in self.indices.tolist():
            while wanted not in held:
                index, sample = next(samples)
                if uses[index]:
                    held[index] = sample
            uses[wanted] -= 1
            yield dict(held[wanted] if uses[wanted] else held.pop(wanted))

    def _batch_of(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return self.dataset._batch_of(samples)

    def samples_at(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return self.dataset.samples_at(self.indices[list(indices)].tolist())

    def batch_at(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        return batch_at(self.dataset, self.indices[indices])

    def read(self, indices: NDArray[np.int64]) -> Columns:
        return self.dataset.read(self.indices[self.check_indices(indices)])

    def sample_from(self, columns: Columns, row: int) -> dict[str, Any]:
        return self.dataset.sample_from(columns, row)

    def fingerprint(self) -> str:
        return hashing.content_id(["subset", self.dataset.fingerprint(), self.indices])

    def _pass_id(self) -> str:
        return hashing.content_id(["subset", self.dataset._pass_id(), self.indices])

    def locate(self, index: int) -> dict[str, Any]:
        return {"subset": self.split, **self.dataset.locate(int(self.indices[index]))}


@explained_call
def split_dataset(full_dataset: Any, train_ratio: float = 0.8, seed: int = 42) -> tuple[SubsetDataset, SubsetDataset]:
    """Returns (training, validation): disjoint, together all records, the same for the same seed.

    >>> train, val = split_dataset([{"x": i} for i in range(10)], train_ratio=0.7)
    >>> sorted(train.indices.tolist() + val.indices.tolist()) == list(range(10)), len(train)
    (True, 7)
    """
    base = as_dataset(full_dataset)
    if not 0.0 <= train_ratio <= 1.0:
        raise UsageError("train_ratio from 0 to 1", got=repr(train_ratio), fix="train_ratio=0.8")
    total = len(base)
    train = int(total * train_ratio + 1e-9)  # 100 * 0.29 is 28.999999999999996
    order = permute(np.arange(total), total, randomness.key(seed, "split"))
    parts = [order[:train], order[train:]]
    if base.access() == "pass":  # in the order of the dataset, so that one pass over it needs no memory
        parts = [np.sort(part) for part in parts]
    return SubsetDataset(base, parts[0], "train"), SubsetDataset(base, parts[1], "validation")
