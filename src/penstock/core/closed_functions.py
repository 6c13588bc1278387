"""Whether a user's function depends on nothing but its arguments, so that a copy of it in another process is the same.

What its code shows: it reads no variable of its module or of the function around it, except modules of
`PURE` and functions like itself; it changes no global, no attribute and no captured variable; of the builtins it calls
only those without an effect. So it cannot notice a value that a training loop changes, nor be noticed by it. A function
that is refused may well be fine too.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

# Modules whose functions return the same whatever was set before, but for the attributes in `_STATE`.
PURE = frozenset({
    "base64", "collections", "cv2", "functools", "hashlib", "html", "itertools", "json", "math", "numpy",
    "operator", "orjson", "re", "scipy", "simplejpeg", "string", "struct", "textwrap", "unicodedata", "zlib",
})  # fmt: skip
_STATE = frozenset({
    "random", "seterr", "errstate", "setbufsize", "setNumThreads", "setRNGSeed", "randu", "randn", "theRNG",
    "set_printoptions", "printoptions",
})  # fmt: skip
_BUILTINS = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "chr", "complex", "dict", "divmod",
    "enumerate", "filter", "float", "format", "hex", "int", "isinstance", "issubclass",
    "iter", "len", "list", "map", "max", "memoryview", "min", "next", "oct", "ord", "pow", "range", "repr",
    "reversed", "round", "slice", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip
_CHANGES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_NAME"})
_SETS = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})  # their order depends on the process
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_DEEPEST = 8


def why_open(function: Any) -> str:
    """Why a function may depend on more than its arguments; "" where it cannot.

    >>> why_open(lambda row: {"x": row["x"] * 2})
    ''
    >>> level = 3
    >>> why_open(eval("lambda row: {'x': row['x'] * level}", {"level": 3}))
    'level'
    """
    if type(function) is not FunctionType:
        return f"a {type(function).__qualname__}"
    return next(_open(function, 0), "")


def _open(function: FunctionType, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        yield function.__qualname__
    yield from function.__code__.co_freevars
    yield from vars(function)  # its attributes
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if not _is_plain(value):
            yield f"a default argument, {type(value).__qualname__}"
    for code in _codes(function.__code__):
        yield from _effects(function, code, depth)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _effects(function: FunctionType, code: CodeType, depth: int) -> Iterator[str]:
    before: Any = None
    imports, of_module = False, False  # whether an attribute may be one of a module
    for line in dis.get_instructions(code):
        name = str(line.argval)
        if line.opname in _SETS or (type(before) is frozenset and line.opname != "CONTAINS_OP"):
            yield "a set, whose order differs between processes"
        before = line.argval if line.opname == "LOAD_CONST" else None
        if line.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield from _global(function, name, depth)
            of_module = isinstance(function.__globals__.get(name), ModuleType)
        elif line.opname == "IMPORT_NAME":
            imports = True
            if name.partition(".")[0] not in PURE or not _STATE.isdisjoint(name.split(".")):
                yield f"import {name}"
        elif line.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            if name.startswith("_") or (name in _STATE and (imports or of_module)):
                yield name
        else:
            of_module = False
            if line.opname in _CHANGES:
                yield name


def _global(function: FunctionType, name: str, depth: int) -> Iterator[str]:
    space = function.__globals__
    if name not in space:
        value = getattr(builtins, name, None)
        if name not in _BUILTINS and not (isinstance(value, type) and issubclass(value, Exception)):
            yield name
        return
    value = space[name]
    if isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] not in PURE or name in _STATE or value.__name__.endswith(".random"):
            yield name
    elif type(value) is FunctionType and value is not function:
        if value.__module__.partition(".")[0] not in PURE:
            yield from (f"{name}: {found}" for found in _open(value, depth + 1))
    elif value is not function:
        yield name


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in _PLAIN
