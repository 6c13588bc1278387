"""The loader over streams, in both facades that use it: loops that are moved, two at once, the end of an epoch."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as ps

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata of torch
]

N, BATCH = 22, 4  # six batches an epoch, the last one short


def same(record: dict[str, Any]) -> dict[str, Any]:
    return dict(record)


def built(n: int = N, **workers: Any) -> Any:
    dataset = ps.StreamingPreprocessedDataset([{"x": i} for i in range(n)], same, buffer_size=6)
    builder = ps.DataLoaderBuilder().with_dataset(dataset).with_batch_size(BATCH)
    return builder.with_workers(**({"num": 0} | workers)).build()


def capibara(n: int = N) -> Any:
    rows = datasets.Dataset.from_dict({"text": [f"{i:03d}" for i in range(n)]})
    stream = rows.to_iterable_dataset(num_shards=min(3, n))
    return ps.CapibaraDataLoader(
        tokenizer="bytes", dataset_name=stream, batch_size=BATCH, max_length=3, shuffle_buffer=8, remainder="short"
    )


LOADERS: dict[str, Callable[..., Any]] = {
    "capibara": capibara,
    "builder": built,
    "workers": lambda n=N: built(n, num=2),
    "persistent": lambda n=N: built(n, num=2, persistent_workers=True),
}
loaders = pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS.keys())


def ids(batch: dict[str, Any]) -> list[Any]:
    return np.asarray(batch["x"] if "x" in batch else batch["input_ids"]).tolist()


def listed(batches: Any) -> list[list[Any]]:
    return [ids(batch) for batch in batches]


@cache
def epochs(make: Callable[..., Any]) -> list[list[list[Any]]]:
    loader = make()
    return [listed(loader) for _ in range(3)]


@loaders
def test_a_state_loaded_while_a_loop_runs_takes_effect_at_the_next_batch(make: Callable[..., Any]) -> None:
    want = epochs(make)[:2]
    loader = make()
    run = iter(loader)
    got = [ids(next(run))]
    early = loader.state_dict()
    got += listed(islice(run, 3))
    assert got == want[0][:4]
    loader.load_state_dict(early)
    assert loader.state_dict() == early
    assert ids(next(run)) == want[0][1]
    fresh = make()
    fresh.load_state_dict(loader.state_dict())
    assert listed(run) == want[0][2:]
    assert listed(fresh) == want[0][2:]
    assert listed(loader) == want[1]


@loaders
def test_a_loop_of_another_epoch_moves_with_set_epoch(make: Callable[..., Any]) -> None:
    want = epochs(make)
    loader = make()
    run = iter(loader)
    next(run)
    (loader if hasattr(loader, "set_epoch") else loader._loader).set_epoch(2)
    assert listed(run) == want[2]


@loaders
def test_two_loops_at_once_are_independent(make: Callable[..., Any]) -> None:
    want = epochs(make)[:2]
    loader = make()
    one = iter(loader)
    got = listed(islice(one, 2))
    two = iter(loader)  # goes on there, or is the next epoch
    second = [ids(next(two))]
    got += listed(islice(one, 2))
    second.append(ids(next(two)))
    fresh = make()
    fresh.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest = listed(two)
    assert listed(fresh) == rest, "the state is that of the loop that took the last batch"
    assert got + listed(one) == want[0]
    assert second + rest == (want[0][2:] if make is capibara else want[1])


@loaders
def test_a_state_at_the_end_of_an_epoch_adds_no_epoch(make: Callable[..., Any]) -> None:
    """As a training loop counts: the loop that was interrupted after its last batch has nothing left."""
    want = epochs(make)
    loader = make()
    for _ in loader:
        inside = json.loads(json.dumps(loader.state_dict()))
    after = json.loads(json.dumps(loader.state_dict()))
    for state, expected in ((inside, [[], want[1], want[2]]), (after, [want[1], want[2]])):
        fresh = make()
        fresh.load_state_dict(state)
        assert fresh.epoch == 1
        assert [listed(fresh) for _ in expected] == expected
    loader = make()
    assert listed(batch for _, batch in zip(range(6), loader, strict=False)) == want[0]  # never asks for a seventh
    assert listed(loader) == want[1]


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"x": i}


def stateful() -> Any:
    return StatefulDataLoader(Rows(), batch_size=5)


@pytest.mark.parametrize("make", [lambda: built(10), lambda: built(10, num=2), lambda: capibara(10)])
@pytest.mark.parametrize("stop", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 4, 7)), 3, 5, 6, 8, 9])
def test_an_interrupted_run_sees_as_many_rows_as_with_torchdata(make: Callable[[], Any], stop: int) -> None:
    """Three epochs with a checkpoint after every batch, interrupted after some batch."""
    seen = []
    for factory in (stateful, make):
        loader, rows, batches = factory(), 0, 0
        last = 9 if factory is make else 6  # batches of 4 or 5
        stop_at = min(stop, last)
        saved: Any = None
        for epoch in range(3):
            for batch in loader:
                rows, batches = rows + len(ids(batch)), batches + 1
                saved = epoch, json.dumps(loader.state_dict())
                if batches == stop_at:
                    break
            if batches == stop_at:
                break
        loader = factory()
        loader.load_state_dict(json.loads(saved[1]))
        for _ in range(saved[0], 3):
            rows += sum(len(ids(batch)) for batch in loader)
        seen.append(rows)
    assert seen == [30, 30]


@loaders
def test_a_stream_without_a_batch_is_refused(make: Callable[..., Any]) -> None:
    loader = make(n=1)
    (loader if make is not capibara else loader._loader).load_state_dict(loader.state_dict())
    assert len(listed(loader)) == 1
    empty = ps.StreamingPreprocessedDataset(lambda: iter([]), same)
    with pytest.raises(ps.UsageError, match="at least one batch in the stream"):
        list(ps.DataLoaderBuilder().with_dataset(empty).with_batch_size(2).build())


@loaders
def test_any_batch_by_number(make: Callable[..., Any]) -> None:
    want = [batch for epoch in epochs(make)[:2] for batch in epoch]
    loader = make()
    next(iter(loader))
    assert [ids(loader.batch_at(step)) for step in range(12)] == want
    assert loader.state_dict()["step"] == 1
    found = [loader.why(7, row)["from"] for row in range(BATCH)]
    assert len({str(each) for each in found}) == BATCH
    if "record" in found[0]:
        assert [int(each["record"].split()[1]) for each in found] == want[7]
    for wrong in (-1, True, "0"):
        with pytest.raises(ps.UsageError, match="a step number"):
            loader.batch_at(wrong)
    with pytest.raises(ps.UsageError, match="a row of the batch"):
        loader.why(0, BATCH)


def stream_dataset() -> Any:
    return ps.StreamingPreprocessedDataset([{"x": i} for i in range(N)], same, buffer_size=6)


@pytest.mark.parametrize("make", [built, capibara, stream_dataset])
def test_any_change_of_a_state_is_refused(make: Callable[..., Any]) -> None:
    """Flipped bits, other numbers, missing and extra keys. A state without checksum is of an earlier version."""
    loader = make()
    run = iter(loader)
    next(run), next(run), next(run)
    state = json.loads(json.dumps(loader.state_dict()))
    text, draw, tried = json.dumps(state).encode(), random.Random(4), 0
    make().load_state_dict(state)
    make().load_state_dict({name: value for name, value in state.items() if name != "check"})
    mutants: list[Any] = [state | {name: wrong} for name in state for wrong in (None, 1, -1, 10**30, "x", [], {}, [1])]
    mutants += [{other: state[other] for other in state if other != name} for name in state if name != "check"]
    mutants += [state | {"more": 1}, state | {"rank": [0, 1]}, state | {"ended": True}]
    for _ in range(300):
        data = bytearray(text)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        with suppress(ValueError):
            mutants.append(json.loads(bytes(data)))
    fresh = make()
    for mutant in mutants:
        if mutant == state or (isinstance(mutant, dict) and "check" not in mutant):
            continue
        tried += 1
        with pytest.raises(ps.PenstockError):
            fresh.load_state_dict(mutant)
    assert tried > 150
