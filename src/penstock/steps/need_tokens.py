"""The tokens that `windows` and `pack` are planned over: one source of tokens, with nothing in between."""

from __future__ import annotations

from penstock.core.errors import UsageError
from penstock.sources.base import TokenSource
from penstock.steps.node import Node, SourceNode


def need_tokens(child: Node, verb: str) -> TokenSource:
    """The source right before `.verb()`; refuses anything else, and says what to write instead."""
    if isinstance(child, SourceNode) and isinstance(child.source, TokenSource):
        return child.source
    leaves = list(child.leaves())
    if isinstance(child, SourceNode):
        got = f"records of {child.source.describe().get('kind', 'a source')}"
    else:
        got = f"{len(leaves)} sources together" if len(leaves) > 1 else "another step"
    fix = f"put .tokenize(...) before .{verb}(), and .shuffle(), .take() and the rest after it"
    if not isinstance(child, SourceNode) and all(isinstance(leaf.source, TokenSource) for leaf in leaves):
        fix = (
            f'write the documents as one store, once: pipeline.write("folder", "store"), and '
            f'open_store("folder").{verb}(...); or put .{verb}() before the other steps'
        )
    raise UsageError(f"tokens right before .{verb}()", got=got, fix=fix)
