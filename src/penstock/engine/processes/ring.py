"""A fixed ring of slots in one shared mapping: how a child process hands batches to its parent without copying.

One mapping per child, made once, from a file that has no name (a memfd, or an unlinked temporary file), so nothing can
be left in /dev/shm and its size does not matter. Slots are wide but sparse: memory is taken only as far as batches
reach, and asked for with posix_fallocate before it is touched, so that a full machine is an error here and never a
SIGBUS there. The first page says which steps each thread of the child has in hand; it outlives the child.

Cost: one copy into the slot in the child; the parent's arrays are views. `Desk` is the child's end: it writes batches
in free slots and announces them, never more than the parent can take.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import LimitError, StageError

HEAD = max(4096, mmap.ALLOCATIONGRANULARITY)
THREADS = 128  # whose work the first page can name
ALIGN = 64
SMALLEST = 1 << 20
TAKEN = 255  # the parent's word for "one more batch taken"; a smaller number gives that slot back
GRACE_SECONDS = 0.3  # for an orderly end once the parent is gone
_PLAIN = "biufcmMSU"  # kinds of dtype that their short text names in full


class Shape(NamedTuple):
    """How many slots of how many bytes."""

    slots: int
    extent: int

    @property
    def bytes(self) -> int:
        return HEAD + self.slots * self.extent


class Ring:
    """The mapping, on either side. `fd` stays the caller's."""

    def __init__(self, fd: int, shape: Shape) -> None:
        self.fd, self.shape = fd, shape
        self.memory = mmap.mmap(fd, shape.bytes)
        # For each thread: first step, the one after the last, and whether it is at it now.
        self.hands: NDArray[np.int64] = np.frombuffer(self.memory, np.int64, THREADS * 3).reshape(THREADS, 3)
        self._reserved = [0] * shape.slots

    @classmethod
    def create(cls, slots: int, extent: int) -> Ring:
        """A new one; the slots are made narrower where the system refuses so much address space.

        >>> ring = Ring.create(2, 1 << 20)
        >>> ring.shape
        Shape(slots=2, extent=1048576)
        >>> os.close(ring.fd)
        """
        extent = -(-max(extent, SMALLEST) // HEAD) * HEAD
        while True:
            fd = nameless_file("penstock-ring")
            try:
                os.ftruncate(fd, Shape(slots, extent).bytes)
                return cls(fd, Shape(slots, extent))
            except (OSError, ValueError, OverflowError) as error:
                os.close(fd)
                if extent <= SMALLEST:
                    raise LimitError(
                        f"{slots} MB of shared memory for an isolated loader",
                        got=str(error),
                        fix="raise the limit (ulimit -v, ulimit -f, space for temporary files), or use isolate=False",
                    ) from error
                extent = max(SMALLEST, extent // 4 // HEAD * HEAD)

    def reserve(self, slot: int, size: int) -> None:
        """Makes sure that the slot's first bytes are really there; OSError when the system has no room for them."""
        if size <= self._reserved[slot]:
            return
        size = min(self.shape.extent, -(-(size + size // 8) // HEAD) * HEAD)  # a little more: the next may be longer
        start = self._start(slot)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.fd, start, size)
        else:
            done = self._reserved[slot]
            while done < size:
                done += os.pwrite(self.fd, bytes(min(SMALLEST, size - done)), start + done)
        self._reserved[slot] = size

    def part(self, slot: int, size: int) -> NDArray[np.uint8]:
        """The first bytes of a slot, as a new root array: it lives exactly as long as any view of it does."""
        return np.frombuffer(self.memory, np.uint8, size, self._start(slot))

    def _start(self, slot: int) -> int:
        return HEAD + slot * self.shape.extent


def nameless_file(label: str) -> int:
    """A descriptor of a file in memory, or of an unlinked temporary file where the system has no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label)
    with tempfile.TemporaryFile(prefix=label) as file:
        return os.dup(file.fileno())


# Columns as a short outline and plain arrays.

Outline = list[tuple[str, str, Any]]
Spec = tuple[Any, tuple[int, ...], int]  # dtype, shape, offset in the slot


def flatten(columns: Columns) -> tuple[Outline, list[NDArray[Any]]]:
    """Takes columns apart: arrays of numbers on one side; names, and columns of objects as they are, on the other.

    >>> outline, arrays = flatten({"x": np.arange(2), "ids": Ragged.of([[1], [2, 3]])})
    >>> outline, len(arrays)
    ([('x', 'array', None), ('ids', 'ragged', None)], 3)
    """
    outline: Outline = []
    arrays: list[NDArray[Any]] = []
    for name, column in columns.items():
        if isinstance(column, Ragged):
            if not column.values.dtype.hasobject:
                outline.append((name, "ragged", None))
                arrays += [column.values, column.offsets]
                continue
        elif type(column) is np.ndarray and not column.dtype.hasobject:
            outline.append((name, "array", None))
            arrays.append(column)
            continue
        outline.append((name, "object", column))
    return outline, arrays


def assemble(outline: Outline, arrays: Sequence[NDArray[Any]]) -> Columns:
    """Puts columns together again."""
    columns: Columns = {}
    rest = iter(arrays)
    for name, kind, value in outline:
        if kind == "array":
            columns[name] = next(rest)
        elif kind == "ragged":
            columns[name] = Ragged(next(rest), next(rest))
        else:
            columns[name] = value
    return columns


def lay_out(arrays: Sequence[NDArray[Any]]) -> tuple[list[Spec], int]:
    """Where each array goes in a slot, and the bytes they take together."""
    specs: list[Spec] = []
    at = 0
    for array in arrays:
        dtype = array.dtype
        specs.append((dtype.str if dtype.kind in _PLAIN else dtype, array.shape, at))
        at += -(-array.nbytes // ALIGN) * ALIGN
    return specs, at


def views(root: NDArray[np.uint8], specs: Sequence[Spec]) -> list[NDArray[Any]]:
    """The arrays in a slot; each keeps `root` alive."""
    return [np.ndarray(shape, dtype, root, offset) for dtype, shape, offset in specs]


class Desk:
    """The child's end of the ring and of the socket: which slots are free, and what the parent has not taken yet."""

    def __init__(self, wire: socket.socket, ring: Ring, parent: int) -> None:
        self.wire, self.ring = wire, ring
        self.at_end: Callable[[], None] = lambda: None
        self.ahead, self.max_bytes = 1, 1
        self._parent = parent
        self._free = list(range(ring.shape.slots))[::-1]
        self._untaken: list[int] = []  # bytes of each batch that was sent and not taken
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._told = False

    def listen(self) -> None:
        """A thread's life: hears the parent; when nothing will come any more, ends the process."""
        ear = select.poll()
        ear.register(self.wire, select.POLLIN)
        while os.getppid() == self._parent:
            if not ear.poll(1000):
                continue
            try:
                said = self.wire.recv(4096)
            except OSError:
                break
            if not said:
                break
            self._hear(said)
        self._ended.set()
        with self._changed:
            self._changed.notify_all()
        threading.Thread(target=self.at_end, daemon=True).start()
        time.sleep(GRACE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _hear(self, said: bytes) -> None:
        with self._changed:
            for code in said:
                if code == TAKEN:
                    self._untaken.pop(0)
                else:
                    self._free.append(code)
            self._changed.notify_all()

    def wait_for_end(self) -> None:
        """Returns when the parent has closed its end or is gone."""
        self._ended.wait()

    def give(self, columns: Columns, facts: Any) -> None:
        """Writes a batch in a slot and announces it; through the socket itself where no slot can hold it.

        Waits while the parent has enough. It cannot wait for ever: the parent lends fewer slots than there are.
        """
        outline, arrays = flatten(columns)
        specs, size = lay_out(arrays)
        slot = None
        with self._changed:
            while not self._ended.is_set() and not self._may_give(size):
                self._changed.wait(1.0)
            if self._ended.is_set():
                return
            self._untaken.append(size)
            if 0 < size <= self.ring.shape.extent:
                slot = self._free.pop()
        if slot is not None and not self._fill(slot, size, arrays, specs):
            with self._changed:
                self._free.append(slot)
            slot = None
        self.send(("batch", slot, size, outline, arrays if slot is None else specs, facts))

    def _may_give(self, size: int) -> bool:
        if not self._free:
            return False
        enough = len(self._untaken) >= self.ahead or sum(self._untaken) + size > self.max_bytes
        return not self._untaken or not enough

    def _fill(self, slot: int, size: int, arrays: Sequence[NDArray[Any]], specs: Sequence[Spec]) -> bool:
        try:
            self.ring.reserve(slot, size)
        except OSError as error:
            if not self._told:
                self._told = True
                self.send(
                    ("notice", f"no shared memory for a batch of {size} bytes ({error}): it went through a socket")
                )
            return False
        for target, array in zip(views(self.ring.part(slot, size), specs), arrays, strict=True):
            target[...] = array
        return True

    def send(self, message: tuple[Any, ...]) -> None:
        """One message: its length, then its bytes."""
        try:
            body = pickle.dumps(message, 5)
        except Exception as error:
            body = _by_value(message, error)
        try:
            self.wire.sendall(len(body).to_bytes(8, "little") + body)
        except OSError:
            self._ended.wait(5.0)  # the parent has gone; `listen` ends this process


def _by_value(message: tuple[Any, ...], met: Exception) -> bytes:
    """Values of classes that came by value go back by value, and are the parent's own classes again there."""
    try:
        cloudpickle = sys.modules["cloudpickle"]  # loaded when the plan needed it
        return bytes(cloudpickle.dumps(message))
    except Exception:
        raise StageError(
            "columns that can be sent to another process",
            got=f"{type(met).__name__}: {met}",
            where=f"columns {[name for name, kind, _ in message[3] if kind == 'object']}",
            fix="return arrays, strings or plain data from the last step, or use isolate=False",
        ) from met
