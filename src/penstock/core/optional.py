"""Imports of optional dependencies: `need("jax", extra="jax")` returns the module or says how to install it."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from penstock.core.errors import MissingExtra

DISTRIBUTION = "penstock-data"


def install_line(extra: str) -> str:
    """Returns the command that installs an extra of this package.

    >>> install_line("torch")
    "pip install 'penstock-data[torch]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def need(module: str, *, extra: str, purpose: str = "") -> Any:
    """Imports and returns `module`, or raises `MissingExtra` with the command that installs it.

    Args:
        module: name of the module to import.
        extra: the extra of this package that installs it; must be declared in pyproject.toml.
        purpose: why it is needed, for the error message: "to read .zst files".

    >>> need("json", extra="all").dumps([1])
    '[1]'
    """
    found = sys.modules.get(module)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found  # fast path: called once per image of a batch; skipped while another thread is importing it
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != top:
            raise  # the package is installed but one of its own imports fails: its message is the useful one
        raise MissingExtra(
            f"the package {top!r}" + (f" {purpose}" if purpose else ""),
            got="it is not installed",
            fix=install_line(extra),
        ) from error
