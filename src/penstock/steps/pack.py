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

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from penstock import _rng
from penstock._errors import UsageError
from penstock.columns import Columns
from penstock.order._pieces import Pieces, prefix, put_in_rows
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

    def apply(self, columns: Columns, labels: int) -> Columns:
        positions = columns.get("position_ids")
        if not isinstance(positions, np.ndarray):
            return columns  # a function after .batch() has left it out
        begins = np.flatnonzero(positions.reshape(-1) == 0)
        room = len(begins) if self.slots is None else len(positions) * self.slots
        edges = np.full(room + 1, positions.size, np.int32)
        edges[: len(begins)] = begins
        longest = self.length if self.slots is not None else int(np.diff(edges).max(initial=0))
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
        slots = None if step.max_docs is None or not step.static else step.max_docs + 1
        self.seal = _Sealed(step.length, slots, step.labels is not None)

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return Picks(position, epoch)

    def fetch(self, picks: Picks) -> Fetched:
        return Fetched(self._columns(self._pieces(picks)), picks)

    def count_labels(self, picks: Picks) -> int:
        pieces = self._pieces(picks)
        first, last, ends = self._labelled(pieces, self.places(pieces.documents)[1])
        if self.runs is None:
            return int((last - first).sum()) - int(ends.sum())
        return masks.count(self.runs(pieces.documents), first + 1, last - first - ends)

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
        rows, parts = [], []
        for epoch in np.unique(picks.epoch).tolist():
            where = np.flatnonzero(picks.epoch == epoch)
            found = find(picks.record[where], epoch)
            rows.append(np.repeat(where, np.diff(found.offsets)))
            parts.append(found[1:])
        return put_in_rows(np.concatenate(rows), len(picks), *map(np.concatenate, zip(*parts, strict=True)))

    def _labelled(self, pieces: Pieces, whole: I64) -> tuple[I64, I64, NDArray[np.bool_]]:
        """Of each piece: its first token, where it ends, and whether its last token has no label."""
        last = pieces.starts + pieces.lengths
        if self.step.labels == "same" or self.step.overlong != "split":
            return pieces.starts, last, np.ones(len(last), bool)
        return pieces.starts, last, last == whole

    def _columns(self, pieces: Pieces) -> Columns:
        length, n_rows = self.step.length, len(pieces.offsets) - 1
        begins, whole = self.places(pieces.documents)
        begins += pieces.starts
        tokens, edges = _tokens(self.source, begins, pieces.lengths)
        labels = self._labels(pieces, begins, whole, tokens, edges) if self.step.labels is not None else None

        # Each row is its pieces and then its padding, which may be none: repeat takes a count of 0 as well.
        counts = np.diff(pieces.offsets)
        held = edges[pieces.offsets]
        used = np.diff(held)
        row = np.repeat(np.arange(n_rows), counts)
        at = np.arange(len(row)) + row
        sizes = np.empty(len(row) + n_rows, np.int64)
        sizes[at] = pieces.lengths
        sizes[pieces.offsets[1:] + np.arange(n_rows)] = length - used
        numbers = np.zeros(len(sizes), np.int32)
        numbers[at] = np.arange(1, len(row) + 1) - pieces.offsets[row]
        begin = np.cumsum(sizes)
        begin -= sizes
        positions = np.arange(n_rows * length, dtype=np.int32)
        positions -= np.repeat(begin.astype(np.int32), sizes)

        out: Columns = {"input_ids": _in_rows(tokens, held, used, length, self.step.pad_id)}
        if labels is not None:
            out["labels"] = _in_rows(labels, held, used, length, IGNORE)
        out["segment_ids"] = np.repeat(numbers, sizes).reshape(n_rows, length)
        out["position_ids"] = positions.reshape(n_rows, length)
        return out

    def _labels(self, pieces: Pieces, begins: I64, whole: I64, tokens: NDArray[Any], edges: I64) -> NDArray[np.int64]:
        """One label for each token, pieces one after another."""
        labels = np.empty(len(tokens), np.int64)
        if self.step.labels == "same":
            labels[:] = tokens
            shift, unlabelled = 0, edges[:-1]
        else:
            labels[:-1] = tokens[1:]
            _, _, ends = self._labelled(pieces, whole)
            shift, unlabelled = 1, edges[1:][ends] - 1
            if not ends.all():  # the document goes on in another pack
                on = np.flatnonzero(~ends)
                labels[edges[1:][on] - 1] = self.source.gather(begins[on] + pieces.lengths[on], 1)[:, 0]
        if self.runs is not None:
            labels[~masks.learnt(self.runs(pieces.documents), pieces.starts + shift, pieces.lengths)] = IGNORE
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


def _tokens(source: TokenSource, begins: I64, lengths: I64) -> tuple[NDArray[Any], I64]:
    """The tokens of pieces one after another, and where each begins in them and the end."""
    if hasattr(source, "bounds") and hasattr(source, "ready"):
        return gather_rows(cast("Parts", source), begins, lengths)
    edges = prefix(lengths)
    out = np.empty(int(edges[-1]), source.dtype)
    for length in np.unique(lengths).tolist():  # a source of somebody else's: one call for each length
        mine = np.flatnonzero(lengths == length)
        places = edges[mine][:, None] + np.arange(length)
        out[places] = source.gather(begins[mine], length)
    return out, edges


def _in_rows(values: NDArray[Any], held: I64, used: I64, length: int, fill: int) -> NDArray[Any]:
    """Values of rows one after another as an array of rows, the rest of each filled."""
    n_rows = len(used)
    if len(values) == n_rows * length:
        return values.reshape(n_rows, length)
    room = values.dtype if fill <= 0 or fill <= np.iinfo(values.dtype).max else np.int64
    out = np.empty((n_rows, length), room)
    for row, (a, n) in enumerate(zip(held.tolist(), used.tolist(), strict=False)):
        out[row, :n] = values[a : a + n]
        out[row, n:] = fill
    return out
