"""The one place that words a missing extra: `need("jax", extra="jax")`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from penstock.core.errors import MissingExtra


def need(module: str, *, extra: str, purpose: str = "") -> Any:
    """Imports and returns `module`, or raises with the exact command that installs it.

    >>> need("json", extra="none").dumps([1])
    '[1]'
    """
    found = sys.modules.get(module)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found  # asked for every picture of a batch; another thread may still be importing it, hence the look
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != top:
            raise  # the package is there but broken inside: its own message is the useful one
        raise MissingExtra(
            f"the package {top!r}" + (f" {purpose}" if purpose else ""),
            got="it is not installed",
            fix=f"pip install 'penstock[{extra}]'",
        ) from error
