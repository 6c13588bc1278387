"""The child of an isolated loader: its entry point and what it says.

A child is a fresh interpreter that runs `main` with the parent's `sys.path`. It never imports the user's `__main__`;
what it is to do comes as a `Job` (see `engine.ship`).

The child runs the same ordered threads as in-process, over its share of the steps, and writes each batch in a free
slot of the ring. It ends when its parent closes the socket or is gone.
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
from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple

from penstock.core.columns import Columns, nbytes
from penstock.core.errors import PenstockError
from penstock.core.ledger import Ledger
from penstock.engine.batches import Batches
from penstock.engine.ordered_threads import Ordered
from penstock.engine.output import Output
from penstock.engine.processes.payload import Job, load
from penstock.engine.processes.ring import Desk, Ring, Shape
from penstock.engine.stats import Stats
from penstock.plan.build import build


class Ends(NamedTuple):
    """The descriptors a child is born with."""

    wire: int
    ring: int
    payload: int
    notes: int
    life: int


class Share(NamedTuple):
    """Which steps are this child's: `first + j * every`, `length` of them (None: without end).

    The first `careful` ones are computed and given one by one: an earlier child was lost over one of them.
    """

    first: int
    every: int
    length: int | None
    careful: int = 0


class HostOutput(Output):
    """The part of an output that runs in the child: final dtypes and memory. The parent makes the framework's object.

    Of Penstock's own outputs only plain attributes go along: a device or sharding would import its framework.
    """

    def __init__(self, output: Output) -> None:
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


# The child's life.


def main(ends: tuple[Any, ...], shape: tuple[Any, ...], share: tuple[Any, ...], parent: int) -> None:
    """Computes the share, then waits until the parent has closed the socket."""
    mine = Share(*share)
    desk = Desk(_settle(Ends(*ends), parent), Ring(Ends(*ends).ring, Shape(*shape)), parent)
    threading.Thread(target=desk.listen, name="penstock-listen", daemon=True).start()
    try:
        job: Job = load(Ends(*ends).payload)
        work = Batches(build(job.definition), job.cuts, job.output, job.pad, Stats())
    except Exception as error:
        desk.send(("unborn", failure(error)))
        desk.wait_for_end()
        return
    desk.ahead, desk.max_bytes = job.ahead, job.max_bytes // 2
    desk.send(("ready",))
    news, compute = News(work), _noting(desk.ring, work, mine)
    try:
        for j in range(mine.careful):
            desk.give(compute(j, j + 1)[0], news())
        run = Ordered(
            compute,
            mine.careful,
            mine.length,
            threads=job.threads,
            ahead=max(1, job.threads),
            max_bytes=max(1, job.max_bytes // 2),
            size_of=nbytes,
        )
        desk.at_end = run.close
        for columns in run:
            desk.give(columns, news())
    except Exception as error:  # SystemExit goes on: the parent then reports the exit code
        desk.send(("error", failure(error), news()))
    desk.wait_for_end()


def _settle(ends: Ends, parent: int) -> socket.socket:
    """Signals: Ctrl-C is the parent's business; a crash, or SIGUSR1, leaves the stacks in the notes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(ends.notes, all_threads=False)  # the others run on: to walk their frames may crash again
    faulthandler.register(signal.SIGUSR1, ends.notes)
    if sys.platform == "linux":
        # Nobody writes to this pipe. When the parent is gone the kernel sends SIGIO, which ends this process even if
        # some code never gives the GIL back.
        import fcntl

        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(ends.life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(ends.life, fcntl.F_SETFL, fcntl.fcntl(ends.life, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:
        os._exit(0)
    return socket.socket(fileno=ends.wire)


def _noting(ring: Ring, work: Batches, share: Share) -> Callable[[int, int], list[Columns]]:
    """`compute` for this share; writes in the ring's first page what each thread has in hand."""
    places: dict[int, int] = {}
    fresh = count()
    first, every = share.first, share.every

    def compute(lo: int, hi: int) -> list[Columns]:
        me = threading.get_ident()
        if me not in places:
            places[me] = next(fresh) % len(ring.hands)
        hand = ring.hands[places[me]]
        spans = (
            [(first + lo, first + hi)]
            if every == 1
            else [(s, s + 1) for s in range(first + lo * every, first + hi * every, every)]
        )
        made = []
        for span in spans:
            hand[:] = *span, True
            made += work.batches(*span)
            hand[2] = False
        return made

    return compute


class News:
    """What the parent should know of this child's counters and ledgers, with each batch."""

    def __init__(self, work: Batches) -> None:
        self._stats = work.stats
        self._ledgers = (work.plan.ledger, work.plan.refusals)
        self._seen = [(0, 0), (0, 0)]  # entries sent and total then, for each ledger

    def __call__(self) -> tuple[tuple[float, ...], list[Any]]:
        counts = (*self._stats._counts.values(), *self._stats._seconds.values())
        return counts, [self._of(i, ledger) for i, ledger in enumerate(self._ledgers)]

    def _of(self, i: int, ledger: Ledger) -> Any:
        sent, total = self._seen[i]
        if ledger.total == total:
            return None
        with ledger._lock:
            self._seen[i] = (len(ledger.entries), ledger.total)
            return ledger.total, ledger.seen, dict(ledger.by_reason), ledger.entries[sent:]


class Failure(NamedTuple):
    """An exception on its way to the parent: pickled, with its cause, where that is possible, and always as text."""

    pickled: bytes | None
    cause: bytes | None
    kind: str
    text: str
    trace: str


def failure(error: BaseException) -> Failure:
    """Takes an exception apart so that it can be raised in another process."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    root = error.__cause__ or error
    _forget_first_try(root)
    trace = "".join(traceback.format_exception(root))
    return Failure(_pickled(error), _pickled(error.__cause__), kind, str(error)[:2000], trace)


def _forget_first_try(error: BaseException) -> None:
    """A range that fails is computed again step by step, inside the handler: the first failure says nothing more."""
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
        with contextlib.suppress(Exception):  # a user's exception may fail in any way here; then its text goes
            made: bytes = sys.modules[module].dumps(error)
            again = pickle.loads(made)
            if type(again) is type(error) and str(again) == str(error):
                return made
    return None
