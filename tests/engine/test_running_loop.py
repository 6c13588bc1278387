"""Calls inside a running `for` and beside a live iterator: they take effect at the next batch, or are refused."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

import penstock as ps
from penstock.facades.artifex.loaders.epochs import DatasetLoader
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.testing import assert_same, assert_same_batches

MODES = [{"threads": 0}, {}, {"threads": 1}, {"threads": 2, "prefetch": 8}, {"workers": 2}]
modes = pytest.mark.parametrize("mode", MODES, ids=str)
# The builder's worker processes are tested on machines with fewer cores than that, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def mixture(batch: int = 10, **mode) -> ps.Loader:
    one, two = (ps.from_arrays({"x": np.arange(400), "source": np.full(400, k)}).shuffle(seed=k) for k in (0, 1))
    return ps.mix([one, two], [1, 0]).batch(batch).to_numpy(**mode)


def numbers(n: int = 40, batch: int = 4, **mode) -> ps.Loader:
    return ps.from_arrays({"x": np.arange(n)}).shuffle(seed=3).batch(batch).to_numpy(**mode)


def xs(batches) -> list[list[int]]:
    return [b["x"].tolist() for b in batches]


@modes
def test_weights_change_at_the_next_batch_of_a_running_loop(mode: dict) -> None:
    loader, batches, states = mixture(**mode), [], []
    for batch in loader:
        batches.append(batch)
        if loader.step in (5, 9):
            loader.set_weights([0, 1] if loader.step == 5 else [1, 1])
        states.append(json.dumps(loader.state_dict()))
        if loader.step == 20:
            break
    assert [b["source"].mean() for b in batches[:5]] == [0.0] * 5
    assert [b["source"].mean() for b in batches[5:9]] == [1.0] * 4
    assert 0 < np.mean([b["source"].mean() for b in batches[9:]]) < 1
    for step, batch in enumerate(batches):
        assert_same(batch, loader.batch_at(step), f"step {step}")
        why = loader.why(step, 3)
        assert (why["record"], why["from"]["mixture_source"]) == (batch["x"][3], batch["source"][3])
    for step in (0, 4, 5, 8, 12):  # the state after batch `step`
        for resumed in ({"threads": 0}, mode) if step == 5 else ({"threads": 0},):
            fresh = mixture(**resumed)
            fresh.load_state_dict(json.loads(states[step]))
            until = 4 if step < 4 else 8 if step < 8 else 19  # later changes are not part of this state
            assert_same_batches(batches[step + 1 : until + 1], list(islice(fresh, until - step)))


@modes
def test_resume_at_every_step_of_a_run_with_changes(mode: dict) -> None:
    """The changes are repeated in the resumed run, as a script would."""
    changes = {3: [1, 3], 6: [0, 1], 7: [5, 1]}
    resumed_at = range(12) if mode in MODES[:2] else (5, 6)

    def run(loader: ps.Loader, batches: list) -> list[str]:
        states = []
        for batch in loader:
            batches.append(batch)
            if loader.step in changes:
                loader.set_weights(changes[loader.step])
            states.append(json.dumps(loader.state_dict()))
            if loader.step == 12:
                return states
        return states

    batches: list = []
    states = run(mixture(**mode), batches)
    for step in resumed_at[:-1]:
        fresh, rest = mixture(**mode), []
        fresh.load_state_dict(json.loads(states[step]))
        again = run(fresh, rest)
        assert_same_batches(batches[step + 1 :], rest, f"resumed after step {step}")
        assert again == states[step + 1 :]


@modes
def test_a_rollback_inside_a_loop_goes_back(mode: dict) -> None:
    loader = numbers(**mode)
    want = xs(numbers(threads=0)) + xs(islice(_second(), 10))
    got, state, spiked = [], None, False
    for batch in loader:
        got.append(batch["x"].tolist())
        if loader.step == 3:
            state = json.loads(json.dumps(loader.state_dict()))
        if loader.step == 7 and not spiked:
            loader.load_state_dict(state)
            spiked = True
            assert loader.step == 3
    assert got == want[:7] + want[3:10]
    assert (loader.step, loader.epoch) == (10, 1)


def _second() -> ps.Loader:
    loader = numbers(threads=0)
    loader.seek_epoch(1)
    return loader


@modes
def test_a_position_set_beside_an_iterator_is_where_it_begins(mode: dict) -> None:
    want = xs(numbers(threads=0))
    loader = numbers(**mode)
    state = _after(4)
    run = iter(loader)
    loader.load_state_dict(state)
    assert next(run)["x"].tolist() == want[4]
    assert loader.step == 5
    assert loader.state_dict()["n"] == 20
    run.close()
    loader.seek_epoch(0)
    run = iter(loader)
    loader.seek_epoch(1)
    second = xs(_second())
    assert next(run)["x"].tolist() == second[0]
    loader.seek_epoch(0)
    assert xs(run) == want
    assert loader.epoch == 1


def _after(count: int) -> dict:
    loader = numbers(threads=0)
    list(islice(loader, count))
    return loader.state_dict()


@modes
def test_next_epoch_ends_a_running_loop(mode: dict) -> None:
    loader, seen = numbers(**mode), []
    for _ in range(3):
        for batch in loader:
            seen.append((loader.epoch, batch["x"].tolist()))
            if len(seen) % 2 == 0:
                loader.next_epoch()
    assert [epoch for epoch, _ in seen] == [0, 0, 1, 1, 2, 2]
    assert loader.epoch == 3
    assert seen[2][1] == numbers(threads=0).batch_at(10)["x"].tolist()


@modes
def test_a_second_loop_ends_the_first_with_an_error(mode: dict) -> None:
    loader = numbers(**mode)
    with pytest.raises(ps.UsageError, match="one running `for`") as caught:
        for _ in loader:
            inner = xs(loader)
    assert "use a second loader for the inner loop" in str(caught.value)
    assert inner == xs(numbers(threads=0))[1:]
    one, two = iter(loader), iter(loader)
    next(two)
    with pytest.raises(ps.UsageError, match="one running `for`"):
        next(one)
    assert xs(two) == xs(_second())[1:], "the newest one goes on"


def test_a_loop_kept_alive_by_a_traceback_does_not_disturb_the_next_one() -> None:
    loader, kept = numbers(), None
    try:
        for _ in loader:
            raise KeyError
    except KeyError as error:
        kept = error  # holds the frame, and with it the iterator
    assert xs(loader) == xs(numbers())[1:]
    assert kept is not None


@modes
def test_a_state_after_the_last_batch_resumes_in_the_next_epoch(mode: dict) -> None:
    want = [xs(loader) for loader in [numbers(threads=0)] for _ in range(3)]
    for stop in (10,) if "workers" in mode else (9, 10, 11):  # batches taken before the crash
        loader, saved = numbers(**mode), {}
        with pytest.raises(ZeroDivisionError):
            _train(loader, 0, saved, stop)
        fresh = numbers(**mode)
        fresh.load_state_dict(json.loads(saved["loader"]))
        assert fresh.epoch == saved["epoch"]
        seen = saved["seen"]
        _train(fresh, saved["epoch"], {"seen": seen}, None)
        assert seen == sum(want, [])


def _train(loader, start: int, saved: dict, stop: int | None) -> None:
    seen = saved.setdefault("seen", [])
    for epoch in range(start, 3):
        for batch in loader:
            seen.append(batch["x"].tolist())
            saved |= {"loader": json.dumps(loader.state_dict()), "epoch": epoch}
            if len(seen) == stop:
                raise ZeroDivisionError


def builder(**workers):
    made = DataLoaderBuilder().with_batch_size(2).with_workers(**({"num": 0} | workers))
    return made.with_dataset([{"x": i} for i in range(10)]).with_shuffle().with_seed(3).build()


def dataset_loader(**_):
    return DatasetLoader([{"x": i} for i in range(10)], 2, seed=3)


def stateful(**_):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader([{"x": i} for i in range(10)], batch_size=2)


@pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")
@pytest.mark.parametrize(
    ("make", "workers"),
    [
        (stateful, {}),
        (builder, {}),
        (builder, {"num": 2}),
        (builder, {"num": 2, "processes": True}),
        (dataset_loader, {}),
    ],
)
def test_each_row_is_seen_once_an_epoch_as_with_torchdata(make, workers: dict) -> None:
    for stop in (5,) if "processes" in workers else (4, 5, 6):
        saved: dict = {}
        with pytest.raises(ZeroDivisionError):
            _train(make(**workers), 0, saved, stop)
        fresh = make(**workers)
        fresh.load_state_dict(json.loads(saved["loader"]))
        _train(fresh, saved["epoch"], {"seen": saved["seen"]}, None)
        rows = sum(saved["seen"], [])
        assert sorted(rows) == sorted([*range(10)] * 3)


def test_a_state_after_the_loop_is_that_of_the_next_epoch() -> None:
    loader = numbers()
    list(loader)
    assert "epoch_end" not in loader.state_dict()
    fresh = numbers()
    fresh.load_state_dict(loader.state_dict())
    assert xs(fresh) == xs(loader)
    run = iter(loader)
    list(islice(run, len(loader)))
    assert loader.state_dict()["epoch_end"] is True
    fresh.load_state_dict(loader.state_dict())
    assert fresh.epoch == loader.epoch == 2
    assert (list(fresh), fresh.epoch) == ([], 3)
    assert xs(loader) == xs(fresh), "a new loop leaves the epoch that was read to its end"


def test_a_broken_loop_has_left_its_epoch() -> None:
    loader = numbers()
    assert len(list(islice(loader, len(loader)))) == len(loader)
    assert loader.epoch == 1
    assert "epoch_end" not in loader.state_dict()
    assert xs(loader) == xs(_second())


@pytest.mark.parametrize("workers", [{}, {"num": 2}, {"num": 2, "processes": True}], ids=str)
def test_loops_over_a_torch_loader_are_independent(workers: dict) -> None:
    want = [[b["x"].tolist() for b in loader] for loader in [builder()] for _ in range(4)]
    loader, outer, inner = builder(**workers), [], []
    for batch in loader:
        outer.append(batch["x"].tolist())
        if len(inner) < 2:
            inner.append([b["x"].tolist() for b in loader])
        elif len(outer) == 3:
            with pytest.raises(ps.StateError, match="one `for` over this loader"):
                loader.state_dict()
    assert outer == want[0]
    assert inner == want[1:3]
    assert [b["x"].tolist() for b in loader] == want[3]
    assert json.loads(json.dumps(loader.state_dict()))["step"] == 20


@pytest.mark.parametrize("workers", [{}, {"num": 2}, {"num": 2, "processes": True}], ids=str)
def test_a_rollback_inside_a_loop_of_a_torch_loader(workers: dict) -> None:
    want = [b["x"].tolist() for b in builder()]
    loader, got, state = builder(**workers), [], None
    for batch in loader:
        got.append(batch["x"].tolist())
        if len(got) == 2:
            state = loader.state_dict()
        if len(got) == 4:
            loader.load_state_dict(state)
    assert got == want[:4] + want[2:]


def test_set_epoch_inside_a_loop_is_for_the_next_one() -> None:
    want = [[b["x"].tolist() for b in loader] for loader in [builder()] for _ in range(4)]
    loader, got = builder(), []
    for batch in loader:
        got.append(batch["x"].tolist())
        loader.set_epoch(3)
    assert got == want[0]
    assert [b["x"].tolist() for b in loader] == want[3]
    with pytest.raises(ps.UsageError, match="an epoch of at least 0"):
        loader.set_epoch(-1)


def test_next_and_for_share_the_position_of_a_dataset_loader() -> None:
    want = [b["x"].tolist() for b in dataset_loader()]
    loader = dataset_loader()
    got = [next(loader)["x"].tolist()]
    for batch in loader:
        got.append(batch["x"].tolist())
        break
    got.append(next(loader)["x"].tolist())
    state = loader.state_dict()
    got.append(next(loader)["x"].tolist())
    assert got == want[:4]
    loader.load_state_dict(state)
    assert next(loader)["x"].tolist() == want[3]
    with pytest.raises(ps.UsageError, match="one running `for`"):
        for _ in loader:
            next(loader)


@pytest.mark.parametrize("step", [2**62, 2**63, 10**30, -1, True, 1.5, "3", None])
def test_steps_and_epochs_out_of_range_are_refused(step) -> None:
    loader = numbers()
    for call in (loader.batch_at, loader.why, loader.seek_epoch):
        with pytest.raises(ps.UsageError):
            call(step)
    assert loader.step == 0
