"""Child processes that die, hang or raise, parents that die or lose interest: always an answer, never a leftover."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same_batches

BAD = 33


def numbers(n: int = 60) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n)})


def children() -> set[int]:
    mine = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            mine |= set(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
    return mine


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    gc.collect()
    processes, files, threads = children(), descriptors(), threading.active_count()
    yield
    end = time.monotonic() + 30
    while time.monotonic() < end:  # a caught exception may hold a batch, and so a descriptor, a moment longer
        gc.collect()
        if children() <= processes and descriptors() <= files and threading.active_count() <= threads:
            return
        time.sleep(0.05)
    assert (children(), descriptors(), threading.active_count()) == (processes, files, threads)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def at_bad(act: Callable[[], Any]) -> Callable[[dict], dict]:
    def step(record: dict) -> dict:
        if record["x"] == BAD:
            act()
        return record

    return step


def drain(loader: ps.Loader, taken: list[int]) -> None:
    for batch in loader:
        taken += batch["x"].tolist()


# Death.

DEATHS: dict[str, tuple[Callable[[], Any], str]] = {
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "it was ended by signal SIGKILL"),
    "SIGSEGV": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "it was ended by signal SIGSEGV"),
    "SIGBUS": (lambda: os.kill(os.getpid(), signal.SIGBUS), "it was ended by signal SIGBUS"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "it was ended by signal SIGTERM"),
    "os._exit": (lambda: os._exit(1), "it ended with exit code 1"),
    "sys.exit": (lambda: sys.exit(123), "it ended with exit code 123"),
}


@pytest.mark.parametrize("kind", DEATHS)
def test_a_dead_child_is_reported(kind: str) -> None:
    act, how = DEATHS[kind]
    taken: list[int] = []
    with pytest.raises(ps.WorkerDied) as caught:
        drain(numbers().map(at_bad(act)).batch(5).to_numpy(isolate=True, threads=1), taken)
    error = caught.value
    assert error.got == how
    assert re.match(rf"batch {len(taken) // 5} from child process \d+$", error.expected)
    assert "step" in error.where
    assert "on_worker_death='restart'" in error.fix
    assert ("out of memory" in error.fix) == (kind == "SIGKILL")
    assert taken == list(range(len(taken)))
    assert len(taken) <= BAD


def test_a_crash_names_the_step_the_records_and_the_line() -> None:
    def crash() -> None:
        signal.raise_signal(signal.SIGSEGV)  # in the very thread, as a crash of native code is

    run = iter(numbers().shuffle(seed=1).map(at_bad(crash)).batch(10).to_numpy(isolate=True, threads=0))
    with pytest.raises(ps.WorkerDied) as caught:
        list(run)
    records = list(numbers().shuffle(seed=1).batch(10).to_numpy(threads=0).records())
    guilty = next(i for i, some in enumerate(records) if BAD in some)
    named = re.match(r"computing steps? (\d+)(?: to (\d+))? \(records (\d+) \.\.\. (\d+)\)", caught.value.where)
    assert named is not None, caught.value.where
    lo, hi = int(named[1]), int(named[2] or named[1])
    assert lo <= guilty <= hi
    assert (int(named[3]), int(named[4])) == (records[lo][0], records[hi][-1])
    assert re.search(r"test_process_faults.py\", line \d+ in crash", caught.value.where)


def test_death_is_noticed_at_once() -> None:
    before = children()
    run = iter(numbers(10_000).map(at_bad(lambda: None)).batch(5).to_numpy(isolate=True, timeout=30))
    next(run)
    (pid,) = children() - before
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ps.WorkerDied, match=f"from child process {pid}"):
        for _ in run:
            pass
    assert time.monotonic() - began < 10, "far from the timeout"


def test_a_grandchild_that_keeps_the_socket_open_hides_nothing(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def fork_and_die() -> None:
        pid = os.fork()
        if pid:
            note.write_text(str(pid))
            os._exit(7)
        time.sleep(60)

    with pytest.raises(ps.WorkerDied, match="exit code 7"):
        list(numbers().map(at_bad(fork_and_die)).batch(5).to_numpy(isolate=True))
    os.kill(int(note.read_text()), signal.SIGKILL)


# Exceptions.


class Unpicklable(Exception):
    def __init__(self, lock: Any, text: str) -> None:
        super().__init__(text)
        self.lock = lock


class Own(Exception):
    pass


def fails_with(make: Callable[[], BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise make()

    return act


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: MemoryError("too much"), MemoryError),
        (lambda: Own("mine"), Own),
        (lambda: Unpicklable(threading.Lock(), "locked"), type(None)),
    ],
)
def test_an_exception_crosses_with_its_record(make: Callable[[], BaseException], cause: type) -> None:
    function = at_bad(fails_with(make))
    taken: list[int] = []
    with pytest.raises(ps.UserCodeError) as caught:
        drain(numbers().map(function).batch(5).to_numpy(workers=2), taken)
    with pytest.raises(ps.UserCodeError) as same:
        list(numbers().map(function).batch(5).to_numpy(threads=0))
    here, there = same.value, caught.value
    assert taken == list(range(BAD // 5 * 5)), "all batches before it are given first"
    assert str(there) == str(here)
    assert (there.expected, there.got, there.where, there.fix) == (here.expected, here.got, here.where, here.fix)
    assert f"row {BAD}" in there.where
    assert type(there.__cause__) is cause
    assert there.row is not None
    (note,) = there.__notes__
    assert re.match(r"In child process \d+:\nTraceback", note)
    assert "in act\n" in note
    assert "During handling" not in note


class BadSource:
    """Raises whatever it is told to."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 20

    def read(self, indices: np.ndarray) -> dict:
        if 13 in indices:
            raise self.error()
        return {"x": indices}

    def fingerprint(self) -> str:
        return "bad"

    def describe(self) -> dict:
        return {"kind": "bad"}

    def locate(self, index: int) -> dict:
        return {"row": index}


def test_bad_records_cross_with_every_field() -> None:
    def error() -> BaseException:
        one = ps.RecordError("a good record", got="a bad one", where="file a, line 13", fix="mend it", row=3)
        return ps.BadRecords([one, ps.RecordError("another", row=4)])

    with pytest.raises(ps.BadRecords) as caught:
        list(ps.Pipeline(BadSource(error)).batch(5).to_numpy(isolate=True))
    assert [(e.expected, e.got, e.where, e.fix, e.row) for e in caught.value.errors] == [
        ("a good record", "a bad one", "file a, line 13", "mend it", 3),
        ("another", "", "", "", 4),
    ]


def test_an_exception_that_cannot_be_pickled_is_told_in_words() -> None:
    with pytest.raises(ps.StageError) as caught:
        list(ps.Pipeline(BadSource(lambda: Unpicklable(threading.Lock(), "a locked one"))).batch(5).to_numpy(workers=1))
    assert caught.value.got.endswith("Unpicklable: a locked one")
    assert re.match(r"batch 2, child process \d+", caught.value.where)
    assert "in read\n" in caught.value.__notes__[0]


def test_a_child_that_cannot_be_built_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "vanishing.py"
    module.write_text("def same(record):\n    return record\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import vanishing  # type: ignore[import-not-found]

    module.write_text("raise OSError('moved away')\n")
    with pytest.raises(OSError, match="moved away") as caught:
        list(numbers().map(vanishing.same).batch(5).to_numpy(isolate=True))
    assert "vanishing.py" in caught.value.__notes__[0]


# Hanging.


@pytest.mark.parametrize("kind", ["sleeps", "holds the GIL"])
def test_a_hanging_child_is_reported_with_its_stack(kind: str) -> None:
    def hang() -> None:
        if kind == "sleeps":
            time.sleep(600)
        re.match(r"(a+)+$", "a" * 60 + "b")

    began = time.monotonic()
    with pytest.raises(ps.WorkerDied) as caught:
        list(numbers().map(at_bad(hang)).batch(5).to_numpy(isolate=True, threads=1, timeout=0.5))
    assert re.match(r"batch \d+ from child process \d+ within 0.5 s", caught.value.expected)
    assert "no answer after" in caught.value.got
    assert re.search(r"test_process_faults.py\", line \d+ in hang", caught.value.where)
    assert caught.value.fix == "fix what hangs there, or raise timeout="
    assert time.monotonic() - began < 30


# Restart.


def test_restart_gives_the_same_batches(tmp_path: Path) -> None:
    def dies_once(record: dict) -> dict:
        mark = tmp_path / str(record["x"])
        if record["x"] in (BAD, 50) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    pipeline = numbers().map(dies_once).batch(5)
    with pytest.warns(RuntimeWarning, match=r"computing the steps of a lost child again[^$]*SIGKILL"):
        got = list(pipeline.to_numpy(workers=2, on_worker_death="restart"))
    assert_same_batches(list(numbers().batch(5).to_numpy(threads=0)), got)
    assert sorted(p.name for p in tmp_path.iterdir()) == [str(BAD), "50"]


def test_a_step_that_always_kills_is_not_tried_for_ever() -> None:
    pipeline = numbers().map(at_bad(lambda: os._exit(9))).batch(5)
    taken: list[int] = []
    with (
        pytest.warns(RuntimeWarning, match="exit code 9") as told,
        pytest.raises(ps.WorkerDied, match="exit code 9") as caught,
    ):
        drain(pipeline.to_numpy(isolate=True, on_worker_death="restart"), taken)
    assert taken == list(range(BAD // 5 * 5)), "the second child is careful: it gives all that comes before"
    assert len(told) <= 2
    assert "computing step 6 (records 30 ... 34)" in caught.value.where


# Leaving.


def test_nothing_is_left_however_a_loop_ends() -> None:
    before = children(), descriptors()

    def nothing_left() -> bool:  # what an earlier test had open may be closed meanwhile
        return children() == before[0] and descriptors() <= before[1]

    loader = numbers().map(at_bad(lambda: None)).batch(5).to_numpy(workers=2)
    kept = []
    for batch in loader:
        assert len(children() - before[0]) == 2
        kept.append(batch)
        break
    assert kept[0]["x"].tolist() == [0, 1, 2, 3, 4], "a batch outlives its run"
    del batch, kept
    gc.collect()
    assert nothing_left(), "left the loop"
    assert next(iter(loader))["x"][0] == 5, "and goes on from there"
    run = iter(loader)
    next(run)
    run.close()
    run.close()
    assert nothing_left(), "closed"
    with pytest.raises(StopIteration):
        next(run)
    run = iter(loader)
    del loader, run
    gc.collect()
    assert nothing_left(), "dropped while the child starts"


PARENT = """
    import os, re, sys, time
    import numpy as np
    import penstock as ps

    def slow(record):
        if record["x"] == 2:
            {act}
        return record

    run = iter(ps.from_arrays({{"x": np.arange(1000)}}).map(slow).batch(1).to_numpy(isolate=True, threads=0))
    next(run)
    pid = open(f"/proc/self/task/{{os.getpid()}}/children").read().split()[0]
    print(pid, flush=True)
    time.sleep({nap})
    for batch in run:
        pass
"""


def parent(tmp_path: Path, act: str, nap: float) -> tuple[subprocess.Popen[str], int]:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT).format(act=act, nap=nap))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("act", ["time.sleep(600)", "re.match(r'(a+)+$', 'a' * 60 + 'b')"])
def test_a_child_does_not_outlive_its_parent(act: str, tmp_path: Path) -> None:
    process, pid = parent(tmp_path, act, nap=600)
    with process:
        time.sleep(0.2)  # the child is at it
        assert alive(pid)
        process.kill()
        process.wait()
        assert gone_within(pid, 5)


def test_a_stopped_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    process, pid = parent(tmp_path, "time.sleep(600)", nap=600)
    with process:
        time.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert gone_within(pid, 5)


def test_a_frozen_application_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ps.UsageError, match="a frozen application") as caught:
        next(iter(numbers().batch(5).to_numpy(workers=2)))
    assert "threads work everywhere" in caught.value.fix


@pytest.mark.parametrize("options", ["threads=2", "workers=2", "threads=0"])
def test_a_forked_copy_of_a_running_loader_is_refused(options: str, tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        textwrap.dedent(f"""
            import os, sys
            import numpy as np
            import penstock as ps

            loader = ps.from_arrays({{"x": np.arange(3000)}}).map(lambda r: r).batch(1).to_numpy({options})
            run = iter(loader)
            next(run)
            if (pid := os.fork()) == 0:
                try:
                    for batch in run:
                        pass
                except ps.UsageError as error:
                    own = sum(1 for _ in ps.from_arrays({{"x": np.arange(30)}}).batch(1).to_numpy({options}))
                    os._exit(5 if "forked copy" in error.got and own == 30 else 6)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
            print(sum(1 for _ in run))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("2999\n", "")


def test_ctrl_c_ends_parent_and_child(tmp_path: Path) -> None:
    process, pid = parent(tmp_path, "time.sleep(600)", nap=0)
    with process:
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to both of them
        _, err = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert err.count("Traceback") == 1
        assert gone_within(pid, 5)


def test_a_forked_copy_of_the_parent_does_no_harm(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        textwrap.dedent("""
            import os
            import numpy as np
            import penstock as ps

            run = iter(ps.from_arrays({"x": np.arange(100)}).batch(1).to_numpy(isolate=True, prefetch=1))
            next(run)
            if (pid := os.fork()) == 0:
                run.close()
                raise SystemExit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
            print(sum(1 for _ in run))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("99\n", "")
