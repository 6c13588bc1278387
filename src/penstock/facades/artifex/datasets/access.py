"""A batch by index from any dataset, whatever way to its records it offers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.base import BaseDataset


class _Sequence(BaseDataset):
    """A plain sequence of samples, seen as a dataset."""

    def __init__(self, items: Any) -> None:
        super().__init__(getattr(items, "config", None), getattr(items, "split", "train"))
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.items[index]
        return dict(sample) if isinstance(sample, dict) else {"data": sample}


def as_dataset(dataset: Any) -> BaseDataset:
    """A `BaseDataset` as it is; a list or other sequence of samples wrapped into one.

    >>> as_dataset([{"x": 1}, {"x": 2}]).get_batch(indices=[1])["x"].tolist()
    [2]
    """
    if isinstance(dataset, BaseDataset):
        return dataset
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return _Sequence(dataset)
    raise UsageError(
        "a dataset: a BaseDataset, or anything with __len__ and __getitem__",
        got=type(dataset).__name__,
        fix="extend penstock.BaseDataset, or pass a list of samples",
    )


def batch_at(dataset: BaseDataset, indices: NDArray[np.int64]) -> dict[str, Any]:
    """The batch of exactly these records.

    A `get_batch` of the user's own is called when it takes `indices`. One that only takes a size cannot be told which
    records to give, so the samples are fetched and put together instead, under the names such batches use.
    """
    own = type(dataset).get_batch
    if own is not BaseDataset.get_batch and "indices" in inspect.signature(own).parameters:
        batch: dict[str, Any] = dataset.get_batch(len(indices), indices=indices)
        return batch
    return dataset.batch_at(indices)
