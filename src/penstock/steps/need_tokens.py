"""The documents that `windows`, `pack`, `bucket` and `batch_tokens` are planned over, in an order that stays.

Steps that choose or arrange full documents may come before them: `concat`, `interleave`, `filter(exact=True)`, `split`,
`sample`, `take`, `skip`, `repeat(n)`. What changes documents, or arranges them differently in each epoch, may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.errors import UsageError
from penstock.sources.base import TokenSource
from penstock.sources.token_documents import Records, TokenDocuments
from penstock.steps.branches import Branches
from penstock.steps.concat import Concatenated
from penstock.steps.node import Node, Reads, SourceNode, WrapperNode
from penstock.steps.picks import I64


def need_tokens(child: Node, verb: str, fix: str = "") -> TokenSource:
    """The documents right before `.verb()`; refuses anything else, and says what to write instead."""
    if isinstance(child, SourceNode) and isinstance(child.source, TokenSource):
        return child.source
    leaves = list(child.leaves())
    sources = [leaf.source for leaf in leaves if isinstance(leaf.source, TokenSource)]
    if len(sources) < len(leaves):
        kinds = {str(leaf.source.describe().get("kind", "a source")) for leaf in leaves}
        raise UsageError(
            f"tokens right before .{verb}()",
            got=f"records of {', '.join(sorted(kinds))}",
            fix=f"put .tokenize(...) before .{verb}(), and .shuffle(), .take() and the rest after it; rows that hold "
            f"token ids are written once: {_store(verb)}",
        )
    need_chosen(child, verb, fix)

    def records(documents: I64) -> Records:
        picks = child.pick(documents, 0)
        source = np.zeros(len(documents), np.int64) if picks.leaf is None else picks.leaf - leaves[0].number
        return Records(source, picks.record)

    def locate(document: int) -> dict[str, Any]:
        return child.explain(child.pick(np.array([document]), 0))

    in_full = isinstance(child, Concatenated) and all(isinstance(one, SourceNode) for one in child.children)
    return TokenDocuments(sources, child.size or 0, None if in_full else records, locate)


def need_chosen(child: Node, verb: str, fix: str = "") -> None:
    """Refuses rows that are not records of the sources as they are, in an order that stays; `fix` says what to do."""
    if child.facts.rejects:
        _refuse(verb, ".filter(), .dedup() or .skip_errors()", "use .filter(..., exact=True), which leaves rows out")
    if child.facts.moves or child.size is None:
        got = "an endless sequence" if child.size is None else ".shuffle() or penstock.mix()"
        _refuse(
            verb, f"{got} of documents", fix or f"put it after .{verb}(); .repeat(n) and penstock.concat() may stay"
        )
    if not _only_chosen(child):
        before = fix or f"put it after .{verb}()"
        _refuse(verb, "a step that changes documents", f"{before}, or write the documents once: {_store(verb)}")


def _store(verb: str) -> str:
    return f'pipeline.write("folder", "store"), then open_store("folder").{verb}(...)'


def token_reads(
    leaves: Sequence[SourceNode],
    source: TokenSource,
    starts: I64,
    lengths: I64,
    documents: Callable[[], I64] | None = None,
    columns: tuple[str, ...] = (),
) -> Iterator[Reads]:
    """What ranges of tokens of a source of `need_tokens` read of each leaf."""
    if not isinstance(source, TokenDocuments):
        yield Reads(leaves[0], starts, lengths, documents, columns)
        return
    for k, begins, counts in source.ranges(starts, lengths):
        mine = None if documents is None else own_documents(source, leaves, leaves[k], documents)
        yield Reads(leaves[k], begins, counts, mine, columns)


def own_documents(
    source: TokenSource, leaves: Sequence[SourceNode], leaf: SourceNode, documents: Callable[[], I64]
) -> Callable[[], I64]:
    """Those of some documents that are records of a leaf, by their numbers there."""
    if not isinstance(source, TokenDocuments):
        return documents

    def mine() -> I64:
        found, record = source.records(documents())
        return record[np.flatnonzero(found == leaf.number - leaves[0].number)]

    return mine


def _only_chosen(node: Node) -> bool:
    """Whether the rows of a node are records of its sources, unchanged."""
    if isinstance(node, WrapperNode):
        return not node.changes_rows and _only_chosen(node.child)
    if isinstance(node, Branches):
        return all(_only_chosen(child) for child in node.children)
    return isinstance(node, SourceNode)


def _refuse(verb: str, got: str, fix: str) -> None:
    raise UsageError(
        f"tokens right before .{verb}(), documents in an order that stays", got=f"{got} before it", fix=fix
    )
