"""The child's side of the ring: writes batches into free slots and announces them.

It is never further ahead than the parent's limits allow.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import StageError
from penstock.core.waits import Condition, Event
from penstock.engine.processes.ring import BEGIN, TAKEN, Ring, Spec, flatten, lay_out, views

GRACE_SECONDS = 0.3  # for an orderly end once the parent is gone


class RingWriter:
    """Writes to the ring and the socket; knows which slots are free and what the parent has not taken yet."""

    def __init__(self, wire: socket.socket, ring: Ring, parent: int) -> None:
        self.wire, self.ring = wire, ring
        self.at_end: Callable[[], None] = lambda: None
        self.ahead, self.max_bytes = 1, 1
        self._parent = parent
        self._free = list(range(ring.shape.slots))[::-1]
        self._untaken: list[int] = []  # bytes of each batch sent but not yet taken
        self._wanted: list[tuple[int, int]] = []  # steps to compute that were not begun
        self._changed = Condition()
        self._ended = Event()
        self._notified = False

    def listen(self) -> None:
        """Runs in a thread: receives the parent's messages, and ends the process when the parent is gone."""
        poll = select.poll()
        poll.register(self.wire, select.POLLIN)
        while os.getppid() == self._parent:
            if not poll.poll(1000):
                continue
            try:
                message = self.wire.recv(4096)
            except OSError:
                break
            if not message:
                break
            self._receive(message)
        self._ended.set()
        with self._changed.lock:
            self._changed.notify_all()
        threading.Thread(target=self.at_end, daemon=True).start()
        time.sleep(GRACE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _receive(self, message: bytes) -> None:
        with self._changed.lock:
            for code in message:
                if code == TAKEN:
                    self._untaken.pop(0)
                elif code == BEGIN:
                    self._wanted.append((int(self.ring.wanted[0]), int(self.ring.wanted[1])))
                else:
                    self._free.append(code)
                    if self.ring.reserved > self.max_bytes:
                        self.ring.release(code)
            self._changed.notify_all()

    def wait_for_steps(self) -> tuple[int, int] | None:
        """The next steps that the parent wants (first, end; -1: no end); None when there will be none."""
        with self._changed.lock:
            while not (self._wanted or self._ended.is_set()):
                self._changed.wait(1.0)
            return None if self._ended.is_set() else self._wanted.pop(0)

    def wait_for_end(self) -> None:
        """Waits until the parent has closed its end or is gone."""
        self._ended.wait()

    def put(self, columns: Columns, facts: Any) -> None:
        """Writes a batch into a slot and announces it; sends it through the socket if no slot can hold it.

        Waits while the parent has enough batches. A slot always becomes free: the parent holds fewer than there are.
        """
        outline, arrays = flatten(columns)
        specs, size = lay_out(arrays)
        slot = None
        with self._changed.lock:
            while not self._ended.is_set() and not self._may_put(size):
                self._changed.wait(1.0)
            if self._ended.is_set():
                return
            self._untaken.append(size)
            if 0 < size <= self.ring.shape.extent:
                slot = self._free.pop()
        if slot is not None and not self._fill(slot, size, arrays, specs):
            with self._changed.lock:
                self._free.append(slot)
            slot = None
        self.send(("batch", slot, size, outline, arrays if slot is None else specs, facts))

    def _may_put(self, size: int) -> bool:
        if not self._free:
            return False
        enough = len(self._untaken) >= self.ahead or sum(self._untaken) + size > self.max_bytes
        return not self._untaken or not enough

    def _fill(self, slot: int, size: int, arrays: Sequence[NDArray[Any]], specs: Sequence[Spec]) -> bool:
        try:
            self.ring.reserve(slot, size)
        except OSError as error:
            if not self._notified:
                self._notified = True
                self.send(
                    ("notice", f"no shared memory for a batch of {size} bytes ({error}): it was sent through a socket")
                )
            return False
        for target, array in zip(views(self.ring.part(slot, size), specs), arrays, strict=True):
            target[...] = array
        return True

    def send(self, message: tuple[Any, ...]) -> None:
        """Sends one message: its length, then its bytes."""
        try:
            body = pickle.dumps(message, 5)
        except Exception as error:
            body = _by_value(message, error)
        try:
            self.wire.sendall(len(body).to_bytes(8, "little") + body)
        except OSError:
            self._ended.wait(5.0)  # the parent is gone; `listen` ends this process


def _by_value(message: tuple[Any, ...], error: Exception) -> bytes:
    """Pickles a message by value: objects of classes that were sent by value become the parent's own classes again."""
    try:
        cloudpickle = sys.modules["cloudpickle"]  # loaded when the plan needed it
        return bytes(cloudpickle.dumps(message))
    except Exception:
        raise StageError(
            "columns that can be sent to another process",
            got=f"{type(error).__name__}: {error}",
            where=f"columns {[name for name, kind, _ in message[3] if kind == 'object']}",
            fix="return arrays, strings or plain data from the last step, or use isolate=False",
        ) from error
