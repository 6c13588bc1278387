"""A dataset without the records that a predicate rejects.

`get_batch` leaves rejected rows out of every column, so such a batch is shorter; a batch without any valid row raises.
Loaders replace a rejected record by another one, so that batches are full; each record is read once more to validate
it. A base dataset that can only be iterated has no others: there batches are shorter. `read` raises with the rejected
rows, so that `penstock.Pipeline(dataset).skip_errors()` replaces them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arguments import explained_call, explained_class
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, DataError, RecordError, UsageError
from penstock.core.function_id import code_id
from penstock.core.hashing import content_id
from penstock.facades.artifex.datasets.base import BaseDataset, as_dataset, batch_at
from penstock.facades.artifex.datasets.overrides import Access
from penstock.outputs.arrays import is_jax_array


@explained_call
def validate_sample(sample: dict[str, Any], shape: tuple[int, ...] | None = (32, 32, 3)) -> bool:
    """Whether `sample["images"]` has no NaN, is in [0, 1] and has this shape (None: any).

    >>> validate_sample({"images": np.full((32, 32, 3), 0.5)}), validate_sample({"images": np.full((32, 32, 3), 2.0)})
    (True, False)
    """
    if "images" not in sample:
        raise UsageError(
            "a sample with 'images'",
            got=f"{sorted(map(str, sample))}",
            where="validate_sample",
            fix="a function of your own: ValidatedDataset(dataset, validate=lambda sample: ...)",
        )
    images = np.asarray(sample["images"])
    if shape is not None and images.shape != tuple(shape):
        return False
    return bool(np.isfinite(images).all() and (images >= 0).all() and (images <= 1).all())


@explained_class
class ValidatedDataset(BaseDataset):
    """`base_dataset` without the records for which `validate` returns False (default: `validate_sample`).

    >>> base = as_dataset([{"images": np.zeros((2, 2, 1))}, {"images": np.full((2, 2, 1), np.nan)}])
    >>> checked = ValidatedDataset(base)
    >>> len(list(checked)), checked.get_batch(indices=[0, 1])["images"].shape
    (1, (1, 2, 2, 1))
    """

    def __init__(
        self,
        base_dataset: Any,
        config: Any = None,
        split: str | None = None,
        *,
        validate: Callable[[dict[str, Any]], bool] | None = None,
        rngs: Any = None,
    ) -> None:
        base = as_dataset(base_dataset)
        super().__init__(base.config if config is None else config, split or base.split, rngs=rngs)
        self.base_dataset = base
        self._validate = validate

    def is_valid(self, sample: dict[str, Any]) -> bool:
        """Whether one sample is valid."""
        if self._validate is not None:
            return bool(self._validate(sample))
        return validate_sample(sample, getattr(self.config, "shape", None))

    def __len__(self) -> int:
        """Number of records of the base dataset; the number of valid ones is not known in advance."""
        return len(self.base_dataset)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in self.base_dataset:
            if self.is_valid(sample):
                yield sample

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.base_dataset[self._place(index)]
        if not self.is_valid(sample):
            raise self._bad(self._place(index), 0)
        return sample

    def _valid(self) -> Callable[[Columns], NDArray[np.bool_]]:
        return _Valid(self)

    def _access(self) -> Access:
        return self.base_dataset.access()

    def _pass(self) -> Iterator[dict[str, Any]]:
        return self.base_dataset._pass()

    def _batch_of(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return self._valid_rows(self.base_dataset._batch_of(samples), len(samples), "")

    def _drawn_batch(self, batch_size: int) -> dict[str, Any]:
        if self._access() != "batches":
            return super()._drawn_batch(batch_size)
        return self._valid_rows(self.base_dataset._next_batch(batch_size), batch_size, "")

    def batch_at(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        batch = batch_at(self.base_dataset, indices)
        return self._valid_rows(batch, len(indices), f", records {indices[:5].tolist()}")

    def _valid_rows(self, batch: dict[str, Any], rows: int, which: str) -> dict[str, Any]:
        host = {name: np.asarray(value) if is_jax_array(value) else value for name, value in batch.items()}
        wide = [name for name, value in host.items() if hasattr(value, "__len__") and len(value) == rows]
        good = [i for i in range(rows) if self.is_valid({name: host[name][i] for name in wide})]
        if not good:
            raise DataError(
                "at least one valid record in the batch",
                got=f"{rows} records, none of them valid",
                where=f"{type(self.base_dataset).__name__}{which}",
                fix="check the data and the predicate validate=",
            )
        if len(good) == rows:
            return batch
        chosen = np.array(good)
        return {name: _rows(value, chosen) if name in wide else value for name, value in batch.items()}

    def read(self, indices: NDArray[np.int64]) -> Columns:
        chosen = self.check_indices(indices)
        samples = self.base_dataset.samples_at(chosen.tolist())
        bad = [self._bad(int(chosen[row]), row) for row, sample in enumerate(samples) if not self.is_valid(sample)]
        if bad:
            raise BadRecords(bad)
        return self.base_dataset.read(chosen)

    def fingerprint(self) -> str:
        check = "images" if self._validate is None else code_id(self._validate)
        return content_id(["validated", self.base_dataset.fingerprint(), check])

    def _pass_id(self) -> str:
        check = "images" if self._validate is None else code_id(self._validate)
        return content_id(["validated", self.base_dataset._pass_id(), check])

    def _bad(self, index: int, row: int) -> RecordError:
        return RecordError(
            "a valid record",
            got="a record for which validate= returned False",
            where=f"{type(self.base_dataset).__name__}, record {index}",
            fix="fix or remove it, or use penstock.Pipeline(dataset).skip_errors()",
            row=row,
        )


class _Valid:
    """Which of some records are valid."""

    def __init__(self, dataset: ValidatedDataset) -> None:
        self.dataset, self.name = dataset, "validated"

    def __call__(self, columns: Columns) -> NDArray[np.bool_]:
        samples = self.dataset.base_dataset.samples_at(np.asarray(columns["row"]).tolist())
        return np.array([self.dataset.is_valid(sample) for sample in samples], bool)


def _rows(value: Any, chosen: NDArray[np.int64]) -> Any:
    return [value[i] for i in chosen.tolist()] if isinstance(value, list) else value[chosen]
