"""Loaders that move to a child process in the middle of a `for`: the same batches, states and errors; nothing left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.moving import Experience, Loss, Rules
from penstock.engine.processes.standby import Standby
from penstock.testing import assert_same_batches
from tests.faults.test_process_faults import nothing_left
from tests.resume.pipelines import PIPELINES

LOSS = Loss(step=1e-3, cost=1e-3, lost=1e-3)
EASY = Rules(turn=1, settling=1, payback=0.0, again_after=10, gain=-1e9, watched=10**9)
__all__ = ["nothing_left"]  # a fixture


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer waits for the child to start, so that few batches are enough."""
    is_ready = Standby.is_ready

    def waits(child: Standby) -> bool:
        while not is_ready(child):
            time.sleep(0.01)
        return True

    monkeypatch.setattr(Standby, "is_ready", waits)


def about_to_move(loader: ps.Loader, rules: Rules = EASY, won: bool | None = True, threads: int = 1) -> ps.Loader:
    """A loader that has found threads to be worth it, and a child to be better, or (None) worth a trial."""
    loader._settled, loader._known = threads, Experience(rules, LOSS, won)
    return loader


def numbers(n: int = 400) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n)}).shuffle(seed=3)


def reaches(loader: ps.Loader, child: bool, run: Iterator[Any], most: int = 100_000) -> list[Any]:
    """Batches until a child computes them, or none does any more."""
    got = []
    for batch in islice(run, most):
        got.append(batch)
        if loader._known.moved is child:
            break
        time.sleep(0.002)
    assert loader._known.moved is child
    return got


def length(name: str) -> int:
    loader = PIPELINES[name](4).to_numpy()
    return 100 if loader._ranges.size is None else len(loader)


# The law.

CHOSEN = [name for i, name in enumerate(PIPELINES) if i % 3 == 1 and length(name) > 35]


@pytest.mark.parametrize("name", CHOSEN)
def test_batches_and_states_are_the_same_before_during_and_after(name: str, at_once: None) -> None:
    here = PIPELINES[name](4).to_numpy(threads=0)
    there = about_to_move(PIPELINES[name](4).to_numpy(), won=None if CHOSEN.index(name) % 2 else True)
    seen = set()
    for _ in range(2):
        for number, (want, got) in enumerate(zip(islice(here, 60), islice(there, 60), strict=True)):
            assert_same_batches([want], [got], f"{name}, batch {number}")
            assert there.state_dict() == here.state_dict()
            seen.add((there._known.moved, bool(there._stats.children)))
    assert (True, True) in seen
    assert there._known.failed == ""


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize(("gain", "won"), [(-1e9, True), (2.0, False)])
def test_a_trial_changes_no_batch_whatever_it_finds(threads: int, gain: float, won: bool, at_once: None) -> None:
    rules = Rules(turn=4, settling=2, payback=0.0, again_after=20, gain=gain, watched=10**9)
    loader = about_to_move(numbers(2000).batch(4).to_numpy(), rules, None, threads)
    for want, got in zip(numbers(2000).batch(4).to_numpy(threads=0), loader, strict=True):
        assert got["x"].tolist() == want["x"].tolist()
    assert loader._known.won is won and loader._known.trials in ((1,) if won else (1, 2))
    assert loader.step == 500


def test_states_of_every_stage_resume(at_once: None) -> None:
    want = [batch["x"].tolist() for batch in numbers().batch(4).to_numpy(threads=0)]
    loader = about_to_move(numbers().batch(4).to_numpy(), Rules(turn=6, settling=2, payback=0.0, gain=-1e9), None)
    states = []
    for _ in loader:
        states.append((loader.step, loader.state_dict()))
    for step, state in states[:60:5]:
        again = numbers().batch(4).to_numpy(threads=1)
        again.load_state_dict(state)
        assert [batch["x"].tolist() for batch in again] == want[step:]


def test_skipped_records_are_counted_once(at_once: None) -> None:
    def make() -> ps.Pipeline:
        return numbers().map(picky).skip_errors().batch(4)

    here, there = make().to_numpy(threads=0), about_to_move(make().to_numpy(), won=None)
    assert_same_batches(list(here), list(there))
    assert there._known.trials == 1 and there._known.failed == ""
    assert there.ledger.total == here.ledger.total > 0
    assert sorted(map(str, there.ledger.entries)) == sorted(map(str, here.ledger.entries))
    facts = there.stats()
    assert facts["batches_taken"] == facts["batches_computed"] == 100


def picky(record: dict) -> dict:
    if record["x"] % 10 == 3:
        raise ValueError("three")
    return record


def test_it_moves_while_the_trainer_goes_on() -> None:
    """Without waiting for the child, as in production."""
    loader = about_to_move(numbers().repeat().batch(4).to_numpy())
    want = iter(numbers().repeat().batch(4).to_numpy(threads=0))
    run = iter(loader)
    for got in (*reaches(loader, True, run), *islice(run, 50)):
        assert got["x"].tolist() == next(want)["x"].tolist()
    run.close()


@pytest.mark.parametrize(("won", "change"), [(True, 30), (None, 30), (None, 4), (None, 6)])
def test_a_change_of_weights_or_position_goes_on_here(won: bool | None, change: int, at_once: None) -> None:
    """Also within a trial, whose child has the plan from before the change."""

    def make() -> ps.Pipeline:
        return ps.mix([numbers(30), ps.from_arrays({"x": np.arange(1000, 1070)})], [0.5, 0.5]).batch(4)

    def drive(loader: ps.Loader) -> list[list[int]]:
        got = []
        for number, batch in enumerate(islice(loader, 60)):
            got.append(batch["x"].tolist())
            if number == change:
                loader.set_weights([0.1, 0.9])
            changed.append(number > change + 1 and loader._stats.children != ())
            if number == 40:
                loader.load_state_dict(states[20])
            states.append(loader.state_dict())
        return got

    states: list[Any] = []
    changed: list[bool] = []
    want = drive(make().to_numpy(threads=0))
    states = []
    assert drive(about_to_move(make().to_numpy(), won=won)) == want
    assert not any(changed), "the child with the old plan has ended"


# Ends.


@pytest.mark.parametrize("how", ["break", "close", "del", "exception"])
def test_leaving_early_leaves_nothing(how: str) -> None:
    loader = about_to_move(numbers().repeat().batch(4).to_numpy())
    run = iter(loader)
    taken = len(reaches(loader, True, run))
    pid = loader._stats.children[0]
    if how == "close":
        loader.close()
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            run.throw(ZeroDivisionError())
    else:
        del run
        gc.collect()
    assert loader._stats.children == () and not loader._known.moved
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert loader.step == taken
    again = numbers().repeat().batch(4).to_numpy(threads=0)
    assert next(iter(loader))["x"].tolist() == again.batch_at(taken)["x"].tolist()


def test_leaving_while_the_child_starts_leaves_nothing() -> None:
    loader = about_to_move(numbers().repeat().batch(4).to_numpy())
    run = iter(loader)
    next(run)
    next(run)
    assert loader._stats.children
    run.close()
    assert loader._stats.children == ()


def test_ctrl_c_ends_the_child_and_keeps_the_position() -> None:
    loader = about_to_move(numbers().repeat().batch(4).to_numpy())
    run = iter(loader)
    taken = len(reaches(loader, True, run))
    with pytest.raises(KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for _ in run:
            taken += 1
            signal.raise_signal(signal.SIGINT)
    run.close()
    assert loader.step == taken and loader._stats.children == ()


@pytest.mark.parametrize("when", ["starting", "computing"])
def test_a_child_that_is_killed_is_replaced_by_threads(when: str) -> None:
    loader = about_to_move(numbers().repeat().batch(4).to_numpy())
    want = iter(numbers().repeat().batch(4).to_numpy(threads=0))
    run = iter(loader)
    got = [next(run), next(run)] if when == "starting" else reaches(loader, True, run)
    os.kill(loader._stats.children[0], signal.SIGKILL)
    if when == "computing":
        with pytest.warns(RuntimeWarning, match="is computed in this process\\n.*child process"):
            got += islice(run, 50)
    else:
        while not loader._known.failed:
            got.append(next(run))
            time.sleep(0.002)
        got += islice(run, 50)
    assert [b["x"].tolist() for b in got] == [next(want)["x"].tolist() for _ in got]
    assert "SIGKILL" in loader._known.failed or "child process" in loader._known.failed
    assert "the loader does not by itself" in loader.stats()["verdict"]
    run.close()
    run = iter(loader)
    assert [next(run)["x"].tolist() for _ in range(5)] == [next(want)["x"].tolist() for _ in range(5)]
    assert loader._stats.children == (), "not tried again"
    run.close()


def fails_at_300(record: dict) -> dict:
    if record["x"] == 300:
        raise ValueError("three hundred")
    return record


def test_an_error_is_that_of_this_process(at_once: None) -> None:
    """A failed batch is computed again here: the same error at the same step, with the traceback of this process."""
    taken = []
    for loader in (make_failing().to_numpy(threads=0), about_to_move(make_failing().to_numpy())):
        got = []
        with pytest.raises(ps.StageError, match="three hundred") as caught:
            for batch in loader:
                got.append(batch["x"].tolist())
        taken.append((got, str(caught.value), loader.step))
    assert taken[0] == taken[1]


def make_failing() -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(400)}).map(fails_at_300).batch(4)


# Programs.

PROGRAM = """
    import os, time
    import numpy as np
    import penstock as ps
    from penstock.engine.moving import Experience, Loss, Rules

    print("main runs")
    def triple(record):
        return {"x": record["x"] * 3}

    loader = ps.from_arrays({"x": np.arange(40)}).map(triple).repeat().batch(4).to_numpy()
    loader._settled = 1
    loader._known = Experience(Rules(turn=2, settling=1, payback=0.0), Loss(1e-3, 1e-3, 1e-3), True)
    for number, batch in enumerate(loader):
        assert batch["x"].tolist() == [3 * (4 * number % 40 + i) for i in range(4)]
        time.sleep(0.002)
        if loader._known.moved and loader._stats.children:
            break
    print("moved", loader._known.failed)
"""


@pytest.mark.parametrize("how", ["script", "stdin", "exec"])
def test_moves_in_any_program_without_a_guard_and_runs_it_once(how: str, tmp_path: Path) -> None:
    text = textwrap.dedent(PROGRAM)
    if how == "exec":  # as notebooks do
        text = f"import __main__\nexec(compile({text!r}, '<cell 1>', 'exec'), __main__.__dict__)"
    script = tmp_path / "program.py"
    script.write_text(text)
    command = [sys.executable, "-" if how == "stdin" else str(script)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout == "main runs\nmoved \n"
