"""The Data page: samples to page through, sort and search; lengths, classes, languages, duplicates, bad records."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.sizes import size
from penstock.markup import charts
from penstock.markup.html import Html, join, section, tag
from penstock.markup.visible import figure, number_of, short
from penstock.view.pages import Query
from penstock.view.sample_html import card, excerpt
from penstock.view.samples import RecordSamples, Samples, open_samples
from penstock.view.search import ORDERS, Found, ordered, search
from penstock.view.session import Session
from penstock.view.survey import Survey, survey

PER_PAGE = {"tokens": 8, "records": 10, "images": 48, "audio": 8}
_SHOWN = 5  # examples of bad records and duplicates


def page(session: Session, query: Query) -> Html:
    """Shows the samples and the survey."""
    samples = open_samples(session)
    found = survey(session, samples)
    return join(
        [
            tag("h1", session.title),
            tag("p", _lead(session, samples), class_="lead"),
            _tiles(samples, found),
            _samples(samples, query),
            _lengths(session, samples, found, query),
            *[_balance(one, found) for one in found.balances],
            _scripts(found),
            _duplicates(found, samples),
            _bad(found, samples),
            _facts(session, samples),
        ]
    )


def overview(session: Session) -> Html:
    """The survey without the samples and without fields to change it, for a report."""
    samples = open_samples(session)
    found = survey(session, samples)
    parts = [
        tag("p", _lead(session, samples), class_="lead"),
        _tiles(samples, found),
        _lengths(session, samples, found, Query()) if samples.kind != "tokens" else None,
        *[_balance(one, found) for one in found.balances],
        _scripts(found),
        _duplicates(found, samples),
        _bad(found, samples),
        _facts(session, samples),
    ]
    return join([part for part in parts if part is not None])


def _lead(session: Session, samples: Samples) -> str:
    kind = session.format.title if session.format else "what the pipeline begins with"
    return ". ".join(part for part in (kind, session.path or "", samples.note) if part)


def _tiles(samples: Samples, found: Survey) -> Html:
    facts = samples.facts()
    tiles: list[tuple[str, str]] = [(samples.what, f"{len(samples):,}")]
    if samples.kind == "tokens":
        tiles.append(("tokens", f"{samples.source.n_tokens:,}"))
    if isinstance(facts.get("bytes"), int):
        tiles.append(("size", size(facts["bytes"])))
    bad = sum(map(len, found.bad.values()))
    part = "" if found.looked_at >= found.of else f" in {found.looked_at:,} looked at"
    tiles.append((f"bad {samples.what}{part}", f"{bad:,}"))
    tiles.append((f"duplicates{part}", f"{sum(len(same) - 1 for same in found.duplicates):,}"))
    return tag("div", [tag("div", tag("b", value), tag("span", name), class_="tile") for name, value in tiles],
               class_="tiles")  # fmt: skip


def _samples(samples: Samples, query: Query) -> Html:
    order = query.word("sort", ORDERS, "number")
    text = query.get("q", "")[:200]
    step = PER_PAGE[samples.kind]
    at = query.number("at", 0, 0, max(0, len(samples) - 1))
    chosen = Found([])
    if text:
        chosen = search(samples, text, query.number("from", 0, 0, len(samples)))
        at = min(at, max(0, len(chosen.numbers) - 1)) // step * step
        numbers, total = chosen.numbers[at : at + step], len(chosen.numbers)
    elif order != "number":
        chosen = ordered(samples, order)
        at = min(at, max(0, len(chosen.numbers) - 1)) // step * step
        numbers, total = chosen.numbers[at : at + step], len(chosen.numbers)
    else:
        numbers, total = list(range(at, min(at + step, len(samples)))), len(samples)
    shown = [card(samples, one, text) for one in samples.read(numbers)]
    body = tag("div", shown, class_="sheet") if samples.kind == "images" else join(shown)
    if not shown:
        body = tag("p", "nothing found" if text else "there is nothing in it", class_="note")
    note = tag("p", chosen.note, class_="note", role="status") if chosen.note else None
    if any('class="tokens pre"' in one for one in shown):
        note = join([note or "", tag("p", "Click a token to see its id, or move with ← and →.", class_="note")])
    title = samples.what.capitalize()
    return tag(
        "section", tag("h2", title), _form(order, text, len(samples)), note, body,
        _pager(query, at, step, total, chosen.onward), id="samples",
    )  # fmt: skip


def _form(order: str, text: str, total: int) -> Html:
    options = [tag("option", name, value=key, selected=key == order) for key, name in ORDERS.items()]
    return tag(
        "form",
        tag("div", tag("label", "search", for_="q"), tag("input", type="search", name="q", id="q", value=text)),
        tag("div", tag("label", "sort", for_="sort"), tag("select", options, name="sort", id="sort")),
        tag("div", tag("label", "go to number", for_="at"),
            tag("input", type="number", name="at", id="at", min=0, max=max(0, total - 1), placeholder="0")),
        tag("button", "show"),
        class_="bar-form", data_live=True, action="/data", method="get",
    )  # fmt: skip


def _pager(query: Query, at: int, step: int, total: int, onward: int | None) -> Html | None:
    links = []
    if at > 0:
        links.append(tag("a", "← previous", href=query.link(at=max(0, at - step)), rel="prev"))
    if total > step:
        links.append(tag("span", f"{at:,} to {min(at + step, total) - 1:,} of {total:,}"))
    if at + step < total:
        links.append(tag("a", "next →", href=query.link(at=at + step), rel="next"))
    if onward is not None:
        links.append(tag("a", f"search on from {onward:,}", href=query.link(at=None, **{"from": onward})))
    return tag("p", links, class_="pager") if links else None


def _lengths(session: Session, samples: Samples, found: Survey, query: Query) -> Html | None:
    if not len(found.lengths):
        return None
    cut: float | None = None
    form = None
    if samples.kind == "tokens":
        cut = query.number("window", session.choices.window, 1)
        field = tag("input", type="number", name="window", id="window", min=1, value=int(cut))
        label = tag("label", "window, in tokens", for_="window")
        form = tag("form", tag("div", label, field), tag("button", "draw"), class_="bar-form", data_live=True,
                   action="/data", method="get")  # fmt: skip
    summary = [tag("div", tag("span", name), value) for name, value in charts.summary(found.lengths)]
    note = tag("p", found.lengths_note, class_="note") if found.lengths_note else None
    unit, what = samples.unit, samples.what
    over = None
    if cut is not None:
        total = int(found.lengths.sum())
        beyond = int(np.maximum(found.lengths - int(cut), 0).sum())
        share = f"{100 * beyond / max(1, total):.3g}% of the tokens"
        over = tag("p", f"Cut at {cut:,}, documents would lose {share}; windows and packs lose nothing.", class_="note")
    doubling = None
    if len(charts.log_bins(found.lengths)) > 2:
        chart = charts.histogram(found.lengths, unit, what=what, cut=cut)
        doubling = [tag("h3", "bins that double"), chart]
    return tag(
        "section", tag("h2", f"Lengths, in {unit}"), form,
        tag("h3", "bins of one width"), charts.histogram(found.lengths, unit, what=what, log=False, cut=cut),
        doubling,
        tag("div", summary, class_="row"), over, note,
    )  # fmt: skip


def _balance(one: Any, found: Survey) -> Html:
    title = (
        f"Languages ({one.column})"
        if one.language
        else "Classes"
        if one.column == "class"
        else f"Values of {one.column}"
    )
    note = None if one.every else tag("p", found.share, class_="note")
    return section(title, charts.bars(one.counts, title=title), note)


def _scripts(found: Survey) -> Html | None:
    """Scripts of the letters, where there is more than one: what is known of languages without guessing."""
    total = sum(count for _, count in found.scripts)
    if len(found.scripts) < 2:
        return None
    shares = [(f"{name}, {100 * count / total:.2g}%", count) for name, count in found.scripts]
    note = tag("p", f"letters at the beginning of each text; {found.share}", class_="note")
    return section("Scripts", charts.bars(shares, title="letters by script"), note)


def _duplicates(found: Survey, samples: Samples) -> Html:
    more = sum(len(same) - 1 for same in found.duplicates)
    rows = [
        _row(f"{len(same):,} times", ", ".join(one.where for one in same[:_SHOWN]))
        for same in found.duplicates[:_SHOWN]
    ]
    exact = "length and first tokens" if samples.kind == "tokens" else "content"
    text = (
        f"{number_of(more, 'exact duplicate')} (same {exact}); {found.share}" if more else f"none found; {found.share}"
    )
    left = len(found.duplicates) - _SHOWN
    rest = tag("p", f"and {number_of(left, 'more group')}", class_="note") if left > 0 else None
    return section("Duplicates", tag("p", text, class_="note"), tag("table", rows) if rows else None,
               rest)  # fmt: skip


def _bad(found: Survey, samples: Samples) -> Html:
    parts = [tag("h2", f"Bad {samples.what}")]
    skipped = found.skipped
    if skipped is not None and skipped.total:
        parts.append(tag("p", f"{number_of(skipped.total, 'record')} skipped when the store was made", class_="bad"))
        rows = [_row(f"{count:,}", f"expected {why}") for why, count in skipped.reasons.items()]
        parts.append(tag("table", rows))
    for reason, same in found.bad.items():
        parts.append(tag("p", f"{len(same):,}: {reason}", class_="bad"))
        parts.append(tag("pre", "\n".join(excerpt(one.error, 300) for one in same[:_SHOWN]), keep="\n", tabindex=0))
    if not found.bad:
        parts.append(tag("p", f"none found; {found.share}", class_="note"))
    return tag("section", parts)


def _facts(session: Session, samples: Samples) -> Html | None:
    rows = []
    for name, value in samples.facts().items():
        shown = figure(value)
        if isinstance(value, dict):
            shown = ", ".join(f"{k} {v}" for k, v in list(value.items())[:12] if v is not None)
        elif name == "bytes" and isinstance(value, int):
            shown = f"{value:,} ({size(value)})"
        elif isinstance(value, list | tuple):
            shown = ", ".join(map(str, value[:8])) + (f" and {short(len(value) - 8)} more" if len(value) > 8 else "")
        if value not in (None, "", [], ()) and name != "fields":
            rows.append(_row(name.replace("_", " "), excerpt(str(shown), 600)))
    if isinstance(samples, RecordSamples) and (columns := session.kept["survey"].columns):
        rows.append(_row("fields", ", ".join(map(str, columns[:40]))))
    return section("Facts", tag("table", rows)) if rows else None


def _row(name: str, value: str) -> Html:
    return tag("tr", tag("th", name, scope="row"), tag("td", value))
