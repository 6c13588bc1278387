"""A short id of a user's function, so that resuming with a changed function is noticed.

It hashes the source where Python can find it (formatting and comments do not matter) and the byte code otherwise,
plus default arguments and captured values that are plain data.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from types import CodeType
from typing import Any


def code_id(value: Any) -> str:
    """Returns a short id of a callable or object, the same in every process.

    >>> code_id(len)
    'builtins.len'
    >>> code_id(lambda x: x + 1) == code_id(lambda x: x + 2)
    False
    """
    if isinstance(value, functools.partial):
        return f"partial({code_id(value.func)}, {plain_data(value.args)}, {plain_data(value.keywords)})"
    if inspect.ismethod(value):
        return f"{code_id(value.__func__)} of {_object(value.__self__)}"
    if inspect.isfunction(value):
        return f"{value.__qualname__}#{digest(_function(value))}"
    if inspect.isbuiltin(value) or isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return _object(value)


def _object(value: Any) -> str:
    kind = type(value)
    call = kind.__dict__.get("__call__")
    body = f"#{digest(_function(call))}" if inspect.isfunction(call) else ""
    return f"{kind.__module__}.{kind.__qualname__}{body}{plain_data(getattr(value, '__dict__', {}))}"


def _function(function: Any) -> str:
    captured = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    return f"{_source(function)}|{plain_data(function.__defaults__)}|{plain_data(captured)}"


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  reading an empty cell raises; there is no other test
    except ValueError:
        return False
    return True


def _source(function: Any) -> str:
    if function.__name__ == "<lambda>":
        return _code(function.__code__)  # getsource returns the full statement around a lambda
    try:
        # Of the code: of a function, it would be the one that a decorator wraps.
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function.__code__))))
    except (OSError, SyntaxError, TypeError):
        return _code(function.__code__)


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()}{constants}{code.co_names}"


def plain_data(value: Any) -> str:
    """Plain data by value, arrays by content, types by name, anything else by its type only."""
    if isinstance(value, type):  # first: types of NumPy have the attributes of arrays
        return f"{value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(plain_data(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{plain_data(v)}" for k, v in sorted(value.items(), key=lambda kv: str(kv[0]))) + "}"
    if is_array(value):
        return f"{value.dtype}{digest(value.tobytes().hex())}"
    if inspect.isfunction(value) or isinstance(value, functools.partial):
        return code_id(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_array(value: Any) -> bool:
    """Whether a value has the methods of an array, by its type: an object may answer to any name."""
    return hasattr(type(value), "tobytes") and hasattr(type(value), "dtype")


def digest(text: str) -> str:
    """Returns a short hash of a text."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
