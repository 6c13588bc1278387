"""Values of a pipeline's calls as plain data: what TOML, YAML and JSON can hold, and back.

Functions are named by where they are imported from, pipelines by their own configuration. Secrets are left out.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from types import FunctionType
from typing import Any

import numpy as np

from penstock.core.arguments import Large
from penstock.core.errors import UsageError
from penstock.core.limits import LIMITS, Limits

FUNCTION, PIPELINE, LIMITS_KEY, NAME = "function", "pipeline", "limits", "name"
_SECRET = re.compile(r"key|secret|token|password|credential|sas|signature", re.IGNORECASE)
_ITEMS = 100_000


def to_plain(value: Any, where: str) -> Any:
    """A value as plain data; what is none is refused, with the argument that has it."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, np.bool_ | np.number):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return str(np.dtype(value))
    if isinstance(value, Limits):
        changed = {f.name: getattr(value, f.name) for f in fields(value)}
        return {LIMITS_KEY: {n: v for n, v in changed.items() if v != getattr(LIMITS, n)}}
    if isinstance(value, FunctionType):
        return {FUNCTION: _import_path(value, where)}
    if isinstance(value, Mapping):
        secret = "storage_options" in where
        kept = {str(k): v for k, v in value.items() if not (secret and _SECRET.search(str(k)))}
        return {name: to_plain(item, f"{where}[{name!r}]") for name, item in kept.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes) and len(value) <= _ITEMS:
        return [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted(to_plain(item, where) for item in value)
    raise UsageError(
        "arguments that a configuration can hold: numbers, text, paths, lists, functions of a module",
        got=value.kind if isinstance(value, Large) else type(value).__name__, where=where,
        fix="write data in memory to files and read those; put objects into a function of a module",
    )  # fmt: skip


def _import_path(function: FunctionType, where: str) -> str:
    path = f"{function.__module__}:{function.__qualname__}"
    if function.__module__ == "__main__" or "<" in path:
        raise UsageError(
            "functions that can be imported: at the top of a module", got=path, where=where,
            fix="define it with def at the top of a module of its own",
        )  # fmt: skip
    return path


def from_plain(value: Any, functions: bool | Collection[str], where: str) -> Any:
    """The value again. Functions are imported only from modules that the caller allows."""
    if isinstance(value, Mapping):
        if set(value) == {FUNCTION}:
            return imported(value[FUNCTION], functions, where)
        if set(value) == {LIMITS_KEY} and isinstance(value[LIMITS_KEY], Mapping):
            return Limits(**{str(name): item for name, item in value[LIMITS_KEY].items()})
        return {str(name): from_plain(item, functions, f"{where}[{name!r}]") for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [from_plain(item, functions, f"{where}[{i}]") for i, item in enumerate(value)]
    return value


def imported(path: Any, functions: bool | Collection[str], where: str) -> Any:
    """The function of an import path such as "my_project.text:clean"."""
    module, _, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not re.fullmatch(r"[\w.]+", module) or not re.fullmatch(r"\w+(\.\w+)*", name):
        raise UsageError('a function as "module:name"', got=repr(path)[:80], where=where, fix='"my_project.text:clean"')
    allowed = functions is True or (
        not isinstance(functions, bool) and any(module == top or module.startswith(f"{top}.") for top in functions)
    )
    if not allowed:
        top = module.partition(".")[0]
        raise UsageError(
            "a configuration without functions, unless they are allowed: importing runs code", got=path, where=where,
            fix=f"allow_functions=[{top!r}], or --allow {top}, if you trust the configuration and this module",
        )  # fmt: skip
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "a function that can be imported", got=f"{path}: {error}", where=where, fix="check PYTHONPATH"
        ) from error
    if not callable(found):
        raise UsageError("a function", got=f"{path} is a {type(found).__name__}", where=where, fix="name a function")
    return found
