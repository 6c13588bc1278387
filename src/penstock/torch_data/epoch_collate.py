"""Collate functions that draw random numbers, told which epoch and which rows they have.

Such a function has `at_epoch(epoch)`, which gives the function of that epoch, and knows a row by its `index`. On the
way from a sampler to a worker process there is only a list of numbers, which trainers cut and join as they like; so
the epoch travels inside the numbers: row r of n rows in epoch e is e * n + r.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.collate.record_id import ID_COLUMNS
from penstock.core.pickling import with_functions
from penstock.torch_data.framework import data

Collate = Callable[[Any], Any]


def is_random(collate: Any) -> bool:
    """Whether what a collate function makes depends on the epoch."""
    return callable(getattr(collate, "at_epoch", None))


def collate_at(collate: Any, epoch: int, numbers: Sequence[int], rows: Sequence[Any]) -> Any:
    """A batch of rows of an epoch. The numbers go in as the column `index` where rows have none, and do not come out.

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


class KeyedRows(data.Dataset):  # type: ignore[misc]
    """A dataset asked by the numbers above; gives pairs of number and row."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.dataset[number % len(self)]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[int, Any]]:
        rows = len(self)
        return list(zip(numbers, rows_of(self.dataset, [n % rows for n in numbers]), strict=True))


class KeyedCollate:
    """Collates what `KeyedRows` gives, `rows` being how many there are in an epoch."""

    def __init__(self, collate: Collate, rows: int) -> None:
        self.collate, self.rows = collate, rows

    def __call__(self, pairs: Sequence[tuple[int, Any]]) -> Any:
        numbers = [number % self.rows for number, _ in pairs]
        return collate_at(self.collate, pairs[0][0] // self.rows, numbers, [row for _, row in pairs])

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)


class SentCollate:
    """A collate function on its way to worker processes: a lambda or closure goes along."""

    def __init__(self, collate: Collate) -> None:
        self.collate = collate

    def __call__(self, rows: Sequence[Any]) -> Any:
        return self.collate(rows)

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)


class StreamCollate:
    """Collates rows of a stream for whoever takes its DataLoader apart: tells the function the stream's epoch.

    Where it goes to a worker process the stream goes along, so its epoch is the one it has there.
    """

    def __init__(self, collate: Collate, dataset: Any) -> None:
        self.collate, self.dataset = collate, dataset

    def __call__(self, rows: Sequence[Any]) -> Any:
        at = self.collate.at_epoch(self.dataset.epoch) if is_random(self.collate) else self.collate  # type: ignore[attr-defined]
        return at(rows)

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)


def rows_of(dataset: Any, numbers: list[int]) -> Any:
    """Rows of a dataset: in one call where it knows how."""
    many = getattr(dataset, "__getitems__", None)
    return many(numbers) if callable(many) else [dataset[n] for n in numbers]
