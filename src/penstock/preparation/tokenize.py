"""`.tokenize()`: from a pipeline of texts to its token store."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import UsageError
from penstock.plan.definition import Definition, Mix
from penstock.preparation.cache import cached_store
from penstock.preparation.rows import Texts
from penstock.sources.base import TextColumnSource, TextSource, TokenSource
from penstock.sources.tokens import TokenStore
from penstock.steps.guard import SkipErrors


def tokenized(
    definition: Definition, tokenizer: Any, field: str, cache_dir: Any, settings: dict[str, Any]
) -> TokenStore:
    """The store of a definition's texts; prepared now if the cache does not have it."""
    return cached_store(text_source(definition, field, settings), tokenizer, cache_dir=cache_dir, settings=settings)


def text_source(definition: Definition, field: str, settings: dict[str, Any]) -> TextSource:
    """What is to be prepared: a source that reads its texts in one pass does so; `skip_errors` becomes a setting."""
    origin = definition.origin
    if isinstance(origin, TokenSource):
        raise UsageError("text before .tokenize()", got="tokens", fix="leave .tokenize() out")
    if definition.batch is not None:
        raise UsageError("single records before .tokenize()", got=".batch()", fix="put .tokenize() before .batch()")
    guards = [s for s in definition.steps if isinstance(s, SkipErrors)]
    if guards and not isinstance(origin, Mix):
        settings.setdefault("on_error", "skip")
        settings.setdefault("budget", guards[0].budget)
    plain = [s for s in definition.steps if not isinstance(s, SkipErrors)]
    if not plain and isinstance(origin, TextColumnSource) and origin.text_column == field:
        return origin
    return Texts(definition, field)
