"""How a pipeline looks: its repr, and its first rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.core.columns import row, rows_of
from penstock.core.errors import PenstockError, UsageError
from penstock.core.ledger import Ledger
from penstock.markup.html import tag
from penstock.markup.notebook import cell
from penstock.markup.visible import number_of
from penstock.plan.branches import Combined
from penstock.plan.build import grow
from penstock.plan.definition import Definition
from penstock.plan.row_source import RowSource
from penstock.steps.base import Context
from penstock.steps.batch import Batch
from penstock.steps.node import Node
from penstock.steps.pack import Pack


class Line(NamedTuple):
    """One line of a pipeline: its depth among branches, the source or step, its arguments, and the rows after it."""

    depth: int
    name: str
    arguments: str
    rows: str


def show(definition: Definition, indent: str = "  ") -> str:
    """The plan in words, one line per step."""
    return "\n".join(["penstock.Pipeline", *(indent * (line.depth + 1) + _words(line) for line in lines(definition))])


def _words(line: Line) -> str:
    if line.rows or line.name.startswith("."):
        return f"{line.name}({line.arguments}){'  ' if line.rows else ''}{line.rows}"
    return f"{line.name}: {line.arguments}" if line.arguments else line.name


def lines(definition: Definition, depth: int = 0) -> list[Line]:
    """The source and the steps of a pipeline, in order. Reads no records."""
    if isinstance(definition.origin, Combined):
        first, *each = definition.origin.lines()
        found = [Line(depth, first, "", "")]
        for text, branch in zip(each, definition.origin.branches, strict=True):
            found += [Line(depth + 1, text, "", "")] * bool(text) + lines(branch, depth + 2)
    else:
        facts = dict(definition.origin.describe())
        kind = facts.pop("kind", type(definition.origin).__name__)
        said = ", ".join(f"{k} {_figure(v)}" for k, v in facts.items() if _plain(v))
        found = [Line(depth, str(kind), said, "")]
    done: list[Any] = []
    for step in definition.steps:
        done.append(step)
        found.append(Line(depth, f".{step.name}", str(step), _rows(definition, tuple(done))))
    if definition.world > 1:
        found.append(Line(depth, f"rank {definition.rank} of {definition.world}", "", ""))
    return found


def show_html(definition: Definition) -> str:
    """The same as a table, for notebooks."""
    head = tag("tr", [tag("th", name, scope="col") for name in ("step", "arguments", "after it")])
    rows = [
        tag(
            "tr",
            tag("th", "\u2003" * line.depth, line.name, scope="row"),
            tag("td", line.arguments),
            tag("td", line.rows),
        )
        for line in lines(definition)
    ]
    return cell(tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="wide"))


def _rows(definition: Definition, steps: tuple[Any, ...]) -> str:
    try:
        node, _ = grow(Definition(definition.origin, steps), Context(definition.seed, 0, Ledger(), Ledger()))
    except PenstockError as error:
        return f"!! expected {error.expected}"
    if node.size is None:
        return "endless"
    last = steps[-1]
    if last.plans_batches:
        return f"{number_of(node.size, 'batch')} an epoch{_lost(node)}"
    if not isinstance(last, Batch):
        return f"{number_of(node.size, 'row')}" + (_lost(node) if isinstance(last, Pack) else "")
    rows = last.rows(definition.world)
    left = node.size % rows
    over = {"drop": f", {left} rows dropped", "pad": ", the last one padded", "short": f", the last one of {left}"}
    count = node.size // rows + bool(left and last.remainder != "drop")
    return f"{number_of(count, 'batch')} an epoch{over[last.remainder] if left else ''}"


def _lost(node: Node) -> str:
    """What a plan leaves out, in words."""
    return "".join(f", {count:,} {what.replace('_', ' ')}" for what, count in node.left_out().items() if count)


def _plain(value: Any) -> bool:
    return value is not None and isinstance(value, int | str | float)


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def peek(definition: Definition, rows: int) -> list[dict[str, Any]]:
    """The first rows of the first epoch, before batching."""
    if rows < 1:
        raise UsageError("at least 1 row in .peek()", got=repr(rows))
    source = RowSource(definition)
    count = rows if source.size is None else min(rows, source.size)
    columns = source.read(np.arange(count))
    return [row(columns, i) for i in range(rows_of(columns))]
