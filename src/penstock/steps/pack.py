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
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from penstock import _rng
from penstock._errors import UsageError
from penstock.columns import Columns
from penstock.order._pieces import Pieces, prefix, put_in_rows, ranges
from penstock.order._recent import Recent
from penstock.order._superblocks import CACHED, SUPERBLOCK, cut_evenly
from penstock.order.chunk import ChunkPlan
from penstock.order.pack import OVERLONG, PackPlan
from penstock.sources.base import TokenSource
from penstock.steps import masks
from penstock.steps.base import Context, Step
from penstock.steps.masks import IGNORE
from penstock.steps.node import I64, Above, Epoch, Fetched, Leaf, Node, Picks
from penstock.store.gather import Parts, gather_rows

Strategy = Literal["best_fit", "concat"]
Overlong = Literal["split", "truncate", "drop", "error"]
Labels = Literal["next", "same"]

AHEAD = 512  # packs laid out in one call
COPY_ABOVE = 24  # mean tokens of a piece above which one copy each beats index arithmetic


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


class _Layout(NamedTuple):
    """Some packs, laid out: everything that is small, worked out for many rows in one go.

    Places count through all rows, `length` to a row. A row is its pieces and then its padding, which may have size 0.
    """

    length: int
    first: int  # place of the first row
    offsets: I64  # pieces of each row
    documents: I64
    starts: I64  # first token of each piece in its document
    lengths: I64
    begins: I64  # and in the stream
    at: I64  # its place
    ends: NDArray[np.bool_]  # whether nothing of the document follows it
    labels: I64  # how many labels of each row count
    sizes: I64  # of each piece and each row's padding
    numbers: NDArray[np.int32]  # segments: 1, 2, ..., and 0 for padding
    places: I64

    def rows(self, start: int, stop: int) -> _Layout:
        a, b = int(self.offsets[start]), int(self.offsets[stop])
        c, d = a + start, b + stop
        return _Layout(
            self.length, self.first + start * self.length, self.offsets[start : stop + 1] - a, self.documents[a:b],
            self.starts[a:b], self.lengths[a:b], self.begins[a:b], self.at[a:b], self.ends[a:b],
            self.labels[start:stop], self.sizes[c:d], self.numbers[c:d], self.places[c:d],
        )  # fmt: skip

    def sequences(self) -> I64:
        """Where each document and each padding begins."""
        return (self.places if self.sizes.all() else self.places[self.sizes > 0]) - self.first

    def gaps(self) -> list[tuple[int, int]]:
        """Where the padding of each row begins and ends, where there is some."""
        last = self.offsets[1:] + np.arange(len(self.labels))
        gaps = self.sizes[last].tolist()
        ends = range(self.length, self.length * len(gaps) + 1, self.length)
        return [(end - gap, end) for gap, end in zip(gaps, ends, strict=True) if gap]


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
        begins = known.sequences() if isinstance(known, _Layout) else np.flatnonzero(positions.reshape(-1) == 0)
        room = len(begins) if self.slots is None else len(positions) * self.slots
        edges = np.full(room + 1, positions.size, np.int32)
        edges[: len(begins)] = begins
        longest = self.length if self.slots is not None else int((edges[1:] - edges[:-1]).max(initial=0))
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
        self.places = _Places(source)
        self.runs = masks.runs_of(source)
        self.ids = frozenset({"input_ids", "labels"})
        self.ahead = AHEAD
        self.ramp = np.empty(0, np.int32)
        slots = None if step.max_docs is None or not step.static else step.max_docs + 1
        self.seal = _Sealed(step.length, slots, step.labels is not None)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        picks = Picks(position, epoch)
        return replace(picks, layout=self._lay_out(picks))

    def fetch(self, picks: Picks) -> Fetched:
        return Fetched(self._columns(self._layout(picks)), picks)

    def count_labels(self, picks: Picks) -> int:
        return int(self._layout(picks).labels.sum())

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

    def _layout(self, picks: Picks) -> _Layout:
        return picks.layout if isinstance(picks.layout, _Layout) else self._lay_out(picks)

    def _lay_out(self, picks: Picks) -> _Layout:
        offsets, documents, starts, lengths = self._pieces(picks)
        length, n_rows = self.step.length, len(offsets) - 1
        begins, whole = self.places(documents)
        row = np.repeat(np.arange(n_rows), np.diff(offsets))
        at = np.arange(len(row)) + row
        sizes = np.empty(len(row) + n_rows, np.int64)
        sizes[at] = lengths
        sizes[offsets[1:] + np.arange(n_rows)] = length - np.diff(prefix(lengths)[offsets])
        numbers = np.zeros(len(sizes), np.int32)
        numbers[at] = np.arange(1, len(row) + 1) - offsets[row]
        places = np.cumsum(sizes)
        places -= sizes
        ends = np.ones(len(row), bool)
        if self.step.labels == "next" and self.step.overlong == "split":
            ends = starts + lengths == whole
        labels = np.zeros(n_rows, np.int64)
        if self.step.labels is not None:
            # With "same" it is the first token of a piece that has no label, with "next" the last of a document.
            counted = lengths - ends
            if self.runs is not None:
                counted = masks.counts(self.runs(documents), starts + 1, counted)
            np.add.at(labels, row, counted)
        begins += starts
        return _Layout(
            length, 0, offsets, documents, starts, lengths, begins, places[at], ends, labels, sizes, numbers, places
        )

    def _columns(self, layout: _Layout) -> Columns:
        length, n_rows = self.step.length, len(layout.offsets) - 1
        at = layout.at - layout.first
        tokens = np.empty(n_rows * length, np.int64)  # what most outputs want: then nothing is copied again
        _copy(self.source, layout.begins, layout.lengths, tokens, at)
        gaps = layout.gaps()
        for a, b in gaps:
            tokens[a:b] = self.step.pad_id
        out: Columns = {"input_ids": tokens.reshape(n_rows, length)}
        if self.step.labels is not None:
            labels = self._labels(layout, tokens, at)
            for a, b in gaps:
                labels[a:b] = IGNORE
            out["labels"] = labels.reshape(n_rows, length)
        positions = np.repeat((layout.places - layout.first).astype(np.int32), layout.sizes)
        np.subtract(self._ramp(len(positions)), positions, out=positions)
        out["segment_ids"] = np.repeat(layout.numbers, layout.sizes).reshape(n_rows, length)
        out["position_ids"] = positions.reshape(n_rows, length)
        return out

    def _ramp(self, size: int) -> NDArray[np.int32]:
        """0, 1, 2, ...: made once and only read."""
        if len(self.ramp) < size:
            self.ramp = np.arange(size, dtype=np.int32)
        return self.ramp[:size]

    def _labels(self, layout: _Layout, tokens: NDArray[Any], at: I64) -> NDArray[Any]:
        """One label for each place; those of padding mean nothing yet."""
        labels = np.empty(len(tokens), np.int64)
        if self.step.labels == "same":
            labels[:] = tokens
            shift, unlabelled = 0, at
        else:
            labels[:-1] = tokens[1:]
            last = at + layout.lengths
            last -= 1
            shift, unlabelled = 1, last
            if not layout.ends.all():  # the document goes on in another pack
                on = np.flatnonzero(~layout.ends)
                labels[last[on]] = self.source.gather(layout.begins[on] + layout.lengths[on], 1)[:, 0]
                unlabelled = last[layout.ends]
        if self.runs is not None:
            known = masks.learnt(self.runs(layout.documents), layout.starts + shift, layout.lengths)
            labels[ranges(at, layout.lengths)[~known]] = IGNORE
        labels[unlabelled] = IGNORE
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


class _Places:
    """Where documents begin in the stream and how long they are, from tables of the documents around them.

    The source is asked for a whole stretch of documents at once, so a batch costs the same over one shard or hundreds.
    """

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        self.edges = cut_evenly(len(source), SUPERBLOCK)
        self.tables = Recent[tuple[int, NDArray[Any]]](CACHED)

    def __call__(self, documents: I64) -> tuple[I64, I64]:
        """Begin and length of each document."""
        begins, lengths = np.empty(len(documents), np.int64), np.empty(len(documents), np.int64)
        block = np.searchsorted(self.edges, documents, side="right") - 1
        low, high = (int(block.min()), int(block.max())) if len(block) else (0, -1)
        for b in range(low, high + 1):
            mine: Any = slice(None) if low == high else np.flatnonzero(block == b)
            if low != high and not len(mine):
                continue
            base, table = self.tables.get(b, lambda b=b: self._read(b))  # type: ignore[misc]
            local = documents[mine] - self.edges[b]
            first = table[local]
            lengths[mine] = table[local + 1] - first
            begins[mine] = first
            begins[mine] += base
        return begins, lengths

    def _read(self, block: int) -> tuple[int, NDArray[Any]]:
        """Where the first document of a block begins, and how far behind it the others do."""
        starts = self.source.starts(np.arange(self.edges[block], self.edges[block + 1] + 1))
        base = int(starts[0])
        starts -= base
        return base, starts if int(starts[-1]) >= 1 << 32 else starts.astype(np.uint32)


def _copy(source: TokenSource, begins: I64, lengths: I64, out: NDArray[Any], at: I64) -> None:
    """Copies pieces of the stream to their places in `out`."""
    if not (hasattr(source, "bounds") and hasattr(source, "ready")):
        for length in np.unique(lengths).tolist():  # a source of somebody else's: one call for each length
            mine = np.flatnonzero(lengths == length)
            out[at[mine][:, None] + np.arange(length)] = source.gather(begins[mine], length)
        return
    parts = cast("Parts", source)
    if len(out) < COPY_ABOVE * len(lengths):
        tokens, _ = gather_rows(parts, begins, lengths)
        out[ranges(at, lengths)] = tokens
        return
    bounds = parts.bounds
    if len(bounds) == 2:
        tokens = parts.ready(0, begins, lengths).array(0)
        for to, start, n in zip(at.tolist(), begins.tolist(), lengths.tolist(), strict=True):
            out[to : to + n] = tokens[start : start + n]
        return
    part = np.searchsorted(bounds, begins, "right") - 1
    local = begins - bounds[part]
    arrays = parts.ready(part, local, lengths).arrays
    for p, to, start, n in zip(part.tolist(), at.tolist(), local.tolist(), lengths.tolist(), strict=True):
        out[to : to + n] = arrays[p][start : start + n]
