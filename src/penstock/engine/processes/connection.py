"""The parent's side of one child process: the process, the socket, the ring and the file for its stacks."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from penstock.core.columns import Columns
from penstock.core.errors import PenstockError, WorkerDied
from penstock.core.shared_memory import unnamed_file
from penstock.core.signals import surface
from penstock.engine.processes.child import ChildSteps, Descriptors
from penstock.engine.processes.payload import Payload
from penstock.engine.processes.ring import BEGIN, TAKEN, Ring, assemble, views

LENT = 4  # batches of one child that a consumer may hold as views; more are copied
NOTES_BYTES = 1 << 16
FRAMES = 6  # frames of each thread's stack that an error shows
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)  # a program may have reset SIGPIPE to its default, which kills


class ChildGone(Exception):
    """A child process died or hangs."""

    def __init__(self, how: str, stacks: str, hung: bool = False) -> None:
        super().__init__(how)
        self.stacks, self.hung = stacks, hung


class ChildConnection:
    """One child process, its socket, its ring of batches and its notes file."""

    def __init__(self, share: ChildSteps, payload: Payload, slots: int, max_bytes: int) -> None:
        self._max_lent = max_bytes // 2
        self.ready: float | None = None
        self.received = 0
        self.careful = share.careful > 0  # whether it replaces a child that was lost
        self._buffer = bytearray()
        self._notes_read = 0  # bytes of the notes file read so far
        self._lent: dict[int, int] = {}  # slot -> bytes
        self._returned: deque[int] = deque()  # slots without a view left; reported to the child with the next message
        self._counted: tuple[float, ...] = (0,) * 6
        self._measured: dict[str, float] = {}
        self._noted: list[tuple[int, int, dict[str, int]]] = [(0, 0, {}), (0, 0, {})]
        with starting_a_child(), ExitStack() as theirs, ExitStack() as undo:
            self._ring = Ring.create(slots, max_bytes)
            theirs.callback(os.close, self._ring.fd)
            self._notes = unnamed_file("penstock-notes")
            undo.callback(os.close, self._notes)
            self._wire, wire = socket.socketpair()
            undo.callback(self._wire.close)
            theirs.callback(wire.close)
            life, self._life = os.pipe()
            undo.callback(os.close, self._life)
            theirs.callback(os.close, life)
            self._process = _spawn(
                Descriptors(wire.fileno(), self._ring.fd, payload.fd, self._notes, life),
                self._ring,
                share,
                payload.shared,
            )
            undo.pop_all()
        self.pid = self._process.pid
        self._wire.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wire, select.POLLIN)

    def receive(self, seconds: float) -> tuple[Any, ...] | None:
        """The next message, or None after `seconds`. Raises `ChildGone` when there will be none."""
        while (size := self._message_size()) is None:
            if self._returned:
                self._send()
            if not self._poll.poll(seconds * 1000):
                if self._process.poll() is not None:  # another process holds its end of the socket open
                    raise ChildGone(self._ending(), self._stack_text())
                return None
            try:
                part = self._wire.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            if not part:
                raise ChildGone(self._ending(), self._stack_text())
            self._buffer += part
        message: tuple[Any, ...] = pickle.loads(memoryview(self._buffer)[8 : 8 + size])
        del self._buffer[: 8 + size]
        return message

    def _message_size(self) -> int | None:
        if len(self._buffer) < 8:
            return None
        size = int.from_bytes(self._buffer[:8], "little")
        return size if len(self._buffer) >= 8 + size else None

    def columns(self, slot: int | None, size: int, outline: Any, content: Any) -> Columns:
        """The batch of a message: views of its slot, or copies when the consumer holds many already."""
        self.received += 1
        if slot is None:
            self._send(TAKEN)
            return assemble(outline, content)
        arrays = views(root := self._ring.part(slot, size), content)
        held = sum(list(self._lent.values())) + size
        if len(self._lent) >= LENT or (len(self._lent) >= 2 and held > self._max_lent):
            arrays = [array.copy() for array in arrays]
            self._send(TAKEN, slot)
            return assemble(outline, arrays)
        self._lent[slot] = size
        weakref.finalize(root, _return_slot, self._lent, self._returned, slot).atexit = False
        self._send(TAKEN)
        return assemble(outline, arrays)

    def moved(self, step: int, size: int) -> None:
        """Says which step the consumer needs next, and the size of a batch: children then keep to the byte bound."""
        self._ring.consumer[:] = step, size
        if self._returned and size > self._max_lent:
            self._send()  # large slots are returned at once, not with the next message

    def begin(self, start: int, stop: int | None) -> None:
        """Asks a child that waits for its steps to compute [start, stop) next."""
        self._ring.wanted[:] = start, -1 if stop is None else stop
        self._send(BEGIN)

    def _send(self, *codes: int) -> None:
        message = bytearray(codes)
        while self._returned:
            message.append(self._returned.popleft())
        with suppress(OSError):  # a dead child is noticed when its next batch is due
            self._wire.send(message, _NO_SIGNAL)

    def gained(self, report: tuple[tuple[float, ...], list[Any], dict[str, float]]) -> Any:
        """What the counters, ledgers and seconds of verbs gained since the last message."""
        counts, ledgers, verbs = report
        before, self._counted = self._counted, counts
        measured, self._measured = self._measured, verbs
        changes: list[Any] = []
        for i, noted in enumerate(ledgers):
            if noted is None:
                changes.append(None)
                continue
            total, seen, reasons, entries = noted
            old_total, old_seen, old_reasons = self._noted[i]
            self._noted[i] = (total, seen, reasons)
            new = {k: n - old_reasons.get(k, 0) for k, n in reasons.items()}
            changes.append((total - old_total, seen - old_seen, new, entries))
        more = {verb: seconds - measured.get(verb, 0.0) for verb, seconds in verbs.items()}
        return [now - then for now, then in zip(counts, before, strict=True)], changes, more

    def in_progress(self, busy: bool) -> list[tuple[int, int]]:
        """The steps that the child's threads compute now, or (not busy) computed last."""
        return sorted((int(lo), int(hi)) for lo, hi, now in self._ring.in_progress if hi > 0 and now == busy)

    def stacks(self) -> str:
        """The current stacks of the child's threads, requested by a signal; works even while the GIL is held."""
        if not self.ready:
            return ", which is still starting"  # the signal would end it
        self._notes_read = os.fstat(self._notes).st_size
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        for _ in range(50):
            time.sleep(0.01)
            if os.fstat(self._notes).st_size > self._notes_read:
                time.sleep(0.02)
                break
        return self._stack_text()

    def _stack_text(self) -> str:
        """The stacks in the child's notes file: of the threads that compute, or of the one that crashed."""
        text = os.pread(self._notes, NOTES_BYTES, self._notes_read).decode(errors="replace")
        threads = [part.strip() for part in text.split("\n\n") if "most recent call first" in part]
        chosen = [t for t in threads if "child.py" in t and "in compute" in t]
        chosen = chosen or [t for t in threads if t.startswith("Current")]
        return "".join(f"\n    {line}" for t in chosen for line in t.splitlines()[: FRAMES + 1])

    def _ending(self) -> str:
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "it closed its end without a result"
        if code >= 0:
            return f"it ended with exit code {code}"
        with suppress(ValueError):
            return f"it was ended by signal {signal.Signals(-code).name}"
        return f"it was ended by signal {-code}"

    def kill(self) -> None:
        """Kills the child."""
        self._process.kill()

    def hang_up(self) -> None:
        """Asks the child to end, without waiting for it."""
        self._wire.close()

    def end(self) -> None:
        """Waits for the child to end, kills it after a moment, and closes its descriptors.

        In a forked copy of this process there is no child to wait for; only the copied descriptors are closed.
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


def _spawn(fds: Descriptors, ring: Ring, share: ChildSteps, shared: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Starts a new interpreter that runs `penstock.engine.processes.child.main` with this one's `sys.path`."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    call = f"main({tuple(fds)}, {tuple(ring.shape)}, {tuple(share)}, {os.getpid()})"
    code = f"import sys; sys.path[:] = {path!r}; from penstock.engine.processes.child import main; {call}"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=(*fds, *shared))


@contextmanager
def starting_a_child() -> Iterator[None]:
    """Raises `WorkerDied` in place of an OSError of what a child needs: descriptors, memory, a process."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        surface(error)
        raise WorkerDied(
            "a child process to start",
            got=str(error),
            where=sys.executable,
            fix="free some memory or file descriptors, raise ulimit -u, -n or -f, or use threads",
        ) from error


def _return_slot(lent: dict[int, int], returned: deque[int], slot: int) -> None:
    """Called when the last view of a slot is freed, in any thread and inside any other code."""
    lent.pop(slot, None)
    returned.append(slot)
