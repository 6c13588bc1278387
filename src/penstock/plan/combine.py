"""The definitions of `penstock.mix`, `concat`, `zip` and `interleave`: their arguments, checked and completed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from penstock.core.errors import UsageError
from penstock.order.weights import proportional
from penstock.plan.branches import Combined, Concat, Interleave, Mix, Stop, Zip, by_name
from penstock.plan.build import build
from penstock.plan.definition import Definition, class_names
from penstock.sources.base import PipelineLike
from penstock.steps.branches import Branches
from penstock.steps.interleave import AtEnd


def definitions_of(pipelines: Any, verb: str) -> list[Definition]:
    """The definitions of a list of pipelines; refuses anything else."""
    alone = isinstance(pipelines, PipelineLike)
    wrong = [] if alone else [one for one in pipelines if not isinstance(one, PipelineLike)]
    if alone or wrong:
        raise UsageError(
            f"a list of pipelines in penstock.{verb}()",
            got="one pipeline" if alone else repr(wrong[0])[:80],
            fix=f"penstock.{verb}([one, other]); pipelines begin with read_*(), open_*() or from_*()",
        )
    return [one.definition for one in pipelines]


def names_of(pipelines: Any, verb: str) -> tuple[str, ...]:
    """The names of a dict of pipelines; none of a list."""
    if not isinstance(pipelines, Mapping):
        return ()
    for name in pipelines:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UsageError(
                f"names of pipelines in penstock.{verb}() as text of one line", got=repr(name)[:80], fix='{"web": one}'
            )
    return tuple(pipelines)


def mixed(
    branches: Sequence[Definition], weights: Sequence[float] | Mapping[str, float] | None, seed: int, stop: Stop,
    names: tuple[str, ...] = (),
) -> Definition:  # fmt: skip
    """The definition of `penstock.mix`."""
    _check_some(branches, "mix")
    if stop not in get_args(Stop):
        raise UsageError('stop="never", "first" or "all" in penstock.mix()', got=repr(stop))
    if weights is None:
        sizes = [build(branch).root.size for branch in branches]
        if any(size is None for size in sizes):
            raise UsageError("weights in penstock.mix() of an endless pipeline", got="none", fix="weights=[...]")
        weights = proportional([size or 0 for size in sizes])
    _check_shares(branches, "mix")
    _check_classes(branches, "mix")
    if isinstance(weights, Mapping):
        weights = by_name(weights, names, "weights in penstock.mix()")
    if len(weights) != len(branches):
        raise UsageError(
            f"{len(branches)} weights in penstock.mix(), one per pipeline", got=f"{len(weights)}: {list(weights)}"
        )
    return _combined(Mix(tuple(branches), tuple(float(w) for w in weights), seed, stop, names=names))


def concatenated(branches: Sequence[Definition]) -> Definition:
    """The definition of `penstock.concat`."""
    _check(branches, "concat")
    _check_classes(branches, "concat")
    return _combined(Concat(tuple(branches)))


def zipped(branches: Sequence[Definition]) -> Definition:
    """The definition of `penstock.zip`."""
    _check(branches, "zip")
    return _combined(Zip(tuple(branches)))


def interleaved(branches: Sequence[Definition], at_end: AtEnd) -> Definition:
    """The definition of `penstock.interleave`."""
    _check(branches, "interleave")
    _check_classes(branches, "interleave")
    if at_end not in get_args(AtEnd):
        shown = ", ".join(map(repr, get_args(AtEnd)))
        raise UsageError(f"at_end in penstock.interleave(), one of {shown}", got=repr(at_end), fix='at_end="continue"')
    return _combined(Interleave(tuple(branches), at_end))


def _combined(origin: Combined) -> Definition:
    """The definition over an origin, built once so that what does not fit is refused now."""
    first = origin.branches[0]
    sharded = any(branch.sharded for branch in origin.branches)
    made = Definition(origin, (), first.rank, first.world, sharded)
    root = build(made).root
    if isinstance(root, Branches):
        root.compare_schemas()
    return made


def _check(branches: Sequence[Definition], verb: str) -> None:
    _check_some(branches, verb)
    _check_shares(branches, verb)


def _check_some(branches: Sequence[Definition], verb: str) -> None:
    if not branches:
        raise UsageError(f"at least one pipeline in penstock.{verb}()", got="none")


def _check_classes(branches: Sequence[Definition], verb: str) -> None:
    """Refuses columns whose numbers stand for other classes in another branch."""
    known: dict[str, tuple[int, tuple[str, ...]]] = {}
    for number, branch in enumerate(branches):
        for column, names in class_names(branch, certain=True).items():
            before, others = known.setdefault(column, (number, names))
            differs = next((i for i, pair in enumerate(zip(names, others, strict=False)) if pair[0] != pair[1]), None)
            if differs is not None:
                raise UsageError(
                    f"the same classes in column {column!r} of every pipeline of penstock.{verb}()",
                    got=f"{differs} is {others[differs]!r} in pipeline {before} and {names[differs]!r} in {number}",
                    fix='number them together: read_images("{one,other}/*/*.jpg"); or number them yourself with .map()',
                )


def _check_shares(branches: Sequence[Definition], verb: str) -> None:
    shares = {(branch.rank, branch.world) for branch in branches}
    if len(shares) > 1:
        raise UsageError(
            f"the same .shard() in every pipeline of penstock.{verb}()",
            got=", ".join(f"rank {rank} of {world}" for rank, world in sorted(shares)),
            fix=f"leave .shard() out of the pipelines and add it at the end: {verb}([...]).shard()",
        )
