"""Builds a `Definition` into a `Plan`: the tree of nodes, how rows are batched, and the steps applied to batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.ledger import Ledger
from penstock.order.mix import Mixture
from penstock.order.weights import proportional
from penstock.plan.definition import Definition, Mix, Stop, fingerprint_of
from penstock.steps.base import BatchStep, Context, Finish, OnReject, rows_before
from penstock.steps.id_dtype import check_ids
from penstock.steps.node import Node, SourceNode


@dataclass(frozen=True)
class Plan:
    """A definition, built: ready to compute any batch."""

    definition: Definition
    root: Node
    finish: tuple[tuple[Finish, int], ...]
    ledger: Ledger = field(compare=False)
    refusals: Ledger = field(compare=False)

    @cached_property
    def parts(self) -> list[tuple[str, str]]:
        """The definition's parts, computed once: a source may have to read its files for its fingerprint."""
        return self.definition.parts()

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(self.parts)

    @property
    def needs_global_batch(self) -> bool:
        """Whether a rank must make the full global batch before taking its share."""
        if self.definition.world == 1:
            return False
        return any(step.needs_global_batch for step, _ in self.finish) or self.counts_all

    def left_out(self, rows: int = 1) -> dict[str, int]:
        """Counts of what an epoch in batches of `rows` rows leaves out, by kind and reason; without zeros."""
        counts = self.root.left_out()
        batch = self.definition.batch
        if self.root.size is not None and batch is not None and batch.remainder == "drop":
            counts = {**counts, "rows_left_over": self.root.size % rows}
        return {name: count for name, count in counts.items() if count}

    @property
    def warning(self) -> str | None:
        """A warning for the user before training, or None."""
        return None if self.root.batch_plan is None else self.root.batch_plan.warning

    def check_ids(self, kind: np.dtype[Any]) -> None:
        """Raises unless the token ids and labels of all batches fit `kind`."""
        padding = [step.pad_id for step, _ in self.finish if step.pad_id is not None]
        if "input_ids" not in self.root.facts.ids:
            padding = []
        check_ids(kind, self.root, padding, changed=any(step.changes_content for step, _ in self.finish))

    @property
    def counts_all(self) -> bool:
        """Whether the labels of other ranks can be counted only by making their rows."""
        return self.root.facts.per_batch is not None and not self.root.facts.certain


def build(definition: Definition, on_reject: OnReject = "refill") -> Plan:
    """Builds the nodes; every wrong combination of steps is refused here, before any record is read."""
    ledger, refusals = Ledger(), Ledger()
    root, finish = grow(definition, Context(definition.seed, 0, ledger, refusals, on_reject))
    if finish and definition.batch is not None and root.batch_plan is None and root.facts.per_batch is None:
        node = finish[0][0].on_rows(root)
        if node is not None:
            root, finish = node, finish[1:]
    planned = next((s for s in definition.steps if s.plans_batches), None)
    if planned is not None and definition.world > 1 and any(step.needs_global_batch for step, _ in finish):
        raise UsageError(
            f"functions of a rank's own rows after .{planned.name}(), where ranks fill up their shares",
            got="whole=True",
            fix="use .map_batches() without whole, or .batch(n)",
        )
    if definition.batch is not None and definition.batch.balance and not root.facts.weighs:
        raise UsageError(
            ".pack(n) before .batch(balance=True), which assigns rows to ranks by their attention cost",
            got="rows of unknown or equal cost",
            fix="leave balance out, or use .bucket() or .batch_tokens() with balance=True",
        )
    return Plan(definition, root, finish, ledger, refusals)


def grow(definition: Definition, context: Context, first: int = 0) -> tuple[Node, tuple[tuple[Finish, int], ...]]:
    """The nodes of a definition whose sources are numbered from `first`, and the steps applied to its batches."""
    node: Node
    if isinstance(definition.origin, Mix):
        node = _grow_mix(definition.origin, context, first)
    else:
        node = SourceNode(definition.origin, first)
    seen: dict[str, int] = {}
    finish: list[tuple[Finish, int]] = []
    batched = ""
    for step in definition.steps:
        place = seen.get(step.name, 0)
        seen[step.name] = place + 1
        if step.batch is not None:
            if batched:
                raise UsageError(f"one .{batched}() in a pipeline", got="two", fix="remove one of them")
            batched = step.name
            node = step.build(node, replace(context, place=place))
        elif isinstance(step, BatchStep) and (batched or step.batches_only):
            changed = any(done.changes_content for done, _ in finish)
            facts = replace(node.facts, own_labels=False) if changed else node.facts
            finish.append((step.on_batches(facts), randomness.key(context.seed, step.name, place)))
        elif batched or finish:
            after = f".{batched}()" if batched else f".{definition.steps[definition.steps.index(step) - 1].name}()"
            fix = f"put .{step.name}() first; after .batch() come only .map_batches(), .pad() and outputs"
            if any(s.plans_batches for s in definition.steps) and step.name != "shuffle":
                fix = rows_before(batched, step.name)
            raise UsageError(f".{step.name}() before {after}", got=f"{after} and then .{step.name}()", fix=fix)
        else:
            node = step.build(node, replace(context, place=place))
            if step.changes_content:
                node.facts = replace(node.facts, certain=False)
    return node, tuple(finish)


def _grow_mix(mix: Mix, context: Context, first: int) -> Node:
    from penstock.steps.mix import Mixed

    children: list[Node] = []
    for branch in mix.branches:
        if branch.batch is not None:
            raise UsageError(
                "sources without .batch() in penstock.mix()", got="one that is already batched", fix="batch the mixture"
            )
        child, finish = grow(branch, replace(context, seed=branch.seed or context.seed), first)
        if finish:
            raise UsageError(
                "single rows from each source of penstock.mix()",
                got="a source that ends in .pad()",
                fix="pad the mixture",
            )
        children.append(child)
        first += sum(1 for _ in child.leaves())
    mixture = mixture_of(mix, tuple(c.size for c in children))
    first_weights = replace(mixture, stages=(), drawn=())  # an epoch keeps its length when weights change
    ends = {"never": lambda: None, "first": first_weights.first_exhausted, "all": first_weights.all_exhausted}
    return Mixed(children, mixture, ends[mix.stop]())


def mixture_of(mix: Mix, sizes: tuple[int | None, ...]) -> Mixture:
    """The order of a mixture of sources of these sizes."""
    key = randomness.key(mix.seed, "mix")
    return Mixture(weights=mix.weights, sizes=sizes, key=key, stages=mix.stages, drawn=mix.drawn)


def mixed(branches: Sequence[Definition], weights: Sequence[float] | None, seed: int, stop: Stop) -> Definition:
    """The definition of `penstock.mix`, its arguments checked and completed."""
    if not branches:
        raise UsageError("at least one pipeline in penstock.mix()", got="none")
    if stop not in get_args(Stop):
        raise UsageError('stop="never", "first" or "all" in penstock.mix()', got=repr(stop))
    if weights is None:
        sizes = [build(branch).root.size for branch in branches]
        if any(size is None for size in sizes):
            raise UsageError("weights in penstock.mix() of an endless pipeline", got="none", fix="weights=[...]")
        weights = proportional([size or 0 for size in sizes])
    shares = {(branch.rank, branch.world) for branch in branches}
    if len(shares) > 1:
        raise UsageError(
            "the same .shard() in every pipeline of penstock.mix()",
            got=", ".join(f"rank {rank} of {world}" for rank, world in sorted(shares)),
            fix="leave .shard() out of the pipelines and add it to the mixture: mix([...]).shard()",
        )
    if len(weights) != len(branches):
        raise UsageError(
            f"{len(branches)} weights in penstock.mix(), one per pipeline", got=f"{len(weights)}: {list(weights)}"
        )
    ((rank, world),) = shares
    sharded = any(branch.sharded for branch in branches)
    return Definition(Mix(tuple(branches), tuple(float(w) for w in weights), seed, stop), (), rank, world, sharded)
