"""Threads are started so that an exception of a signal handler is not lost."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from types import FrameType

import pytest

import penstock
from penstock.core.signals import NoMoreThreads, start_thread

SOURCES = Path(penstock.__file__).parent
OWN = {  # threads of child processes and of the viewer, whose main thread runs nothing of the user's
    "core/signals.py", "engine/processes/child.py", "engine/processes/ring_writer.py", "view/server.py",
}  # fmt: skip


class Preempted(RuntimeError):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of threads whose start was cut short
def test_an_exception_of_a_handler_is_raised_as_it_is() -> None:
    """`Thread.start` makes a KeyError or "release unlocked lock" of some, and RuntimeError has two meanings."""
    armed, begun, seen = False, 0, 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        if armed:
            raise Preempted

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for turn in range(3000):
            thread = threading.Thread(target=lambda: None, daemon=True)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + (turn % 60) * 2e-6)
                armed = True
                start_thread(thread)
                armed = False
            except Preempted:
                armed = False
                seen += 1
                begun += thread.ident is not None
            if thread.ident is not None:
                thread.join()
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen and begun


def test_what_the_caller_handles_stays_his() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        thread = threading.Thread(target=lambda: None)
        start_thread(thread)
        thread.join()
        with pytest.raises(NoMoreThreads, match="once"):
            start_thread(thread)


def test_no_other_part_starts_threads_itself() -> None:
    texts = {path.relative_to(SOURCES).as_posix(): path.read_text() for path in SOURCES.rglob("*.py")}
    assert {name for name, text in texts.items() if re.search(r"(thread|\))\.start\(\)", text)} == OWN
