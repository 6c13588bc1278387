"""The size and cost of a run before it starts: steps, tokens, what is dropped, requests, bytes, cache, dollars, mixing.

Steps, rows, tokens and drops are exact: they come from the plan that a loader runs. Requests and bytes are computed
from the plan's own order for all steps of a small run and for some steps of a large one (`sampled_reads`); time and
money follow from assumptions (`assumptions`), which the report prints. No record is read. 10^12 rows on 10^5 ranks take
a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.core.errors import UsageError
from penstock.markup.visible import number_of
from penstock.order import windows
from penstock.order.superblocks import WINDOW
from penstock.plan.assumptions import Assumptions
from penstock.plan.block_layout import block_layout
from penstock.plan.branches import Combined
from penstock.plan.build import Plan, build
from penstock.plan.byte_layout import ByteLayout, even_layout, layout_of
from penstock.plan.definition import Definition
from penstock.plan.order_choices import Order
from penstock.plan.run_estimate import Figures, Rows, RunEstimate, estimated
from penstock.plan.sampled_reads import EvenSteps, PlanSteps
from penstock.plan.step_ranges import StepRanges
from penstock.sources.base import Source, TokenSource
from penstock.steps.batch import Batch
from penstock.steps.mix import Mixed
from penstock.steps.node import Node, WrapperNode
from penstock.steps.shuffle import Shuffled
from penstock.store.reader import TokenStore

RANKS_PER_HOST = 8  # assumed where the number of hosts is not given
_PART = 1000  # steps that stand for an endless run


@dataclass(frozen=True)
class Run:
    """The sizes of a run. `world` ranks on `hosts` hosts; `step_seconds` is the time of a training step."""

    batch: int | None = None
    world: int | None = None
    hosts: int | None = None
    epochs: int = 1
    step_seconds: float | None = None
    gpu_price: float | None = None  # dollars per GPU and hour; a rank is a GPU

    def __post_init__(self) -> None:
        for name in ("batch", "world", "hosts", "epochs"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name}: an integer of at least 1", got=repr(value), where="plan")
        for name in ("step_seconds", "gpu_price"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise UsageError(f"{name}: a number above 0", got=repr(value), where="plan")

    def placed(self, world: int) -> tuple[int, int]:
        """Ranks and hosts, completed from one another; `world` is the pipeline's own."""
        ranks = self.world or max(world, self.hosts or 1)
        hosts = self.hosts or -(-ranks // RANKS_PER_HOST)
        if hosts > ranks:
            raise UsageError("at most as many hosts as ranks", got=f"{hosts} hosts, {ranks} ranks", where="plan")
        return ranks, hosts


def estimate_pipeline(definition: Definition, run: Run, assume: Mapping[str, Any] | None = None) -> RunEstimate:
    """Estimates a run of a pipeline."""
    assumed = Assumptions.of(assume)
    ranks, hosts = run.placed(definition.world)
    definition = _batched(replace(definition, rank=0, world=ranks, sharded=True), run.batch)
    plan = build(definition)
    root, batch = plan.root, definition.batch
    assert batch is not None
    per_step = batch.rows(ranks)
    ranges = StepRanges.start(root.size, per_step, keep=batch.remainder != "drop")
    steps = None if root.size is None else ranges.steps(per_step)
    layouts = _layouts(root, assumed)
    known = {number: layout for number, layout in layouts.items() if layout is not None}
    counted = PlanSteps(plan, ranges, steps or _PART, ranks, known) if len(known) == len(layouts) else None
    tokens = all(isinstance(leaf.source, TokenSource) for leaf in root.leaves())
    planned = root.batch_plan
    figures = Figures(
        what=_what(plan, tokens),
        rows_per_epoch=None if planned is not None else root.size,
        batch=None if planned is not None else per_step,
        width=root.facts.width if tokens else None,
        tokens=tokens,
        steps_per_epoch=steps,
        period=steps or _PART,
        world=ranks,
        hosts=hosts,
        dropped=plan.left_out(per_step if planned is None else 1),
        fingerprint=plan.fingerprint,
        notes=tuple(_notes(plan, ranks)),
    )
    documents: Literal["none", "touched", "all"] = "touched" if root.facts.by_document else "none"
    if documents == "touched" and (planned is not None or root.facts.per_batch is not None):
        documents = "all"  # of all lengths a plan is made
    rows = Rows(counted, list(known.values()), orders_of(root), documents)
    return estimated(figures, rows, run_of(run), assumed)


def estimate_numbers(
    run: Run, *, samples: int | None = None, sample_bytes: int | None = None, tokens: int | None = None,
    length: int | None = None, stride: int | None = None, token_bytes: int = 2, order: Order | None = None,
    assume: Mapping[str, Any] | None = None,
) -> RunEstimate:  # fmt: skip
    """Estimates a run of which only numbers are known: `samples` of `sample_bytes`, or windows of `tokens` tokens.

    >>> run = Run(batch=1_000_000, world=100_000, hosts=12_500)
    >>> estimate_numbers(run, samples=10**12, sample_bytes=2050).steps_per_epoch
    1000000
    """
    assumed = Assumptions.of(assume)
    if (samples is None) == (tokens is None):
        raise UsageError("either samples or tokens", got=f"samples={samples}, tokens={tokens}", where="plan")
    if run.batch is None:
        raise UsageError("a global batch size", got="none", where="plan", fix="batch=1024, or --batch 1024")
    ranks, hosts = run.placed(1)
    rows = Batch(run.batch).rows(ranks)
    left: dict[str, int] = {}
    if tokens is not None:
        if length is None:
            raise UsageError(
                "the length of a window with tokens", got="none", where="plan", fix="length=1024, or --length 1024"
            )
        step = stride or length
        total = windows.count(tokens, length, step)
        if total:
            left["tokens_left_over"] = tokens - ((total - 1) * step + length + 1)
        layout, read = even_layout(tokens, token_bytes, assumed, opened=True), length + 1
        what = f"windows of {number_of(length, 'token')}"
    else:
        total, size = samples or 0, sample_bytes or assumed.sample_bytes
        if not size:
            raise UsageError(
                "bytes per sample", got="none", where="plan", fix="sample_bytes=2050, or --sample-bytes 2050"
            )
        layout, step, read, what = even_layout(total, size, assumed), 1, 1, f"samples of {number_of(size, 'byte')}"
    ranges = StepRanges.start(total, rows, keep=False)
    steps = ranges.steps(rows)
    left["rows_left_over"] = total % rows
    order = order or Order("global")
    counted = EvenSteps(layout, total, rows, ranks, 0 if order.kind != "file order" else None, step, read)
    figures = Figures(
        what=what, rows_per_epoch=total, batch=rows, width=length if tokens is not None else None,
        tokens=tokens is not None, steps_per_epoch=steps, period=steps, world=ranks, hosts=hosts,
        dropped={name: count for name, count in left.items() if count}, fingerprint="", notes=(),
    )  # fmt: skip
    return estimated(figures, Rows(counted, [layout], [order]), run_of(run), assumed)


def _layouts(root: Node, assumed: Assumptions) -> dict[int, ByteLayout | None]:
    """The layout of each source, by number. A token store that is opened twice has one: its pages are cached once."""
    found: dict[int, ByteLayout | None] = {}
    stores: dict[tuple[str, str], int] = {}
    for leaf in root.leaves():
        source = leaf.source
        first = leaf.number
        if isinstance(source, TokenStore):
            first = stores.setdefault((str(source.where), source.manifest.id), first)
        found[leaf.number] = found[first] if first in found else _layout(source, assumed)
    return found


def _layout(source: Source, assumed: Assumptions) -> ByteLayout | None:
    return (
        layout_of(source, assumed)
        if assumed.sample_bytes
        else block_layout(source, assumed) or layout_of(source, assumed)
    )


def run_of(run: Run) -> tuple[int, float | None, float | None]:
    """Epochs, seconds of a step, dollars of a GPU hour."""
    return run.epochs, run.step_seconds, run.gpu_price


def _batched(definition: Definition, batch: int | None) -> Definition:
    """The definition with a batch of this size, in the place of its own or at its end."""
    own = definition.batch
    if batch is None:
        if own is None:
            raise UsageError(
                "a batch size", got="a pipeline without .batch()", where="plan", fix=".batch(32), or plan(batch=32)"
            )
        return definition
    if own is None:
        return definition.then(Batch(batch))
    if any(step.plans_batches for step in definition.steps):
        name = next(step.name for step in definition.steps if step.plans_batches)
        raise UsageError(f"no batch= with .{name}(), which decides it", got=f"batch={batch}", where="plan")
    steps = (replace(s, size=batch, per_rank=None) if isinstance(s, Batch) else s for s in definition.steps)
    return replace(definition, steps=tuple(steps))


def orders_of(node: Node) -> list[Order]:
    """The order of each source: that of the last shuffle that its rows go through."""
    if isinstance(node, Mixed):
        return [order for child in node.children for order in orders_of(child)]
    if node.batch_plan is not None:
        return [Order("global" if node.batch_plan.shuffle else "file order") for _ in node.leaves()]
    if isinstance(node, Shuffled):
        return [_order(node)]
    return orders_of(node.child) if isinstance(node, WrapperNode) else [Order("file order")]


def _order(node: Shuffled) -> Order:
    step = node.step
    if step.lanes is not None:
        order = node.lane_order(0)
        rows, blocks = node.rows - int(order.blocks.tail_edges[-1]), int(order.blocks.counts.sum())
        return Order("lanes", max(1, round(rows / max(1, blocks))), order.window, step.lanes)
    if step.block is not None:
        return Order("blocks", step.block, step.window or 16)
    stretches, window = node.child.facts.stretches, step.window or WINDOW
    if stretches is not None and len(stretches) > window:
        return Order("blocks", round(node.rows / len(stretches)), window)
    return Order("global")


def _what(plan: Plan, tokens: bool) -> str:
    planned = plan.root.batch_plan
    if planned is not None:
        return f"batches of .{planned.step.name}()"
    width = plan.root.facts.width
    if not tokens:
        return "records"
    return "documents of different lengths" if width is None else f"rows of {number_of(width, 'token')}"


def _notes(plan: Plan, world: int) -> Iterator[str]:
    definition = plan.definition
    if world > 1 and plan.needs_global_batch:
        yield (
            "every rank makes the full global batch (padding to the longest row, or a function of all rows), so every "
            "host reads all of its rows: .pad(to=n), .bucket() or .batch_tokens() read only a rank's own"
        )
    if not plan.root.facts.certain and any(step.selects for step in _steps(definition)):
        yield "a filter's rejected records are read too, and so are the records that replace them: they are not counted"
    if plan.warning is not None:
        yield plan.warning


def _steps(definition: Definition) -> Iterator[Any]:
    if isinstance(definition.origin, Combined):
        for branch in definition.origin.branches:
            yield from _steps(branch)
    yield from definition.steps
