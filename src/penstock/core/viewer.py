"""`view()` of pipelines and loaders. The viewer is above them in the package order, so it is found by its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def open_viewer(target: Any, **options: Any) -> Any:
    """Calls `penstock.open_viewer`: the one place where a lower package starts a higher one."""
    return import_module("penstock.view.server").open_viewer(target, **options)
