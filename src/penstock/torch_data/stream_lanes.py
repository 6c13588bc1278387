"""Rows of a stream with lanes, made by torch's workers and put in order by the process that iterates.

A batch holds rows of all lanes, so no worker could make one without reading all of them. Instead every worker opens its
own lanes and makes their rows, and the process that iterates merges the rows by position, cuts and collates them: the
order is that of the positions, for any number of workers. Where there are more workers than lanes, those of a lane all
read it and make its rows in turn.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from penstock.core.pickling import PROTOCOL
from penstock.plan.stream_batches import Cut, Placed
from penstock.torch_data.framework import data, torch


class LaneStream(Protocol):
    """What is read here of a `PositionStream`."""

    @property
    def lanes(self) -> int: ...

    def elements(self, start: int, epoch: int, lanes: Any = None) -> Iterator[Placed]: ...

    def rows(self, placed: list[Placed]) -> list[Any]: ...


class Cutting(Protocol):
    """A stream and how its batches are cut."""

    @property
    def dataset(self) -> LaneStream: ...

    def cut(self) -> Cut: ...


class LaneRow(NamedTuple):
    """The row of an element, or the element itself if the row seemed to be another rank's."""

    made: bool
    value: Any


class WorkerLanes(data.IterableDataset):  # type: ignore[misc]
    """The rows of one worker: its number and, pickled, those of a range of positions at a time; None at its end.

    Ranges are the same in all workers, so that none has to wait for another. They hold about a batch for each worker.
    """

    def __init__(self, stream: Cutting) -> None:
        self.stream = stream
        self.begin = torch.zeros(2, dtype=torch.int64).share_memory_()  # epoch and position; read by persistent workers

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        info = data.get_worker_info()
        worker, workers = info.id, info.num_workers
        epoch, start = self.begin.tolist()
        cut, lanes = self.stream.cut(), self.stream.dataset.lanes
        sharing = len(range(worker % lanes, workers, lanes))  # workers of this lane, if there are more of them
        size = max(1, cut.rows // cut.world * workers // lanes) * lanes
        placed = self.stream.dataset.elements(start, epoch, range(worker % lanes, lanes, workers))
        for _, some in groupby(placed, lambda each: each[0] // size):
            mine = [each for each in some if each[0] // lanes % sharing == worker // lanes]
            yield worker, pickle.dumps([self._row(each, start, cut) for each in mine], PROTOCOL)
        yield worker, None

    def _row(self, placed: Placed, start: int, cut: Cut) -> tuple[int, LaneRow]:
        """Which rank's it is would need all lanes: here it is computed as if none had ended."""
        position, element = placed
        if (position - start) % cut.rows * cut.world // cut.rows != cut.rank:
            return position, LaneRow(False, element)
        return position, LaneRow(True, self.stream.dataset.rows([placed])[0])


def merged(items: Iterator[tuple[int, bytes | None]], workers: int) -> Iterator[Placed]:
    """(position, LaneRow) pairs of all workers, in order."""
    waiting: list[deque[bytes | None]] = [deque() for _ in range(workers)]

    def of_worker(number: int) -> Iterator[Placed]:
        while True:
            while not waiting[number]:
                worker, rows = next(items)
                waiting[worker].append(rows)
            some = waiting[number].popleft()
            if some is None:
                return
            yield from pickle.loads(some)

    return merge(*map(of_worker, range(workers)), key=itemgetter(0))
