"""`pack`: several documents to a row of `length` tokens, with almost no padding and nothing leaking between them.

A row is a pack: `input_ids`, `labels`, `segment_ids` (1, 2, ... for the documents, 0 for padding) and `position_ids`
that begin again with each document. A batch also has `cu_seqlens` (where each document begins among all its tokens, and
the end; the padding of a row is a sequence of its own), `max_seqlen` and `valid_labels`, the labels that count in the
step on all ranks together: what a loss is divided by. There is never a mask of length x length.

Which documents share a row is planned from lengths alone (see `order.pack`, `order.chunk`), so rows are random access.
A batch costs one copy of each document's tokens and a few passes over the places. The first row of a superblock of a
million documents costs about 0.2 s, and what is kept of the last 16 takes 8 to 12 bytes a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.chunk import ChunkPlan
from penstock.order.pack import OVERLONG, PackPlan
from penstock.order.ragged_index import Pieces, prefix, put_in_rows
from penstock.sources.base import TokenSource
from penstock.steps import loss_runs
from penstock.steps.aligned import Aligned, Fill, Fills, Placed, as_fills
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.facts import Bounds
from penstock.steps.need_tokens import need_tokens, token_reads
from penstock.steps.node import ContentNode, Node, Reads
from penstock.steps.pack_layout import Holes, PackLayout, Places, Table, holes_between, sequences_of
from penstock.steps.pack_rows import PackedBatchColumns, PackMaker, PackRows
from penstock.steps.pack_tokens import Tokens
from penstock.steps.picks import I64, Epoch, Picks
from penstock.steps.rows import Read

Strategy = Literal["best_fit", "concat"]
Overlong = Literal["split", "truncate", "drop", "error"]
Labels = Literal["next", "same"]

MADE = ("input_ids", "segment_ids", "position_ids", "cu_seqlens", "max_seqlen", "valid_labels")
AHEAD = 4096  # packs laid out in one call
_SHIFTS = {"next": 1, "same": 0, None: None}


@dataclass(frozen=True)
class Pack(Step):
    """Packs of `length` tokens.

    "best_fit" does not cut documents that fit; "concat" lays them end to end and cuts every `length` tokens.
    A longer document is cut into several packs ("split"), cut off ("truncate"), left out ("drop") or refused ("error").
    `labels="next"`: the next token of the document, also where a split document continues in another pack; "same": the
    token itself, for models that shift labels themselves; None: no labels. With `static` `cu_seqlens` has one
    fixed length, for compilers, and needs `max_docs`, the most documents of a pack. `columns` are cut and padded as the
    tokens are; see `steps.aligned`.
    """

    length: int
    strategy: Strategy = "best_fit"
    overlong: Overlong = "split"
    max_docs: int | None = None
    labels: Labels | None = "next"
    static: bool = False
    pad_id: int = 0
    columns: Sequence[str] | Mapping[str, Fill] | Fills = ()

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("max_docs", 1), ("pad_id", 0)):
            if name != "max_docs" or self.max_docs is not None:
                integer_field(self, name, least, f"an integer of at least {least} for {name} in .pack()")
        choices = (("strategy", get_args(Strategy)), ("overlong", OVERLONG), ("labels", (*get_args(Labels), None)))
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                shown = ", ".join(map(repr, allowed))
                raise UsageError(f"{name} in .pack(), one of {shown}", got=repr(getattr(self, name)))
        made = MADE if self.labels is None else (*MADE, "labels")
        object.__setattr__(self, "columns", as_fills(self.columns, "pack", made))
        if self.strategy == "concat" and (self.overlong != "split" or self.max_docs is not None or self.static):
            raise UsageError(
                'overlong="split", no max_docs and no static with strategy="concat", which cuts documents anywhere',
                got=f"overlong={self.overlong!r}, max_docs={self.max_docs!r}, static={self.static!r}",
                fix='leave them out, or use strategy="best_fit"',
            )
        if self.static and self.max_docs is None:
            raise UsageError(
                "max_docs in .pack(static=True), since it fixes the length of cu_seqlens",
                got="None",
                fix="max_docs=64, for example; segment_ids have one shape in any case",
            )

    def spec(self) -> dict[str, Any]:
        """Without `columns` if there are none: then it is the step of earlier versions."""
        return {name: value for name, value in super().spec().items() if name != "columns" or value}

    @property
    def varying_columns(self) -> frozenset[str]:
        return frozenset() if self.static else frozenset({"cu_seqlens"})

    def build(self, child: Node, context: Context) -> Node:
        source = need_tokens(child, "pack")
        packed = _Packed(child, source, self, randomness.key(context.seed, "pack", context.place))
        fills = cast("Fills", self.columns)
        return Aligned(packed, source, fills, self.length, "pack", packed.placed) if fills else packed


class _Packed(ContentNode):
    def __init__(self, child: Node, source: TokenSource, step: Pack, key: int) -> None:
        super().__init__(child)
        self.source, self.step = source, step
        self.plan = _plan(source, step, key)
        self.size = self.plan.n_packs if isinstance(self.plan, PackPlan) else self.plan.n_chunks
        if self.size == 0:
            raise UsageError(
                "at least one token to pack",
                got=f"{source.n_tokens} tokens, none of them in a pack",
                where=str(source.describe().get("path", "")),
                fix='use a greater length, or overlong="split"',
            )
        self.places = Places(source)
        self.runs = loss_runs.runs_of(source)
        most = max(self.facts.bounds.most, step.pad_id)
        slots = None if step.max_docs is None or not step.static else step.max_docs + 1
        self.facts = replace(
            self.facts,
            ids=frozenset({"input_ids", "labels"}),
            bounds=Bounds(0, most) if step.labels is None else Bounds(loss_runs.IGNORE, most),
            weighs=True,
            even=True,
            width=step.length,
            stretches=self.plan.table[:, 0] if isinstance(self.plan, PackPlan) else _chunk_stretches(self.plan),
            numbered=True,
            ahead=max(1, min(AHEAD, (1 << 30) // step.length)),
            per_batch=PackedBatchColumns(step.length, slots, step.labels is not None),
        )
        self.tokens = Tokens(source, step.length, step.pad_id)
        self.maker = PackMaker(self.tokens, step.length, _SHIFTS[step.labels])

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        picks = Picks(position, epoch)
        return replace(picks, layout=self._lay_out(picks))

    def open(self, picks: Picks, compact: bool = False) -> Read:
        picks = replace(picks, layout=self._layout(picks))
        return lambda start, stop: PackRows(self.maker, picks.rows(slice(start, stop)))

    def count_labels(self, picks: Picks) -> int:
        return self._layout(picks).labels()

    def costs(self, picks: Picks) -> I64:
        return self._layout(picks).costs()

    def reads(self, picks: Picks) -> Iterator[Reads]:
        layout = self._layout(picks)
        pieces, table = layout.pieces, layout.table
        lengths = table.lengths[pieces].copy()
        lengths[np.array(table.follow[layout.follow], np.int64) - pieces.start] += 1  # the label of the last token
        return token_reads(list(self.leaves()), self.source, table.begins[pieces], lengths)

    def left_out(self) -> dict[str, int]:
        if not isinstance(self.plan, PackPlan):
            return {}
        found = self.plan.report()
        return {
            "documents_dropped": found.dropped, "documents_truncated": found.truncated,
            "documents_empty": found.empty, "tokens_cut": found.lost_tokens,
        }  # fmt: skip

    def explain(self, picks: Picks) -> dict[str, Any]:
        pieces = self._pieces(picks.rows(slice(0, 1)))
        at = prefix(pieces.lengths)[:-1]  # documents follow each other from the start of the row
        parts = zip(*(a.tolist() for a in (*pieces[1:], at)), strict=True)
        return {
            "source": self.source.describe().get("kind", "tokens"),
            "pack": int(picks.record[0]),
            "documents": [
                {"document": d, "from": a, "tokens_here": n, "at": at} | self.source.locate(d) for d, a, n, at in parts
            ],
        }

    def placed(self, picks: Picks) -> Placed:
        """The pieces of documents in these rows."""
        layout = self._layout(picks)
        table, pieces = layout.table, layout.pieces
        documents = table.documents[pieces]
        starts = table.begins[pieces] - self.places(documents)[0]
        return Placed(documents, starts, table.lengths[pieces], table.at[pieces] - layout.first)

    def _pieces(self, picks: Picks) -> Pieces:
        find = self.plan.pack if isinstance(self.plan, PackPlan) else self.plan.chunk
        if not isinstance(picks.epoch, np.ndarray):
            return find(picks.record, picks.epoch)
        rows, parts = [np.empty(0, np.int64)], [(np.empty(0, np.int64),) * 3]
        for epoch in np.unique(picks.epoch).tolist():
            where = np.flatnonzero(picks.epoch == epoch)
            found = find(picks.record[where], epoch)
            rows.append(np.repeat(where, np.diff(found.offsets)))
            parts.append(found[1:])
        return put_in_rows(np.concatenate(rows), len(picks), *map(np.concatenate, zip(*parts, strict=True)))

    def _layout(self, picks: Picks) -> PackLayout:
        return picks.layout if isinstance(picks.layout, PackLayout) else self._lay_out(picks)

    def _lay_out(self, picks: Picks) -> PackLayout:
        offsets, documents, starts, lengths = self._pieces(picks)
        begins, full = self.places(documents)
        begins += starts
        edges, sizes, numbers, mine = sequences_of(offsets, lengths, self.step.length)
        places = prefix(sizes)
        at, rows, shift = places[mine], len(offsets) - 1, _SHIFTS[self.step.labels]
        # With "next" the last token of a document has no label; one that continues in another pack has one.
        goes_on = np.zeros(len(documents), np.int64)
        if shift and self.step.overlong == "split":
            goes_on = (starts + lengths != full).astype(np.int64)
        counted = lengths - 1 + goes_on  # with "same" it is the first token of each piece that has none
        filled = prefix(lengths)[offsets]
        trained, holes = counted, _padding(np.diff(filled), self.step.length)
        if self.runs is not None and shift is not None:
            runs = self.runs(documents)
            trained = loss_runs.trained_counts(runs, starts + 1, counted)
            piece, begin, end = loss_runs.trained_spans(runs, starts + shift, lengths)
            holes = holes_between(at[piece] + begin, at[piece] + end, rows, self.step.length)
        table = Table(
            self.step.length, offsets.tolist(), documents, lengths, begins, at, at + lengths - 1 if shift else at,
            np.flatnonzero(goes_on).tolist(), np.diff(prefix(trained)[offsets]).tolist(),
            np.maximum.reduceat(sizes, edges[:-1]).tolist() if rows else [], edges.tolist(),
            sizes, numbers, places.astype(np.int32), holes,
            self.tokens.slices(begins, lengths, goes_on, sizes, mine),
        )  # fmt: skip
        return PackLayout(table, 0, rows)


def _padding(filled: I64, length: int) -> Holes:
    """The padding of rows that hold `filled` tokens each."""
    short = np.flatnonzero(filled < length)
    begins, ends = short * length + filled[short], (short + 1) * length
    return Holes(begins.tolist(), ends.tolist(), prefix((filled < length).astype(np.int64)).tolist())


def _plan(source: TokenSource, step: Pack, key: int) -> PackPlan | ChunkPlan:
    def lengths(start: int, stop: int) -> I64:
        return source.lengths(np.arange(start, stop))

    if step.strategy == "concat":
        return ChunkPlan.build(lengths, len(source), length=step.length, key=key)
    return PackPlan.build(
        lengths, len(source), capacity=step.length, key=key, overlong=step.overlong, max_docs=step.max_docs
    )


def _chunk_stretches(plan: ChunkPlan) -> I64:
    return np.diff(np.minimum(plan.n_chunks, -(-plan.tokens_before // plan.length)))
