"""Base classes of steps. A step is frozen data that builds a node over the node before it, or is applied to batches.

What a step does to rows is declared in its class, so that nothing else keeps lists of steps.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.core.function_id import code_id
from penstock.core.ledger import Ledger
from penstock.core.pickling import Immutable
from penstock.steps.facts import RowFacts
from penstock.steps.node import Node
from penstock.steps.picks import Picks

if TYPE_CHECKING:
    from penstock.steps.batch import Batch

OnReject = Literal["refill", "drop"]


@dataclass(frozen=True)
class Extent:
    """The part of an image, recording or video that a decoder keeps.

    `axes` are "space" and "time", `drawn` those in which it is drawn at random. `source` is the column that is decoded,
    `columns` are those that are made, `ignore` those that do not belong to them.
    """

    call: str
    axes: frozenset[str]
    drawn: frozenset[str]
    source: str
    columns: frozenset[str]
    ignore: frozenset[str]

    def ignores(self, other: Extent) -> bool:
        return bool(self.ignore & {other.source, *other.columns})


@dataclass(frozen=True)
class Context:
    """The plan that a step is built into.

    `place` counts the steps of the same verb before it, so that adding another verb does not change its random
    numbers.
    `ledger` records bad records, `refusals` the records that filters reject. `on_reject` is how the position of a
    rejected record is handled: a loader refills it with another record, a preparation drops it.
    """

    seed: int
    place: int
    ledger: Ledger
    refusals: Ledger
    on_reject: OnReject = "refill"


@dataclass(frozen=True)
class Step(Immutable, ABC):
    """One verb of a pipeline. Two steps with equal `spec()` do the same to the data.

    A step declares what kind it is:
    - `by_position`: chooses or reorders rows by their number (take, skip, repeat, shuffle)
    - `changes_content`: after it, picks alone do not determine a row's content (filter, map, map_batches, skip_errors)
    - `selects`: keeps only some records (filter)
    - `rejects`: may reject rows, which a loader refills and a preparation drops (filter, dedup, skip_errors)
    - `exact`: no row after it is rejected by a step before it (filter with `exact=True`)
    - `plans_batches`: used instead of `.batch()` (bucket, batch_tokens)
    """

    by_position: ClassVar[bool] = False
    changes_content: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    rejects: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    plans_batches: ClassVar[bool] = False

    @property
    def keeps_order(self) -> bool:
        """Whether row n after it is made of row n before it."""
        return not self.by_position

    @property
    def name(self) -> str:
        """The verb, as it is written in a pipeline."""
        return type(self).__name__.lower()

    def spec(self) -> dict[str, Any]:
        """All arguments that affect the result of this step, in plain JSON; functions by their code."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @property
    def batch(self) -> Batch | None:
        """How rows are batched; None if this step does not decide it."""
        return None

    @property
    def follows_blocks(self) -> bool:
        """Whether the order depends on how the source's records are stored (`BlockSource`)."""
        return False

    @property
    def run_seed(self) -> int | None:
        """The seed of the run, if this step sets one."""
        return None

    @property
    def draws(self) -> bool:
        """Whether what a row holds depends on random draws, which differ between epochs."""
        return False

    @property
    def extent(self) -> Extent | None:
        """What part of each file it decodes; None for other steps."""
        return None

    @property
    def varying_columns(self) -> frozenset[str]:
        """Columns of a batch whose length changes from batch to batch although its rows have one shape."""
        return frozenset()

    @abstractmethod
    def build(self, child: Node, context: Context) -> Node:
        """The node of this step over `child`."""

    def __str__(self) -> str:
        values = ((f, getattr(self, f.name)) for f in fields(self))
        shown = ((f.name, v) for f, v in values if v is not None and v != () and not (v is False is f.default))
        return ", ".join(f"{name}={_short(v)}" for name, v in shown)


class Finish(Protocol):
    """A change of a batch. With `needs_global_batch` it needs all rows of the global batch, on every rank."""

    @property
    def needs_global_batch(self) -> bool: ...

    @property
    def changes_content(self) -> bool:
        """Whether the content of the columns afterwards depends on a user's function."""
        ...

    @property
    def pad_id(self) -> int | None:
        """The token id that it pads with."""
        ...

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        """The columns of a batch; `base` is the key of the step's randomness."""
        ...

    def on_rows(self, child: Node) -> Node | None:
        """The same as a node over `child`, if each row is independent of the others in its batch; else None."""
        ...


@runtime_checkable
class NamesIds(Protocol):
    """A `Finish` that renames or removes columns of token ids."""

    def ids(self, ids: frozenset[str]) -> frozenset[str]: ...


class BatchStep(Step):
    """A step that works on batches: with `batches_only` always, otherwise when it comes after `.batch()`."""

    batches_only: ClassVar[bool] = True

    @abstractmethod
    def on_batches(self, facts: RowFacts) -> Finish:
        """What is done to batches of rows of which `facts` are known."""


def integer_field(step: Step, name: str, least: int | None, expected: str, fix: str = "") -> None:
    """Makes the field `name` a plain int, so that a NumPy integer is the same step; refuses other types."""
    value = getattr(step, name)
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise UsageError(expected, got=repr(value), fix=fix)
    object.__setattr__(step, name, number)


def column_field(step: Step, column: object) -> None:
    """Refuses a `column=` that is no string."""
    if not isinstance(column, str):
        raise UsageError(f"the name of a column for column= in .{step.name}()", got=repr(column), fix='column="x"')


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


def rows_before(verb: str, other: str = "") -> str:
    """What to do instead of steps between documents and a plan over all of them, or after it."""
    early = f"put .{other}() first: " if other else ""
    return (
        f"{early}.take(), .sample(), .filter(exact=True), penstock.concat() and the like before .{verb}(), .map() and "
        f"what changes records before .tokenize(); after .{verb}() come only .map_batches(), .pad() and outputs"
    )
