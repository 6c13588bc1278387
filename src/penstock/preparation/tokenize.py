"""`.tokenize()`: from a pipeline of texts to its token store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.errors import UsageError
from penstock.plan.definition import Definition
from penstock.preparation.cache import cached_store
from penstock.preparation.pipeline_texts import PipelineTexts, TextOfColumn
from penstock.sources.base import ColumnSource, TextColumnSource, TextSource, TokenSource
from penstock.steps.skip_errors import SkipErrors


def tokenized(
    definition: Definition, tokenizer: Any, field: str, keep: Sequence[str] | None, cache_dir: Any,
    settings: dict[str, Any],
) -> Definition:  # fmt: skip
    """The store of a definition's texts, for the same rank; prepared now if the cache does not have it."""
    source = text_source(definition, field, settings, keep)
    store = cached_store(source, tokenizer, cache_dir=cache_dir, settings=settings)
    return Definition(store, (), definition.rank, definition.world, definition.sharded)


def text_source(
    definition: Definition, field: str, settings: dict[str, Any], keep: Sequence[str] | None = ()
) -> TextSource:
    """The texts to prepare. Completes `settings`: `.skip_errors()` in the pipeline is `on_error="skip"`.

    A source that reads its own texts in one pass does so when there are no other steps and no other columns to keep.
    `keep`: the columns that stay beside the tokens; None for all others.
    """
    if isinstance(keep, str) or not (keep is None or all(isinstance(name, str) for name in keep)):
        raise UsageError("a list of columns for keep= in .tokenize()", got=repr(keep), fix='keep=["label"], or []')
    origin = definition.origin
    if isinstance(origin, TokenSource):
        raise UsageError("text before .tokenize()", got="tokens", fix="leave .tokenize() out")
    policy = skip_policy(definition, settings.get("on_error"), settings.get("budget"))
    if policy.skips:
        settings |= {"on_error": "skip", "budget": policy.budget}
    alone = not definition.steps or (len(definition.steps) == 1 and policy.inside)
    if keep is None and alone and isinstance(origin, TextColumnSource) and set(_columns(origin)) <= {field}:
        keep = ()
    if alone and keep is not None and not keep and isinstance(origin, TextColumnSource) and origin.text_column == field:
        return origin
    texts = PipelineTexts(
        definition, TextOfColumn(field, policy.skips, None if keep is None else tuple(keep)), policy.last, ".tokenize()"
    )
    if texts.budget is not None:
        settings["budget"] = texts.budget
    return texts


def _columns(origin: Any) -> Sequence[str]:
    """The columns that a source names; a reader of texts that names none has no others."""
    return origin.columns if isinstance(origin, ColumnSource) else ()


class SkipPolicy(NamedTuple):
    """Whether a preparation skips bad records.

    `inside`: the pipeline has `.skip_errors()`. `last`: the step that `on_error="skip"` adds at the end.
    """

    inside: bool
    last: SkipErrors | None
    budget: int | float | None

    @property
    def skips(self) -> bool:
        return self.inside or self.last is not None


def skip_policy(definition: Definition, on_error: str | None, budget: int | float | None) -> SkipPolicy:
    """The policy for bad records of a pipeline and its arguments; refuses contradictions."""
    guards = [step for step in definition.steps if isinstance(step, SkipErrors)]
    last = SkipErrors(budget) if on_error == "skip" else None
    if not guards:
        return SkipPolicy(False, last, budget)
    if on_error == "raise":
        raise UsageError(
            'on_error="skip", or none: the pipeline skips bad records',
            got='.skip_errors() and on_error="raise"',
            fix="leave one of them out",
        )
    if budget is not None and guards[-1].budget not in (None, budget):
        raise UsageError(
            "one budget for bad records",
            got=f"{guards[-1].budget!r} in the pipeline and {budget!r} here",
            fix="leave one of them out",
        )
    return SkipPolicy(True, last, guards[-1].budget if budget is None else budget)
