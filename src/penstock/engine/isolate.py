"""Batches computed by child processes, given in order: the parent's side of `isolate=True` and `workers=N`.

Contract, beside that of `engine.ordered`. If the code does otherwise, the code is wrong.
  1. Child k of N computes steps start + k, start + k + N, ...; batches are those of the in-process engine, bit by bit.
  2. No Python runs in a forked copy of the parent, and no thread runs in the parent. A child costs four descriptors.
  3. A batch is a set of views into a slot, which is given back when the last view dies and never before. At most
     `LENT` batches of a child are lent so at once, or half of the byte budget; a consumer that keeps more gets copies
     of the rest. So nothing is ever overwritten, and the child never runs out of slots.
  4. When a child dies or hangs, what it had announced is given first. Then `WorkerDied` says who, how and with which
     steps in hand; with `on_death="restart"` a new child computes the lost steps, unless it is lost at the same one.
  5. Close, drop, Ctrl-C or interpreter exit: children end, no descriptor or file is left. A child also ends by itself
     when its parent is gone.

Cost: starting a child takes as long as importing NumPy and penstock; handing over a batch takes some tens of
microseconds and one copy.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any, Literal

from penstock._errors import StageError, UsageError, WorkerDied
from penstock._ledger import Ledger
from penstock.columns import Columns
from penstock.engine.child import Ends, Failure, Half, Job, Share, ship
from penstock.engine.ordered import STALL_SECONDS
from penstock.engine.ring import TAKEN, THREADS, Ring, assemble, nameless_file, views
from penstock.engine.work import Work

LENT = 4  # batches of one child that a consumer may hold as views: this one, the one before, and two to spare
MOST_AHEAD = 200  # batches of one child; a slot's number is a byte
CHECK_SECONDS = 0.25  # how often a waiting consumer looks whether the child lives
START_SECONDS = 60.0  # for a child to import and build, where a timeout is set
NOTES_BYTES = 1 << 16
FRAMES = 6  # of each thread's stack that an error shows
_QUIETLY = getattr(socket, "MSG_NOSIGNAL", 0)  # a program may have set SIGPIPE back to its deadly default

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
        work: Work,
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
        if os.name != "posix" or not sys.executable:
            raise UsageError(
                "a POSIX system and a Python executable for isolate= and workers=",
                got=f"{sys.platform}, {sys.executable or 'an embedded interpreter'}",
                fix="leave them out: threads work everywhere",
            )
        self._work, self._start, self._taken, self._stop = work, start, start, stop
        self._timeout, self._on_death = timeout, on_death
        self._every = workers if stop is None else max(1, min(workers, stop - start))
        self._ahead = min(-(-ahead // self._every), MOST_AHEAD)
        self._max_bytes = max(1, max_bytes // self._every)
        self._lock = threading.RLock()
        self._closed = False
        self._links: list[Link] = []
        plan = work.plan
        job = Job(
            plan.definition, work.cuts, Half(work.output), work.pad, min(threads, THREADS), self._ahead, self._max_bytes
        )
        self._payload = ship(job)
        _open.add(self)
        try:
            for k in range(self._every):
                if stop is None or start + k < stop:
                    self._links.append(self._launch(start + k))
        except BaseException:
            self.close()
            raise

    def _launch(self, first: int, careful_to: int = 0) -> Link:
        """A child for `first` and every N-th step after it; one by one before step `careful_to`."""
        length = None if self._stop is None else -(-(self._stop - first) // self._every)
        careful = max(0, -(-(careful_to - first) // self._every))
        slots = self._ahead + 1 + LENT
        return Link(Share(first, self._every, length, careful), self._payload, slots, self._max_bytes)

    # The consumer's side.

    def __iter__(self) -> Isolated:
        return self

    def __next__(self) -> Any:
        if self._closed or (self._stop is not None and self._taken >= self._stop):
            self.close()
            raise StopIteration
        columns, news = self._next_columns((self._taken - self._start) % self._every)
        self._merge(news)
        began = time.perf_counter()
        batch = self._work.output.batch(columns)
        self._work.stats.delivered(time.perf_counter() - began)
        self._taken += 1
        return batch

    def _next_columns(self, k: int) -> tuple[Columns, Any]:
        while True:
            link = self._links[k]
            try:
                kind, *content = self._wait(link)
            except Gone as gone:
                self._lost(k, link, gone)
                continue
            if kind == "batch":
                *parts, news = content
                return link.columns(*parts), link.news(news)
            if kind == "ready":
                link.ready = time.perf_counter()
            elif kind == "notice":
                warnings.warn(f"penstock: {content[0]}", RuntimeWarning, stacklevel=4)
            else:
                if kind == "error":
                    self._merge(link.news(content[1]))
                self.close()
                raise _raised(content[0], link, self._taken)

    def _wait(self, link: Link) -> tuple[Any, ...]:
        """The child's next message; `Gone` when there will be none."""
        began = time.perf_counter()
        told = False
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
                    raise Gone(f"no answer after {waited:.1f} s", link.stacks(), hung=True)
            if now - began > STALL_SECONDS and not told:
                told = True
                text = f"penstock: batch {self._taken} has taken {now - began:.0f} s so far in child {link.pid}"
                warnings.warn(f"{text}{link.stacks()}", RuntimeWarning, stacklevel=5)

    def _lost(self, k: int, link: Link, gone: Gone) -> None:
        """A child is gone: raises, or starts another one for what it owed."""
        error = self._died(link, gone)
        link.kill()  # it may hang, or have closed its end only
        if self._on_death == "raise" or (link.careful and not link.given):
            self.close()
            raise error from None
        warnings.warn(f"penstock: computing again what a child had in hand\n{error}", RuntimeWarning, stacklevel=5)
        link.end()
        seen = [hi for busy in (True, False) for _, hi in link.hands(busy)]
        self._links[k] = self._launch(self._taken, careful_to=max([self._taken + 1, *seen]))

    def _died(self, link: Link, gone: Gone) -> WorkerDied:
        busy = [self._named(lo, hi) for lo, hi in link.hands(busy=True)]
        last = [self._named(lo, hi) for lo, hi in link.hands(busy=False)]
        where = f"in hand: {', '.join(busy)}" if busy else f"nothing in hand; last: {', '.join(last) or 'nothing'}"
        fix = "mend what hangs there, or raise timeout="
        if not gone.hung:
            fix = "see what it printed; run with threads=0 and without isolate= to debug it, "
            fix += "or let on_worker_death='restart' compute lost steps again"
        if "SIGKILL" in str(gone):
            fix = "look whether the machine ran out of memory; " + fix
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

    def _merge(self, news: Any) -> None:
        """Adds what a child counted and noted to the loader's own books; past a budget is an error."""
        (rows, batches, order, read, finish, deliver), ledgers = news
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
            payload, self._payload = self._payload, -1
            if payload >= 0:
                os.close(payload)
            for link in links:
                link.hang_up()
            for link in links:
                link.end()
        if _open is not None:  # at the very end of the interpreter names are gone
            _open.discard(self)

    def __del__(self) -> None:
        if hasattr(self, "_payload"):
            self.close()


class Gone(Exception):
    """A child will not answer any more."""

    def __init__(self, how: str, stacks: str, hung: bool = False) -> None:
        super().__init__(how)
        self.stacks, self.hung = stacks, hung


class Link:
    """One child, as its parent sees it: the process, the socket, the ring and the file for its last words."""

    def __init__(self, share: Share, payload: int, slots: int, max_bytes: int) -> None:
        self._max_lent = max_bytes // 2
        self.ready: float | None = None
        self.given = 0
        self.careful = share.careful > 0  # whether it replaces one that was lost
        self._buffer = bytearray()
        self._heard = 0  # bytes of the notes that were read before
        self._lent: dict[int, int] = {}  # slot -> bytes
        self._returned: deque[int] = deque()  # slots whose last view died; the child hears of them with the next word
        self._counted: tuple[float, ...] = (0,) * 6
        self._noted: list[tuple[int, int, dict[str, int]]] = [(0, 0, {}), (0, 0, {})]
        with ExitStack() as theirs, ExitStack() as undo:
            self._ring = Ring.create(slots, max_bytes)
            theirs.callback(os.close, self._ring.fd)
            self._notes = nameless_file("penstock-notes")
            undo.callback(os.close, self._notes)
            self._wire, wire = socket.socketpair()
            undo.callback(self._wire.close)
            theirs.callback(wire.close)
            life, self._life = os.pipe()
            undo.callback(os.close, self._life)
            theirs.callback(os.close, life)
            self._process = _spawn(Ends(wire.fileno(), self._ring.fd, payload, self._notes, life), self._ring, share)
            undo.pop_all()
        self.pid = self._process.pid
        self._wire.setblocking(False)
        self._ear = select.poll()
        self._ear.register(self._wire, select.POLLIN)

    def receive(self, seconds: float) -> tuple[Any, ...] | None:
        """A message, or None when none came in that time; `Gone` when the child is and nothing is left to read."""
        while (size := self._whole()) is None:
            if self._returned:
                self._say()
            if not self._ear.poll(seconds * 1000):
                if self._process.poll() is not None:  # somebody else holds its end of the socket open
                    raise Gone(self._ending(), self._words())
                return None
            try:
                part = self._wire.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            if not part:
                raise Gone(self._ending(), self._words())
            self._buffer += part
        message: tuple[Any, ...] = pickle.loads(memoryview(self._buffer)[8 : 8 + size])
        del self._buffer[: 8 + size]
        return message

    def _whole(self) -> int | None:
        if len(self._buffer) < 8:
            return None
        size = int.from_bytes(self._buffer[:8], "little")
        return size if len(self._buffer) >= 8 + size else None

    def columns(self, slot: int | None, size: int, outline: Any, content: Any) -> Columns:
        """The batch of a message: views of its slot, or copies when enough are lent already."""
        self.given += 1
        if slot is None:
            self._say(TAKEN)
            return assemble(outline, content)
        arrays = views(root := self._ring.part(slot, size), content)
        held = sum(list(self._lent.values())) + size
        if len(self._lent) >= LENT or (len(self._lent) >= 2 and held > self._max_lent):
            arrays = [array.copy() for array in arrays]
            self._say(TAKEN, slot)
            return assemble(outline, arrays)
        self._lent[slot] = size
        weakref.finalize(root, _give_back, self._lent, self._returned, slot).atexit = False
        self._say(TAKEN)
        return assemble(outline, arrays)

    def _say(self, *codes: int) -> None:
        word = bytearray(codes)
        while self._returned:
            word.append(self._returned.popleft())
        with suppress(OSError):  # a dead child is noticed when its next batch is due
            self._wire.send(word, _QUIETLY)

    def news(self, news: tuple[tuple[float, ...], list[Any]]) -> Any:
        """What was counted and noted since the last time."""
        counts, ledgers = news
        before, self._counted = self._counted, counts
        changes: list[Any] = []
        for i, noted in enumerate(ledgers):
            if noted is None:
                changes.append(None)
                continue
            total, seen, reasons, entries = noted
            old_total, old_seen, old_reasons = self._noted[i]
            self._noted[i] = (total, seen, reasons)
            more = {k: n - old_reasons.get(k, 0) for k, n in reasons.items()}
            changes.append((total - old_total, seen - old_seen, more, entries))
        return [now - then for now, then in zip(counts, before, strict=True)], changes

    def hands(self, busy: bool) -> list[tuple[int, int]]:
        """The steps that the child's threads have in hand, or (not busy) had last."""
        return sorted((int(lo), int(hi)) for lo, hi, now in self._ring.hands if hi > 0 and now == busy)

    def stacks(self) -> str:
        """Where the child's threads are now, asked by a signal that is answered even while the GIL is held."""
        self._heard = os.fstat(self._notes).st_size
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        for _ in range(50):
            time.sleep(0.01)
            if os.fstat(self._notes).st_size > self._heard:
                time.sleep(0.02)
                break
        return self._words()

    def _words(self) -> str:
        """The stacks that the child left in its notes: of the threads that compute, or of the one that crashed."""
        text = os.pread(self._notes, NOTES_BYTES, self._heard).decode(errors="replace")
        threads = [part.strip() for part in text.split("\n\n") if "most recent call first" in part]
        chosen = [t for t in threads if "child.py" in t and "in compute" in t]
        chosen = chosen or [t for t in threads if t.startswith("Current")]
        return "".join(f"\n    {line}" for t in chosen for line in t.splitlines()[: FRAMES + 1])

    def _ending(self) -> str:
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "it closed its end without an answer"
        if code >= 0:
            return f"it ended with exit code {code}"
        with suppress(ValueError):
            return f"it was ended by signal {signal.Signals(-code).name}"
        return f"it was ended by signal {-code}"

    def kill(self) -> None:
        """Ends the child by force."""
        self._process.kill()

    def hang_up(self) -> None:
        """Tells the child to end, without waiting for it."""
        self._wire.close()

    def end(self) -> None:
        """Waits for the child's end, by force after a moment, and closes what belongs to it.

        In a forked copy of this process there is no child to wait for; only the copies of descriptors are closed.
        """
        self._wire.close()
        if self._notes < 0:
            return
        try:
            self._process.wait(0.5 if self.ready else 0.05)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for fd in (self._notes, self._life):
            os.close(fd)
        self._notes = -1


def _spawn(ends: Ends, ring: Ring, share: Share) -> subprocess.Popen[bytes]:
    """A fresh interpreter that runs `penstock.engine.child.main` with this one's `sys.path`."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    call = f"main({tuple(ends)}, {tuple(ring.shape)}, {tuple(share)}, {os.getpid()})"
    code = f"import sys; sys.path[:] = {path!r}; from penstock.engine.child import main; {call}"
    try:
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=ends)
    except OSError as error:
        raise WorkerDied(
            "a child process to start", got=str(error), where=sys.executable, fix="free some memory or descriptors"
        ) from error


def _give_back(lent: dict[int, int], returned: deque[int], slot: int) -> None:
    """The last view of a slot has died. Runs wherever that happened, inside any other code."""
    lent.pop(slot, None)
    returned.append(slot)


def _note(ledger: Ledger, total: int, seen: int, reasons: dict[str, int], entries: list[Any]) -> None:
    with ledger._lock:
        ledger.total += total
        ledger.seen += seen
        ledger.by_reason.update(reasons)
        ledger.entries += entries[: max(0, ledger.keep - len(ledger.entries))]
    ledger.check()


def _raised(failure: Failure, link: Link, step: int) -> BaseException:
    """The exception that a child met, as near to the original as it could be sent, with the child's traceback."""
    if failure.pickled is not None:
        error: BaseException = pickle.loads(failure.pickled)
    else:
        error = StageError(
            "no exception while a batch is computed",
            got=f"{failure.kind}: {failure.text}",
            where=f"batch {step}, child process {link.pid}",
            fix="see the traceback; the exception itself could not be pickled",
        )
    if failure.cause is not None:
        error.__cause__ = pickle.loads(failure.cause)
    error.add_note(f"In child process {link.pid}:\n{failure.trace}")
    return error
