"""A recorded run, or several beside each other, as HTML: throughput, waiting, seconds of each verb, memory, verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.sizes import size
from penstock.markup import charts
from penstock.markup.html import Html, join, section, tag
from penstock.view.run_facts import Point, RunFacts


def runs_html(runs: Sequence[RunFacts]) -> Html:
    """All sections of one run, or of several in comparison."""
    one = runs[0] if len(runs) == 1 else None
    parts = [_tiles(one) if one else _compared(runs), *([] if one is None else [_verdict(one)]), *_over_time(runs)]
    parts += [_verbs(one)] if one else [_verb_table(runs)]
    if one is not None and one.storage:
        parts.append(section("Object storage", _table(_storage(one))))
    if one is not None:
        parts.append(_pipeline(one))
    return join(parts)


def _table(rows: Sequence[tuple[str, Any]]) -> Html:
    return tag("table", [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows])


def state(run: RunFacts) -> str:
    """Whether the run goes on, in words."""
    if run.silent:
        return f"no line for {_seconds(run.age)}: stopped, killed, or one very long step"
    return "running" if run.running else "ended"


def _tiles(run: RunFacts) -> Html:
    now = run.now
    rate = now.rows if now is not None and run.running and not run.silent else run.rows_per_second
    tiles = [
        (f"{_rate(rate)} rows/s", "now" if run.running and not run.silent else "over the run"),
        (f"{run.waited_share:.1%}", "of the time the trainer waited"),
        (f"{run.step:,}", f"next step, epoch {run.epoch:,}"),
        (size(sum(run.memory.values())) if run.memory else "unknown", "resident memory"),
    ]
    if run.tokens:
        tokens = now.tokens if now is not None and run.running and not run.silent else run.tokens / (run.seconds or 1)
        tiles.insert(1, (f"{_rate(tokens)} tokens/s", "of rows of one length"))
    tiles += [(f"{run.skipped:,}", "bad records skipped")] * bool(run.skipped)
    tiles += [(f"{run.filtered:,}", "rows rejected by filters")] * bool(run.filtered)
    return tag("div", [tag("div", tag("b", value), tag("span", name), class_="tile") for value, name in tiles],
               class_="tiles")  # fmt: skip


def _verdict(run: RunFacts) -> Html:
    change = tag("p", tag("b", "What to change: "), run.change) if run.change else None
    return section("Verdict", tag("p", run.verdict or "none yet"), change)


def _over_time(runs: Sequence[RunFacts]) -> list[Html]:
    many = [run for run in runs if run.points]
    if not many:
        return [section("Over time", tag("p", "nothing yet: a rate needs two lines", class_="note"))]

    def series(value: Callable[[Point], float]) -> dict[str, list[tuple[float, float]]]:
        return {run.name: [(point.seconds, value(point)) for point in run.points] for run in many}

    parts = [
        section("Throughput", charts.lines(series(lambda p: p.rows), "seconds", "rows a second", title="throughput")),
        section(
            "Waiting for data",
            charts.lines(series(lambda p: 100 * p.waiting), "seconds", "% of the time", title="waiting"),
        ),
    ]
    if any(run.memory for run in many):
        memory = charts.lines(series(lambda p: p.memory / 1e6), "seconds", "MB resident", title="memory")
        parts.append(section("Memory", memory))
    return parts


def _verbs(run: RunFacts) -> Html:
    total = sum(run.verbs.values())
    if not total:
        return section("Seconds of each step of the pipeline", tag("p", "not measured", class_="note"))
    shown = [(f"{verb}, {seconds / total:.0%}", seconds) for verb, seconds in run.verbs.items()]
    where = (
        f"{run.workers} child processes" if run.workers else f"{run.threads} threads" if run.threads else "no threads"
    )
    note = f"{_seconds(total)} of work in {_seconds(run.seconds)}, with {where}; each step without those before it"
    return section(
        "Seconds of each step of the pipeline",
        charts.bars(shown, "s", title="seconds of each verb"),
        tag("p", note, class_="note"),
    )


def _storage(run: RunFacts) -> list[tuple[str, Any]]:
    found = run.storage
    rows: list[tuple[str, Any]] = [
        ("requests", f"{found.get('requests', 0):,.0f}"),
        ("bytes", size(found.get("bytes", 0))),
        ("retries", f"{found.get('retries', 0):,.0f}"),
        ("readers waited", _seconds(found.get("read_waits_seconds", found.get("answers_seconds", 0.0)))),
    ]
    if "hit_rate" in found:
        rows.append(("hit rate of the page cache", f"{found['hit_rate']:.1%}"))
    return [*rows, ("pages fetched", f"{found.get('pages_fetched', 0):,.0f}")]


def _pipeline(run: RunFacts) -> Html:
    rows = [(name, value) for name, value in run.about.items() if name != "fingerprint"]
    rows += [("rank", f"{run.rank} of {run.world}"), ("state", state(run))]
    if run.runs > 1:
        rows.append(("runs in this file", f"{run.runs}: resumed {run.runs - 1} times"))
    if run.unreadable:
        rows.append(("lines that cannot be read", f"{run.unreadable:,}"))
    lines = tag("pre", "\n".join(run.pipeline), keep="\n", tabindex=0) if run.pipeline else None
    return section("The run", lines, _table(rows))


def _compared(runs: Sequence[RunFacts]) -> Html:
    """One column for each run."""
    lines: list[tuple[str, Callable[[RunFacts], str]]] = [
        ("state", state),
        ("rows a second", lambda run: _rate(run.rows_per_second)),
        ("waited", lambda run: f"{run.waited_share:.1%}"),
        ("batches", lambda run: f"{run.batches:,}"),
        ("seconds", lambda run: _seconds(run.seconds)),
        ("work of the loader", lambda run: _seconds(sum(run.verbs.values()))),
        ("threads, workers", lambda run: f"{run.threads}, {run.workers}"),
        ("memory", lambda run: size(sum(run.memory.values())) if run.memory else "unknown"),
        ("rank", lambda run: f"{run.rank} of {run.world}"),
        ("verdict", lambda run: run.verdict),
        ("what to change", lambda run: run.change or "nothing"),
    ]
    return section("Runs compared", _columns(runs, [(name, [value(run) for run in runs]) for name, value in lines]))


def _verb_table(runs: Sequence[RunFacts]) -> Html:
    verbs = dict.fromkeys(verb for run in runs for verb in run.verbs)
    rows = [
        (verb, [f"{_micro(run.verbs[verb], run.batches)}" if verb in run.verbs else "" for run in runs])
        for verb in verbs
    ]
    return section("Time of each step of the pipeline, for a batch", _columns(runs, rows))


def _columns(runs: Sequence[RunFacts], rows: Sequence[tuple[str, list[str]]]) -> Html:
    head = tag("thead", tag("tr", tag("td", ""), [tag("th", run.name, scope="col") for run in runs]))
    body = [tag("tr", tag("th", name, scope="row"), [tag("td", value) for value in values]) for name, values in rows]
    return tag("div", tag("table", head, tag("tbody", body)), class_="wide", tabindex=0, role="region",
               aria_label="comparison")  # fmt: skip


def _micro(seconds: float, batches: int) -> str:
    return _seconds(seconds / batches) if batches else ""


def _seconds(value: float) -> str:
    """Formats a time.

    >>> _seconds(0.00042), _seconds(0.25), _seconds(75), _seconds(7400)
    ('420 µs', '250 ms', '75.0 s', '2.06 h')
    """
    for least, factor, unit in ((3600, 1 / 3600, "h"), (1, 1, "s"), (1e-3, 1e3, "ms")):
        if value >= least:
            return f"{value * factor:.3g} {unit}" if unit != "s" else f"{value:.1f} s"
    return f"{value * 1e6:.3g} µs" if value else "0 s"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
