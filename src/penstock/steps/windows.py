"""`windows`: fixed-length windows of a token stream, with the next token of each position as its label.

Window i is `tokens[i * stride : i * stride + length + 1]`; it exists while it is full. Nothing is stored: the
number of windows is arithmetic and a batch is one gather.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.order import windows as order
from penstock.order.ragged_index import ranges
from penstock.sources.base import TokenSource
from penstock.steps import masks
from penstock.steps.base import Context, Step, whole_number
from penstock.steps.node import I64, Above, Bounds, Fetched, Leaf, Node, Picks


@dataclass(frozen=True)
class Windows(Step):
    """Windows of `length` tokens, `stride` apart (default: no overlap)."""

    length: int
    stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("length", "stride"):
            if getattr(self, name) is not None:
                whole_number(self, name, 1, f"a whole number of at least 1 for {name} in .windows()")

    def build(self, child: Node, context: Context) -> Node:
        source = child.source if isinstance(child, Leaf) else None
        if not isinstance(source, TokenSource):
            raise UsageError(
                "tokens right before .windows()",
                got="another step" if source is None else f"records of {source.describe().get('kind', 'a source')}",
                fix="put .tokenize(...) before .windows(), and .shuffle(), .take() and the rest after it",
            )
        stride = self.stride or self.length
        count = order.count(source.n_tokens, self.length, stride)
        if count == 0:
            raise UsageError(
                f"at least {self.length + 1} tokens for one window of {self.length} and its last label",
                got=f"{source.n_tokens} tokens",
                where=str(source.describe().get("path", "")),
                fix="use a smaller length, or more text",
            )
        kind = _Windowed if masks.runs_of(source) is None else _Masked
        return kind(child, source, self.length, stride, count)


class _Windowed(Above):
    ids = frozenset({"input_ids", "labels"})
    shifted: tuple[str, str] | None = ("input_ids", "labels")

    def __init__(self, child: Node, source: TokenSource, length: int, stride: int, count: int) -> None:
        super().__init__(child)
        self.source, self.length, self.stride, self.size = source, length, stride, count
        self.ids = type(self).ids
        self.own_labels, self.bounds = True, Bounds(0, self.bounds.most)

    def pick(self, position: I64, epoch: Any) -> Picks:
        return Picks(position, epoch)

    def spans(self, records: I64) -> Callable[[int, int], NDArray[Any]]:
        starts, wide = order.starts(records, self.stride), self.length + 1
        reader: Callable[[I64, int], Callable[[int, int], NDArray[Any]]] | None = getattr(self.source, "reader", None)
        if reader is not None:
            return reader(starts, wide)
        return lambda a, b: self.source.gather(starts[a:b], wide)

    def fetch(self, picks: Picks) -> Fetched:
        rows = self.source.gather(order.starts(picks.record, self.stride), self.length + 1)
        return Fetched({"input_ids": rows[:, :-1], "labels": rows[:, 1:]}, picks)

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
                {"document": int(d), "from": max(0, start - int(b))} | self.source.locate(int(d))
                for d, b in zip(documents, begins, strict=True)
            ],
            "documents_in_window": last - first + 1,
        }


class _Masked(_Windowed):
    """Windows over documents with loss masks: the label of a token that is not learnt is -100."""

    shifted = None

    def __init__(self, child: Node, source: TokenSource, length: int, stride: int, count: int) -> None:
        super().__init__(child, source, length, stride, count)
        self.runs, self.bounds = masks.runs_of(source), self.bounds.with_labels()

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = super().fetch(picks)
        labels = np.asarray(columns["labels"]).astype(np.int64)
        begin = order.starts(picks.record, self.stride) + 1
        first, last = (self.source.documents_at(p) for p in (begin, begin + self.length - 1))
        documents = ranges(first, last - first + 1)
        starts = np.maximum(self.source.starts(documents), np.repeat(begin, last - first + 1))
        # The pieces of all windows tile them, so where one begins is where the one before ends.
        row = np.repeat(np.arange(len(begin)) * self.length - begin, last - first + 1)
        lengths = np.diff(starts + row, append=labels.size)
        if self.runs is not None:
            known = masks.learnt(self.runs(documents), starts - self.source.starts(documents), lengths)
            labels.reshape(-1)[~known] = masks.IGNORE
        return Fetched({**columns, "labels": labels}, used)
