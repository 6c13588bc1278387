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

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from penstock import _rng
from penstock._errors import UsageError
from penstock.columns import Columns
from penstock.order._pieces import Pieces, prefix, put_in_rows, ranges
from penstock.order.chunk import ChunkPlan
from penstock.order.pack import OVERLONG, PackPlan
from penstock.sources.base import TokenSource
from penstock.steps import masks
from penstock.steps.base import Context, Step
from penstock.steps.masks import IGNORE
from penstock.steps.node import I64, Above, Epoch, Fetched, Leaf, Node, Picks
from penstock.steps.pack_layout import Gap, PackLayout, Places, Table, Tokens, sequences_of

Strategy = Literal["best_fit", "concat"]
Overlong = Literal["split", "truncate", "drop", "error"]
Labels = Literal["next", "same"]

AHEAD = 1024  # packs laid out in one call
JOIN_ABOVE = 256  # mean size of a sequence above which joining slices beats arithmetic


@dataclass(frozen=True)
class Pack(Step):
    """Packs of `length` tokens.

    "best_fit" keeps documents whole where they fit; "concat" lays them end to end and cuts every `length` tokens.
    A longer document is cut into several packs ("split"), cut off ("truncate"), left out ("drop") or refused ("error").
    `labels="next"`: the next token of the document, also where a split document goes on in another pack; "same": the
    token itself, for models that shift labels themselves; None: no labels. `static` gives `cu_seqlens` one length,
    for compilers, and needs `max_docs`, the most documents of a pack.
    """

    length: int
    strategy: Strategy = "best_fit"
    overlong: Overlong = "split"
    max_docs: int | None = None
    labels: Labels | None = "next"
    static: bool = False
    pad_id: int = 0

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("max_docs", 1), ("pad_id", 0)):
            value = getattr(self, name)
            if name == "max_docs" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"a whole number of at least {least} for {name} in .pack()", got=repr(value))
        choices = (("strategy", get_args(Strategy)), ("overlong", OVERLONG), ("labels", (*get_args(Labels), None)))
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                shown = ", ".join(map(repr, allowed))
                raise UsageError(f"{name} in .pack(), one of {shown}", got=repr(getattr(self, name)))
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

    def build(self, child: Node, context: Context) -> Node:
        source = child.source if isinstance(child, Leaf) else None
        if not isinstance(source, TokenSource):
            raise UsageError(
                "tokens right before .pack()",
                got="another step" if source is None else f"records of {source.describe().get('kind', 'a source')}",
                fix="put .tokenize(...) before .pack(), and .shuffle(), .take() and the rest after it",
            )
        return _Packed(child, source, self, _rng.key(context.seed, "pack", context.place))


@dataclass(frozen=True)
class _Sealed:
    """Adds where sequences begin, the longest of them, and the count of labels."""

    length: int
    slots: int | None  # sequences a row may have, padding included, where cu_seqlens has one length
    labelled: bool

    def apply(self, columns: Columns, picks: Picks, labels: int) -> Columns:
        positions = columns.get("position_ids")
        if not isinstance(positions, np.ndarray):
            return columns  # a function after .batch() has left it out
        known = picks.layout
        if isinstance(known, PackLayout):
            begins: NDArray[Any] = known.begins()
        else:
            begins = np.flatnonzero(positions.reshape(-1) == 0)
        room = len(begins) if self.slots is None else len(positions) * self.slots
        edges = np.empty(room + 1, np.int32)
        edges[: len(begins)] = begins
        edges[len(begins) :] = positions.size
        longest = self.length
        if self.slots is None:
            longest = known.longest() if isinstance(known, PackLayout) else int(np.diff(edges).max(initial=0))
        out = {**columns, "cu_seqlens": edges, "max_seqlen": np.array(longest, np.int32)}
        if self.labelled:
            out["valid_labels"] = np.array(labels, np.int64)
        return out


class _Packed(Above):
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
        self.stretches = self.plan.table[:, 0] if isinstance(self.plan, PackPlan) else _chunk_stretches(self.plan)
        self.places = Places(source)
        self.runs = masks.runs_of(source)
        self.ids = frozenset({"input_ids", "labels"})
        self.ahead = max(1, min(AHEAD, (1 << 30) // step.length))
        self.ramp = np.empty(0, np.int32)
        self.tokens = Tokens(source, step.length, step.pad_id)
        slots = None if step.max_docs is None or not step.static else step.max_docs + 1
        self.seal = _Sealed(step.length, slots, step.labels is not None)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        picks = Picks(position, epoch)
        return replace(picks, layout=self._lay_out(picks))

    def fetch(self, picks: Picks) -> Fetched:
        return Fetched(self._columns(self._layout(picks)), picks)

    def count_labels(self, picks: Picks) -> int:
        return self._layout(picks).labels()

    def explain(self, picks: Picks) -> dict[str, Any]:
        pieces = self._pieces(picks.rows(slice(0, 1)))
        parts = zip(*(a.tolist() for a in pieces[1:]), strict=True)
        return {
            "source": self.source.describe().get("kind", "tokens"),
            "pack": int(picks.record[0]),
            "documents": [{"document": d, "from": a, "tokens_here": n} | self.source.locate(d) for d, a, n in parts],
        }

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
        begins, whole = self.places(documents)
        gaps, edges, sizes, numbers, mine = sequences_of(offsets, lengths, self.step.length)
        places = prefix(sizes.astype(np.int64))[:-1]
        # With "next" the last token of a document has no label; a document that goes on in another pack has its there.
        ends = np.ones(len(documents), bool)
        if self.step.labels == "next" and self.step.overlong == "split":
            ends = starts + lengths == whole
        counted = lengths - ends  # with "same" it is the first token of each piece that has none
        if self.runs is not None:
            counted = masks.counts(self.runs(documents), starts + 1, counted)
        table = Table(
            self.step.length, offsets.tolist(), documents, starts, lengths, begins + starts, places[mine],
            np.flatnonzero(~ends).tolist(), np.diff(prefix(counted)[offsets]).tolist(),
            np.maximum.reduceat(sizes, edges[:-1]).tolist() if len(gaps) else [], gaps.tolist(), edges.tolist(),
            sizes, numbers, places.astype(np.int32),
        )  # fmt: skip
        return PackLayout(table, 0, len(gaps))

    def _columns(self, layout: PackLayout) -> Columns:
        table, sequences = layout.table, layout.sequences
        shape = len(layout), self.step.length
        padding, follow = layout.padding(), layout.follow()
        tokens, after = self.tokens(layout, padding, follow)
        out: Columns = {"input_ids": tokens.reshape(shape)}
        if self.step.labels is not None:
            out["labels"] = self._labels(layout, tokens, padding, follow, after).reshape(shape)
        sizes = table.sizes[sequences]
        out["segment_ids"] = np.repeat(table.numbers[sequences], sizes).reshape(shape)
        out["position_ids"] = self._positions(layout, sizes).reshape(shape)
        return out

    def _positions(self, layout: PackLayout, sizes: NDArray[np.int32]) -> NDArray[np.int32]:
        """0, 1, 2, ... for each sequence."""
        places = len(layout) * self.step.length
        if len(self.ramp) < places:
            self.ramp = np.arange(places, dtype=np.int32)
        ramp = self.ramp[:places]  # made once and only read
        if places >= JOIN_ABOVE * len(sizes):
            view = ramp.data
            return np.frombuffer(bytearray().join([view[:n] for n in sizes.tolist()]), np.int32)
        positions = np.repeat(layout.begins(), sizes)
        return np.subtract(ramp, positions, out=positions)

    def _labels(
        self, layout: PackLayout, tokens: NDArray[Any], padding: list[Gap], follow: list[int], after: Any
    ) -> NDArray[np.int64]:
        """One label for each place."""
        table, pieces = layout.table, layout.pieces
        at, lengths = table.at[pieces] - layout.first, table.lengths[pieces]
        labels = np.empty(len(tokens), np.int64)
        shift = 0 if self.step.labels == "same" else 1
        if shift:
            labels[:-1] = tokens[1:]
            last = at + lengths
            last -= 1
            labels[last] = IGNORE
            if follow:
                labels[last[follow]] = after
        else:
            labels[:] = tokens
            labels[at] = IGNORE
        for a, b, _ in padding:
            labels[a:b] = IGNORE
        if self.runs is not None:
            known = masks.learnt(self.runs(table.documents[pieces]), table.starts[pieces] + shift, lengths)
            labels[ranges(at, lengths)[~known]] = IGNORE
        return labels


def _plan(source: TokenSource, step: Pack, key: int) -> PackPlan | ChunkPlan:
    def lengths(start: int, stop: int) -> I64:
        return source.lengths(np.arange(start, stop))

    if step.strategy == "concat":
        return ChunkPlan.build(lengths, len(source), length=step.length, key=key, remainder="short")
    return PackPlan.build(
        lengths, len(source), capacity=step.length, key=key, overlong=step.overlong, max_docs=step.max_docs
    )


def _chunk_stretches(plan: ChunkPlan) -> I64:
    return np.diff(np.minimum(plan.n_chunks, -(-plan.tokens_before // plan.stride)))
