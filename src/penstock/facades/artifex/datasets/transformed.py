"""A dataset with functions applied: each takes a sample or a batch and returns a changed one.

`[i]`, iteration, `read` and pipelines call them on one sample at a time; `get_batch` and loaders on one batch, which
is faster. The base dataset is not changed: functions get a copy of the dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arguments import explained_class
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.core.function_id import code_id
from penstock.core.hashing import content_id
from penstock.facades.artifex.datasets.base import BaseDataset, as_dataset, batch_at
from penstock.facades.artifex.datasets.overrides import Access

Transform = Callable[[dict[str, Any]], dict[str, Any]]


@explained_class
class TransformDataset(BaseDataset):
    """`base_dataset` with `transforms` applied in order.

    >>> base = as_dataset([{"x": 1}, {"x": 2}])
    >>> doubled = TransformDataset(None, base, [lambda sample: {**sample, "x": sample["x"] * 2}])
    >>> doubled[1]["x"], doubled.get_batch(indices=[0, 1])["x"].tolist()
    (4, [2, 4])
    """

    def __init__(
        self,
        config: Any,
        base_dataset: Any,
        transforms: Sequence[Transform] | None = None,
        split: str = "train",
        *,
        rngs: Any = None,
    ) -> None:
        super().__init__(config, split, rngs=rngs)
        self.base_dataset = as_dataset(base_dataset)
        self.transforms = list(transforms or [])
        for transform in self.transforms:
            if not callable(transform):
                raise UsageError("transforms: functions", got=repr(transform)[:80], fix="transforms=[normalize]")

    def _apply_transforms(self, sample: dict[str, Any]) -> dict[str, Any]:
        sample = dict(sample)
        for transform in self.transforms:
            sample = transform(sample)
            if not isinstance(sample, dict):
                raise UsageError(
                    f"a dict from {getattr(transform, '__name__', 'the transform')}",
                    got=type(sample).__name__,
                    fix="return the sample",
                )
        return sample

    def __len__(self) -> int:
        return len(self.base_dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._apply_transforms(self.base_dataset[self._place(index)])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in self.base_dataset:
            yield self._apply_transforms(sample)

    def _access(self) -> Access:
        return self.base_dataset.access()

    def _valid(self) -> Callable[[Columns], NDArray[np.bool_]] | None:
        return self.base_dataset._valid()

    def _pass(self) -> Iterator[dict[str, Any]]:
        for sample in self.base_dataset._pass():
            yield self._apply_transforms(sample)

    def _drawn_batch(self, batch_size: int) -> dict[str, Any]:
        if self._access() != "batches":
            return super()._drawn_batch(batch_size)
        return self._apply_transforms(self.base_dataset._next_batch(batch_size))

    def batch_at(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        return self._apply_transforms(batch_at(self.base_dataset, indices))

    def fingerprint(self) -> str:
        return content_id(["transformed", self.base_dataset.fingerprint(), *map(code_id, self.transforms)])

    def _pass_id(self) -> str:
        return content_id(["transformed", self.base_dataset._pass_id(), *map(code_id, self.transforms)])
