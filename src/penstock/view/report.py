"""The sections of a report besides the data itself: the plan, a batch with its provenance, recorded runs.

They are those of the viewer: the same figures, drawn by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import PenstockError
from penstock.markup.html import Html, join, section, tag
from penstock.pipeline import Pipeline
from penstock.view.batch_html import batch_html
from penstock.view.batches import batch_of
from penstock.view.plan_facts import plan_of
from penstock.view.plan_html import plan_html
from penstock.view.run_facts import read_run
from penstock.view.run_html import runs_html, state


@dataclass(frozen=True)
class Parts:
    """What a report shows after the data. `media`: pictures or sounds are inside."""

    html: Html
    media: bool = False


def parts_of(
    pipeline: Pipeline | None, *, batch: int, step: int, rows: int, tokenizer: Any = None, runs: Sequence[str] = ()
) -> Parts:
    """The plan of a pipeline, its batch of a step, and runs; a part that cannot be shown says why."""
    found: list[Html] = []
    media = False
    if pipeline is not None:
        found.append(_part("Plan", lambda: plan_html(plan_of(pipeline, batch=batch))))
        shown = _part(f"The batch of step {step:,}", lambda: _batch(pipeline, step, rows, tokenizer))
        media = 'src="data:' in shown
        found.append(shown)
    if runs:
        found.append(_part("Run" if len(runs) == 1 else "Runs", lambda: _runs(runs)))
    return Parts(join(found), media)


def _part(title: str, make: Callable[[], Html]) -> Html:
    try:
        return tag("div", tag("h2", title, class_="part"), make())
    except PenstockError as error:
        why = f"expected {error.expected}" + (f", got {error.got}" if error.got else "")
        return section(title, tag("p", why, class_="note"))


def _batch(pipeline: Pipeline, step: int, rows: int, tokenizer: Any) -> Html:
    return tag("section", batch_html(batch_of(pipeline, step, rows=rows, tokenizer=tokenizer)))


def _runs(paths: Sequence[str]) -> Html:
    runs = [read_run(path) for path in paths]
    lead = ", ".join(f"{run.name}: {state(run)}" for run in runs)
    return join([tag("p", lead, class_="note"), runs_html(runs)])
