"""The child process of an isolated loader: its entry point and the messages it sends.

A child is a new interpreter that runs `main` with the parent's `sys.path`. It never imports the user's `__main__`; its
work comes as a `ChildJob` (see `engine.processes.payload`).

The child runs the same ordered threads as an in-process loader, over its part of the steps, and writes each batch into
a free slot of the ring. It ends when its parent closes the socket or is gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple

from penstock.core.columns import Columns, nbytes
from penstock.core.errors import PenstockError
from penstock.core.ledger import Ledger
from penstock.engine.batches import Batches
from penstock.engine.call_sizes import MOST_BYTES
from penstock.engine.ordered_threads import OrderedThreads
from penstock.engine.output import Output
from penstock.engine.processes.payload import ChildJob, read_payload
from penstock.engine.processes.ring import Ring, Shape
from penstock.engine.processes.ring_writer import RingWriter
from penstock.engine.stats import Stats
from penstock.plan.build import build

_F_SETSIG = 10  # of Linux; Python 3.11 does not name it


WAITS = -1


class Descriptors(NamedTuple):
    """The file descriptors that a child inherits."""

    wire: int
    ring: int
    payload: int
    notes: int
    life: int


class ChildSteps(NamedTuple):
    """The steps of one child: `first + j * every`, `length` of them (None: without end).

    The first `careful` ones are computed and sent one by one: an earlier child was lost while computing one of them.
    With `WAITS` as `first`, the parent names steps later.
    """

    first: int
    every: int
    length: int | None
    careful: int = 0


class HostOutput(Output):
    """The part of an output that runs in the child: final dtypes in NumPy. The parent makes the framework's objects.

    Of Penstock's own outputs only plain attributes are sent: a device or sharding would import its framework.
    """

    def __init__(self, delivers: Output) -> None:
        output = delivers.converter
        self.name, self._kind = output.name, type(output)  # type: ignore[misc]
        own = self._kind.__module__.startswith("penstock.")
        self._state = {k: v for k, v in vars(output).items() if _is_plain(v)} if own else {}
        self._output = None if own else output
        self.memory = output.memory

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        if self._output is None:
            output = self._kind.__new__(self._kind)
            vars(output).update(self._state)
            self._output = output
        return self._output.convert(columns, ids)

    def deliver(self, columns: Columns) -> Columns:
        return columns

    def nbytes(self, batch: Columns) -> int:
        return nbytes(batch)


def _is_plain(value: Any) -> bool:
    home = type(value).__module__.partition(".")[0]
    return home in ("builtins", "numpy", "penstock") and not callable(value) and not isinstance(value, ModuleType)


def main(fds: tuple[Any, ...], shape: tuple[Any, ...], share: tuple[Any, ...], parent: int) -> None:
    """Computes this child's steps, then waits until the parent closes the socket."""
    mine = ChildSteps(*share)
    writer = RingWriter(_set_up(Descriptors(*fds), parent), Ring(Descriptors(*fds).ring, Shape(*shape)), parent)
    threading.Thread(target=writer.listen, name="penstock-listen", daemon=True).start()
    try:
        job: ChildJob = read_payload(Descriptors(*fds).payload)
        stats = Stats()
        if job.measured:
            from penstock.engine.verb_seconds import VerbSeconds

            stats.verbs = VerbSeconds()
        work = Batches(build(job.definition), job.ranges, job.output, job.pad, stats)
    except Exception as error:
        writer.send(("not started", failure(error)))
        writer.wait_for_end()
        return
    writer.ahead, writer.max_bytes = job.ahead, job.max_bytes // 2
    writer.send(("ready",))
    news = CounterReport(work)
    try:
        for steps in _parts(writer, mine):
            _compute(steps, work, job, writer, news)
    except Exception as error:  # SystemExit goes on: the parent then reports the exit code
        writer.send(("error", failure(error), news()))
    writer.wait_for_end()


def _parts(writer: RingWriter, mine: ChildSteps) -> Iterator[ChildSteps]:
    """The steps that the child was started for, or those that its parent names one after the other."""
    if mine.first != WAITS:
        yield mine
        return
    while (wanted := writer.wait_for_steps()) is not None:
        first, stop = wanted
        yield ChildSteps(first, 1, None if stop < 0 else stop - first)


def _compute(
    mine: ChildSteps, work: Batches, job: ChildJob, writer: RingWriter, news: Callable[[], tuple[Any, ...]]
) -> None:
    """Computes these steps and sends their batches."""
    compute = _tracked_compute(writer.ring, work, mine)
    for j in range(mine.careful):
        writer.put(compute(j, j + 1)[0], news())
    run = OrderedThreads(
        compute,
        mine.careful,
        mine.length,
        threads=job.threads,
        ahead=max(1, job.threads),
        max_bytes=max(1, job.max_bytes * mine.every),
        size_of=nbytes,
        per_call=work.per_call,
        range_seconds=work.range_seconds,
        range_bytes=work.range_bytes(job.threads),
        one_size=work.one_size,
        most_held=job.max_bytes,
        ahead_of=lambda j: mine.first + j * mine.every - int(writer.ring.consumer[0]),
        known_bytes=lambda: int(writer.ring.consumer[1]),
    )
    writer.at_end = run.close
    for columns in run:
        writer.put(columns, news())
        del columns  # not kept while the next one is computed


def _set_up(fds: Descriptors, parent: int) -> socket.socket:
    """Signals: Ctrl-C is left to the parent; a crash or SIGUSR1 writes the stacks to the notes file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(fds.notes, all_threads=False)  # the other threads run on: walking their frames may crash again
    faulthandler.register(signal.SIGUSR1, fds.notes)
    if sys.platform == "linux":
        # Nobody writes to this pipe. When the parent is gone the kernel sends SIGKILL, which ends this process even if
        # some code never releases the GIL, or if the process is stopped. (PR_SET_PDEATHSIG would act when the thread
        # that started this process ends.)
        import fcntl

        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(fds.life, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fds.life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fds.life, fcntl.F_SETFL, fcntl.fcntl(fds.life, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:
        os._exit(0)
    return socket.socket(fileno=fds.wire)


def _tracked_compute(ring: Ring, work: Batches, share: ChildSteps) -> Callable[[int, int], list[Columns]]:
    """`compute` for these steps; writes the steps of each thread into the ring's first page."""
    places: dict[int, int] = {}
    fresh = count()
    first, every = share.first, share.every

    def compute(lo: int, hi: int) -> list[Columns]:
        me = threading.get_ident()
        if me not in places:
            places[me] = next(fresh) % len(ring.in_progress)
        entry = ring.in_progress[places[me]]
        spans = (
            [(first + lo, first + hi)]
            if every == 1
            else [(s, s + 1) for s in range(first + lo * every, first + hi * every, every)]
        )
        made: list[Columns] = []
        size = 0
        for span in spans:
            entry[:] = *span, True
            made += work.batches(*span)  # of several batches perhaps only the first
            entry[2] = False
            size += sum(map(nbytes, made[-1:]))
            if size > MOST_BYTES:
                break  # the rest in another call, once these are delivered
        return made

    return compute


class CounterReport:
    """This child's counters, and what is new in its ledgers: sent with each batch."""

    def __init__(self, work: Batches) -> None:
        self._stats = work.stats
        self._ledgers = (work.plan.ledger, work.plan.refusals)
        self._seen = [(0, 0), (0, 0)]  # entries sent and total then, for each ledger

    def __call__(self) -> tuple[tuple[float, ...], list[Any], dict[str, float]]:
        counts = (*self._stats._counts.values(), *self._stats._seconds.values())
        verbs = self._stats.verbs
        ledgers = [self._of(i, ledger) for i, ledger in enumerate(self._ledgers)]
        return counts, ledgers, {} if verbs is None else verbs.seconds()

    def _of(self, i: int, ledger: Ledger) -> Any:
        sent, total = self._seen[i]
        if ledger.total == total:
            return None
        with ledger._lock:
            self._seen[i] = (len(ledger.entries), ledger.total)
            return ledger.total, ledger.seen, dict(ledger.by_reason), ledger.entries[sent:]


class Failure(NamedTuple):
    """An exception for the parent: pickled with its cause where that is possible, and always as text."""

    pickled: bytes | None
    cause: bytes | None
    kind: str
    text: str
    trace: str


def failure(error: BaseException) -> Failure:
    """Prepares an exception so that another process can raise it."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    root = error.__cause__ or error
    _forget_first_try(root)
    trace = "".join(traceback.format_exception(root))
    return Failure(_pickled(error), _pickled(error.__cause__), kind, str(error)[:2000], trace)


def _forget_first_try(error: BaseException) -> None:
    """A failed range is computed again step by step inside the handler: drops the first failure from the traceback."""
    while (context := error.__context__) is not None:
        if isinstance(context, PenstockError):
            error.__context__ = None
            return
        error = context


def _pickled(error: BaseException | None) -> bytes | None:
    if error is None:
        return None
    for module in ("pickle", "cloudpickle"):
        if module not in sys.modules:
            continue
        with contextlib.suppress(Exception):  # a user's exception may fail in any way here; then its text is sent
            made: bytes = sys.modules[module].dumps(error)
            again = pickle.loads(made)
            if type(again) is type(error) and str(again) == str(error):
                return made
    return None
