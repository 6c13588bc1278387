"""`Loader.order`: the records of steps, without reading them."""

from __future__ import annotations

import numpy as np

import penstock as ps
from penstock.engine.loader import Loader


def open_loader(rows: int, rank: int = 0, world: int = 1) -> Loader:
    pipeline = ps.from_arrays({"x": np.arange(10)}).shuffle(seed=3).shard(rank, world)
    return pipeline.batch(rows).to_numpy(threads=0)


def records(loader: Loader, start: int, stop: int) -> list[int]:
    return [int(record) for picks in loader.order(start, stop) for record in picks.record]


def delivered(loader: Loader, start: int, stop: int) -> list[int]:
    return [int(x) for step in range(start, stop) for x in loader.batch_at(step)["x"]]


def test_it_lists_the_records_that_batches_hold_over_epochs() -> None:
    loader = open_loader(4)  # two batches an epoch, two rows left over
    for start, stop in ((0, 1), (0, 7), (3, 6), (5, 5)):
        assert records(loader, start, stop) == delivered(loader, start, stop)


def test_it_follows_a_changed_batch_size() -> None:
    loader = open_loader(2)
    run = iter(loader)
    next(run), next(run)
    other = open_loader(3)
    other.load_state_dict(loader.state_dict())
    assert records(other, 0, 6) == delivered(loader, 0, 2) + delivered(other, 2, 6)


def test_it_holds_the_rows_of_all_ranks() -> None:
    assert records(open_loader(4, 1, 2), 0, 4) == records(open_loader(4), 0, 4)
