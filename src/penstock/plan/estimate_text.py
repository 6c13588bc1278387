"""A run's estimate as a plain table: one figure per line, estimates marked with what they assume."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.markup.visible import number_of
from penstock.plan.assumptions import AS_OF
from penstock.plan.run_estimate import Reading, RunEstimate

Line = tuple[str, str]


def text(estimate: RunEstimate, first: tuple[Line, ...] = ()) -> str:
    """All figures, after the lines `first`."""
    lines = [*first, *_run(estimate), *_storage(estimate)]
    width = max(len(name) for name, _ in lines)
    parts = [f"{name:<{width}}  {value}" for name, value in lines]
    if estimate.choices:
        parts += ["", *_choices(estimate)]
    if estimate.advice or estimate.notes:
        parts += ["", *(f"note: {note}" for note in estimate.notes), *(f"advice: {each}" for each in estimate.advice)]
    if estimate.reading is not None:
        parts += ["", *_assumed(estimate)]
    return "\n".join(parts)


def _run(e: RunEstimate) -> Iterator[Line]:
    yield "rows", f"{e.what}, {_count(e.rows_per_epoch)} per epoch" if e.rows_per_epoch is not None else e.what
    yield "steps per epoch", "endless" if e.steps_per_epoch is None else f"{e.steps_per_epoch:,}"
    each = "" if e.rows_per_rank is None else f", {_number(e.rows_per_rank)} per rank"
    yield "rows per step", f"{_count(e.batch)}{each}" if e.batch is not None else f"different{each} on average"
    if e.tokens_per_step is not None:
        yield "tokens per step", _number(e.tokens_per_step)
    if e.tokens_per_epoch is not None:
        yield "tokens per epoch", _number(e.tokens_per_epoch)
    for name, count in e.dropped.items():
        yield f"{name.replace('_', ' ')}", f"{count:,} per epoch"
    yield "ranks", f"{e.world:,} on {e.hosts:,} host{'s' * (e.hosts != 1)}"
    if e.steps is not None:
        yield "epochs", f"{e.epochs:,}: {number_of(e.steps, 'step')}"


def _storage(e: RunEstimate) -> Iterator[Line]:
    r, per = e.reading, f"per {e.period}"
    if r is None:
        return
    yield "bytes", f"{size(r.corpus_bytes)}, {size(r.bytes_per_row)} per row"
    yield (
        "requests",
        f"{_number(r.requests_per_host_and_step)} per host and step, {r.requests_per_row:.4g} per row ({r.how})",
    )
    yield "  each host", f"{_number(r.requests_per_host)} GET and {size(r.bytes_per_host)} {per}{_rate(r)}"
    gets = "" if r.gets_per_second is None else f", {_number(r.gets_per_second)} GET/s"
    yield (
        "  fleet",
        f"{_number(r.requests)} GET and {size(r.bytes)} {per}: {r.amplification:.3g} x the rows' bytes{gets}",
    )
    if r.opening_requests_per_host:
        scanned = f" and {size(r.opening_bytes_per_host)}" if r.opening_bytes_per_host else ""
        yield "  opening", f"{_number(r.opening_requests_per_host)} GET{scanned} on each host, once (estimate)"
    if e.epochs > 1:
        yield "  later epochs", f"{_number(r.later_requests)} GET and {size(r.later_bytes)} each (estimate)"
    if e.cache is not None:
        ahead = f"for {e.cache.lookahead_steps:,} steps ahead"
        yield (
            "cache of a host",
            f"{size(e.cache.least_bytes)} at least, {ahead}; up to {size(e.cache.most_bytes)} (estimate)",
        )
    if e.seconds_to_first_batch is not None:
        yield "first batch", f"after {e.seconds_to_first_batch:.2g} s (estimate)"
    if e.cost is not None:
        share = "" if e.cost.share is None else f", {e.cost.share:.2%} of ${e.cost.gpus:,.0f} for GPUs"
        money = f"${e.cost.requests:,.2f} requests + ${e.cost.egress:,.2f} transfer"
        yield "cost", f"${e.cost.total:,.2f} {per}: {money}{share} (estimate)"
    if e.quality is not None:
        blocks = f"{e.quality.pool:,} block{'s' * (e.quality.pool != 1)} at a time"
        drawn = f"{blocks}, {e.quality.pairs:,.3g} pairs of rows of a step from one block"
        yield "shuffle", f"{e.order}: draws from {drawn}"
    else:
        yield "shuffle", e.order


def _rate(r: Reading) -> str:
    return "" if r.bytes_per_second_and_host is None else f", {size(r.bytes_per_second_and_host)}/s"


def _choices(e: RunEstimate) -> Iterator[str]:
    head = ("order", "GET", "fetched", "x corpus", "cache/host", "blocks drawn from", "pairs", "")
    rows = [
        (
            c.order.kind, _number(c.requests), size(c.bytes), f"{c.amplification:.3g}", size(c.cache_bytes),
            f"{c.quality.pool:,}", f"{c.quality.pairs:,.3g}", c.verb,
        )
        for c in e.choices
    ]  # fmt: skip
    wide = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide, strict=True)).rstrip()


def _assumed(e: RunEstimate) -> Iterator[str]:
    a = e.assumptions
    yield (
        f"assumed ({AS_OF}): {a.latency * 1000:g} ms to the first byte, {a.in_flight} requests at a time, "
        f"{size(a.bandwidth)}/s per host, ${a.get_price:g} per 1,000 GET, ${a.egress_price:g} per GB;"
    )
    yield (
        f"pages of {size(e.assumptions.page_bytes)}, merged over gaps of {size(a.gap_bytes)} to {size(a.get_bytes)}; "
        f"cache {size(a.cache_bytes)} per host; blocks of {size(a.block_bytes)}"
    )


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _number(value: float) -> str:
    """A whole number exactly; others to four digits."""
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.4g}"
