"""`to_dataset`: the rows of a pipeline as a torch `Dataset`, for trainers that batch and shuffle by themselves.

The trainer then decides the order, the batches and what a resumed run sees. `to_torch()` keeps all of that exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.columns import Columns, row, rows_of
from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.outputs.numpy import widened
from penstock.outputs.torch import TorchOutput
from penstock.plan.definition import Definition
from penstock.plan.row_source import RowSource

data: Any = need("torch.utils.data", extra="torch", purpose="for .to_dataset()")

BLOCK = 256  # rows that an iterable dataset reads together


class _Rows:
    """What both kinds share: rows as dicts of tensors, numbers and strings, and the epoch they belong to."""

    def __init__(self, definition: Definition, output: TorchOutput) -> None:
        if definition.sharded or definition.world > 1:
            raise UsageError(
                "a pipeline that is not sharded before .to_dataset()",
                got=f"rank {definition.rank} of {definition.world}",
                fix="leave .shard() out: the trainer divides the rows among processes",
            )
        self.rows, self.output, self.epoch = RowSource(definition), output, 0

    def set_epoch(self, epoch: int) -> None:
        """Rows of this epoch from now on: its order and random draws. Trainers call it before each epoch."""
        self.epoch = int(epoch)

    def _read(self, numbers: Any) -> list[dict[str, Any]]:
        columns = self.rows.read(np.asarray(numbers, np.int64), self.epoch)
        return _items(widened(columns, self.rows.plan.root.facts.ids, *self.output.memory), self.output)


def _items(columns: Columns, output: TorchOutput) -> list[dict[str, Any]]:
    return [
        {name: _item(name, value, output) for name, value in row(columns, i).items()} for i in range(rows_of(columns))
    ]


def _item(name: str, value: Any, output: TorchOutput) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return output._tensor(name, value)
    return value.item() if isinstance(value, np.generic) else value


class RowDataset(_Rows, data.Dataset):  # type: ignore[misc]
    """Random access by row number; a list of numbers is read at once."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        return self._read([number % len(self)])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return self._read(numbers)


class RowStream(_Rows, data.IterableDataset):  # type: ignore[misc]
    """The rows in order, divided among the workers of a DataLoader in turns.

    It has a length if the pipeline has an end: trainers find the epoch of a checkpoint by it.
    """

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = data.get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        size = self.rows.size
        at = first
        while size is None or at < size:
            last = at + BLOCK * every
            yield from self._read(range(at, last if size is None else min(last, size), every))
            at = last


def row_dataset(definition: Definition, style: str | None, ids: Any, floats: Any) -> Any:
    """The dataset of a pipeline without `.batch()`; by default a map-style one if the pipeline has an end."""
    if style not in (None, "map", "iterable"):
        raise UsageError('style="map" or "iterable"', got=repr(style), fix='.to_dataset(style="map")')
    output = TorchOutput(ids=ids, floats=floats)
    if style != "iterable":
        dataset = RowDataset(definition, output)
        if dataset.rows.size is not None:
            return dataset
        if style == "map":
            fix = 'add .take(n), or style="iterable"'
            raise UsageError("a pipeline with an end for a map-style dataset", got="an endless one", fix=fix)
    return RowStream(definition, output)
