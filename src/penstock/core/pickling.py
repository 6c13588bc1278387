"""Pickles pipelines, datasets and loaders together with the user's own functions.

Functions and classes that another interpreter can import are pickled by name. Others (lambdas, closures, functions of a
script or notebook) are pickled by value with cloudpickle. Memory-mapped arrays are opened again on the other side
instead of being sent. All of this is the user's code between the user's own processes: data files are never unpickled.

A class that derives from `Portable` works with plain `pickle`, `copy` and `multiprocessing`, whatever it holds.
"""

from __future__ import annotations

import copy
import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Self

import numpy as np

from penstock.core.errors import MissingExtra, UsageError
from penstock.core.optional import need

PROTOCOL = 5


class Portable:
    """Base class of what may hold user functions: `pickle.dumps(value)` then works with lambdas too.

    >>> class Box(Portable):
    ...     def __init__(self, function):
    ...         self.function = function
    >>> pickle.loads(pickle.dumps(Box(lambda x: 2 * x))).function(4)
    8
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        try:
            body, buffers = dump(self)
        except MissingExtra:
            raise
        except Exception as error:
            raise UsageError(
                f"a {type(self).__name__} that can be pickled",
                got=f"{type(error).__name__}: {error}",
                where=culprit(vars(self).values()),
                fix="open files, locks and clients inside the function instead of before it",
            ) from error
        if protocol >= PROTOCOL:
            return load, (body, [pickle.PickleBuffer(buffer) for buffer in buffers])
        return load, (body, [bytearray(buffer) for buffer in buffers])

    def __copy__(self) -> Self:
        return self._rebuilt(lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._rebuilt(lambda value: copy.deepcopy(value, memo))

    def _rebuilt(self, copied: Callable[[Any], Any]) -> Self:
        reduced: Any = object.__reduce_ex__(self, 4)
        made: Self = reduced[0](*copied(reduced[1]))
        state = copied(reduced[2]) if len(reduced) > 2 else None
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
        elif state is not None:
            vars(made).update(state)
        return made


class Immutable(Portable):
    """A `Portable` that never changes: a copy of it is the object itself."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class _Function:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __reduce__(self) -> tuple[Any, ...]:
        body, buffers = dump(self.function)
        return load, (body, [bytearray(buffer) for buffer in buffers])


def with_functions(state: dict[str, Any]) -> dict[str, Any]:
    """A state for `__getstate__` in which only the functions are pickled as described above.

    For objects that also hold torch tensors in shared memory: these must reach torch's own pickler to stay shared.

    >>> pickle.loads(pickle.dumps(with_functions({"double": lambda x: 2 * x})))["double"](4)
    8
    """
    kinds = (FunctionType, MethodType, partial)
    return {name: _Function(value) if isinstance(value, kinds) else value for name, value in state.items()}


def dump(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickled bytes and the buffers of large arrays; by name where another interpreter can import, else by value."""
    first = _Pickler()
    try:
        first.dump(value)
        if not first.by_value:
            return first.file.getvalue(), first.buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # what cannot be pickled by name may be pickled by value
    cloudpickle = need("cloudpickle", extra="all", purpose="to pickle functions of a script or notebook")

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, value: Any) -> Any:
            reduced = reduced_own(value)
            if reduced is not NotImplemented:
                return reduced
            reduced = super().reducer_override(value)
            if isinstance(value, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # a class made anew
                reduced[2][0]["__qualname__"] = value.__qualname__  # cloudpickle drops it; fingerprints contain it
            return reduced

    file, buffers = io.BytesIO(), list[memoryview]()
    with _registered(cloudpickle, first.by_value):
        ByValue(file, PROTOCOL, lambda b: buffers.append(b.raw())).dump(value)
    return file.getvalue(), buffers


def load(body: Any, buffers: Iterable[Any]) -> Any:
    """Reverses `dump`."""
    return pickle.loads(body, buffers=buffers)


def culprit(values: Iterable[Any]) -> str:
    """The first of some values, or of the values in a tuple of them, that cannot be pickled; "" where all can."""
    for value in values:
        for part in value if isinstance(value, tuple) else (value,):
            try:
                dump(part)
            except Exception:
                return f".{part.name}()" if hasattr(part, "name") else type(part).__name__
    return ""


class _Pickler(pickle.Pickler):
    """Pickles by name, and collects the modules of what another interpreter could not import."""

    def __init__(self) -> None:
        self.file, self.buffers = io.BytesIO(), (buffers := list[memoryview]())
        self.by_value: set[str] = set()
        # Without `self`: a cycle of references would hold all data until the garbage collector runs.
        super().__init__(self.file, PROTOCOL, buffer_callback=lambda b: buffers.append(b.raw()))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type) and not _can_import(value):
            self.by_value.add(value.__module__)
            return str, ()  # continues, to find the other modules
        return reduced_own(value)


def reduced_own(value: Any) -> Any:
    """How all picklers of pipelines treat our own kinds of objects; NotImplemented leaves the rest to them."""
    if isinstance(value, Portable):
        return object.__reduce_ex__(value, PROTOCOL)  # one pickle for all nested ones
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
    """A memory-mapped array is opened again on the other side instead of being sent."""
    mapped = (
        value if isinstance(value, np.memmap) else getattr(value, "base", None) if type(value) is np.ndarray else None
    )
    if not isinstance(mapped, np.memmap) or not value.flags.c_contiguous or value.dtype.hasobject:
        return NotImplemented
    memory, file = getattr(mapped, "_mmap", None), mapped.filename
    if memory is None or file is None or mapped.mode == "c" or not value.size:
        return NotImplemented
    buffer = np.frombuffer(memory, np.uint8)
    start = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    offset = start + value.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
    if not start <= offset <= start + buffer.nbytes - value.nbytes:
        return NotImplemented
    return _open_again, (os.path.abspath(file), value.dtype, offset, value.shape, type(value) is np.ndarray)


def _open_again(file: str, dtype: Any, offset: int, shape: tuple[int, ...], plain: bool) -> Any:
    array = np.memmap(file, dtype, "r", offset, shape)
    return np.asarray(array) if plain else array
