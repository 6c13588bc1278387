"""The plan of a pipeline as HTML: the graph of its steps, the figures of an epoch, the mixture, the ranks."""

from __future__ import annotations

from typing import Any

from penstock.core.sizes import size
from penstock.markup import charts
from penstock.markup.flow import Box, flow
from penstock.markup.html import Html, join, section, tag
from penstock.markup.visible import number_of
from penstock.view.plan_facts import PlanFacts, PlanStep

MOST_RANKS = 64


def plan_html(facts: PlanFacts) -> Html:
    """All sections of a plan."""
    parts = [section("The pipeline", tag("p", facts.assumed, class_="note") if facts.assumed else None, graph(facts))]
    parts.append(_epoch(facts))
    if facts.mixture:
        parts.append(
            section(
                "Mixture over time",
                charts.lines(
                    {name: [(row, 100 * share) for row, share in line] for name, line in facts.mixture.items()},
                    "row of the run", "% of the rows", title="mixture over time",
                ),
            )
        )  # fmt: skip
    if len(facts.ranks) > 1:
        parts.append(_ranks(facts))
    return join(parts)


def graph(facts: PlanFacts) -> Html:
    """The steps as boxes, sources first."""
    steps: list[str] = []
    box = _box(facts.last, steps)
    return flow(box, f"the steps of the pipeline: {'; '.join(steps)}"[:2000])


def _box(step: PlanStep, said: list[str]) -> Box:
    inputs = [_box(one, said) for one in step.inputs]
    out = _count(step)
    figure = out
    if len(step.inputs) == 1 and (step.inputs[0].rows, step.inputs[0].unit) != (step.rows, step.unit):
        figure = f"{_count(step.inputs[0])} → {out}" if step.inputs[0].unit != step.unit else f"{_in(step)} → {out}"
    lines = [line for line in (step.share and f"weight {step.share}", step.text, step.note) if line]
    lost = [f"drops {count:,} {name}" for name, count in step.lost.items()]
    said.append(f"{step.name} {out}" + "".join(f", {text}" for text in lost))
    return Box(step.name, figure, lines, lost, inputs)


def _in(step: PlanStep) -> str:
    rows = step.inputs[0].rows
    return "endless" if rows is None else f"{rows:,}"


def _count(step: PlanStep) -> str:
    return f"endless {step.unit}" if step.rows is None else f"{step.rows:,} {step.unit}"


def _epoch(facts: PlanFacts) -> Html:
    found = facts.estimate
    if found is None:
        return section("An epoch", tag("p", facts.note or "not known", class_="note"))
    tokens = found.tokens_per_step
    rows: list[tuple[str, Any]] = [
        ("steps per epoch", "endless" if found.steps_per_epoch is None else f"{found.steps_per_epoch:,}"),
        ("rows per step", "differ" if found.batch is None else f"{found.batch:,}"),
        ("rows per epoch", "endless" if found.rows_per_epoch is None else f"{found.rows_per_epoch:,}"),
        ("tokens per step", None if tokens is None else f"{tokens:,.0f}"),
        (
            "dropped per epoch",
            ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in found.dropped.items()) or "none",
        ),
        ("order", found.order),
        ("ranks", f"{found.world:,} on {found.hosts:,} host{'' if found.hosts == 1 else 's'}"),
        ("bytes of the data", size(found.reading.corpus_bytes) if found.reading else None),
        ("fingerprint", found.fingerprint),
        *(("note", note) for note in found.notes),
    ]
    shown = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows if value is not None]
    return section("An epoch", tag("table", shown))


def _ranks(facts: PlanFacts) -> Html:
    shown = [(f"rank {share.rank}: {number_of(share.rows, 'row')}", share.rows) for share in facts.ranks]
    return section(
        "Rows of each rank in a step", charts.bars(shown, "rows", title="rows of each rank", most=MOST_RANKS)
    )
