"""What a user's function uses beside its own source: global values, other functions, classes.

`code_id` is part of checkpoints and sees only the function itself. A cache of what a function made must also notice a
changed helper or constant: without it, `tokenize` would return documents of the code before. Code of the standard
library and of installed packages is not followed.
"""

from __future__ import annotations

import functools
import inspect
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from penstock.core.function_id import code_id, digest, plain_data

_DEEPEST = 50
_INSTALLED = tuple({*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()})


def globals_id(function: Any) -> str:
    """Returns a short id of what a callable uses from outside of itself; "" if that is nothing.

    >>> globals_id(lambda x: x + 1)
    ''
    """
    seen: set[int] = set()
    used = sorted({*_class_of(function, seen), *(text for part in _parts(function) for text in _used(part, seen, 0))})
    return digest("|".join(used)) if used else ""


def _class_of(value: Any, seen: set[int]) -> Iterator[str]:
    """The class of a bound method or an object, of which `code_id` sees one method."""
    while isinstance(value, functools.partial):
        value = value.func
    if inspect.ismethod(value):
        value = value.__self__
    if not inspect.isroutine(value):
        owner = value if isinstance(value, type) else type(value)
        for one in owner.__mro__:
            yield from _described(one.__qualname__, one, seen, 0)


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
    elif value is not None and not inspect.isbuiltin(value) and _own(type(value)):
        yield from _parts(type(value))


def _used(function: Any, seen: set[int], depth: int) -> Iterator[str]:
    if id(function) in seen or depth > _DEEPEST:
        return
    seen.add(id(function))
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            if _own(value):
                for inner in sorted(names & vars(value).keys()):
                    yield from _described(f"{name}.{inner}", vars(value)[inner], seen, depth)
        else:
            yield from _described(name, value, seen, depth)


def _described(name: str, value: Any, seen: set[int], depth: int) -> Iterator[str]:
    if isinstance(value, type):
        if not _own(value):
            return
        for key, inner in sorted(vars(value).items()):
            if _plain_function(inner) is not None:
                yield f"{name}.{key}={code_id(_plain_function(inner))}"
            elif not key.startswith("__"):
                yield f"{name}.{key}={plain_data(inner)}"
    elif isinstance(value, re.Pattern):
        yield f"{name}={value.pattern!r}{value.flags}"
    elif isinstance(value, set | frozenset):
        yield f"{name}={sorted(map(plain_data, value))}"
    elif callable(value):
        if not _own(value):
            return
        yield f"{name}={code_id(value)}"
    else:
        yield f"{name}={plain_data(value)}"
    for part in _parts(value):
        yield from _used(part, seen, depth + 1)


def _plain_function(value: Any) -> Any:
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    return inner if inspect.isfunction(inner) else None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _own(value: Any) -> bool:
    """Whether a module, class, function or instance is the user's own code: in no installed package."""
    module = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None:
        return not isinstance(value, ModuleType) and inspect.isfunction(value)
    if module.__name__.partition(".")[0] in {"builtins", "penstock"} or module.__name__ in sys.builtin_module_names:
        return False
    file = getattr(module, "__file__", None)
    return file is None or not str(file).startswith(_INSTALLED)
