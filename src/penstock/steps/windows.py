"""`windows`: fixed-length windows of a token stream, with the next token of each position as its label.

Window i is `tokens[i * stride : i * stride + length + 1]`; it exists while it is full. Nothing is stored: the
number of windows is arithmetic and a batch is one gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Compact
from penstock.core.errors import UsageError
from penstock.order import windows as order
from penstock.order.ragged_index import ranges
from penstock.sources.base import TokenSource, WindowReader
from penstock.steps import loss_runs
from penstock.steps.aligned import Aligned, Fills, Placed, as_fills, window_pieces
from penstock.steps.base import Context, Step, integer_field
from penstock.steps.facts import Bounds
from penstock.steps.need_tokens import need_tokens, token_reads
from penstock.steps.node import ContentNode, Fetched, Node, Reads
from penstock.steps.picks import I64, Epoch, Picks
from penstock.steps.rows import Memory, Read


@dataclass(frozen=True)
class Windows(Step):
    """Windows of `length` tokens, `stride` apart (default: no overlap), with `columns` beside them."""

    length: int
    stride: int | None = None
    columns: Sequence[str] | Fills = ()

    def __post_init__(self) -> None:
        for name in ("length", "stride"):
            if name == "length" or getattr(self, name) is not None:
                integer_field(self, name, 1, f"an integer of at least 1 for {name} in .windows()")
        if isinstance(self.columns, Mapping):
            raise UsageError(
                "names of columns in .windows(columns=): nothing is padded",
                got=repr(self.columns),
                fix='columns=["tags"]',
            )
        object.__setattr__(self, "columns", as_fills(self.columns, "windows", ("input_ids", "labels")))

    def spec(self) -> dict[str, Any]:
        """Without `columns` if there are none: then it is the step of earlier versions."""
        return {name: value for name, value in super().spec().items() if name != "columns" or value}

    def build(self, child: Node, context: Context) -> Node:
        source = need_tokens(child, "windows")
        stride = self.stride or self.length
        count = order.count(source.n_tokens, self.length, stride)
        if count == 0:
            raise UsageError(
                f"at least {self.length + 1} tokens for one window of {self.length} and its last label",
                got=f"{source.n_tokens} tokens",
                where=str(source.describe().get("path", "")),
                fix="use a smaller length, or more text",
            )
        kind = _Windowed if loss_runs.runs_of(source) is None else _Masked
        node = kind(child, source, self.length, stride, count)
        fills = cast("Fills", self.columns)
        if not fills:
            return node

        def placed(picks: Picks) -> Placed:
            return window_pieces(source, order.starts(picks.record, stride), self.length)

        return Aligned(node, source, fills, self.length, "windows", placed)


@dataclass(frozen=True)
class Shifted:
    """The recipe for two columns that are one array without its last item and without its first."""

    first: str
    second: str

    def expand(self, xp: Any, columns: Any) -> dict[str, Any]:
        rows = columns["rows"].astype(xp.int32)
        return {self.first: rows[:, :-1], self.second: rows[:, 1:]}


_SHIFTED = Shifted("input_ids", "labels")


class WindowRows:
    """Windows that have been read, each with the token after it: `input_ids` and `labels` are views of one array."""

    __slots__ = ("both", "picks", "tokens")

    def __init__(self, tokens: NDArray[Any], picks: Picks) -> None:
        self.tokens, self.picks = tokens, picks
        wide, item = tokens.strides
        shape = (2, len(tokens), tokens.shape[1] - 1)
        self.both = np.ndarray(shape, tokens.dtype, tokens, 0, (item, wide, item))

    @property
    def nbytes(self) -> int:
        return 2 * self.tokens.nbytes

    def columns(self, start: int, stop: int, memory: Memory | None) -> Columns:
        both = self.both[:, start:stop]
        if memory is not None:
            # One copy for both columns: for small batches the calls cost as much as the copies.
            made = memory.buffers.take(both.shape, memory.ids)
            np.copyto(made, both, "unsafe")
            both = made
        return {"input_ids": both[0], "labels": both[1]}

    def compact(self, start: int, stop: int) -> Compact:
        return Compact({"rows": self.tokens[start:stop]}, _SHIFTED)


class _Windowed(ContentNode):
    def __init__(self, child: Node, source: TokenSource, length: int, stride: int, count: int) -> None:
        super().__init__(child)
        self.source, self.length, self.stride, self.size = source, length, stride, count
        bounds = Bounds(0, self.facts.bounds.most)
        ids = frozenset({"input_ids", "labels"})
        self.facts = replace(
            self.facts, ids=ids, bounds=bounds, own_labels=True, even=True, one_copy=True, numbered=True, width=length,
            by_document=False,
        )  # fmt: skip

    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return Picks(position, epoch)

    def open(self, picks: Picks, compact: bool = False) -> Read:
        tokens = self._reader(order.starts(picks.record, self.stride))
        return lambda start, stop: WindowRows(tokens(start, stop), picks.rows(slice(start, stop)))

    def _reader(self, starts: I64) -> Callable[[int, int], NDArray[Any]]:
        source, wide = self.source, self.length + 1
        if isinstance(source, WindowReader):
            return source.reader(starts, wide)
        return lambda a, b: np.ascontiguousarray(source.gather(starts[a:b], wide))

    def reads(self, picks: Picks) -> Iterator[Reads]:
        starts = order.starts(picks.record, self.stride)
        return token_reads(list(self.leaves()), self.source, starts, np.full(len(picks), self.length + 1))

    def left_out(self) -> dict[str, int]:
        seen = ((self.size or 0) - 1) * self.stride + self.length + 1
        return {"tokens_left_over": self.source.n_tokens - seen}

    def explain(self, picks: Picks) -> dict[str, Any]:
        start = int(picks.record[0]) * self.stride
        span = np.array([start, start + self.length], np.int64)
        first, last = (int(d) for d in self.source.documents_at(span))
        documents = np.arange(first, min(last, first + 7) + 1)
        begins = self.source.starts(documents)
        return {
            "source": self.source.describe().get("kind", "tokens"),
            "window": int(picks.record[0]),
            "tokens": [start, start + self.length + 1],
            "documents": [
                {"document": int(d), "from": max(0, start - int(b)), "at": max(0, int(b) - start)}
                | self.source.locate(int(d))
                for d, b in zip(documents, begins, strict=True)
            ],
            "documents_in_window": last - first + 1,
        }


class _Masked(_Windowed):
    """Windows over documents with loss masks: the label of a masked token is -100."""

    def __init__(self, child: Node, source: TokenSource, length: int, stride: int, count: int) -> None:
        super().__init__(child, source, length, stride, count)
        self.runs = loss_runs.runs_of(source)
        self.facts = replace(self.facts, bounds=self.facts.bounds.with_labels(), one_copy=False, by_document=True)

    def open(self, picks: Picks, compact: bool = False) -> Read:
        return Node.open(self, picks, compact)

    def reads(self, picks: Picks) -> Iterator[Reads]:
        def documents() -> I64:
            begin = order.starts(picks.record, self.stride) + 1
            first, last = (self.source.documents_at(p) for p in (begin, begin + self.length - 1))
            return np.unique(ranges(first, last - first + 1))

        starts, lengths = order.starts(picks.record, self.stride), np.full(len(picks), self.length + 1)
        return token_reads(list(self.leaves()), self.source, starts, lengths, documents, (loss_runs.RUNS,))

    def fetch(self, picks: Picks) -> Fetched:
        begin = order.starts(picks.record, self.stride)
        rows = self._reader(begin)(0, len(picks))
        labels = rows[:, 1:].astype(np.int64)
        begin += 1
        first, last = (self.source.documents_at(p) for p in (begin, begin + self.length - 1))
        documents = ranges(first, last - first + 1)
        starts = np.maximum(self.source.starts(documents), np.repeat(begin, last - first + 1))
        # The pieces cover the windows without gaps, so each begins where the one before ends.
        row = np.repeat(np.arange(len(begin)) * self.length - begin, last - first + 1)
        lengths = np.diff(starts + row, append=labels.size)
        if self.runs is not None:
            known = loss_runs.trained(self.runs(documents), starts - self.source.starts(documents), lengths)
            labels.reshape(-1)[~known] = loss_runs.IGNORE
        return Fetched({"input_ids": rows[:, :-1], "labels": labels}, picks)
