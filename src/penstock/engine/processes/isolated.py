"""Batches computed by child processes, delivered in order: the parent's side of `isolate=True` and `workers=N`.

Contract, in addition to that of `engine.ordered_threads`. If the code does otherwise, the code is wrong.
  1. Child k of N computes steps start + k, start + k + N, ...; batches equal those of the in-process engine bit by bit.
  2. No Python runs in a forked copy of the parent, and no thread runs in the parent. A child costs four descriptors.
  3. A batch is a set of views into a slot. The slot is returned to the child when the last view is freed, never before.
     At most `LENT` batches of a child are delivered as views at once, within half of the byte budget; a consumer that
     keeps more gets copies. So nothing is overwritten, and the child never runs out of slots.
  4. When a child dies or hangs, the batches it announced are delivered first. Then `WorkerDied` names the child, the
     cause and the steps it was computing; with `on_death="restart"` a new child computes the lost steps, unless it is
     lost at the same one.
  5. Close, drop, Ctrl-C or interpreter exit: children end, no descriptor or file is left. A child also ends by itself
     when its parent is gone.

Cost: starting a child takes as long as importing NumPy and penstock; handing over a batch takes some tens of
microseconds and one copy.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import time
import warnings
import weakref
from typing import Any, Literal

from penstock.core.columns import Columns
from penstock.core.errors import StageError, UsageError, WorkerDied
from penstock.core.ledger import Ledger
from penstock.engine import stalls
from penstock.engine.batches import Batches
from penstock.engine.ordered_threads import forked
from penstock.engine.processes.child import ChildSteps, Failure, HostOutput
from penstock.engine.processes.connection import LENT, ChildConnection, ChildGone, starting_a_child
from penstock.engine.processes.payload import ChildJob, Payload, write_payload
from penstock.engine.processes.ring import THREADS

MAX_AHEAD = 200  # batches of one child; a slot number is one byte
CHECK_SECONDS = 0.25  # how often a waiting consumer checks that the child is alive
START_SECONDS = 60.0  # added to a timeout while a child imports and builds

OnDeath = Literal["raise", "restart"]

_open: weakref.WeakSet[Isolated] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for run in list(_open):
        run.close()


class Isolated:
    """An iterator over the batches of steps [start, stop), computed by `workers` children."""

    def __init__(
        self,
        work: Batches,
        start: int,
        stop: int | None,
        *,
        workers: int,
        threads: int,
        ahead: int,
        max_bytes: int,
        timeout: float | None = None,
        on_death: OnDeath = "raise",
    ) -> None:
        frozen = getattr(sys, "frozen", False)  # sys.executable is the application: a child would be another one
        if os.name != "posix" or not sys.executable or frozen:
            kind = "a frozen application" if frozen else sys.executable or "an embedded interpreter"
            raise UsageError(
                "a POSIX system and a Python executable for isolate= and workers=",
                got=f"{sys.platform}, {kind}",
                fix="leave them out: threads work everywhere",
            )
        self._pid = os.getpid()
        self._work, self._start, self._taken, self._stop = work, start, start, stop
        self._timeout, self._on_death = timeout, on_death
        self._every = workers if stop is None else max(1, min(workers, stop - start))
        self._ahead = min(-(-ahead // self._every), MAX_AHEAD)
        self._max_bytes = max(1, max_bytes // self._every)
        self._batch_bytes = 0  # of the largest of the last batches; 0 before the first
        self._lock = threading.RLock()
        self._closed = False
        self._links: list[ChildConnection] = []
        plan = work.plan
        job = ChildJob(
            plan.definition,
            work.ranges,
            HostOutput(work.output),
            work.pad,
            min(threads, THREADS),
            self._ahead,
            self._max_bytes,
            work.stats.verbs is not None,
        )
        with starting_a_child():
            self._payload: Payload | None = write_payload(job)
        _open.add(self)
        try:
            for k in range(self._every):
                if stop is None or start + k < stop:
                    self._links.append(self._launch(start + k))
        except BaseException:
            self.close()
            raise

    def _launch(self, first: int, careful_to: int = 0) -> ChildConnection:
        """Starts a child for `first` and every N-th step after it; steps before `careful_to` are sent one by one."""
        length = None if self._stop is None else -(-(self._stop - first) // self._every)
        careful = max(0, -(-(careful_to - first) // self._every))
        slots = self._ahead + 1 + LENT
        if self._payload is None:
            raise StopIteration
        link = ChildConnection(ChildSteps(first, self._every, length, careful), self._payload, slots, self._max_bytes)
        link.moved(self._taken, self._batch_bytes)
        self._work.stats.children = (*(other.pid for other in self._links), link.pid)
        return link

    def __iter__(self) -> Isolated:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise forked()
        if self._closed or (self._stop is not None and self._taken >= self._stop):
            self._at_end()
            raise StopIteration
        columns, gained = self._next_columns((self._taken - self._start) % self._every)
        self._merge(gained)
        began = time.perf_counter()
        batch = self._work.output.deliver(columns)
        seconds = time.perf_counter() - began
        self._work.stats.delivered(seconds)
        if self._work.stats.verbs is not None:
            self._work.stats.verbs.add({"deliver": seconds})
        self._taken += 1
        for link in self._links:
            link.moved(self._taken, self._batch_bytes)
        return batch

    def _next_columns(self, k: int) -> tuple[Columns, Any]:
        while True:
            link = self._links[k]
            try:
                kind, *content = self._wait(link)
            except ChildGone as gone:
                self._lost(k, link, gone)
                continue
            if kind == "batch":
                *parts, report = content
                self._batch_bytes = max(parts[1], self._batch_bytes - (self._batch_bytes >> 3), 1)
                return link.columns(*parts), link.gained(report)
            if kind == "ready":
                link.ready = time.perf_counter()
            elif kind == "notice":
                warnings.warn(f"penstock: {content[0]}", RuntimeWarning, stacklevel=4)
            else:
                if kind == "error":
                    self._merge(link.gained(content[1]))
                self.close()
                raise self._failed(raised(content[0], link, self._taken))

    def _at_end(self) -> None:
        """All batches were taken."""
        self.close()

    def _failed(self, error: BaseException) -> BaseException:
        """What is raised in place of an error of a child."""
        return error

    def _wait(self, link: ChildConnection) -> tuple[Any, ...]:
        """Waits for the child's next message; raises `ChildGone` when there will be none."""
        began = time.perf_counter()
        warned = False
        while True:
            with self._lock:
                if self._closed:
                    raise StopIteration
                message = link.receive(CHECK_SECONDS)
            if message is not None:
                return message
            now = time.perf_counter()
            if self._timeout is not None:
                waited = now - max(began, link.ready or 0.0)
                if waited > self._timeout + (0.0 if link.ready else START_SECONDS):
                    raise ChildGone(f"no answer after {waited:.1f} s", link.stacks(), hung=True)
            if now - began > stalls.SECONDS and not warned:
                warned = True
                text = f"penstock: batch {self._taken} has taken {now - began:.0f} s so far in child {link.pid}"
                warnings.warn(f"{text}{link.stacks()}", RuntimeWarning, stacklevel=5)

    def _lost(self, k: int, link: ChildConnection, gone: ChildGone) -> None:
        """A child is gone: raises, or starts another one for its remaining steps."""
        error = self._died(link, gone)
        link.kill()  # it may hang, or have closed its end only
        if self._on_death == "raise" or (link.careful and not link.received):
            self.close()
            raise self._failed(error) from None
        warnings.warn(f"penstock: computing the steps of a lost child again\n{error}", RuntimeWarning, stacklevel=5)
        link.end()
        seen = [hi for busy in (True, False) for _, hi in link.in_progress(busy)]
        self._links[k] = self._launch(self._taken, careful_to=max([self._taken + 1, *seen]))

    def _died(self, link: ChildConnection, gone: ChildGone) -> WorkerDied:
        busy = [self._named(lo, hi) for lo, hi in link.in_progress(busy=True)]
        last = [self._named(lo, hi) for lo, hi in link.in_progress(busy=False)]
        where = f"computing {', '.join(busy)}" if busy else f"computing nothing; last {', '.join(last) or 'nothing'}"
        fix = "fix what hangs there, or raise timeout="
        if not gone.hung:
            fix = "look at its output; run with threads=0 and without isolate= to debug it, "
            fix += "or set on_worker_death='restart' to compute lost steps again"
        if "SIGKILL" in str(gone):
            fix = "check whether the machine ran out of memory; " + fix
        return WorkerDied(
            f"batch {self._taken} from child process {link.pid}"
            + (f" within {self._timeout:g} s" if gone.hung else ""),
            got=str(gone),
            where=where + gone.stacks,
            fix=fix,
        )

    def _named(self, lo: int, hi: int) -> str:
        steps = f"step {lo}" if hi - lo == 1 else f"steps {lo} to {hi - 1}"
        records = [*self._work.order(lo).record[:1].tolist(), *self._work.order(hi - 1).record[-1:].tolist()]
        return f"{steps} (records {' ... '.join(map(str, records))})"

    def _merge(self, gained: Any) -> None:
        """Adds a child's counts and ledger entries to the loader's own; raises when a budget is exceeded."""
        (rows, batches, order, read, finish, deliver), ledgers, verbs = gained
        if self._work.stats.verbs is not None:
            self._work.stats.verbs.add(verbs)
        self._work.stats.add(int(batches), int(rows), read, finish, deliver)
        self._work.stats.ordered(order)
        for ledger, noted in zip((self._work.plan.ledger, self._work.plan.refusals), ledgers, strict=True):
            if noted is not None:
                _note(ledger, *noted)

    def close(self) -> None:
        """Ends the children. May be called any number of times, from any thread."""
        self._closed = True
        with self._lock:
            links, self._links = self._links, []
            self._work.stats.children = ()
            payload, self._payload = self._payload, None
            if payload is not None:
                os.close(payload.fd)
            for link in links:
                link.hang_up()
            for link in links:
                link.end()
        if _open is not None:  # at interpreter exit module globals may be None
            _open.discard(self)

    def __del__(self) -> None:
        if hasattr(self, "_payload"):
            self.close()


def _note(ledger: Ledger, total: int, seen: int, reasons: dict[str, int], entries: list[Any]) -> None:
    with ledger._lock:
        ledger.total += total
        ledger.seen += seen
        ledger.by_reason.update(reasons)
        ledger.entries += entries[: max(0, ledger.keep - len(ledger.entries))]
    ledger.check()


def raised(failure: Failure, link: ChildConnection, step: int) -> BaseException:
    """The exception that a child raised, as close to the original as could be sent, with the child's traceback."""
    if failure.pickled is not None:
        error: BaseException = pickle.loads(failure.pickled)
    else:
        error = StageError(
            "a batch computed without an exception",
            got=f"{failure.kind}: {failure.text}",
            where=f"batch {step}, child process {link.pid}",
            fix="see the traceback; the exception itself could not be pickled",
        )
    if failure.cause is not None:
        error.__cause__ = pickle.loads(failure.cause)
    error.add_note(f"In child process {link.pid}:\n{failure.trace}")
    return error
