"""Several definitions as one origin: `mix`, `concat`, `zip`, `interleave`. Each is data that builds its node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.pickling import Immutable
from penstock.order.mix import Mixture
from penstock.steps.node import Node

if TYPE_CHECKING:
    from penstock.plan.definition import Definition
    from penstock.steps.interleave import AtEnd

Stop = Literal["never", "first", "all"]


@dataclass(frozen=True)
class Combined(Immutable, ABC):
    """Several definitions in one sequence of rows. `verb` is the function that made it."""

    verb: ClassVar[str]
    branches: tuple[Definition, ...]

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """All arguments that affect the rows, besides the branches, in plain JSON."""

    @abstractmethod
    def build(self, children: Sequence[Node]) -> Node:
        """The node over those of the branches."""

    def lines(self) -> list[str]:
        """For the repr: a line about all of them, and one about each branch."""
        return [f"{self.verb} of {len(self.branches)}", *("" for _ in self.branches)]


@dataclass(frozen=True)
class Mix(Combined):
    """Several definitions in proportion; `stop` decides when an epoch ends.

    `stages` are changes of the weights: (row of the run, weights). `drawn`: the draws of each source before the first
    of them, where older changes are no longer known. `names` of the branches, or none: they change no row.
    """

    verb: ClassVar[str] = "mix"
    weights: tuple[float, ...]
    seed: int = 0
    stop: Stop = "never"
    stages: tuple[tuple[int, tuple[float, ...]], ...] = ()
    drawn: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def spec(self) -> dict[str, Any]:
        return {"weights": list(self.weights), "seed": self.seed, "stop": self.stop}

    def build(self, children: Sequence[Node]) -> Node:
        from penstock.steps.mix import Mixed

        mixture = mixture_of(self, tuple(c.size for c in children))
        first_weights = replace(mixture, stages=(), drawn=())  # an epoch keeps its length when weights change
        ends = {"never": lambda: None, "first": first_weights.first_exhausted, "all": first_weights.all_exhausted}
        return Mixed(children, mixture, ends[self.stop](), self.names)

    def lines(self) -> list[str]:
        names = [f" {name}" for name in self.names] or [""] * len(self.weights)
        each = (f"{weight:.4g} of{name}" for weight, name in zip(self.weights, names, strict=True))
        return [f"mix of {len(self.branches)}, ends {self.stop}", *each]


@dataclass(frozen=True)
class Concat(Combined):
    """All rows of each definition, one after another."""

    verb: ClassVar[str] = "concat"

    def spec(self) -> dict[str, Any]:
        return {}

    def build(self, children: Sequence[Node]) -> Node:
        from penstock.steps.concat import Concatenated

        return Concatenated(children)


@dataclass(frozen=True)
class Zip(Combined):
    """The columns of all definitions side by side, row by row."""

    verb: ClassVar[str] = "zip"

    def spec(self) -> dict[str, Any]:
        return {}

    def build(self, children: Sequence[Node]) -> Node:
        from penstock.steps.zip import Zipped

        return Zipped(children)


@dataclass(frozen=True)
class Interleave(Combined):
    """One row of each definition in turn; `at_end` is what happens when one of them ends."""

    verb: ClassVar[str] = "interleave"
    at_end: AtEnd = "continue"

    def spec(self) -> dict[str, Any]:
        return {"at_end": self.at_end}

    def build(self, children: Sequence[Node]) -> Node:
        from penstock.steps.interleave import Interleaved

        return Interleaved(children, self.at_end)


def by_name(weights: Mapping[str, float], names: Sequence[str], what: str) -> list[float]:
    """The weights of a dict in the order of the names of a mixture, which must be the same.

    >>> by_name({"code": 0.3, "web": 0.7}, ["web", "code"], "weights")
    [0.7, 0.3]
    """
    if not names:
        raise UsageError(
            f"{what} as a list: the pipelines have no names",
            got="a dict",
            fix='penstock.mix({"web": one, "code": two})',
        )
    wrong = [f"no {name!r}" for name in names if name not in weights]
    wrong += [f"unknown {name!r}" for name in weights if name not in names]
    if wrong:
        fix = "the same names as in penstock.mix(); 0 leaves a pipeline out"
        raise UsageError(f"{what} for {', '.join(map(repr, names))}"[:200], got=", ".join(wrong)[:200], fix=fix)
    return [weights[name] for name in names]


def mixture_of(mix: Mix, sizes: tuple[int | None, ...]) -> Mixture:
    """The order of a mixture of sources of these sizes."""
    key = randomness.key(mix.seed, "mix")
    return Mixture(weights=mix.weights, sizes=sizes, key=key, stages=mix.stages, drawn=mix.drawn)
