"""What the readers share: types of arguments, and the policy for bad records."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline

if TYPE_CHECKING:
    from penstock.sources.base import Source

PathLike = str | os.PathLike[str]
Paths = PathLike | Sequence[PathLike]
OnError = Literal["raise", "skip"]
Labels = Literal["folder", "name"] | Callable[[str], str | int] | None


def begin(source: Source, on_error: OnError = "raise", budget: int | float | None = None) -> Pipeline:
    return skipping(Pipeline(source), on_error, budget)


def skipping(pipeline: Pipeline, on_error: OnError, budget: int | float | None) -> Pipeline:
    if on_error not in ("raise", "skip"):
        raise UsageError('on_error="raise" or "skip"', got=repr(on_error), fix='on_error="skip", budget=100')
    return pipeline.skip_errors(budget) if on_error == "skip" else pipeline


def chosen(**options: Any) -> dict[str, Any]:
    """Options that are not None: the source has its own defaults."""
    return {name: value for name, value in options.items() if value is not None}
