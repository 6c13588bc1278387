"""Functions and classes by where they are imported from, "my_project.text:clean", as configurations name them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection
from types import FunctionType
from typing import Any

from penstock.core.errors import UsageError

Allowed = bool | Collection[str]


def import_path(what: FunctionType | type, where: str) -> str:
    """Where a function or class is imported from; refused if it cannot be."""
    path = f"{what.__module__}:{what.__qualname__}"
    if what.__module__ == "__main__" or "<" in path:
        raise UsageError(
            "functions that can be imported: at the top of a module", got=path, where=where,
            fix="define it with def at the top of a module of its own",
        )  # fmt: skip
    return path


def imported(path: Any, allowed: Allowed, where: str) -> Any:
    """The function of an import path such as "my_project.text:clean", if its module is allowed."""
    module, _, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not re.fullmatch(r"[\w.]+", module) or not re.fullmatch(r"\w+(\.\w+)*", name):
        raise UsageError('a function as "module:name"', got=repr(path)[:80], where=where, fix='"my_project.text:clean"')
    may = allowed is True or (
        not isinstance(allowed, bool) and any(module == top or module.startswith(f"{top}.") for top in allowed)
    )
    if not may:
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
