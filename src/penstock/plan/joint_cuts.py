"""Refuses two random cuts of one record that nobody said are independent.

Each decoder draws its crops, mirrors and slices for itself. An image and its mask, or noisy and clean speech, would no
longer match, without an error. One decoder can cut both (`masks=`); `ignore=` names what is cut on its own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

from penstock.core.errors import UsageError
from penstock.plan.branches import Combined, Zip
from penstock.plan.definition import Definition, OfPipeline
from penstock.steps.base import Extent, Step


def check_cuts(definition: Definition) -> list[Extent]:
    """The cuts of which a column is left after a definition; raises for two that may have to agree and do not."""
    origin = definition.origin
    found: list[Extent] = []
    if isinstance(origin, OfPipeline):
        found = check_cuts(origin.definition)
    elif isinstance(origin, Combined):
        branches = [check_cuts(branch) for branch in origin.branches]
        if isinstance(origin, Zip):  # the others have rows of one branch or another, never of two
            for one, other in combinations(branches, 2):
                for first, second in product(one, other):
                    _check(first, second, "penstock.zip()")
        found = [cut for branch in branches for cut in branch]
    for step in definition.steps:
        found = _after(step, found)
    return found


def _after(step: Step, found: list[Extent]) -> list[Extent]:
    if step.extent is not None:
        for before in found:
            _check(before, step.extent, "one pipeline")
        return [*found, step.extent]
    if not found:
        return found
    from penstock.steps.choose_columns import ColumnsStep  # here: a pipeline loads the steps that it uses

    if not isinstance(step, ColumnsStep):
        return found
    names = sorted(frozenset().union(*(cut.columns for cut in found)))
    made = step.new_names([*names, *step.used, ""])
    now = [replace(cut, columns=frozenset(made[name] for name in cut.columns if name in made)) for cut in found]
    return [cut for cut in now if cut.columns]


def _check(first: Extent, second: Extent, where: str) -> None:
    drawn = first.axes & second.axes & (first.drawn | second.drawn)
    if not drawn or first.ignores(second) or second.ignores(first):
        return
    name = sorted(second.columns)[0]
    together = {
        "space": f'masks="{second.source}" in the first moves a mask with its image',
        "time": "decode both whole, without duration=, and cut them in one .map() with rng",
    }[min(drawn)]
    raise UsageError(
        "one random cut for columns that belong together, or ignore= for those that do not",
        got=f"{first.call} and {second.call}, each with a cut of its own",
        where=where,
        fix=f'{together}; ignore="{sorted(first.columns)[0]}" in the one that makes {name!r} cuts it on its own',
    )
