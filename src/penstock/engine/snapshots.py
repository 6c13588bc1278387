"""Snapshots of a running loader: what `penstock view run.jsonl` shows while it trains.

One daemon thread for each recorded loader, which lives while a `for` over it runs and writes a line per second (see
`engine.run_file`). The trainer's thread does nothing for it but start and end it. Trouble with the file never reaches
the trainer: it is reported once as a warning, and writing is tried again with the next line.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.signals import NoMoreThreads, start_thread
from penstock.core.waits import Event
from penstock.engine.run_file import RunFile

VARIABLE = "PENSTOCK_RUN"  # names the file, for scripts that are not to be changed
SECONDS = 1.0  # between two lines
LAST_SECONDS = 1.0  # that the end of a `for` waits for its last line, unless that was in vain before

_all: weakref.WeakSet[Snapshots] = weakref.WeakSet()
_order: list[Event] = []  # of the last loader that began: set when its file is open


@atexit.register
def _end_all() -> None:
    """A `for` that was left by the end of the script: its last line is written too."""
    for each in list(_all):
        each.end()


Facts = Callable[[], dict[str, Any] | None]  # the totals of a loader now; None if the loader is gone


class Snapshots:
    """Writes the snapshots of one loader to `path`."""

    def __init__(self, path: str, seconds: float = SECONDS) -> None:
        self.path, self.seconds = path, seconds
        self.id = os.urandom(6).hex()
        self._pid = os.getpid()
        self._file: RunFile | None = None
        self._end = Event()
        self._thread: threading.Thread | None = None
        self._warned = self._begun = self._slow = False
        self._files: list[RunFile] = []
        self._opened = Event()
        self._before: list[Event] = []
        weakref.finalize(self, _close, self._files)
        _all.add(self)

    @property
    def written(self) -> str | None:
        """The file that is written to, which may be another one if the first was in use."""
        return None if self._file is None else self._file.path

    def begin(self, path: str, start: Callable[[], dict[str, Any]], facts: Facts) -> None:
        """A `for` begins; `path` is the file of this rank."""
        if os.getpid() != self._pid:  # a forked copy: another run, without the thread and with a file of its own
            self.__init__(self.path, self.seconds)  # type: ignore[misc]
        self._end = end = Event()
        if not self._opened.is_set():  # of several loaders with one name, the first to begin gets the file
            self._before = [event for event in _order if event is not self._opened]
            _order[:] = [self._opened]
        thread = threading.Thread(
            target=self._write_until, args=(end, path, start, facts), name="penstock-snapshots", daemon=True
        )
        try:
            start_thread(thread)
        except NoMoreThreads as error:  # batches matter more
            self._opened.set()
            self._warn(error, path)
            return
        self._thread = thread

    def end(self) -> None:
        """The `for` has ended: waits a moment for its last line."""
        thread, self._thread = self._thread, None
        self._end.set()
        if thread is None or self._slow or os.getpid() != self._pid or thread is threading.current_thread():
            return
        thread.join(LAST_SECONDS)
        self._slow = thread.is_alive()

    def _write_until(self, end: Event, path: str, start: Callable[[], dict[str, Any]], facts: Facts) -> None:
        while True:
            ended = end.wait(self.seconds if self._begun else 0.0)
            found = facts()
            if found is not None:
                self._write(path, start, {"id": self.id, "time": round(time.time(), 3), **found, "running": not ended})
            self._opened.set()
            if ended or found is None:
                return

    def _write(self, path: str, start: Callable[[], dict[str, Any]], line: dict[str, Any]) -> None:
        try:
            if self._file is None:
                for before in self._before:
                    before.wait(LAST_SECONDS)
                self._file = RunFile(path)
                self._files.append(self._file)
            if not self._begun:
                line = {"host": socket.gethostname(), "pid": os.getpid(), **line, **start()}
            self._file.append(line)
            self._begun = True
        except Exception as error:  # whatever it is, training goes on
            self._warn(error, path)
            self._begun = True  # at the usual pace from here on

    def _warn(self, error: Exception, path: str) -> None:
        if self._warned:
            return
        self._warned = True
        what = error.expected if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        text = f"penstock: no snapshots in {path} ({what}); training goes on"
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        except RuntimeWarning:  # warnings are errors here, but this thread is not the trainer's
            sys.stderr.write(f"{text}\n")


def _close(files: list[RunFile]) -> None:
    for file in files:
        with suppress(OSError):
            file.close()


def memory(children: tuple[int, ...]) -> dict[str, int]:
    """Resident bytes of this process and of its children that compute batches; nothing where the system does not say.

    >>> memory(()).get("process", 1) > 0
    True
    """
    own, others = _resident("self"), [_resident(str(pid)) for pid in children]
    return ({} if own is None else {"process": own}) | ({"children": sum(filter(None, others))} if any(others) else {})


def _resident(process: str) -> int | None:
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
