"""The child of an isolated loader: its entry point, and how a plan gets there.

A child is a fresh interpreter that runs `main` with the parent's `sys.path`. It never imports the user's `__main__`:
the definition comes as bytes, and functions and classes that the child could not import come by value (cloudpickle).
The bytes are the user's own code between the user's own processes, in a file without a name; data files are never
unpickled. Large arrays in the definition are mapped copy-on-write, so N children hold them once; memory-mapped arrays
are opened again.

The child runs the same ordered threads as in-process, over its share of the steps, and writes each batch in a free
slot of the ring. It ends when its parent closes the socket or is gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from penstock._errors import PenstockError, UsageError
from penstock._ledger import Ledger
from penstock._optional import need
from penstock.columns import Columns, nbytes
from penstock.engine.cuts import Cuts
from penstock.engine.ordered import Ordered
from penstock.engine.ring import ALIGN, Desk, Ring, Shape, nameless_file
from penstock.engine.stats import Stats
from penstock.engine.work import Output, Work
from penstock.plan import Definition, build


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


class Job(NamedTuple):
    """What every child of one loader needs to know."""

    definition: Definition
    cuts: Cuts
    output: Output
    pad: bool
    threads: int
    ahead: int
    max_bytes: int


class Half:
    """The part of an output that runs in the child: final dtypes and memory. The parent makes the framework's object.

    Of Penstock's own outputs only plain attributes go along: a device or sharding would import its framework.
    """

    def __init__(self, output: Output) -> None:
        self.name, self._kind = output.name, type(output)
        own = self._kind.__module__.startswith("penstock.")
        self._state = {k: v for k, v in vars(output).items() if _is_plain(v)} if own else {}
        self._whole = None if own else output

    def block(self, columns: Columns, ids: frozenset[str]) -> Columns:
        if self._whole is None:
            whole = self._kind.__new__(self._kind)
            vars(whole).update(self._state)
            self._whole = whole
        return self._whole.block(columns, ids)

    def batch(self, columns: Columns) -> Columns:
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
        work = Work(build(job.definition), job.cuts, job.output, job.pad, Stats())
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


def _noting(ring: Ring, work: Work, share: Share) -> Callable[[int, int], list[Columns]]:
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

    def __init__(self, work: Work) -> None:
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


# How a plan gets there.


def ship(job: Job) -> int:
    """Writes a job in a file without a name and gives its descriptor; `load` reads it."""
    body, buffers = _dump(job)
    spans, at = [], 0
    for buffer in buffers:
        spans.append((at, buffer.nbytes))
        at += -(-buffer.nbytes // ALIGN) * ALIGN
    head = pickle.dumps((body, spans))
    fd = nameless_file("penstock-plan")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(len(head).to_bytes(8, "little") + head)
            base = _base(len(head))
            for (start, _), buffer in zip(spans, buffers, strict=True):
                file.seek(base + start)
                file.write(buffer)
            file.truncate(max(base + at, file.tell()))
    except OSError:
        os.close(fd)
        raise
    return fd


def load(fd: int) -> Any:
    """What `ship` wrote; its arrays are mapped, not read."""
    view = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    os.close(fd)
    size = int.from_bytes(view[:8], "little")
    body, spans = pickle.loads(view[8 : 8 + size])
    base = _base(size)
    return pickle.loads(body, buffers=[view[base + at : base + at + n] for at, n in spans])


def _base(head: int) -> int:
    return -(-(8 + head) // ALIGN) * ALIGN


def _dump(job: Job) -> tuple[bytes, list[memoryview]]:
    """Pickle by reference where the child can import everything, by value (cloudpickle) where it cannot."""
    first = _Pickler()
    try:
        first.dump(job)
        if not first.by_value:
            return first.file.getvalue(), first.buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # what cannot go by reference may go by value
    cloudpickle = need("cloudpickle", extra="all", purpose="to send functions of a script or notebook to a child")

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, value: Any) -> Any:
            again = _reopened(value)
            return super().reducer_override(value) if again is NotImplemented else again

    file, buffers = io.BytesIO(), []
    try:
        with _registered(cloudpickle, first.by_value):
            ByValue(file, 5, lambda b: buffers.append(b.raw())).dump(job)
    except Exception as error:
        raise UsageError(
            "steps and sources that can be sent to a child process",
            got=f"{type(error).__name__}: {error}",
            where=_culprit(job, cloudpickle),
            fix="open files, locks and clients inside the function instead of before it, or use isolate=False",
        ) from error
    return file.getvalue(), buffers


class _Pickler(pickle.Pickler):
    """Pickles by reference, and notes the modules of what the child could not import."""

    def __init__(self) -> None:
        self.file, self.buffers = io.BytesIO(), list[memoryview]()
        self.by_value: set[str] = set()
        super().__init__(self.file, 5, buffer_callback=lambda b: self.buffers.append(b.raw()))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type) and not _can_import(value):
            self.by_value.add(value.__module__)
            return str, ()  # goes on, to find the others
        return _reopened(value)


def _can_import(value: Any) -> bool:
    """Whether a fresh interpreter with this `sys.path` finds this very function or class by its name."""
    name = value.__module__
    if name == "builtins":
        return True
    module = sys.modules.get(name)
    if name == "__main__" or module is None:
        return False
    found: Any = module
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value and _findable(name, getattr(module, "__file__", None))


def _findable(name: str, file: str | None) -> bool:
    package, _, _ = name.rpartition(".")
    if package and not _findable(package, getattr(sys.modules.get(package), "__file__", None)):
        return False
    path = getattr(sys.modules.get(package), "__path__", None) if package else None
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return file is None or spec.origin is None or os.path.abspath(spec.origin) == os.path.abspath(file)
    return False


@contextmanager
def _registered(cloudpickle: Any, names: set[str]) -> Iterator[None]:
    modules = [sys.modules[n] for n in names if n != "__main__" and n in sys.modules and not _findable(n, None)]
    mine = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def _reopened(value: Any) -> Any:
    """A memory-mapped array is opened again by the child instead of being sent."""
    mapped = (
        value if isinstance(value, np.memmap) else getattr(value, "base", None) if type(value) is np.ndarray else None
    )
    if not isinstance(mapped, np.memmap) or not value.flags.c_contiguous or value.dtype.hasobject:
        return NotImplemented
    memory, file = getattr(mapped, "_mmap", None), mapped.filename
    if memory is None or file is None or mapped.mode == "c" or not value.size:
        return NotImplemented
    whole = np.frombuffer(memory, np.uint8)
    start = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    offset = start + value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    if not start <= offset <= start + whole.nbytes - value.nbytes:
        return NotImplemented
    return _open_again, (os.path.abspath(file), value.dtype, offset, value.shape, type(value) is np.ndarray)


def _open_again(file: str, dtype: Any, offset: int, shape: tuple[int, ...], plain: bool) -> Any:
    array = np.memmap(file, dtype, "r", offset, shape)
    return np.asarray(array) if plain else array


def _culprit(job: Job, cloudpickle: Any) -> str:
    for part in (job.definition.origin, *job.definition.steps, job.output):
        try:
            cloudpickle.dumps(part)
        except Exception:
            return f".{part.name}()" if hasattr(part, "name") else type(part).__name__
    return ""
