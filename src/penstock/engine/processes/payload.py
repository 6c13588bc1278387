"""How a plan gets to a child process.

Functions and classes that the child could not import go by value (cloudpickle), the rest by name. The bytes are the
user's own code between the user's own processes, in a file without a name; data files are never unpickled. Large arrays
in the definition are mapped copy-on-write, so N children hold them once; memory-mapped arrays are opened again.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.engine.batches import Output
from penstock.engine.processes.ring import ALIGN, nameless_file
from penstock.plan.definition import Definition
from penstock.plan.step_ranges import Cuts


class Job(NamedTuple):
    """What every child of one loader needs to know."""

    definition: Definition
    cuts: Cuts
    output: Output
    pad: bool
    threads: int
    ahead: int
    max_bytes: int


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
