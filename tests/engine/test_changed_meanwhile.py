"""Weights and positions that are changed while a batch is computed, by a signal handler or by another thread."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
modes = pytest.mark.parametrize(
    "mode", [{"threads": 0}, {}, {"threads": 1}, {"threads": 2}, {"workers": 2}, {"isolate": True}], ids=str
)
callers = pytest.mark.parametrize("caller", ["signal", "thread"])


def artifex_loader() -> Iterable[dict]:
    from penstock.facades.artifex.loaders.epochs import DatasetLoader  # children import this module, and need no JAX

    return DatasetLoader(Slow(), 4, shuffle=False)


def slow(columns: dict) -> dict:
    time.sleep(0.01)
    return columns


def mixture(**mode) -> ps.Loader:
    one, two = (ps.from_arrays({"x": np.arange(400) + 400 * k}).shuffle(seed=k) for k in (0, 1))
    return ps.mix([one, two], [1, 0]).batch(4).map_batches(slow, version="1").to_numpy(**mode)


@pytest.fixture
def call():
    """`call(caller, change)`: `change` is called in 25 ms, while a batch is computed."""
    timers: list[threading.Timer] = []
    before = signal.getsignal(signal.SIGALRM)

    def begin(caller: str, change: Callable[[], None]) -> None:
        if caller == "thread":
            timers.append(threading.Timer(0.025, change))
            timers[0].start()
        else:
            signal.signal(signal.SIGALRM, lambda *_: change())
            signal.setitimer(signal.ITIMER_REAL, 0.025)

    yield begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    for timer in timers:
        timer.join()


@modes
@callers
def test_weights(mode: dict, caller: str, call) -> None:
    loader, states = mixture(**mode), []
    run = iter(loader)
    got = [next(run)["x"].tolist()]  # children have started
    call(caller, lambda: loader.set_weights([0, 1]))
    for batch in islice(run, 400):
        got.append(batch["x"].tolist())
        states.append(json.dumps(loader.state_dict()))
        if min(min(got[-4:])) >= 400:
            break
    assert [loader.batch_at(step)["x"].tolist() for step in range(len(got))] == got
    fresh = mixture(threads=0)
    fresh.load_state_dict(json.loads(states[-3]))
    assert [batch["x"].tolist() for batch in islice(fresh, 2)] == got[-2:]


@modes
@callers
def test_a_rollback(mode: dict, caller: str, call) -> None:
    loader = mixture(**mode)
    run, called = iter(loader), []
    batches = [next(run), next(run)]
    state = loader.state_dict()

    def back() -> None:
        called.append(loader.step)
        loader.load_state_dict(state)

    call(caller, back)
    steps = [0, 1]
    for batch in islice(run, 400):
        batches.append(batch)
        steps.append(loader.step - 1)
        if called and steps[-1] == 5:
            break
    assert steps in [[*range(at), *range(2, 6)] for at in (called[0], called[0] + 1)]
    assert [loader.batch_at(step)["x"].tolist() for step in steps] == [batch["x"].tolist() for batch in batches]


def test_another_thread_at_any_time() -> None:
    """Weights are changed all the time, without a pause between batches."""
    one, two = (ps.from_arrays({"x": np.arange(40) + 40 * k}) for k in (0, 1))
    loader = ps.mix([one, two], [1, 0], stop="never").batch(2).to_numpy(threads=0)
    got, over = [], threading.Event()

    def change() -> None:
        try:
            for number in range(60):
                loader.set_weights([number % 2, (number + 1) % 2])
                time.sleep(0.0005)
        finally:
            over.set()

    thread = threading.Thread(target=change)
    thread.start()
    for batch in loader:
        got.append(batch["x"].tolist())
        if over.is_set():
            break
    thread.join()
    for step in {*range(0, len(got), 1 + len(got) // 2000), *range(len(got))[-9:]}:
        assert loader.batch_at(step)["x"].tolist() == got[step], step


class Slow:
    def __init__(self) -> None:
        self.shape = (64,)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> dict:
        time.sleep(0.004)
        return {"x": row}


LOADERS = {
    "builder": lambda: ps.DataLoaderBuilder().with_batch_size(4).with_workers(num=0).with_dataset(Slow()).build(),
    "processes": lambda: (
        ps.DataLoaderBuilder().with_batch_size(4).with_workers(num=2, processes=True).with_dataset(Slow()).build()
    ),
    "stream": lambda: (
        ps.DataLoaderBuilder()
        .with_batch_size(4)
        .with_workers(num=0)
        .with_dataset(ps.StreamingPreprocessedDataset([{"x": i} for i in range(64)], slow, buffer_size=1))
        .build()
    ),
    "artifex": artifex_loader,
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@callers
def test_a_rollback_of_loaders_of_other_libraries(make, caller: str, call) -> None:
    want = [np.asarray(batch["x"]).tolist() for batch in make()]
    loader, got, called = make(), [], []
    run = iter(loader)
    got += [np.asarray(next(run)["x"]).tolist() for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))

    def back() -> None:
        called.append(len(got))
        loader.load_state_dict(state)

    call(caller, back)
    for batch in run:
        got.append(np.asarray(batch["x"]).tolist())
    at = called[0] if called else len(want)  # on a busy machine the loop may have ended before
    assert got in ([want] if at == len(want) else [want[:at] + want[2:], want[: at + 1] + want[2:]])
