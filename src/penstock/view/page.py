"""Renders the HTML page of a report. Every value is escaped by `esc`. No scripts, links or requests.

The content security policy in its head allows only the page's own style, whatever the documents contain.
"""

from __future__ import annotations

from html import escape
from typing import Any

from penstock._version import __version__
from penstock.view import histogram
from penstock.view.collect import Facts, Sample
from penstock.view.visible import figure, visible

_CSP = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_SKIPPED = 100
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7e; --line: #dfe4ec; --ground: #f6f7f9; --card: #fff;
  --bar: #3c7dd9; --code: #f1f4f8; --bad: #b3401f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #97a3b4; --line: #2d3643; --ground: #12161c;
  --card: #1a2029; --bar: #5b9bf0; --code: #141a21; --bad: #f08a66; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 36px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
.lead { color: var(--soft); margin: 0 0 24px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 0 0 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 0 0 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span, .note { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-top: 1px solid var(--line); }
tr:first-child > * { border-top: 0; }
th { font-weight: 500; color: var(--soft); white-space: nowrap; width: 1%; padding-right: 28px; }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
thead th { width: auto; }
svg { display: block; width: 100%; height: auto; margin: 4px 0 14px; }
svg text { font: 12px system-ui, sans-serif; text-anchor: middle; fill: var(--soft); }
svg .count { fill: var(--ink); } .bar { fill: var(--bar); } .hit { fill: transparent; } g:hover .bar { opacity: .75; }
.axis { stroke: var(--line); }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(110px, 1fr)); gap: 8px; }
.row div { font-variant-numeric: tabular-nums; } .row span { display: block; color: var(--soft); font-size: 12px; }
article + article { margin-top: 16px; }
article header { display: flex; justify-content: space-between; gap: 16px; font-size: 13px; color: var(--soft);
  overflow-wrap: anywhere; }
article header span:last-child { white-space: nowrap; }
pre { margin: 4px 0 0; padding: 10px 12px; background: var(--code); border-radius: 6px;
  font: 13px/1.5 ui-monospace, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 260px; overflow: auto; }
.bad { color: var(--bad); }
footer { color: var(--soft); font-size: 13px; }
"""


def esc(value: Any, keep: str = "") -> str:
    """Formats a value as plain text, escaped for HTML.

    >>> esc("<b>\\x1b</b>")
    '&lt;b&gt;\\\\x1b&lt;/b&gt;'
    """
    return escape(visible(figure(value), keep), quote=True)


def page(facts: Facts) -> str:
    """Returns the complete HTML file."""
    title = esc(facts.title)
    parts = [_head(facts), _lengths(facts), _samples(facts.samples), _skipped(facts)]
    if facts.plan is not None:
        parts.append(_plan(facts.plan))
    elif facts.plan_note:
        parts.append(_section("A training run", f'<p class="note">{esc(facts.plan_note)}</p>'))
    parts.append(_section("Facts", _table(facts.table)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_CSP)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{title} · Penstock</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{''.join(parts)}<footer>Penstock {esc(__version__)}</footer></main></body></html>\n"
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
    stats = "".join(f"<div><span>{esc(n)}</span>{esc(v)}</div>" for n, v in histogram.summary(facts.lengths))
    note = f'<p class="note">{esc(facts.lengths_note)}</p>' if facts.lengths_note else ""
    drawing = histogram.svg(facts.lengths, facts.unit) or '<p class="note">no documents</p>'
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
