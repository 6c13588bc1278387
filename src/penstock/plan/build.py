"""Builds a `Definition` into a `Plan`: the tree of nodes, how rows are batched, and the steps applied to batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.ledger import Ledger
from penstock.plan.branches import Combined
from penstock.plan.definition import Definition, fingerprint_of
from penstock.plan.joint_cuts import check_cuts
from penstock.steps.base import BatchStep, Context, Finish, NamesIds, OnReject, Step, rows_before
from penstock.steps.facts import RowFacts
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
    def predictable(self) -> bool:
        """Whether no user's function decides how long a batch takes, or how large it becomes."""
        return self.root.facts.certain and not any(step.changes_content for step, _ in self.finish)

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

    @cached_property
    def ids(self) -> frozenset[str]:
        """The columns of token ids in a batch."""
        ids = self.root.facts.ids
        for step, _ in self.finish:
            ids = step.ids(ids) if isinstance(step, NamesIds) else ids
        return ids

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


def build(definition: Definition, on_reject: OnReject = "refill", noted: Plan | None = None) -> Plan:
    """Builds the nodes; every wrong combination of steps is refused here, before any record is read.

    `noted`: the plan of the same run before a change of weights; what it skipped is kept.
    """
    check_cuts(definition)
    ledger, refusals = (Ledger(), Ledger()) if noted is None else (noted.ledger, noted.refusals)
    root, finish = grow(definition, Context(definition.seed, 0, ledger, refusals, on_reject))
    if finish and definition.batch is not None and root.batch_plan is None and root.facts.per_batch is None:
        node = finish[0][0].on_rows(root)
        if node is not None:
            node.verb = verbs_on_batches(definition, len(finish))[0]
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
    if definition.batch is not None and definition.batch.balance and root.facts.lanes:
        raise UsageError(
            "one rule that assigns the rows of a step to ranks",
            got=".shuffle(lanes=...), which assigns them by lane, and .batch(balance=True), by attention cost",
            fix="leave out balance=True, or lanes=",
        )
    return Plan(definition, root, finish, ledger, refusals)


def grow(definition: Definition, context: Context, first: int = 0) -> tuple[Node, tuple[tuple[Finish, int], ...]]:
    """The nodes of a definition whose sources are numbered from `first`, and the steps applied to its batches."""
    node: Node
    if isinstance(definition.origin, Combined):
        node = _grow_branches(definition.origin, context, first)
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
            node = _built(step, node, replace(context, place=place))
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
            node = _built(step, node, replace(context, place=place))
            node.facts = _facts_after(step, node.facts)
    return node, tuple(finish)


def _built(step: Step, child: Node, context: Context) -> Node:
    node = step.build(child, context)
    if node is not child:
        node.verb = step.name
    return node


def verbs_on_batches(definition: Definition, count: int) -> list[str]:
    """The names of the last `count` steps that are applied to batches: those of `Plan.finish`."""
    names = [step.name for step in definition.steps if isinstance(step, BatchStep)]
    return names[len(names) - count :]


def _grow_branches(origin: Combined, context: Context, first: int) -> Node:
    children: list[Node] = []
    for branch in origin.branches:
        if branch.batch is not None:
            raise UsageError(
                f"sources without .batch() in penstock.{origin.verb}()",
                got="one that is already batched",
                fix=f"batch after it: {origin.verb}([...]).batch(n)" if origin.verb != "mix" else "batch the mixture",
            )
        child, finish = grow(branch, replace(context, seed=branch.seed or context.seed), first)
        if finish:
            raise UsageError(
                f"single rows from each source of penstock.{origin.verb}()",
                got="a source that ends in .pad()",
                fix=f"pad after it: {origin.verb}([...]).pad()" if origin.verb != "mix" else "pad the mixture",
            )
        children.append(child)
        first += sum(1 for _ in child.leaves())
    node = origin.build(children)
    node.verb = origin.verb
    return node


def _facts_after(step: Step, facts: RowFacts) -> RowFacts:
    """What holds for rows after a step, besides what its node says."""
    if step.changes_content:
        facts = replace(facts, certain=False)
    if step.exact or step.rejects:
        facts = replace(facts, rejects=not step.exact)
    if step.draws:
        facts = replace(facts, draws=True)
    return facts
