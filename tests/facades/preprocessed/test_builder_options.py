"""Every option of `DataLoaderBuilder` does something, and what is wrong is said at once."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
import torch

from penstock import UsageError
from penstock.facades.preprocessed import builder as builder_module
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset

# Worker counts are tested on machines with fewer cores than that, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def numbers(n):
    return [{"x": i} for i in range(n)]


def where_made(record):
    return {"x": record["x"], "pid": os.getpid()}


class Where(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return {"x": i, "pid": os.getpid(), "thread": threading.get_ident()}


class Together(torch.utils.data.Dataset):
    """Rows that are made by three threads at a time, or not at all; so large that no two are made in one go."""

    def __init__(self):
        self.barrier = threading.Barrier(3)

    def __len__(self):
        return 6

    def __getitem__(self, i):
        self.barrier.wait(timeout=20)
        return torch.zeros(6 << 20, dtype=torch.uint8)


class Counting(torch.utils.data.Dataset):
    """Rows so large that no two are made in one go."""

    def __init__(self):
        self.made = 0

    def __len__(self):
        return 40

    def __getitem__(self, i):
        self.made += 1
        return torch.zeros(6 << 20, dtype=torch.uint8)


def over(dataset, size=2):
    return DataLoaderBuilder().with_dataset(dataset).with_batch_size(size)


def stream(n=12, **options):
    return StreamingPreprocessedDataset(numbers(n), where_made, **options)


def test_the_seed_decides_the_order():
    def order(seed):
        return [i for batch in over(numbers(50)).with_shuffle().with_seed(seed).build() for i in batch["x"].tolist()]

    assert sorted(order(1)) == list(range(50))
    assert order(1) == order(1) != order(2)


def test_workers_are_that_many_threads():
    assert [len(batch) for batch in over(Together(), 1).with_workers(3).build()] == [1] * 6
    (own,) = {t for batch in over(Where()).with_workers(0).build() for t in batch["thread"].tolist()}
    assert own == threading.get_ident()


@pytest.mark.parametrize("dataset", [Where(), stream()], ids=["map", "stream"])
def test_processes_are_that_many_processes(dataset):
    builder = over(dataset).with_workers(2, processes=True).with_prefetch(4)
    loader = builder.build()
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 4, False)
    pids = [{p for batch in loader for p in batch["pid"].tolist()} for _ in range(2)]
    assert os.getpid() not in pids[0]
    assert [len(epoch) for epoch in pids] == [2, 2]
    assert not pids[0] & pids[1]


@pytest.mark.parametrize("dataset", [Where(), stream(buffer_size=5)], ids=["map", "stream"])
def test_persistent_workers_live_on_and_give_the_same_batches(dataset):
    def build(**options):
        return over(dataset).with_workers(2, processes=True, **options).build()

    fresh, lasting = build(), build(persistent_workers=True)
    pids = set()
    for epoch in range(3):
        want = [batch["x"].tolist() for batch in fresh]
        seen = list(lasting)
        assert [batch["x"].tolist() for batch in seen] == want, epoch
        pids |= {p for batch in seen for p in batch["pid"].tolist()}
    assert len(pids) == 2
    run = iter(fresh)
    next(run)
    state = fresh.state_dict()
    lasting.load_state_dict(state)
    assert [batch["x"].tolist() for batch in lasting] == [batch["x"].tolist() for batch in run]


@pytest.mark.parametrize("ahead", [1, 4])
def test_prefetch_is_how_many_batches_are_made_ahead(ahead):
    dataset = Counting()
    loader = over(dataset, 1).with_workers(1).with_prefetch(ahead).build()
    run = iter(loader)
    next(run)
    made = -1
    while made != dataset.made:
        made = dataset.made
        time.sleep(0.3)
    assert ahead <= made <= ahead + 2
    run.close()


def test_memory_is_pinned_where_asked_and_possible(monkeypatch):
    monkeypatch.setattr(builder_module, "can_pin", lambda: True)
    for pin in (True, False):
        threads = over(numbers(4)).with_workers(1, pin_memory=pin).build()
        assert threads.pin_memory is pin
        assert threads.batch_sampler.rows.pin is pin
        for dataset in (Where(), stream()):
            assert over(dataset).with_workers(1, pin_memory=pin, processes=True).build().pin_memory is pin
    monkeypatch.setattr(builder_module, "can_pin", lambda: False)
    assert over(numbers(4)).with_workers(1, pin_memory=True).build().pin_memory is False


def test_numpy_integers_are_accepted():
    loader = (
        over(numbers(8), np.int64(2))
        .with_shuffle()
        .with_seed(np.int32(3))
        .with_workers(np.int8(1))
        .with_prefetch(np.uint8(2))
        .with_distributed(np.int64(1), np.int64(2))
        .build()
    )
    want = over(numbers(8), 2).with_shuffle().with_seed(3).with_distributed(1, 2).build()
    assert [b["x"].tolist() for b in loader] == [b["x"].tolist() for b in want]
    assert loader.state_dict() == want.state_dict()


class Unsized(torch.utils.data.Dataset):
    def __len__(self):
        raise RuntimeError("nobody counted them")

    def __getitem__(self, i):
        return i


class Foreign(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(5))


@pytest.mark.parametrize(
    ("builder", "texts"),
    [
        (
            over(numbers(3), 5).with_drop_last().with_seed("x").with_prefetch(0),
            ["3 problems", "3 rows make no full batch of 5", "with_seed: expected seed", "with_prefetch"],
        ),
        (
            over(Unsized()).with_drop_last(),
            ["1 problem\n", "len() of the dataset", "RuntimeError: nobody counted them"],
        ),
        (over("abc"), ["expected rows by number (len() and [i])", "got a str"]),
        (over(b"abc"), ["got a bytes"]),
        (over(numbers(3), np.bool_(True)), ["with_batch_size: expected batch_size to be an integer"]),
        (over(numbers(3), 2.0), ["with_batch_size: expected batch_size to be an integer"]),
        (
            over(stream(buffer_size=20)).with_seed(1),
            ["with_seed: it does not decide", "StreamingPreprocessedDataset(buffer_size=1000, seed=...)"],
        ),
        (over(Foreign()).with_seed(0), ["with_seed: it does not decide the order of a stream", "the dataset itself"]),
        (over(numbers(3)).with_workers(2, persistent_workers=True), ["persistent_workers=True without processes"]),
        (over(numbers(3)).with_workers(2, persistent_workers=3), ["with_workers(persistent_workers=): expected True"]),
    ],
)
def test_each_problem_is_named(builder, texts):
    with pytest.raises(UsageError) as error:
        builder.build()
    for text in texts:
        assert text in str(error.value)


def test_a_seed_that_the_stream_has_is_no_problem():
    assert len(list(over(stream(seed=3, buffer_size=4)).with_seed(3).build())) == 6


def test_why_names_the_record_behind_a_row():
    for rank in range(2):
        loader = over(numbers(11)).with_shuffle().with_seed(4).with_distributed(rank, 2).build()
        for step, batch in enumerate(loader):
            for row, x in enumerate(batch["x"].tolist()):
                facts = loader.why(step, row)
                assert (facts["record"], facts["row"], facts["epoch"]) == (x, row, 0)
            with pytest.raises(UsageError, match="a row of the batch"):
                loader.why(step, len(batch["x"]))
