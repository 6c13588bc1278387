"""What a step is: frozen data that builds a node over the node before it."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from penstock.core.errors import UsageError
from penstock.core.function_id import code_id
from penstock.core.ledger import Ledger
from penstock.core.pickling import Immutable
from penstock.steps.node import Node

OnReject = Literal["refill", "drop"]


@dataclass(frozen=True)
class Context:
    """What a step is told about the plan it is built into.

    `place` counts the steps of the same verb before it, so that adding another verb changes nobody's randomness.
    `ledger` takes bad records, `refusals` what filters reject. `on_reject` says what becomes of the position of a
    rejected record: a loader refills it with another record, a preparation drops it.
    """

    seed: int
    place: int
    ledger: Ledger
    refusals: Ledger
    on_reject: OnReject = "refill"


@dataclass(frozen=True)
class Step(Immutable, ABC):
    """One verb of a pipeline. Two steps with equal `spec()` do the same to the data.

    A step declares what kind it is: `by_position` steps choose or reorder rows by their number (take, skip, repeat,
    shuffle); after a `changes_content` step, picks alone no longer say what a row is (filter, map, map_batches,
    skip_errors); a `selects` step keeps some of the records (filter).
    """

    by_position: ClassVar[bool] = False
    changes_content: ClassVar[bool] = False
    selects: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The verb, as it is written in a pipeline."""
        return type(self).__name__.lower()

    def spec(self) -> dict[str, Any]:
        """Everything that decides what this step does, in plain JSON; functions by their code."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @abstractmethod
    def build(self, child: Node, context: Context) -> Node:
        """The node of this step over `child`."""

    def __str__(self) -> str:
        given = ((f, getattr(self, f.name)) for f in fields(self))
        shown = ((f.name, v) for f, v in given if v is not None and not (v is False and f.default is False))
        return ", ".join(f"{name}={_short(v)}" for name, v in shown)


def whole_number(step: Step, name: str, least: int | None, expected: str, fix: str = "") -> None:
    """Makes the field `name` a plain int, so that a NumPy integer is the same step; refuses whatever is no integer."""
    value = getattr(step, name)
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise UsageError(expected, got=repr(value), fix=fix)
    object.__setattr__(step, name, number)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    spec = getattr(value, "spec", None)
    return spec() if callable(spec) else code_id(value)


def _short(value: Any) -> str:
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return repr(value)
