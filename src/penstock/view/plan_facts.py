"""The plan of a pipeline as plain data: rows in and out of each step, what is dropped, mixture over time, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.ledger import Ledger
from penstock.markup.visible import number_of
from penstock.order.mix import Mixture
from penstock.pipeline import Pipeline
from penstock.plan.branches import Combined, Mix
from penstock.plan.build import grow
from penstock.plan.definition import Definition
from penstock.plan.run_estimate import RunEstimate
from penstock.steps.base import Context
from penstock.steps.batch import Batch
from penstock.steps.mix import Mixed
from penstock.steps.node import Node

MOST_TEXT = 160
MOST_BRANCHES = 12  # drawn of a combination
MIXTURE_POINTS = 60


@dataclass(frozen=True)
class PlanStep:
    """A step of the pipeline: `rows` come out of it, in `unit`; `lost` is what an epoch leaves out here, by reason."""

    name: str
    text: str
    rows: int | None  # None: endless
    unit: str = "rows"
    lost: dict[str, int] = field(default_factory=dict)
    note: str = ""
    inputs: tuple[PlanStep, ...] = ()
    share: str = ""  # of a branch: its weight


@dataclass(frozen=True)
class RankShare:
    """The rows of one rank in a step."""

    rank: int
    rows: int


@dataclass(frozen=True)
class PlanFacts:
    """What a pipeline does, without running it."""

    last: PlanStep
    estimate: RunEstimate | None
    note: str  # why there is no estimate
    mixture: dict[str, list[tuple[float, float]]]  # share of each source by row of the run
    ranks: list[RankShare]
    assumed: str  # what was added to the pipeline


def plan_of(pipeline: Pipeline, *, batch: int = 32, world: int | None = None) -> PlanFacts:
    """The plan of a pipeline; `batch` is the global batch size of one without `.batch()`.

    >>> import penstock as ps
    >>> facts = plan_of(ps.from_arrays({"x": range(10)}).shuffle(seed=1).batch(4))
    >>> facts.last.name, facts.last.rows, facts.last.lost, facts.last.inputs[0].rows
    ('batch', 2, {'rows left over': 2}, 10)
    """
    assumed = ""
    definition = pipeline.definition
    if definition.batch is None and not any(step.plans_batches for step in definition.steps):
        rows = _grown(definition, definition.steps).size
        batch = batch if rows is None else max(1, min(batch, rows))
        pipeline = pipeline.batch(batch)
        definition = pipeline.definition
        assumed = f"The pipeline has no .batch(): batches of {number_of(batch, 'row')} are assumed."
    ranks = world or definition.world
    estimate, note = None, ""
    try:
        estimate = pipeline.plan(world=ranks)
    except PenstockError as error:
        note = f"expected {error.expected}, got {error.got}" if error.got else error.expected
    size = definition.batch
    shares: list[RankShare] = []
    if isinstance(size, Batch):
        try:
            rows = size.rows(ranks)
            shares = [RankShare(rank, rows // ranks) for rank in range(ranks)]
        except PenstockError as error:
            note = note or f"expected {error.expected}, got {error.got}; {error.fix}"
    return PlanFacts(_chain(definition), estimate, note, _mixture(definition), shares, assumed)


def _chain(definition: Definition) -> PlanStep:
    """The steps of a definition, the last one on top."""
    step, node = _origin(definition)
    done: list[Any] = []
    for each in definition.steps:
        done.append(each)
        try:
            after = _grown(definition, tuple(done))
        except PenstockError as error:
            return PlanStep(each.name, _text(each), None, note=f"expected {error.expected}", inputs=(step,))
        step = _after(definition, each, step, node, after)
        node = after
    return step


def _grown(definition: Definition, steps: tuple[Any, ...]) -> Node:
    return grow(Definition(definition.origin, steps), Context(definition.seed, 0, Ledger(), Ledger()))[0]


def _origin(definition: Definition) -> tuple[PlanStep, Node]:
    node = _grown(definition, ())
    origin = definition.origin
    if isinstance(origin, Combined):
        about, *each = origin.lines()
        branches = []
        for text, branch in list(zip(each, origin.branches, strict=True))[:MOST_BRANCHES]:
            last = _chain(branch)
            branches.append(PlanStep(**{**vars(last), "share": text.removesuffix(" of")}))
        more = len(origin.branches) - len(branches)
        note = f"not drawn: {number_of(more, 'more source')}" if more else ""
        return PlanStep(origin.verb, about, node.size, note=note, inputs=tuple(branches)), node
    facts = dict(origin.describe())
    kind = str(facts.pop("kind", type(origin).__name__))
    shown = [f"{name} {value:,}" for name, value in facts.items() if isinstance(value, int)]
    return PlanStep(kind, ", ".join(shown[:4]), node.size, "records"), node


def _after(definition: Definition, each: Any, below: PlanStep, before: Node, node: Node) -> PlanStep:
    old = before.left_out()
    lost = {name.replace("_", " "): count - old.get(name, 0) for name, count in node.left_out().items()}
    lost = {name: count for name, count in lost.items() if count > 0}
    note = ""
    if each.rejects and not each.exact:
        note = "places of rejected rows are refilled: the number of rows stays"
    if not isinstance(each, Batch):
        unit = "batches" if each.plans_batches else "rows"
        return PlanStep(each.name, _text(each), node.size, unit, lost, note, (below,))
    rows = _rows(each, definition.world)
    left = node.size % rows if node.size is not None else 0
    count = None if node.size is None else node.size // rows + bool(left and each.remainder != "drop")
    if left and each.remainder == "drop":
        lost["rows left over"] = left
    elif left:
        note = f"the last batch has {number_of(left, 'row')}" + (
            ", filled up with padding" if each.remainder == "pad" else ""
        )
    return PlanStep(each.name, _text(each), count, "batches", lost, note, (below,))


def _rows(batch: Batch, world: int) -> int:
    try:
        return batch.rows(world)
    except PenstockError:
        return batch.size or 1


def _text(step: Any) -> str:
    text = str(step)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}… (cut)"


def _mixture(definition: Definition) -> dict[str, list[tuple[float, float]]]:
    """The share of each source in consecutive stretches of the run, counted from the plan."""
    node = _grown(definition, ())
    if not isinstance(node, Mixed) or not isinstance(definition.origin, Combined):
        return {}
    origin = definition.origin
    named = origin.names if isinstance(origin, Mix) else ()
    names = list(named) or [_branch_name(number, branch) for number, branch in enumerate(origin.branches)]
    return shares_over_time(node.mixture, names, node.size)


def _branch_name(number: int, branch: Definition) -> str:
    kind = branch.origin.verb if isinstance(branch.origin, Combined) else branch.origin.describe().get("kind", "source")
    return f"{number}: {kind}"


def shares_over_time(mixture: Mixture, names: Sequence[str], size: int | None) -> dict[str, list[tuple[float, float]]]:
    """(row of the run, share of the rows around it) for each source, over an epoch or the first million rows."""
    last = max([row for row, _ in mixture.stages], default=0)
    total = max(size or 0, 2 * last) or 1_000_000
    edges = [round(total * i / MIXTURE_POINTS) for i in range(MIXTURE_POINTS + 1)]
    counts = [mixture.counts(edge) for edge in edges]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for i in range(MIXTURE_POINTS):
        rows = edges[i + 1] - edges[i]
        if rows > 0:
            for k, name in enumerate(names):
                found[name].append((edges[i] + rows / 2, float(counts[i + 1][k] - counts[i][k]) / rows))
    return found
