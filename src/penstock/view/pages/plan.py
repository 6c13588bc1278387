"""The Plan page: what the pipeline does to the data, without running it."""

from __future__ import annotations

from penstock.markup.html import Html, join, section, tag
from penstock.pipeline import Pipeline
from penstock.sources.formats import Options
from penstock.view.pages import Query
from penstock.view.plan_facts import plan_of
from penstock.view.plan_html import plan_html
from penstock.view.session import Session

MOST_RANKS = 4096


def shown(session: Session) -> bool:
    """Whether there is a pipeline, or tokens that a run can be planned for."""
    return session.pipeline is not None or (session.format is not None and session.format.kind == "tokens")


def pipeline_of(session: Session) -> Pipeline:
    """The pipeline of the session; of a token store, windows in shuffled batches."""
    if session.pipeline is not None:
        return session.pipeline
    choices = session.choices
    options = Options(dtype=choices.dtype, eos_id=choices.split_id, storage_options=choices.storage_options)
    assert session.format is not None
    source = session.format.open(session.path, options)
    return Pipeline(source).windows(choices.window).shuffle(choices.seed).batch(choices.batch)


def page(session: Session, query: Query) -> Html:
    """Shows the plan; the form changes the number of ranks."""
    pipeline = _kept(session)
    world = query.number("world", pipeline.definition.world, 1, MOST_RANKS)
    shows = [session, session.beside] if session.beside is not None and shown(session.beside) else [session]
    plans = [plan_html(plan_of(_kept(one), batch=one.choices.batch, world=world)) for one in shows]
    ranks = tag("input", id="world", name="world", type="number", min=1, max=MOST_RANKS, value=world)
    form = tag(
        "form", tag("div", tag("label", "ranks (data-parallel processes)", for_="world"), ranks),
        tag("button", "Show"), class_="bar-form", data_live=True,
    )  # fmt: skip
    head = [tag("h1", "Plan"), tag("p", ", beside ".join(one.title for one in shows), class_="lead"), form]
    if len(plans) == 1:
        return join([*head, *plans])
    sides = [section(one.title, plan) for one, plan in zip(shows, plans, strict=True)]
    return join([*head, tag("div", sides, class_="sides")])


def _kept(session: Session) -> Pipeline:
    return session.keep("plan pipeline", lambda: pipeline_of(session))
