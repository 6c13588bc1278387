"""Collate functions that draw random numbers, called with the epoch and the row numbers of their batch.

Such a function has `at_epoch(epoch)`, which returns the function of that epoch, and identifies a row by its `index`.
Between a sampler and a worker process there is only a list of numbers, which trainers cut and join; so the epoch is
encoded in the numbers: row r of n rows in epoch e is e * n + r.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.collate.record_id import ID_COLUMNS
from penstock.core.pickling import with_functions
from penstock.torch_data.framework import data
from penstock.torch_data.user_objects import Collate, RandomCollate, is_random, rows_of


def collate_at(collate: RandomCollate, epoch: int, numbers: Sequence[int], rows: Sequence[Any]) -> Any:
    """Collates rows of an epoch. Rows without an id get their number as `index`, which is removed from the batch.

    >>> from penstock import create_mlm_collate
    >>> collate, rows = create_mlm_collate(0, 3, 99, return_tensors="np"), [{"input_ids": range(9, 90)}] * 2
    >>> batch = collate_at(collate, 1, [4, 5], rows)
    >>> sorted(batch), bool((batch["labels"][0] == batch["labels"][1]).all())
    (['attention_mask', 'input_ids', 'labels'], False)
    """
    numbered = all(isinstance(row, dict) and not any(name in row for name in ID_COLUMNS) for row in rows)
    if numbered:
        rows = [{**row, "index": number} for number, row in zip(numbers, rows, strict=True)]
    made = collate.at_epoch(epoch)(rows)
    if numbered and isinstance(made, dict):
        made.pop("index", None)
    return made


class EpochRows(data.Dataset):  # type: ignore[misc]
    """A dataset indexed by epoch * n + row; returns pairs of that number and the row."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.dataset[number % len(self)]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[int, Any]]:
        rows = len(self)
        return list(zip(numbers, rows_of(self.dataset, [n % rows for n in numbers]), strict=True))


class SentCollate:
    """A collate function that can be pickled to worker processes even if it is a lambda or closure."""

    def __init__(self, collate: Collate) -> None:
        self.collate = collate

    def __call__(self, rows: Sequence[Any]) -> Any:
        return self.collate(rows)

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)


class EpochCollate(SentCollate):
    """Collates the pairs of `EpochRows`; `rows` is the number of rows in an epoch."""

    def __init__(self, collate: RandomCollate, rows: int) -> None:
        self.random, self.rows = collate, rows

    def __call__(self, pairs: Sequence[tuple[int, Any]]) -> Any:
        numbers = [number % self.rows for number, _ in pairs]
        return collate_at(self.random, pairs[0][0] // self.rows, numbers, [row for _, row in pairs])


class StreamCollate(SentCollate):
    """Collates rows of a stream for trainers that take its DataLoader apart, at the stream's current epoch.

    In a worker process that is the epoch of the worker's copy of the stream, which is pickled along.
    """

    def __init__(self, collate: Collate, dataset: Any) -> None:
        super().__init__(collate)
        self.dataset = dataset

    def __call__(self, rows: Sequence[Any]) -> Any:
        at = self.collate.at_epoch(self.dataset.epoch) if is_random(self.collate) else self.collate
        return at(rows)
