"""Sampling weights of languages, with a cap on repetition.

Shares are of tokens, and documents of languages differ in length: the row weight of a language is its share of tokens
divided by the tokens of its average row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.errors import UsageError
from penstock.order import weights as rules
from penstock.steps.base import Context, Step
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks

UNIMAX_PASSES = 4.0


class Language(NamedTuple):
    """Rows of one language, and their tokens after truncation."""

    name: str
    rows: int
    tokens: int


@dataclass(frozen=True)
class LanguagePlan:
    """Row weights, rows per epoch, and the largest number of passes."""

    languages: tuple[Language, ...]
    shares: tuple[float, ...]  # of tokens
    weights: tuple[float, ...]  # of rows
    rows: int
    cap: float | None

    @property
    def is_everything(self) -> bool:
        """Whether an epoch is as many rows of each language as it has."""
        return all(abs(passes - 1) < 1e-9 for passes in self._passes(1).values())

    def check(self, epochs: int) -> None:
        """Raises if this many epochs would repeat a language more often than `max_repeats`."""
        if self.cap is not None:
            names = [language.name for language in self.languages]
            sizes = [language.rows for language in self.languages]
            # Draws are integers: a language is drawn at most once more than its weight says.
            rules.check_repeats(self.weights, sizes, max(1, self.rows * epochs - len(sizes)), self.cap, names)

    def passes(self, epochs: int = 1) -> dict[str, float]:
        """Returns the passes over each language in this many epochs."""
        return {name: round(passes, 3) for name, passes in self._passes(epochs).items()}

    def _passes(self, epochs: int) -> dict[str, float]:
        draws = self.rows * epochs
        pairs = zip(self.languages, self.weights, strict=True)
        return {language.name: weight * draws / language.rows for language, weight in pairs}


def plan_languages(
    languages: Sequence[Language],
    sampling: str,
    *,
    temperature: float = 3.0,
    max_repeats: float | None = None,
    train_tokens: int | None = None,
) -> LanguagePlan:
    """Plans a mixture. `train_tokens` is the length of an epoch; default: all tokens of all languages.

    >>> plan = plan_languages([Language("de", 90, 900), Language("sw", 10, 100)], "temperature", temperature=2)
    >>> plan.shares, plan.rows, plan.passes()
    ((0.75, 0.25), 100, {'de': 0.833, 'sw': 2.5})
    """
    for language in languages:
        if not language.tokens:
            raise UsageError("tokens in every language", got=f"none in {language.name!r}", fix="leave it out")
    sizes = [language.tokens for language in languages]
    budget = train_tokens or sum(sizes)
    if sampling == "proportional":
        shares = rules.proportional(sizes)
    elif sampling == "temperature":
        shares = rules.temperature(sizes, temperature)
    else:
        shares = rules.unimax(sizes, budget, max_repeats or UNIMAX_PASSES)
    mean = [language.tokens / language.rows for language in languages]
    per_token = [share / size for share, size in zip(shares, mean, strict=True)]
    plan = LanguagePlan(
        tuple(languages),
        shares,
        rules.normalise(per_token, "weights of languages"),
        max(1, round(budget * sum(per_token))),
        max_repeats,
    )
    plan.check(1)
    return plan


@dataclass(frozen=True)
class Stretch(Step):
    """Cuts an endless sequence into epochs of `count` rows; each continues where the last one ended."""

    count: int

    def build(self, child: Node, context: Context) -> Node:
        return _Stretched(child, self.count)


class _Stretched(WrapperNode):
    def __init__(self, child: Node, count: int) -> None:
        super().__init__(child)
        self.size = count

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(position + epoch * (self.size or 0), 0)
