"""Renders the HTML page of a report. Every value is escaped by `esc`. No scripts, links or requests.

The content security policy in its head allows only the page's own style, whatever the documents contain.
"""

from __future__ import annotations

from html import escape
from typing import Any

from penstock._version import __version__
from penstock.markup import charts
from penstock.markup.style import STYLE
from penstock.markup.visible import figure, visible
from penstock.view.collect import Facts, Sample

_CSP = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_SKIPPED = 100


def esc(value: Any, keep: str = "") -> str:
    """Formats a value as plain text, escaped for HTML.

    >>> esc("<b>\\x1b</b>")
    '&lt;b&gt;\\\\x1b&lt;/b&gt;'
    """
    return escape(visible(figure(value), keep), quote=True)


def page(facts: Facts, more: str = "") -> str:
    """Returns the complete HTML file about data; `more` is HTML that follows."""
    parts = [_head(facts), _lengths(facts), _samples(facts.samples), _skipped(facts)]
    if facts.plan is not None:
        parts.append(_plan(facts.plan))
    elif facts.plan_note:
        parts.append(_section("A training run", f'<p class="note">{esc(facts.plan_note)}</p>'))
    parts.append(_section("Facts", _table(facts.table)))
    return frame(facts.title, "".join(parts) + more)


def frame(name: str, body: str, media: bool = False) -> str:
    """The complete HTML file around a body; `media`: pictures and sounds inside the file are allowed."""
    title, policy = esc(name), _CSP + "; img-src data:; media-src data:" * media
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{title} · Penstock</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{body}<footer>Penstock {esc(__version__)}</footer></main></body></html>\n"
    )


def _head(facts: Facts) -> str:
    known = dict(facts.table)
    tiles: list[tuple[str, Any]] = [("documents", facts.documents)]
    if "tokens" in known:
        tiles.append(("tokens", known["tokens"]))
    else:
        tiles.append(("characters", int(facts.lengths.sum())))
    if "bytes" in known:
        tiles.append(("bytes", known["bytes"]))
    tiles.append(("skipped records", facts.skipped.total))
    shown = "".join(f'<div class="tile"><b>{esc(value)}</b><span>{esc(name)}</span></div>' for name, value in tiles)
    return f'<p class="lead">{esc(known.get("kind", "data"))}</p><div class="tiles">{shown}</div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{esc(title)}</h2>{body}</section>"


def _table(rows: list[tuple[str, Any]]) -> str:
    cells = "".join(f"<tr><th>{esc(name.replace('_', ' '))}</th><td>{esc(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _lengths(facts: Facts) -> str:
    stats = "".join(f"<div><span>{esc(n)}</span>{esc(v)}</div>" for n, v in charts.summary(facts.lengths))
    note = f'<p class="note">{esc(facts.lengths_note)}</p>' if facts.lengths_note else ""
    drawing = charts.histogram(facts.lengths, facts.unit) or '<p class="note">no documents</p>'
    return _section(f"Lengths of documents, in {facts.unit}", f'{drawing}<div class="row">{stats}</div>{note}')


def _plan(plan: dict[str, Any]) -> str:
    names = {
        "windows": "windows", "steps_per_epoch": "steps per epoch", "tokens_per_step": "tokens per step",
        "tokens_per_epoch": "tokens per epoch", "rows_dropped_per_epoch": "windows dropped per epoch",
        "tokens_not_seen_in_epoch_0": "tokens not seen in an epoch", "bytes_per_batch": "bytes per batch",
        "shuffle": "order", "seed": "seed", "fingerprint": "fingerprint",
    }  # fmt: skip
    title = f"A training run with windows of {plan['length']:,} tokens and batches of {plan['batch']:,}"
    return _section(title, _table([(name, plan[key]) for key, name in names.items() if plan[key] is not None]))


def _skipped(facts: Facts) -> str:
    skipped = facts.skipped
    if not skipped.total:
        return _section("Skipped records", '<p class="note">none</p>')
    reasons = _table([(f"{count:,}", f"expected {reason}") for reason, count in skipped.reasons.items()])
    shown = skipped.entries[:_MOST_SKIPPED]
    was = "record was" if skipped.total == 1 else "records were"
    body = f'<p class="bad">{esc(skipped.total)} {was} skipped</p>{reasons}'
    if shown:
        body += f"<pre>{chr(10).join(esc(_entry(entry)) for entry in shown)}</pre>"
    if skipped.total > len(shown):
        body += f'<p class="note">{esc(len(shown))} of {esc(skipped.total)} are listed</p>'
    return _section("Skipped records", body)


def _entry(entry: dict[str, Any]) -> str:
    record = "" if entry.get("record") is None else f", record {entry['record']}"
    return f"{entry.get('file', '')}{record}: {entry.get('reason', '')} {entry.get('detail', '')}".rstrip()


def _samples(samples: list[Sample]) -> str:
    shown = "".join(
        f"<article><header><span>{esc(s.where)}</span><span>{esc(s.size)}</span></header>"
        f"<pre>{esc(s.text, keep=chr(10))}</pre></article>"
        for s in samples
    )
    return _section("Sample documents", shown or '<p class="note">none</p>')
