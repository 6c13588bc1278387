"""`zip`: the columns of several pipelines side by side, row i of each.

A pick of this node is a row number: the picks of the pipelines are found from it when the row is read. So a row has the
provenance of all its parts. A pipeline in which a row may be another one than the plan says (a filter that refills) is
refused: its rows would no longer belong to those of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.steps.facts import Bounds, RowFacts
from penstock.steps.media import located
from penstock.steps.node import Fetched, Node, Reads, SourceNode
from penstock.steps.picks import I64, Epoch, Picks
from penstock.steps.renumbered import own_picks, refuse_rejected


class Zipped(Node):
    """Rows with the columns of all children."""

    def __init__(self, children: Sequence[Node]) -> None:
        self.children = list(children)
        sizes = [child.size for child in children if child.size is not None]
        if len(set(sizes)) > 1:
            raise UsageError(
                "pipelines of one length in penstock.zip()",
                got=" and ".join(f"{'endless' if c.size is None else f'{c.size:,}'}" for c in children) + " rows",
                fix=f"cut the longer ones: .take({min(sizes)}); or join by a key with penstock.pair()",
            )
        for number, child in enumerate(children):
            refuse_rejected(child, "penstock.zip()", f"pipeline {number} of it: its rows would no longer match")
        self.size = sizes[0] if sizes else None
        facts = [child.facts for child in children]
        packed = [child for child in children if child.facts.per_batch is not None]
        if len(packed) > 1:
            raise UsageError(
                "at most one packed pipeline in penstock.zip()", got=str(len(packed)), fix="pack after the zip"
            )
        self.packed = packed[0] if packed else None
        self.facts = RowFacts(
            ids=frozenset().union(*(f.ids for f in facts)),
            bounds=Bounds(min(f.bounds.least for f in facts), max(f.bounds.most for f in facts)),
            own_labels=any(f.own_labels for f in facts),
            certain=all(f.certain for f in facts),
            width=next((f.width for f in facts if f.width is not None), None),
            per_batch=None if self.packed is None else self.packed.facts.per_batch,
            ahead=min(f.ahead for f in facts),
            by_document=any(f.by_document for f in facts),
            moves=any(f.moves for f in facts),
            draws=any(f.draws for f in facts),
        )

    def inputs(self) -> Sequence[Node]:
        return self.children

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return Picks(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        out: Columns = {}
        for number, child in enumerate(self.children):
            inner = own_picks(child, picks)
            with located(child, inner):
                columns, used = child.fetch(inner)
            if len(used) != len(picks):
                raise UsageError(
                    "every row of each pipeline in penstock.zip()",
                    got=f"{len(used)} of {len(picks)} rows of pipeline {number}",
                    fix="put .filter() and .skip_errors() after the zip",
                )
            if again := out.keys() & columns.keys():
                name = sorted(again)[0]
                raise UsageError(
                    "different columns in the pipelines of penstock.zip()",
                    got=f"column {name!r} in pipeline {number} and in one before it",
                    fix=f'.rename({{"{name}": "{name}_{number}"}}) or .drop("{name}") in one of them',
                )
            out |= columns
        return Fetched(out, picks)

    def reads(self, picks: Picks) -> Iterator[Reads]:
        for child in self.children:
            yield from child.reads(own_picks(child, picks))

    def left_out(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for child in self.children:
            counts.update(child.left_out())
        return dict(counts)

    def count_labels(self, picks: Picks) -> int:
        return 0 if self.packed is None else self.packed.count_labels(own_picks(self.packed, picks))

    def explain(self, picks: Picks) -> dict[str, Any]:
        parts = [child.explain(own_picks(child, picks)) for child in self.children]
        return parts[0] | {"zipped": parts}  # the ledger and errors name the record of the first

    def encoded(self, picks: Picks) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for child in self.children:
            found |= child.encoded(own_picks(child, picks))
        return found

    def leaves(self) -> Iterator[SourceNode]:
        for child in self.children:
            yield from child.leaves()
