"""A pipeline as data.

`Definition` is frozen: a source (or several definitions as one: `plan.branches`) and steps. It can be printed, compared
and fingerprinted without reading a record. `plan.build` turns it into what computes batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

from penstock.core.errors import UsageError
from penstock.core.function_globals import globals_id
from penstock.core.pickling import Immutable
from penstock.order.shard import check_rank, find_rank
from penstock.plan.branches import Combined, Concat, Zip
from penstock.sources.base import BlockSource, ClassSource, Source
from penstock.steps.base import Step
from penstock.steps.batch import Batch


@dataclass(frozen=True)
class Definition(Immutable):
    """A source and the steps after it; `rank` and `world` select this process's share of each batch.

    `sharded`: they were passed, or several processes were found. Otherwise a loader refuses to run in several.
    """

    origin: Source | Combined
    steps: tuple[Step, ...] = ()
    rank: int = 0
    world: int = 1
    sharded: bool = False

    def then(self, step: Step) -> Definition:
        return replace(self, steps=(*self.steps, step))

    def share(self, rank: int | None, world: int | None) -> Definition:
        """The same, for one rank; without arguments the rank is found from the framework or the environment."""
        passed = rank is not None
        if rank is None and world is None:
            rank, world = find_rank()
        if rank is None or world is None:
            raise UsageError("both rank and world in .shard(), or neither", got=f"rank={rank!r}, world={world!r}")
        check_rank(rank, world)
        if self.world > 1 and (rank, world) != (self.rank, self.world):
            raise UsageError(
                "one .shard() in a pipeline",
                got=f"rank {self.rank} of {self.world}, and then rank {rank} of {world}",
                fix="leave one of them out: both take a rank's rows of each batch, not rows of rows",
            )
        return replace(self, rank=rank, world=world, sharded=passed or world > 1)

    def refuse_shard(self, verb: str) -> None:
        """For what uses all rows: a rank's rows exist only in batches, so `.shard()` before it would be ignored."""
        if self.world > 1:
            raise UsageError(
                f"a pipeline that is not sharded for {verb}, which uses all rows",
                got=f"rank {self.rank} of {self.world}",
                fix="leave .shard() out; to divide the rows into parts use .split()",
            )

    @property
    def batch(self) -> Batch | None:
        """How rows are batched: by `.batch()`, or by a step that plans batches."""
        return next((s.batch for s in self.steps if s.batch is not None), None)

    @property
    def seed(self) -> int:
        """The run's seed: the first one that a step sets, else 0."""
        return next((s.run_seed for s in self.steps if s.run_seed is not None), 0)

    def parts(self) -> list[tuple[str, str]]:
        """Name and short digest of everything that decides the rows and their order; batch size and world do not."""
        if isinstance(self.origin, Combined):
            parts = [(f"{i}.{name}", d) for i, b in enumerate(self.origin.branches) for name, d in b.parts()]
            parts.append((self.origin.verb, _digest(self.origin.spec())))
        else:
            parts = [("source", _digest(self.origin.fingerprint()))]
        if any(s.follows_blocks for s in self.steps) and (blocks := _block_sizes(self.origin)):
            parts.append(("blocks", _digest(blocks[0] if len(blocks) == 1 else blocks)))
        return parts + [part for s in self.steps if not isinstance(s, Batch) for part in _parts(s)]

    def functions(self) -> Iterator[Any]:
        """The user's functions in this pipeline and in those it consists of; not those of a step with `version=`."""
        inner = self.origin.branches if isinstance(self.origin, Combined) else ()
        if isinstance(self.origin, OfPipeline):
            inner = (self.origin.definition,)
        for definition in inner:
            yield from definition.functions()
        for step in self.steps:
            values = {field.name: getattr(step, field.name) for field in fields(step)}
            if values.get("version") is None:
                yield from filter(callable, values.values())

    def code_id(self) -> str:
        """An id of the helpers, constants and classes that the user's functions use; "" if there are none."""
        used = [globals_id(function) for function in self.functions()]
        return _digest(used) if any(used) else ""

    def fingerprint(self) -> str:
        """Equal for pipelines that return the same rows in the same order."""
        return fingerprint_of(self.parts())


def class_names(definition: Definition, *, certain: bool = False) -> dict[str, tuple[str, ...]]:
    """The names of classes by column; of several branches those that all of them agree on, as far as each has them.

    `certain`: none after a function of the user's, which may have changed the numbers.
    """
    from penstock.steps.choose_columns import ColumnsStep  # here: a pipeline loads the steps that it uses

    origin = definition.origin
    names: dict[str, tuple[str, ...]] = {}
    if isinstance(origin, OfPipeline):
        names = class_names(origin.definition, certain=certain)
    elif isinstance(origin, Zip):
        names = {name: one for branch in origin.branches for name, one in class_names(branch, certain=certain).items()}
    elif isinstance(origin, Combined):
        each = [class_names(branch, certain=certain) for branch in origin.branches]
        for name in each[0]:
            known = [one.get(name, ()) for one in each]
            most = max(known, key=len)
            if all(some and most[: len(some)] == some for some in known):
                names[name] = most
    elif isinstance(origin, ClassSource):
        names = dict(origin.class_names)
    for step in definition.steps:
        if isinstance(step, ColumnsStep):
            made = step.new_names([*names, *step.used, ""])
            names = {made[name]: one for name, one in names.items() if name in made}
        elif certain and step.changes_content and not step.rejects:
            return {}
    return names


@runtime_checkable
class OfPipeline(Protocol):
    """A source that reads the rows of a pipeline."""

    definition: Definition


def _block_sizes(origin: Source | Combined) -> list[list[int]]:
    """How the records of each source are stored; a shuffle by lanes after `concat` follows all of them."""
    if isinstance(origin, Concat):
        return [sizes for branch in origin.branches for sizes in _block_sizes(branch.origin)]
    return [origin.block_sizes().tolist()] if isinstance(origin, BlockSource) else []


def fingerprint_of(parts: list[tuple[str, str]]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _parts(step: Step) -> list[tuple[str, str]]:
    """One part for a step; one for each argument of a step that plans batches, so that an error can name it."""
    if not step.plans_batches:
        return [(step.name, _digest(step.spec()))]
    return [(f"{step.name}.{name}", _digest(value)) for name, value in step.spec().items()]


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=4).hexdigest()


def differences(saved: Sequence[Sequence[str]], now: Sequence[tuple[str, str]]) -> str:
    """Names what differs between two lists of parts, in a few words."""
    old, new = [str(p[0]) for p in saved], [p[0] for p in now]
    if old != new:
        return f"the steps were {' > '.join(old)}; they are {' > '.join(new)}"
    changed = [n for (n, d), (_, e) in zip(now, saved, strict=True) if d != e]
    return "other data or arguments in: " + ", ".join(changed)
