"""`select`, `drop` and `rename`: which columns rows have, and what they are called. No values are copied."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.steps.base import BatchStep, Context
from penstock.steps.facts import RowFacts
from penstock.steps.node import ContentNode, Node
from penstock.steps.picks import Picks
from penstock.steps.rows import ChangedRows, Memory, Read, Rows

_TOKENS = frozenset({"input_ids", "labels"})


@dataclass(frozen=True)
class ColumnsStep(BatchStep):
    """Chooses columns by name, of rows or of batches: the same either way."""

    batches_only: ClassVar[bool] = False
    needs_global_batch: ClassVar[bool] = False
    pad_id: ClassVar[int | None] = None

    @abstractmethod
    def new_names(self, names: Sequence[str]) -> dict[str, str]:
        """Which of these columns are kept, in order, and what they are called."""

    @property
    @abstractmethod
    def used(self) -> tuple[str, ...]:
        """The columns that must be there."""

    def ids(self, ids: frozenset[str]) -> frozenset[str]:
        """What the columns of token ids are called afterwards."""
        return frozenset(self.new_names(sorted({*ids, *self.used})).get(name, "") for name in ids) - {""}

    def choose(self, columns: Columns, unread: str = "") -> Columns:
        """The chosen columns; `unread` says how to read columns that the source has besides."""
        missing = [name for name in self.used if name not in columns]
        if missing and columns:
            raise UsageError(
                f"a column {missing[0]!r} for .{self.name}()",
                got=f"columns {', '.join(sorted(columns))}",
                fix=_nearest(missing[0], sorted(columns), unread),
            )
        made = self.new_names(list(columns))
        if len(set(made.values())) < len(made):
            twice = next(new for new in made.values() if list(made.values()).count(new) > 1)
            raise UsageError(
                f"different names after .{self.name}()", got=f"two columns {twice!r}", fix=f".drop({twice!r}) before it"
            )
        return {new: columns[old] for old, new in made.items() if old in columns}

    def on_batches(self, facts: RowFacts) -> ColumnsStep:
        return self

    def on_rows(self, child: Node) -> Node:
        return _Chosen(child, self)

    def apply(self, columns: Columns, picks: Picks, base: int) -> Columns:
        return self.choose(columns)

    def build(self, child: Node, context: Context) -> Node:
        return _Chosen(child, self)


@dataclass(frozen=True)
class Select(ColumnsStep):
    """Only these columns, in this order."""

    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_names(self.columns, "select")

    @property
    def used(self) -> tuple[str, ...]:
        return self.columns

    def new_names(self, names: Sequence[str]) -> dict[str, str]:
        return {name: name for name in self.columns}


@dataclass(frozen=True)
class Drop(ColumnsStep):
    """All columns but these."""

    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_names(self.columns, "drop")

    @property
    def used(self) -> tuple[str, ...]:
        return self.columns

    def new_names(self, names: Sequence[str]) -> dict[str, str]:
        kept = {name: name for name in names if name not in self.columns}
        if not kept and names:
            raise UsageError("a column that is left after .drop()", got="none", fix=".select() the columns to keep")
        return kept


@dataclass(frozen=True)
class Rename(ColumnsStep):
    """Other names for some columns, as pairs of old and new; their order stays."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, names: Mapping[str, str]) -> Rename:
        if not isinstance(names, Mapping) or not names:
            raise UsageError("a dict of old and new names in .rename()", got=repr(names), fix='.rename({"old": "new"})')
        _check_names([*names, *names.values()][: 2 * len(names)], "rename", twice=True)
        return cls(tuple(names.items()))

    @property
    def used(self) -> tuple[str, ...]:
        return tuple(old for old, _ in self.names)

    def new_names(self, names: Sequence[str]) -> dict[str, str]:
        changed = dict(self.names)
        return {name: changed.get(name, name) for name in names}


class _Chosen(ContentNode):
    def __init__(self, child: Node, step: ColumnsStep) -> None:
        super().__init__(child)
        self.step = step
        facts = self.facts
        plain = all(step.ids(frozenset({name})) == {name} for name in _TOKENS & facts.ids)
        self.facts = replace(facts, ids=step.ids(facts.ids), own_labels=facts.own_labels and plain)

    def schema(self) -> Callable[[], Columns] | None:
        below = self.child.schema()
        return None if below is None else lambda: self.step.choose(below(), self.facts.unread)

    def open(self, picks: Picks, compact: bool = False) -> Read:
        read = self.child.open(picks)
        return lambda start, stop: _ChosenRows(read(start, stop), self.step, self.facts.unread)


class _ChosenRows(ChangedRows):
    """Rows of the child with the chosen columns: what the child writes into final memory stays there."""

    __slots__ = ("step", "unread")

    def __init__(self, rows: Rows, step: ColumnsStep, unread: str) -> None:
        super().__init__(rows)
        self.step = step
        self.unread = unread

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        return self.step.choose(self.rows.columns(start, stop, memory), self.unread)


def column_names(columns: tuple[Any, ...], verb: str) -> tuple[str, ...]:
    """The names that a verb was called with: several strings, or one list of them."""
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        columns = tuple(columns[0])
    _check_names(columns, verb)
    return columns


def _check_names(names: Sequence[Any], verb: str, twice: bool = False) -> None:
    wrong = [name for name in names if not isinstance(name, str)]
    again = [name for name in names if names.count(name) > 1] if not twice else []
    if wrong or again or not names:
        fix = f'.{verb}("text", "label")' if verb != "rename" else '.rename({"old": "new"})'
        if any(hasattr(name, "__index__") for name in wrong):
            fix += "; rows are chosen by .take(n) and .skip(n), and read by pipeline.rows()[n]"
        raise UsageError(
            f"names of columns in .{verb}()" + ", each once" * bool(again),
            got=repr((wrong or again)[0]) + " twice" * bool(again and not wrong) if names else "none",
            fix=fix,
        )


def _nearest(name: str, known: Sequence[str], unread: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1, 0.5)
    return f"{near[0]!r}, if that is meant" if near else unread or "name columns that the rows have"
