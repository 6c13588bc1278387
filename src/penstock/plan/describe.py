"""How a pipeline looks: its repr, and its first rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.columns import row, rows_of
from penstock.core.errors import PenstockError, UsageError
from penstock.core.ledger import Ledger
from penstock.plan.build import grow
from penstock.plan.definition import Definition, Mix
from penstock.plan.row_source import RowSource
from penstock.steps.base import Context
from penstock.steps.batch import Batch
from penstock.steps.node import Node
from penstock.steps.pack import Pack


def show(definition: Definition, indent: str = "  ") -> str:
    """The plan in words, one line per step."""
    return "\n".join(["penstock.Pipeline", *_lines(definition, indent)])


def _lines(definition: Definition, indent: str) -> list[str]:
    if isinstance(definition.origin, Mix):
        lines = [f"{indent}mix of {len(definition.origin.branches)}, ends {definition.origin.stop}"]
        for weight, branch in zip(definition.origin.weights, definition.origin.branches, strict=True):
            lines += [f"{indent}  {weight:.4g} of", *_lines(branch, indent + "    ")]
    else:
        facts = dict(definition.origin.describe())
        kind = facts.pop("kind", type(definition.origin).__name__)
        lines = [f"{indent}{kind}: " + ", ".join(f"{k} {_figure(v)}" for k, v in facts.items() if _plain(v))]
    done: list[Any] = []
    for step in definition.steps:
        done.append(step)
        lines.append(f"{indent}.{step.name}({step}){_rows(definition, tuple(done))}")
    if definition.world > 1:
        lines.append(f"{indent}rank {definition.rank} of {definition.world}")
    return lines


def _rows(definition: Definition, steps: tuple[Any, ...]) -> str:
    try:
        node, _ = grow(Definition(definition.origin, steps), Context(definition.seed, 0, Ledger(), Ledger()))
    except PenstockError as error:
        return f"  !! expected {error.expected}"
    if node.size is None:
        return "  endless"
    last = steps[-1]
    if last.plans_batches:
        return f"  {node.size:,} batches an epoch{_lost(node)}"
    if not isinstance(last, Batch):
        return f"  {node.size:,} rows" + (_lost(node) if isinstance(last, Pack) else "")
    rows = last.rows(definition.world)
    left = node.size % rows
    over = {"drop": f", {left} rows dropped", "pad": ", the last one padded", "short": f", the last one of {left}"}
    count = node.size // rows + bool(left and last.remainder != "drop")
    return f"  {count:,} batches an epoch{over[last.remainder] if left else ''}"


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
