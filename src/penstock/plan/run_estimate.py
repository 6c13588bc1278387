"""Figures of a run put together: from counted reads to requests, bytes, cache, time, money, mixing and advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, expm1
from typing import Any, Literal

from penstock.core.sizes import size
from penstock.order.lanes import fleet_amplification
from penstock.plan.assumptions import AS_OF, Assumptions
from penstock.plan.block_layout import BlockLayout, Epoch, epoch_of_blocks
from penstock.plan.byte_layout import ByteLayout, RecordLayout, even_layout
from penstock.plan.cache_model import pages_fetched
from penstock.plan.order_choices import Choice, Order, block_choice, lane_choice, lanes_for, lanes_held, rows_per_block
from penstock.plan.sampled_reads import Counted, EvenSteps, Steps, count
from penstock.plan.shuffle_quality import Quality, block_quality, file_order_quality, global_quality, lane_quality


@dataclass(frozen=True)
class Figures:
    """What the plan says of a run, exactly."""

    what: str
    rows_per_epoch: int | None
    batch: int | None  # rows; None where steps differ
    width: int | None  # tokens of a row, padding included
    tokens: bool  # rows hold tokens
    steps_per_epoch: int | None  # None: endless
    period: int  # steps that the sums below are for: an epoch, or a part of an endless one
    world: int
    hosts: int
    dropped: dict[str, int]
    fingerprint: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The reads of a run: its steps (None: sizes unknown), where the bytes of each source are, and its order."""

    steps: Steps | None
    layouts: list[ByteLayout]
    orders: list[Order]
    documents: Literal["none", "touched", "all"] = "none"  # whose places in a token store are looked up

    @property
    def stored(self) -> list[ByteLayout]:
        """The layouts, each once: several sources may be one token store, opened for each of them."""
        return list(dict.fromkeys(self.layouts))

    @property
    def cached(self) -> bool:
        """Whether what a step fetched is there for later steps."""
        return all(layout.cached for layout in self.layouts)

    def readers(self, figures: Figures) -> int:
        """How many fetch for themselves: hosts, or every process where those of a host share nothing."""
        return figures.world if any(layout.private for layout in self.layouts) else figures.hosts


@dataclass(frozen=True)
class Reading:
    """Requests and bytes of an epoch that starts with an empty cache.

    `exact`: counted over all steps of all hosts, nothing sampled.
    `bytes_per_row`: that a row uses; `amplification`: bytes that the fleet fetches / bytes that its rows use.
    """

    exact: bool
    how: str
    corpus_bytes: int
    bytes_per_row: float
    requests_per_host_and_step: float
    bytes_per_host_and_step: float
    requests_per_row: float
    requests_per_host: float
    bytes_per_host: float
    requests: float
    bytes: float
    amplification: float
    gets_per_second: float | None
    bytes_per_second_and_host: float | None
    opening_requests_per_host: float  # once: the manifest, and the end of each object that a host reads
    opening_bytes_per_host: float  # once: what its processes read from beginning to end, to find or keep records
    later_requests: float  # of an epoch whose cache is full from the one before
    later_bytes: float


@dataclass(frozen=True)
class Cache:
    """Bytes of a host's cache: what the lookahead needs at least, and what is used if there is room."""

    lookahead_steps: int
    least_bytes: float
    most_bytes: float


@dataclass(frozen=True)
class Cost:
    """Dollars of an epoch for the fleet; `share` of the price of its GPUs."""

    requests: float
    egress: float
    total: float
    gpus: float | None
    share: float | None


@dataclass(frozen=True)
class RunEstimate:
    """What a run consists of and what it costs; `print` it, or take `to_json()`."""

    what: str
    rows_per_epoch: int | None
    steps_per_epoch: int | None
    batch: int | None
    rows_per_rank: float | None
    world: int
    hosts: int
    epochs: int
    steps: int | None
    tokens_per_step: float | None
    tokens_per_epoch: float | None
    dropped: dict[str, int]
    period: str
    reading: Reading | None
    cache: Cache | None
    seconds_to_first_batch: float | None
    cost: Cost | None
    order: str
    quality: Quality | None
    choices: tuple[Choice, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    assumptions: Assumptions
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """The figures in plain JSON; sizes in bytes, times in seconds, prices in dollars."""
        facts = asdict(self)
        facts["quality"] = None if self.quality is None else self.quality._asdict()
        for shown, choice in zip(facts["choices"], self.choices, strict=True):
            shown["quality"] = choice.quality._asdict()
        facts["assumptions"] |= {"as_of": AS_OF, "changed": sorted(self.assumptions.changed())}
        return facts

    def __str__(self) -> str:
        from penstock.plan.estimate_text import text

        return text(self)


def estimated(
    figures: Figures, rows: Rows, run: tuple[int, float | None, float | None], assumed: Assumptions
) -> RunEstimate:
    """Puts the figures of a run together."""
    epochs, seconds, gpu_price = run
    counted = None if rows.steps is None else _counted(figures, rows, assumed)
    reading = None if counted is None else _reading(figures, rows, counted, seconds, assumed)
    cost = None
    if reading is not None:
        requests = reading.requests + figures.hosts * reading.opening_requests_per_host
        sent = reading.bytes + figures.hosts * reading.opening_bytes_per_host
        cost = _cost(figures, requests, sent, seconds, gpu_price, assumed)
    choices = () if reading is None else _choices(figures, rows, reading, assumed)
    tokens = _tokens_per_step(figures, counted)
    order, quality = _quality(figures, rows, reading, assumed)
    return RunEstimate(
        what=figures.what,
        rows_per_epoch=figures.rows_per_epoch,
        steps_per_epoch=figures.steps_per_epoch,
        batch=figures.batch,
        rows_per_rank=_rows_per_rank(figures, counted),
        world=figures.world,
        hosts=figures.hosts,
        epochs=epochs,
        steps=None if figures.steps_per_epoch is None else epochs * figures.steps_per_epoch,
        tokens_per_step=tokens,
        tokens_per_epoch=None
        if tokens is None or figures.steps_per_epoch is None
        else tokens * figures.steps_per_epoch,
        dropped=figures.dropped,
        period=_period(figures),
        reading=reading,
        cache=None if reading is None else _cache(figures, rows, reading, seconds, assumed),
        seconds_to_first_batch=None if counted is None else _first_batch(counted.made, rows, assumed),
        cost=cost,
        order=order,
        quality=quality,
        choices=choices,
        advice=tuple(_advice(figures, rows, reading, cost, choices, seconds, assumed)),
        notes=figures.notes,
        assumptions=assumed,
        fingerprint=figures.fingerprint,
    )


@dataclass(frozen=True)
class _Count:
    """What was counted, and the share of page reads that a full cache does not hold, in later epochs."""

    made: Counted
    warm: float


def _counted(figures: Figures, rows: Rows, assumed: Assumptions) -> _Count:
    assert rows.steps is not None
    made = count(rows.steps, figures.hosts, rows.layouts, assumed)
    if made.complete:
        return _Count(made, made.later_requests / max(made.requests, 1e-9))
    if {order.kind for order in rows.orders} != {"global"} or not rows.cached:
        return _Count(made, 1.0)
    pages = sum(layout.pages for layout in rows.stored)
    kept = assumed.cache_bytes / max(1, sum(layout.pages * layout.page_bytes for layout in rows.stored)) * pages
    accesses = made.accesses * figures.period
    miss, warm = (pages_fetched(accesses, pages, kept, warm=warm) / max(accesses, 1e-9) for warm in (False, True))
    if miss < 0.999:
        made = count(rows.steps, figures.hosts, rows.layouts, assumed, miss)
    return _Count(made, warm / max(miss, 1e-9))


def _reading(
    figures: Figures, rows: Rows, counted: _Count, seconds: float | None, assumed: Assumptions
) -> Reading:  # fmt: skip
    made, hosts, period = counted.made, figures.hosts, figures.period
    fleet_rows = figures.batch * period if figures.batch is not None else made.rows * hosts * period
    per_row = made.used_bytes / max(made.rows, 1e-9)
    requests, sent = made.requests * hosts * period, made.bytes * hosts * period
    how = f"counted over all {made.sampled_steps:,} steps on {_hosts(made.sampled_hosts, hosts)}"
    exact = made.complete and made.sampled_hosts == hosts and all(layout.exact for layout in rows.layouts)
    if not made.complete:
        how = f"estimated from {made.sampled_steps:,} steps on {_hosts(made.sampled_hosts, hosts)}"
        if local := _local_choice(figures, rows, per_row, assumed):
            requests, sent, how = local.requests, local.bytes, "closed form: blocks are fetched as one"
    later = [requests * counted.warm, sent * counted.warm]
    if made.complete:
        later = [made.later_requests * hosts * period, made.later_bytes * hosts * period]
    elif found := _epoch_of_blocks(figures, rows):
        requests, sent, *later = found
        how = "closed form: what a process fetched is kept"
    scanned, opened = _scanned(figures, rows, assumed), _objects_read(rows, made.rows * period, assumed)
    return Reading(
        exact=exact,
        how=how + ("" if all(layout.exact for layout in rows.layouts) else ", rows of equal size"),
        corpus_bytes=sum(layout.bytes for layout in rows.stored),
        bytes_per_row=per_row,
        requests_per_host_and_step=requests / hosts / period,
        bytes_per_host_and_step=sent / hosts / period,
        requests_per_row=requests / max(fleet_rows, 1e-9),
        requests_per_host=requests / hosts,
        bytes_per_host=sent / hosts,
        requests=requests,
        bytes=sent,
        amplification=sent / max(fleet_rows * per_row, 1e-9),
        gets_per_second=None if seconds is None else requests / period / seconds,
        bytes_per_second_and_host=None if seconds is None else sent / hosts / period / seconds,
        opening_requests_per_host=opened[0] + scanned[0],
        opening_bytes_per_host=opened[1] + scanned[1],
        later_requests=later[0],
        later_bytes=later[1],
    )


def _objects_read(rows: Rows, reads: float, assumed: Assumptions) -> tuple[float, float]:
    """Requests and bytes of what this many random reads look up in token stores, each once.

    The manifest and, without bytes, the shards that are touched; the tables of their documents.
    """
    found = [layout for layout in rows.layouts if layout.opened]
    opened = sum(1 - layout.objects * expm1(-reads / layout.objects) for layout in found)
    some = None if rows.documents == "all" else reads
    tables = [layout.tables(some, assumed.get_bytes) for layout in found if rows.documents != "none"]
    return opened + sum(requests for requests, _ in tables), sum(sent for _, sent in tables)


def _scanned(figures: Figures, rows: Rows, assumed: Assumptions) -> tuple[float, float]:
    """Requests and bytes of a host whose processes read files from beginning to end when they open them."""
    found = [layout for layout in rows.layouts if layout.scanned]
    processes, parts = figures.world / figures.hosts, sum(each.bytes / assumed.get_bytes for each in found)
    objects = sum(each.objects for each in found)
    return processes * max(objects, ceil(parts)), processes * sum(each.bytes for each in found)


def _epoch_of_blocks(figures: Figures, rows: Rows, order: Order | None = None) -> Epoch | None:
    """The closed form of blocks that processes keep, in the run's order or another one."""
    if len(rows.layouts) != 1 or len(rows.orders) != 1 or figures.batch is None or figures.rows_per_epoch is None:
        return None
    if not isinstance(layout := rows.layouts[0], BlockLayout):
        return None
    return epoch_of_blocks(layout, order or rows.orders[0], figures.batch, figures.world, figures.hosts)


def _hosts(some: int, hosts: int) -> str:
    return f"{hosts:,} host{'s' * (hosts != 1)}" if some == hosts else f"{some:,} of {hosts:,} hosts"


def _local_choice(figures: Figures, rows: Rows, row_bytes: float, assumed: Assumptions) -> Choice | None:
    """The closed form of the run's own order, if it is one of blocks or lanes."""
    if len(rows.orders) != 1 or figures.rows_per_epoch is None or figures.batch is None or not rows.cached:
        return None
    order, total = rows.orders[0], figures.rows_per_epoch
    make = {"blocks": block_choice, "lanes": lane_choice}.get(order.kind)
    objects = sum(layout.objects for layout in rows.stored)
    return make and make(total, row_bytes, figures.batch, rows.readers(figures), objects, order, assumed)


def _cost(
    figures: Figures, requests: float, sent: float, seconds: float | None, gpu_price: float | None, assumed: Assumptions
) -> Cost:
    gets, egress = requests / 1000 * assumed.get_price, sent / 1e9 * assumed.egress_price
    gpus = None if seconds is None or gpu_price is None else gpu_price * figures.world * figures.period * seconds / 3600
    return Cost(gets, egress, gets + egress, gpus, None if gpus is None else (gets + egress) / gpus)


def _lookahead(seconds: float | None, assumed: Assumptions) -> int:
    return max(assumed.lookahead_steps, 0 if seconds is None else ceil(assumed.lookahead_seconds / seconds))


def _cache(figures: Figures, rows: Rows, reading: Reading, seconds: float | None, assumed: Assumptions) -> Cache:
    steps = min(_lookahead(seconds, assumed), figures.period)
    least = steps * reading.bytes_per_host_and_step
    if local := _local_choice(figures, rows, reading.bytes_per_row, assumed):
        least += local.cache_bytes
    least = min(least, everything := float(sum(layout.pages * layout.page_bytes for layout in rows.stored)))
    return Cache(steps, least, max(least, min(float(assumed.cache_bytes), reading.bytes_per_host, everything)))


def _first_batch(made: Counted, rows: Rows, assumed: Assumptions) -> float:
    """Rounds of requests: the manifest, the ends of objects, tables if all are read, the pages of the first step."""
    tables, sent = _objects_read(rows, 0, assumed) if rows.documents == "all" else (0.0, 0.0)
    rounds = 1 + sum(ceil(n / assumed.in_flight) for n in (made.first_objects, made.first_requests, tables))
    return rounds * assumed.latency + (made.first_bytes + sent) / assumed.bandwidth


def _rows_per_rank(figures: Figures, counted: _Count | None) -> float | None:
    if figures.batch is not None:
        return figures.batch / figures.world
    return None if counted is None else counted.made.rows * figures.hosts / figures.world


def _tokens_per_step(figures: Figures, counted: _Count | None) -> float | None:
    if not figures.tokens:
        return None
    if figures.width is not None and figures.batch is not None:
        return figures.batch * figures.width
    if counted is None:
        return None
    return counted.made.items / max(counted.made.rows, 1e-9) * (figures.batch or counted.made.rows * figures.hosts)


def _quality(figures: Figures, rows: Rows, reading: Reading | None, assumed: Assumptions) -> tuple[str, Quality | None]:
    shown = ", ".join(dict.fromkeys(order.kind for order in rows.orders))
    total, batch = figures.rows_per_epoch, figures.batch
    if len(rows.orders) != 1 or total is None or batch is None or reading is None:
        return shown, None
    order, place = rows.orders[0], _place(rows, reading.bytes_per_row, assumed)
    if order.kind == "file order":
        return shown, file_order_quality(total, batch, place)
    if order.kind == "blocks":
        return shown, block_quality(total, batch, order.block, order.window)
    if order.kind == "lanes":
        return shown, lane_quality(total, batch, order.block, order.window, order.lanes)
    return shown, global_quality(total, batch, place)


def _place(rows: Rows, row_bytes: float, assumed: Assumptions) -> int:
    """Rows of a block: about `block_bytes`, or what is always fetched as one."""
    return rows_per_block(row_bytes, assumed, max((layout.page_bytes for layout in rows.layouts), default=0))


def _choices(figures: Figures, rows: Rows, reading: Reading, assumed: Assumptions) -> tuple[Choice, ...]:
    """Global, blocks and lanes for the same rows, where the rows are of one source and have a number."""
    total, batch, hosts = figures.rows_per_epoch, figures.batch, figures.hosts
    if total is None or batch is None or len(rows.layouts) != 1 or total < batch or not rows.cached:
        return ()
    size, place = reading.bytes_per_row, _place(rows, reading.bytes_per_row, assumed)
    objects = rows.layouts[0].objects
    requests, sent = reading.requests, reading.bytes
    if rows.orders != [Order("global")]:
        layout = even_layout(total, size, assumed, unit=rows.layouts[0].page_bytes)
        other = Rows(EvenSteps(layout, total, batch, figures.world), [layout], [Order("global")])
        made = _counted(figures, other, assumed).made
        requests, sent = (each * hosts * figures.period for each in (made.requests, made.bytes))
        if found := _epoch_of_blocks(figures, rows, Order("global")):
            requests, sent = found.requests, found.bytes
    ahead = _lookahead(None, assumed) * sent / hosts / figures.period
    choices = [Choice(
        Order("global"), ".shuffle(seed)", requests, sent, sent / (batch * figures.period * size), ahead,
        global_quality(total, batch, place),
    )]  # fmt: skip
    readers = rows.readers(figures)
    lanes = lanes_for(batch, readers)
    held = lanes_held(lanes, readers) * place * size
    window = int(max(1, min(assumed.window_blocks, total // (place * lanes), assumed.cache_bytes / 2 // held)))
    for order, make in (
        (Order("blocks", place, assumed.window_blocks), block_choice),
        (Order("lanes", place, window, lanes), lane_choice),
    ):
        if total >= 2 * place * (order.lanes or order.window):
            choices.append(make(total, size, batch, readers, objects, order, assumed))
    return tuple(choices)


def _advice(
    figures: Figures, rows: Rows, reading: Reading | None, cost: Cost | None, choices: tuple[Choice, ...],
    seconds: float | None, assumed: Assumptions,
) -> Iterator[str]:  # fmt: skip
    if reading is None or cost is None:
        yield "the size of a record is unknown, and so are requests and bytes: pass assume={'sample_bytes': n}"
        return
    cache = _cache(figures, rows, reading, seconds, assumed)
    if figures.hosts * reading.opening_bytes_per_host > 2 * reading.corpus_bytes:
        scanned = size(sum(layout.bytes for layout in rows.layouts if layout.scanned))
        yield (
            f"each of {figures.world:,} processes reads {scanned} once when it opens these files: "
            "a token store or Parquet files (.write()) open at once"
        )
    if cache.least_bytes > assumed.cache_bytes:
        yield (
            f"the next {cache.lookahead_steps:,} steps need {size(cache.least_bytes)} of cache on a host, of "
            f"{size(assumed.cache_bytes)}: use more hosts, a smaller batch, a larger cache or a shorter lookahead"
        )
    if not rows.cached:
        yield from _requested_again(figures, rows, reading, cost, seconds, assumed)
    elif rows.orders and rows.orders[0].kind != "lanes":
        yield from _lanes_or_not(figures, reading, cost, choices, seconds, assumed)
    elif len(rows.orders) == 1 and reading.amplification > 1.05:
        lanes = rows.orders[0].lanes
        readers = rows.readers(figures)
        uneven, who = fleet_amplification(readers, lanes, figures.batch or lanes) > 1.05, "hosts"
        who = who if readers == figures.hosts else "ranks"
        why = f"{who} that divide the {lanes:,} lanes, and lanes that divide the batch" if uneven else "larger blocks"
        yield f"the fleet fetches {reading.amplification:.2f} times the corpus: choose {why}"


def _lanes_or_not(
    figures: Figures, reading: Reading, cost: Cost, choices: tuple[Choice, ...], seconds: float | None,
    assumed: Assumptions,
) -> Iterator[str]:  # fmt: skip
    too_much = _too_much(reading, cost, assumed)
    if not too_much:
        if seconds is None:
            least = reading.requests / figures.period / assumed.fleet_gets
            yield f"below {assumed.fleet_gets:,.0f} GET/s if a step takes {least:,.3g} s or more (--step-seconds)"
        return
    problem = f"this order takes {' and '.join(too_much)}, ${cost.total:,.2f} for each {_period(figures)}"
    lanes = next((choice for choice in choices if choice.order.kind == "lanes"), None)
    if lanes is None:
        yield f"{problem}: use lanes, which read the corpus once, or fewer and larger objects"
        return
    if lanes.requests > reading.requests / 2:
        yield f"{problem}, and lanes do not help where every record is an object: put the records into tar shards"
        return
    dollars = _cost(figures, lanes.requests, lanes.bytes, None, None, assumed).total
    rate = "" if seconds is None else f"{lanes.requests / figures.period / seconds:,.1f} GET/s, "
    yield (
        f"{problem}. Use lanes, {lanes.verb}: {rate}${dollars:,.2f}, {lanes.amplification:.3g} times the corpus, "
        f"{size(lanes.cache_bytes)} of cache on each host; {lanes.quality.pairs:,.3g} pairs of rows of a step from the "
        f"same block, of {choices[0].quality.pairs:,.3g} with a global shuffle"
    )
    if lanes.amplification > 1.05:
        yield (
            f"{lanes.order.lanes:,} lanes are the best divisor of {figures.batch:,} rows for {figures.hosts:,} "
            "hosts: a batch that is a multiple of 1,024 rows and of the number of hosts reads the corpus once"
        )


def _requested_again(
    figures: Figures, rows: Rows, reading: Reading, cost: Cost, seconds: float | None, assumed: Assumptions
) -> Iterator[str]:
    """Advice for what no cache keeps: JSON lines, text, CSV, tar shards, single objects, token files of other tools."""
    ahead = any(isinstance(layout, RecordLayout) and layout.ahead for layout in rows.layouts)
    when = "records are requested for some steps at a time" if ahead else "every step requests its records"
    again = f"{when}: the fleet fetches {reading.bytes / max(1, reading.corpus_bytes):.3g} times the corpus"
    stored = "a token store or Parquet files (.write()) with .shuffle(lanes=) are fetched once"
    if all(layout.objects == layout.items > 1 for layout in rows.layouts):
        stored = "no order helps where every record is an object: put them into tar shards, or Parquet files (.write())"
    if too_much := _too_much(reading, cost, assumed):
        yield f"this order takes {' and '.join(too_much)}, ${cost.total:,.2f} for each {_period(figures)}; {stored}"
    elif reading.bytes > 2 * figures.hosts * reading.corpus_bytes:
        yield f"{again}; {stored}"
    if not too_much and seconds is None and reading.requests:
        least = reading.requests / figures.period / assumed.fleet_gets
        yield f"below {assumed.fleet_gets:,.0f} GET/s if a step takes {least:,.3g} s or more (--step-seconds)"


def _too_much(reading: Reading, cost: Cost, assumed: Assumptions) -> list[str]:
    """What is above its bound: requests per second, dollars."""
    found = []
    if reading.gets_per_second is not None and reading.gets_per_second > assumed.fleet_gets:
        found.append(f"{reading.gets_per_second:,.0f} GET/s of the fleet (above {assumed.fleet_gets:,.0f})")
    if cost.share is not None and cost.share > assumed.cost_share:
        found.append(f"{cost.share:.1%} of the price of the GPUs (above {assumed.cost_share:.0%})")
    return found


def _period(figures: Figures) -> str:
    return "epoch" if figures.steps_per_epoch is not None else f"{figures.period:,} steps"
