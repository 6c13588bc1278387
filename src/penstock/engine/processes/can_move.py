"""Whether a loader may move its work to a child process without being asked: `why_not`.

`isolate=True` sends whatever can be pickled. By itself the loader moves only what cannot behave otherwise there:
Penstock's own code, and functions that depend on nothing but their arguments (`core.closed_functions`). A function that
reads a variable which the training loop changes, or writes one that it reads, would see its own copy. Objects of the
user's classes may hold such state too. And what has to be copied must be little, since the trainer waits for that.
"""

from __future__ import annotations

import io
import multiprocessing.process
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from penstock.core.closed_functions import why_open
from penstock.core.cpus import usable_cores
from penstock.core.errors import PenstockError
from penstock.core.pickling import PROTOCOL, reduced_own
from penstock.core.shared_memory import shared_part
from penstock.engine.output import Output
from penstock.plan.definition import Definition

MOST_BYTES = 32 << 20  # of data in memory that is copied
MOST_OBJECTS = 100_000  # Python objects: pickling them takes the GIL, about 30 ms
# Packages whose objects hold no state of the user's.
_KNOWN = frozenset({
    "_pickle", "builtins", "collections", "copyreg", "datasets", "datetime", "decimal", "fractions",
    "numpy", "operator", "pathlib", "pickle", "penstock", "pyarrow", "re", "uuid",
})  # fmt: skip


def why_not(definition: Definition, output: Output) -> str:
    """Why the loader does not move to a child by itself; "" where it may."""
    return _system() or _content(definition, output)


def _system() -> str:
    name = Path(sys.executable or "").name.lower()
    if os.name != "posix" or getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
        return f"this is not a Python interpreter that could be started again ({name or sys.platform})"
    if multiprocessing.process.current_process().daemon:
        return "this is a daemonic process, as the workers of a DataLoader are"
    if usable_cores() < 2:
        return "the process may use one core only"
    return ""


def _content(definition: Definition, output: Output) -> str:
    made_here = next((type(one) for one in (output, output.converter) if not _is_known(type(one))), None)
    if made_here is not None:
        return f"the output is a {made_here.__qualname__}"
    try:
        _Inspector().dump(definition)
    except _Found as found:
        return str(found)
    except (PenstockError, pickle.PicklingError, AttributeError, TypeError, OSError) as error:
        return f"it cannot be sent: {error}"
    return ""


class _Found(Exception):
    """A reason was found."""


class _Bounded(io.RawIOBase):
    """Counts what is written, and keeps nothing."""

    size = 0

    def write(self, data: Any) -> int:
        self.add(len(data))
        return len(data)

    def add(self, size: int) -> None:
        self.size += size
        if self.size > MOST_BYTES:
            raise _Found(f"more than {MOST_BYTES >> 20} MB of data in memory would be copied")


class _Inspector(pickle.Pickler):
    """Visits everything that would be sent."""

    def __init__(self) -> None:
        sink = _Bounded()
        super().__init__(sink, PROTOCOL, buffer_callback=lambda part: _count(sink.add, part.raw()))
        self._objects = 0

    def persistent_id(self, value: Any) -> str | None:
        self._objects += 1
        if self._objects > MOST_OBJECTS:
            raise _Found(f"more than {MOST_OBJECTS:,} Python objects would be copied")
        kind = type(value)
        if kind is FunctionType:
            if _root(value) in ("penstock", "numpy"):
                return None
            if found := why_open(value):
                raise _Found(f"your function {value.__qualname__} uses {found}, of which a child would have a copy")
            return "function"  # what it refers to was looked at
        if kind is MethodType or kind is BuiltinFunctionType or isinstance(value, type):
            known = _root(value) in _KNOWN
        else:
            known = _is_known(kind)
        if not known:
            name = value.__qualname__ if isinstance(value, type) else kind.__qualname__
            raise _Found(f"the pipeline holds your own {name}, of which a child would have a copy")
        return None

    def reducer_override(self, value: Any) -> Any:
        return reduced_own(value)


def _count(add: Callable[[int], None], part: memoryview) -> None:
    if shared_part(part) is None:
        add(part.nbytes)


def _root(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "builtins").partition(".")[0]


def _is_known(kind: type) -> bool:
    return _root(kind) in _KNOWN
