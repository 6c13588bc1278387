"""Where a loader of `DataLoaderBuilder` begins: after a break, after `set_epoch`, after a restore when it was used."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from penstock import StateError
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.plan.state import signed

# Worker counts are tested on machines with fewer cores than that, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

N, BATCH = 22, 4  # six batches an epoch, the last one short


def same(record):
    return dict(record)


def rows():
    return [{"x": i} for i in range(N)]


def build(kind, batch=BATCH, **workers):
    builder = DataLoaderBuilder().with_batch_size(batch).with_workers(**({"num": 0} | workers))
    if kind == "stream":
        return builder.with_dataset(StreamingPreprocessedDataset(rows(), same, buffer_size=6)).build()
    return builder.with_dataset(rows()).with_shuffle().with_seed(3).build()


def listed(batches):
    return [batch["x"].tolist() for batch in batches]


def epochs(kind, count=3):
    loader = build(kind)
    return [listed(loader) for _ in range(count)]


kinds = pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("map", {}),
        ("map", {"num": 2}),
        ("map", {"num": 2, "processes": True}),
        ("map", {"num": 2, "processes": True, "persistent_workers": True}),
        ("stream", {}),
        ("stream", {"num": 2}),
        ("stream", {"num": 2, "persistent_workers": True}),
    ],
)


@kinds
def test_set_epoch_after_a_break_begins_the_epoch_again(kind, workers):
    want = epochs(kind)
    loader = build(kind, **workers)
    assert listed(islice(loader, 2)) == want[0][:2]
    loader.set_epoch(0)
    assert listed(loader) == want[0]
    loader.set_epoch(1)
    assert listed(islice(loader, 3)) == want[1][:3]
    loader.set_epoch(1)
    loader.set_epoch(1)
    assert listed(loader) == want[1]
    assert listed(loader) == want[2]


def test_the_batch_sampler_begins_the_epoch_again_too():
    want = epochs("map")
    loader = build("map")
    assert listed(islice(loader, 2)) == want[0][:2]
    loader.batch_sampler.set_epoch(0)
    assert list(loader.batch_sampler) == want[0]
    assert listed(loader) == want[0]


@kinds
def test_a_restored_place_is_kept_once(kind, workers):
    want = epochs(kind)
    loader = build(kind, **workers)
    list(loader)
    listed(islice(loader, 2))
    state = json.loads(json.dumps(loader.state_dict()))
    fresh = build(kind, **workers)
    fresh.load_state_dict(state)
    fresh.set_epoch(1)
    fresh.set_epoch(1)
    assert listed(islice(fresh, 1)) == want[1][2:3]
    fresh.set_epoch(1)  # something was taken since: this begins the epoch again
    assert listed(fresh) == want[1]
    fresh.load_state_dict(state)
    fresh.set_epoch(0)  # another epoch than the restored one
    assert listed(fresh) == want[0]


@kinds
def test_a_used_loader_can_be_restored(kind, workers):
    want = epochs(kind)
    loader = build(kind, **workers)
    listed(islice(loader, 2))
    state = loader.state_dict()
    assert listed(loader) == want[1]  # leaves the first epoch
    loader.load_state_dict(state)
    assert listed(loader) == want[0][2:]
    listed(islice(loader, 4))
    loader.load_state_dict(state)  # in the middle of an epoch
    assert loader.state_dict() == state
    assert listed(loader) == want[0][2:]
    assert listed(loader) == want[1]


@kinds
def test_an_iteration_under_way_is_not_disturbed_by_set_epoch(kind, workers):
    want = epochs(kind)[0]
    loader = build(kind, **workers)
    run = iter(loader)
    got = [next(run)["x"].tolist()]
    loader.set_epoch(0)  # Lightning does this after it has fetched a first batch
    got.append(next(run)["x"].tolist())
    fresh = build(kind)
    fresh.load_state_dict(loader.state_dict())
    assert got + listed(run) == want
    assert listed(fresh) == want[2:]


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_processes_resume_before_every_batch(kind):
    options = {"num": 2, "processes": True}
    loader = build(kind, **options)
    states, whole = [], []
    run = iter(loader)
    while True:
        states.append(json.dumps(loader.state_dict()))
        batch = next(run, None)
        if batch is None:
            break
        whole.append(batch["x"].tolist())
    assert whole == epochs(kind, 1)[0]
    for at in range(6):
        for workers in (options, {}):
            fresh = build(kind, **workers)
            fresh.load_state_dict(json.loads(states[at]))
            assert listed(fresh) == whole[at:]


def test_states_of_another_stream_are_refused():
    loader = build("stream")
    state = loader.state_dict()
    for wrong, text in [
        ({"buffer_size": 7}, "buffer_size=6, which decides the order"),
        ({"seed": 1}, "seed=0, which decides the order"),
        ({"epoch": -1}, "'epoch'"),
        ({"epoch": True}, "'epoch'"),
        ({"n": 1.5}, "'n'"),
        ({"penstock": 2}, "a state of format 1"),
    ]:
        with pytest.raises(StateError, match=text):
            loader.load_state_dict(signed(state | wrong))
    assert listed(loader) == epochs("stream", 1)[0]


def other(record):
    return {"x": record["x"] + 1}


@pytest.mark.parametrize(("records", "engine"), [(rows()[:-1], same), (rows(), other)])
def test_a_streams_state_is_of_its_records_and_engine(records: list, engine) -> None:
    def made(records, engine):
        dataset = StreamingPreprocessedDataset(records, engine, buffer_size=6)
        return DataLoaderBuilder().with_dataset(dataset).with_batch_size(BATCH).with_workers(0).build()

    state = json.loads(json.dumps(made(rows(), same).state_dict()))
    made(rows(), same).load_state_dict(state)
    with pytest.raises(StateError, match="which decides the rows"):
        made(records, engine).load_state_dict(state)
    older = {name: value for name, value in state.items() if name not in ("engine", "records", "check")}
    made(records, engine).load_state_dict(older)
