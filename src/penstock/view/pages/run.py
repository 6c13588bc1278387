"""The Run page: a loader that is training now, or runs that were recorded, beside each other."""

from __future__ import annotations

from penstock.markup.html import Html, join, tag
from penstock.view.pages import Query
from penstock.view.run_facts import read_run, run_paths
from penstock.view.run_html import runs_html, state
from penstock.view.session import Session

REFRESH = 1  # seconds


def shown(session: Session) -> bool:
    """Whether the target is recorded."""
    return bool(_paths(session))


def _paths(session: Session) -> tuple[str, ...]:
    """The files; that of a loader is known when it begins to write."""
    recorded = None if session.loader is None else session.loader.snapshots
    return session.runs if recorded is None else (recorded,)


def page(session: Session, _: Query) -> Html:
    """Shows the snapshots as they are now; the page renews itself while a run goes on."""
    runs = [read_run(path) for path in _paths(session) if run_paths(path)]
    names = ", ".join(f"{run.name}: {state(run)}" for run in runs) or "nothing is written yet"
    live = REFRESH if not runs or any(run.running for run in runs) else None
    title = tag("h1", "Run" if len(runs) < 2 else f"{len(runs)} runs")
    content = runs_html(runs) if runs else None
    return join([title, tag("div", tag("p", names, class_="lead"), content, id="run", data_refresh=live)])
