"""What a user's function uses beside its own source: global and captured values, other functions, classes.

`code_id` sees only the function itself. A cache of what a function made, and a checkpoint of a run that calls it, must
also notice a changed helper or constant. Code of the standard library and of installed packages is not followed, nor
are files or environment variables that a function reads: for those a step has `version=`.
"""

from __future__ import annotations

import dis
import enum
import functools
import importlib.util
import inspect
import os
import pickle
import re
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, GenericAlias, ModuleType, SimpleNamespace, UnionType
from typing import Any

import xxhash

from penstock.core.errors import UsageError
from penstock.core.function_id import code_id, digest, is_array

_DEEPEST = 50
_INSTALLED = tuple({*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()})
_PACKAGES = {"site-packages", "dist-packages"}  # folders of packages, also of another Python or environment
_BY_NAME = {"getattr", "globals", "vars", "eval", "exec", "attrgetter", "methodcaller", "import_module", "__import__"}
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, range, slice)


def globals_id(function: Any, *, opaque: bool = False) -> str:
    """Returns a short id of what a callable uses from outside of itself; "" if that is nothing.

    Objects of installed packages (a tokenizer, a model) count by their type; with `opaque=True` by their pickled
    content, and a `UsageError` names one that cannot be pickled, since a change of it could not be noticed.

    >>> globals_id(lambda x: x + 1)
    ''
    """
    walk = _Walk(opaque)
    used = sorted({*walk.owner(function), *(text for part in _parts(function) for text in walk.used(part, 0))})
    if walk.unknown:
        raise UsageError(
            "a function whose constants and helpers can be compared with those of another run",
            got=f"{_name(function)} uses {', '.join(walk.unknown[:3])}, which cannot be compared",
            fix='pass version="1" to the step, and change it whenever the result of the function changes',
        )
    return digest("|".join(used)) if used else ""


class _Walk:
    """One walk over a function and what it uses. Each object is described once, so cycles end."""

    def __init__(self, opaque: bool) -> None:
        self.opaque = opaque
        self.unknown: list[str] = []
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that an id is not used twice

    def owner(self, value: Any, depth: int = 0) -> Iterator[str]:
        """The class and the fields of a bound method's object or of a callable object."""
        while isinstance(value, functools.partial):
            for argument in (*value.args, *value.keywords.values()):
                if not _is_plain(argument):
                    yield f"argument={self.value('an argument', argument, depth)}"
            value = value.func
        if _is_routine(value):
            value = getattr(value, "__self__", None)  # also of a method written in C, such as set.__contains__
            if value is None or isinstance(value, ModuleType):
                return
        if not isinstance(value, type):
            yield f"self={self.value(type(value).__qualname__, value, depth)}"
            value = type(value)
        for one in value.__mro__:
            yield from self.described(one.__qualname__, one, depth)

    def used(self, function: Any, depth: int) -> Iterator[str]:
        """The global and captured values of a function written in Python."""
        if id(function) in self._seen or depth > _DEEPEST:
            return
        self._seen[id(function)] = function
        names = set(_names(function.__code__)) if _own(function) else set()
        for name, value in sorted(vars(function).items()):
            yield from self.described(f"{function.__qualname__}.{name}", value, depth)
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, ModuleType):
                yield from self.module(name, value, names, depth)
            else:
                yield from self.described(name, value, depth)
        if names:
            yield from _imported_files(function.__code__, names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            value = _content(cell)
            if not _is_plain(value) and not inspect.isfunction(value):  # those are in `code_id`
                yield from self.described(name, value, depth)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if not _is_plain(value):
                yield from self.described("a default argument", value, depth)

    def module(self, name: str, module: ModuleType, names: set[str], depth: int) -> Iterator[str]:
        """Those of these names that a module of the user's own has, in its submodules too."""
        if not _own(module) or depth > _DEEPEST:
            return
        for inner in sorted(names & vars(module).keys()):
            value = vars(module)[inner]
            if isinstance(value, ModuleType):
                yield from self.module(f"{name}.{inner}", value, names, depth + 1)
            else:
                yield from self.described(f"{name}.{inner}", value, depth)

    def described(self, name: str, value: Any, depth: int) -> Iterator[str]:
        """A named value and, of what is written in Python, what it uses in turn."""
        if isinstance(value, type):
            if not _own(value):
                return
            if type(value) is not type:
                yield from self.described(type(value).__qualname__, type(value), depth + 1)
            for key, inner in sorted(vars(value).items()):
                if _plain_function(inner) is not None:
                    yield f"{name}.{key}={code_id(_plain_function(inner))}"
                elif not key.startswith("__"):
                    yield f"{name}.{key}={self.value(f'{name}.{key}', inner, depth)}"
        elif not _is_routine(value) or _own(value):
            yield f"{name}={self.value(name, value, depth)}"
        for part in _parts(value):
            yield from self.used(part, depth + 1)

    def value(self, name: str, value: Any, depth: int) -> str:
        """A text of a value: equal for equal values, in every process."""
        if value is None or isinstance(value, _PLAIN):
            return repr(value)
        if _is_routine(value) or isinstance(value, functools.partial):
            return code_id(value) + "|".join(self._around(value, depth + 1))
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, type):
            name = f"{value.__module__}.{value.__qualname__}"
            if id(value) in self._seen:
                return name
            self._seen[id(value)] = value
            return name + "|".join(t for one in value.__mro__ for t in self.described(one.__qualname__, one, depth + 1))
        if id(value) in self._seen or depth > _DEEPEST:
            return "..."
        self._seen[id(value)] = value
        return f"{type(value).__module__}.{type(value).__qualname__}{self._content(name, value, depth + 1)}"

    def _around(self, value: Any, depth: int) -> Iterator[str]:
        """What a function in a container or a field, a bound method or a partial uses beside its own source."""
        if depth > _DEEPEST:
            return
        inner = value
        while isinstance(inner, functools.partial):
            inner = inner.func
        if _own(inner):
            for part in _parts(inner):
                yield from self.used(part, depth)
        yield from self.owner(value, depth)

    def _content(self, name: str, value: Any, depth: int) -> str:
        if type(value).__module__ == "_abc":  # the cache of an abstract class
            return ""
        if isinstance(value, GenericAlias | UnionType) or type(value).__module__ == "typing":
            return repr(value) if self.opaque else ""  # an annotation, with the attributes of the class it stands for
        if isinstance(value, list | tuple | deque):
            return "[" + ",".join(self.value(name, one, depth) for one in value) + "]"
        if isinstance(value, dict):
            items = sorted((repr(key), self.value(f"{name}[{key!r}]", one, depth)) for key, one in value.items())
            return "{" + ",".join(f"{key}:{text}" for key, text in items) + "}"
        if isinstance(value, set | frozenset):
            return "{" + ",".join(sorted(self.value(name, one, depth) for one in value)) + "}"
        if isinstance(value, re.Pattern):
            return f"{value.pattern!r}{value.flags}"
        if isinstance(value, enum.Enum):
            return str(value.name)
        if isinstance(value, os.PathLike):
            return str(value)
        if is_array(value) and value.dtype != object:
            return f"{value.dtype}{getattr(value, 'shape', '')}{_hash(value.tobytes())}"
        inner = inspect.getattr_static(value, "__wrapped__", None)
        if inner is not None:  # functools.lru_cache, jax.jit and others
            return "|".join(self.described(name, inner, depth))
        if isinstance(value, SimpleNamespace) or _own(type(value)):
            fields = {key: getattr(value, key) for key in _slots(value) if hasattr(value, key)}
            fields |= getattr(value, "__dict__", {})
            code = "|".join(t for one in type(value).__mro__ for t in self.described(one.__qualname__, one, depth))
            return (
                code
                + "{"
                + ",".join(f"{k}:{self.value(f'{name}.{k}', v, depth)}" for k, v in sorted(fields.items()))
                + "}"
            )
        return self._pickled(name, value) if self.opaque else ""

    def _pickled(self, name: str, value: Any) -> str:
        for method in ("fingerprint", "identity"):  # our pipelines, sources and tokenizers say what they are
            if type(value).__module__.startswith("penstock.") and hasattr(value, method):
                return str(getattr(value, method)())
        try:
            return _hash(pickle.dumps(value, protocol=4))
        except Exception:  # whatever an object's own pickling raises
            self.unknown.append(f"{name} ({type(value).__module__}.{type(value).__qualname__})")
            return ""


def _parts(value: Any) -> Iterator[Any]:
    """The functions written in Python of which a callable consists."""
    if isinstance(value, functools.partial):
        yield from _parts(value.func)
    elif inspect.ismethod(value):
        yield from _parts(type(value.__self__) if not isinstance(value.__self__, type) else value.__self__)
        yield value.__func__
    elif inspect.isfunction(value):
        yield value
        for cell in value.__closure__ or ():
            yield from _parts(_content(cell))
    elif isinstance(value, type):
        if _own(value):
            yield from (f for c in value.__mro__ if _own(c) for f in map(_plain_function, vars(c).values()) if f)
    elif value is not None and not inspect.isbuiltin(value):
        if inspect.isfunction(inner := getattr(value, "__wrapped__", None)):
            yield from _parts(inner)
        elif _own(type(value)):
            yield from _parts(type(value))


def _plain_function(value: Any) -> Any:
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    return inner if inspect.isfunction(inner) else None


def _is_routine(value: Any) -> bool:
    """Whether a value is a function or method; `inspect` takes any object with `__get__` for one."""
    return inspect.isroutine(value) and not _own(type(value))


def _is_plain(value: Any) -> bool:
    """Whether `code_id` already describes a captured or default value by its content."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return True
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, dict) and all(map(_is_plain, value.values()))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _slots(value: Any) -> Iterator[str]:
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        yield from (names,) if isinstance(names, str) else names


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    by_name = not _BY_NAME.isdisjoint(code.co_names)
    for constant in code.co_consts:
        if by_name and isinstance(constant, str):
            yield from re.findall(r"\w+", constant)
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _imported_files(code: CodeType, names: set[str]) -> Iterator[str]:
    """The files of the user's own modules that a function imports when it runs, loaded already or not."""
    modules = {one.argval for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"}
    if not _BY_NAME.isdisjoint(code.co_names):
        modules |= {text for text in code.co_consts if isinstance(text, str) and text.replace(".", "_").isidentifier()}
    for module in sorted(modules):
        if _file_of(module.partition(".")[0]) is None:
            continue
        for name in (module, *(f"{module}.{inner}" for inner in sorted(names))):
            if (path := _file_of(name)) is not None:
                with open(path, "rb") as file:
                    yield f"{name}={_hash(file.read())}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported_files(constant, names)


def _file_of(module: str) -> str | None:
    """The file of a module of the user's own; None for installed ones and those that are not there."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    path = None if spec is None else spec.origin
    return path if path and os.path.isfile(path) and not _installed(path) else None


def _installed(path: str) -> bool:
    """Whether a file belongs to an installed package, in a folder of this Python or of another on its path."""
    return path.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(path.split(os.sep)) or _in_target(path)


def _in_target(path: str) -> bool:
    """Whether a file is of a package that `pip install --target` put into a folder of `sys.path`."""
    for folder in sys.path:
        if folder and path.startswith(folder.rstrip(os.sep) + os.sep):
            name = path[len(folder.rstrip(os.sep)) + 1 :].partition(os.sep)[0]
            if name.removesuffix(".py") in _packages_in(folder):
                return True
    return False


@functools.cache
def _packages_in(folder: str) -> frozenset[str]:
    """The packages and modules that installed distributions list as their files in this folder."""
    lines = (line for record in Path(folder).glob("*.dist-info/RECORD") for line in record.read_text().splitlines())
    return frozenset(line.partition(",")[0].partition("/")[0].removesuffix(".py") for line in lines)


def _hash(data: bytes) -> str:
    return str(xxhash.xxh3_128_hexdigest(data))


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _own(value: Any) -> bool:
    """Whether a module, class, function or instance is the user's own code: in no installed package."""
    module = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None:
        return not isinstance(value, ModuleType) and inspect.isfunction(value)
    if module.__name__.partition(".")[0] in {"builtins", "penstock"} or module.__name__ in sys.builtin_module_names:
        return False
    file = getattr(module, "__file__", None)
    return file is None or not _installed(str(file))
