"""`ps.show`: a batch, in a notebook as HTML, elsewhere as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.arguments import explained
from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.markup.notebook import cell
from penstock.markup.visible import excerpt, number_of
from penstock.pipeline import Pipeline
from penstock.view.batch_html import batch_html
from penstock.view.batches import Row, Shown, batch_alone, batch_of
from penstock.view.why_html import short_why

_LINE = 100  # characters of a row's text in a terminal


@dataclass(frozen=True, repr=False)
class Showing:
    """What `show` returns; `batch` is the plain data behind it."""

    batch: Shown

    def _repr_html_(self) -> str:
        return cell(batch_html(self.batch))

    def __repr__(self) -> str:
        shown = self.batch
        head = f"batch of {number_of(shown.total, 'row')}"
        if shown.step is not None:
            head += f", step {shown.step:,} of epoch {shown.epoch:,}"
        if shown.fill is not None:
            head += f", {shown.fill:.1%} filled"
        columns = [f"  {c.name}: {c.dtype}, {c.shape}" for c in shown.columns]
        rows = [line for row in shown.rows for line in _lines(row)]
        rest = shown.total - len(shown.rows)
        return "\n".join([head, *shown.notes, *columns, *rows, *([f"… {number_of(rest, 'more row')}"] if rest else [])])


def _lines(row: Row) -> list[str]:
    said = []
    for one in row.tokens:
        said.append(repr("".join(one.pieces)) if one.pieces is not None else " ".join(map(str, one.ids)))
    said += [f"{p.name} {p.after.shape[1]} × {p.after.shape[0]}" for p in row.pictures]
    said += [f"{s.name} {number_of(s.total, 'sample')}" for s in row.sounds]
    said += [f"{v.name} {v.text}" for v in row.values]
    lines = [f"row {row.number}: " + excerpt(", ".join(said), _LINE)]
    return lines if row.why is None else [*lines, f"  why: {short_why(row.why)}"]


@explained
def show(target: Any, step: int | None = None, *, rows: int = 8, first: int = 0, tokenizer: Any = None) -> Showing:
    """Shows a batch: in a notebook with colours, pictures and players, in a terminal as text.

    A loader or pipeline is only looked at: its position does not move, and any step can be shown.

    Args:
        target: a loader, a pipeline, or a batch of any loader: a dict or tuple of arrays.
        step: which batch of a loader or pipeline; default 0, of a loader the next one.
        rows, first: how many rows are shown, and from which one on.
        tokenizer: shows token ids as text; not needed for stores of bytes, or that this process has tokenized.

    >>> ps.show(ps.from_records([{"x": 1}, {"x": 2}]).batch(2))
    batch of 2 rows, step 0 of epoch 0
      x: int64, 2
    row 0: x 1
      why: record 0
    row 1: x 2
      why: record 1
    """
    for name, value, least in (("rows", rows, 1), ("first", first, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"an integer of at least {least} for {name}= in show()", got=repr(value)[:80])
    if isinstance(target, Loader | Pipeline):
        at = (target.step if isinstance(target, Loader) else 0) if step is None else step
        return Showing(batch_of(target, at, first=first, rows=rows, tokenizer=tokenizer))
    if step is not None:
        fix = "pass the loader: show(loader, step=3)" if isinstance(target, Mapping) else ""
        raise UsageError("a loader or a pipeline with step=", got=type(target).__name__, fix=fix)
    return Showing(batch_alone(target, first=first, rows=rows, tokenizer=tokenizer))
