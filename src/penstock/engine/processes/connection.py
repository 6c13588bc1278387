"""One child process as its parent sees it: the process, the socket, the ring and its last words."""

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
from contextlib import ExitStack, suppress
from typing import Any

from penstock.core.columns import Columns
from penstock.core.errors import WorkerDied
from penstock.engine.processes.child import Ends, Share
from penstock.engine.processes.ring import TAKEN, Ring, assemble, nameless_file, views

LENT = 4  # batches of one child that a consumer may hold as views: this one, the one before, and two to spare
NOTES_BYTES = 1 << 16
FRAMES = 6  # of each thread's stack that an error shows
_QUIETLY = getattr(socket, "MSG_NOSIGNAL", 0)  # a program may have set SIGPIPE back to its deadly default


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
    """A fresh interpreter that runs `penstock.engine.processes.child.main` with this one's `sys.path`."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    call = f"main({tuple(ends)}, {tuple(ring.shape)}, {tuple(share)}, {os.getpid()})"
    code = f"import sys; sys.path[:] = {path!r}; from penstock.engine.processes.child import main; {call}"
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
