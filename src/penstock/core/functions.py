"""The functions that users pass to `map`, `map_batches` and `filter`: their types, parameters and names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class RandomRecordFunction(Protocol):
    """A record function that draws: `rng` is keyed by (seed, epoch, record)."""

    def __call__(self, record: dict[str, Any], /, *, rng: np.random.Generator) -> Mapping[str, Any]: ...


class RandomBatchFunction(Protocol):
    """A function of columns that draws: `keys` holds one key per row, see `penstock.randomness`."""

    def __call__(self, columns: dict[str, Any], /, *, keys: NDArray[np.uint64]) -> Mapping[str, Any]: ...


# The last kind is for `lambda record, rng: ...`, which mypy does not compare with keyword-only parameters.
RecordFunction = (
    Callable[[dict[str, Any]], Mapping[str, Any]]
    | RandomRecordFunction
    | Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any]]
)
BatchFunction = (
    Callable[[dict[str, Any]], Mapping[str, Any]]
    | RandomBatchFunction
    | Callable[[dict[str, Any], NDArray[np.uint64]], Mapping[str, Any]]
)
Predicate = Callable[[dict[str, Any]], object]


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of that name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # some built-ins have no signature; they have no such parameter either


def function_name(function: Any) -> str:
    """The name of a function for errors, without the functions around it."""
    return str(getattr(function, "__qualname__", type(function).__name__)).rpartition("<locals>.")[2]
