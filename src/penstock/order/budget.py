"""Token-budget batches ("dynamic batch size"): rows x padded length never exceeds the budget, as `step -> records`.

Records are processed in windows of about 2**20, sorted by padded length (rounded up to a multiple or to declared
shapes) and cut greedily into batches, longest first. This uses only the histogram of padded lengths, so building costs
one pass over the lengths and a few numbers per window. Batches of the same padded length form a pool; every epoch
assigns the pool's records to its batches differently and permutes the batches. The number of batches and their shapes
are the same in every epoch, so any step of any epoch is computed directly. Larger pools mix better: use `multiple`
or `shapes`. The first use of a window in an epoch takes about 0.2 s and 4 bytes per record (cached for the last 16).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, UsageError
from penstock.core.randomness import key as make_key
from penstock.order.lru_cache import LruCache
from penstock.order.ragged_index import I64, BatchRecords, prefix, ranges
from penstock.order.superblocks import (
    CACHED,
    SUPERBLOCK,
    WINDOW,
    LengthInput,
    Lengths,
    cut_evenly,
    require,
    require_choice,
    require_within,
    shuffle_windows,
    sort_shuffled,
)

OVERLONG = ("error", "truncate", "drop")


class BudgetReport(NamedTuple):
    """Counts of a plan; `places` is the sum of rows x padded length, `fill` the share of places that hold a token."""

    records: int
    batches: int
    dropped: int
    truncated: int
    tokens: int
    places: int
    fill: float


_COLUMNS = ("batches", "dropped", "truncated", "tokens", "places")


class _Pools(NamedTuple):
    """The batches of a window, grouped by padded length, longest first."""

    width: I64  # padded length
    rows: I64  # rows of a full batch
    records: I64  # number of records
    batch_edges: I64  # prefix sum of batches
    record_edges: I64  # prefix sum of records
    totals: I64  # the counts of `_COLUMNS`


@dataclass(frozen=True, eq=False)
class BudgetPlan:
    """Maps steps to records and the shape to pad them to. Created by `plan_budget`; immutable."""

    lengths: Lengths
    budget: int
    widths: I64  # the declared shapes; empty when lengths are rounded up to `multiple`
    multiple: int
    max_rows: int | None
    static: bool
    overlong: str
    key: int
    ranks: int
    edges: I64
    table: I64
    _pools: LruCache[_Pools] = field(repr=False)
    _assigned: LruCache[NDArray[np.uint32]] = field(repr=False)

    @property
    def n_batches(self) -> int:
        """Batches in an epoch."""
        return int(self.table[:, 0].sum())

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """With declared shapes: every (rows, length) of a full batch; in static mode each batch has one of them."""
        return [(self._rows(width), width) for width in self.widths.tolist()]

    @property
    def longest(self) -> int:
        """The largest padded length that fits the budget."""
        return int(self.widths[-1]) if len(self.widths) else self.share // self.multiple * self.multiple

    @property
    def share(self) -> int:
        """The token budget of one rank."""
        return self.budget // self.ranks

    def report(self) -> BudgetReport:
        """Counts over one epoch."""
        totals = dict(zip(_COLUMNS, self.table.sum(axis=0).tolist(), strict=True))
        fill = totals["tokens"] / totals["places"] if totals["places"] else 1.0
        return BudgetReport(records=self.lengths.n_docs, fill=fill, **totals)

    def batch(self, steps: Any, epoch: int = 0, *, shuffle: bool = True) -> BatchRecords:
        """Returns the records of many steps and the shape, `rows` x `lengths`, to pad each to: at most the budget.

        In static mode `rows` may exceed the records of a batch: the caller pads it. Without `shuffle`, batches are
        ordered longest first in each window; which records share a batch still depends on the epoch.
        """
        number = require_within("steps", steps, self.n_batches)
        if shuffle:
            number = shuffle_windows(number, self.table[:, 0], WINDOW, make_key(self.key, "budget order", epoch))
        before = prefix(self.table[:, 0])
        window = np.searchsorted(before, number, side="right") - 1
        first, count, rows, width = (np.empty(len(number), np.int64) for _ in range(4))
        touched = np.unique(window).tolist()
        for w in touched:
            mine = window == w
            pools = self._pools.get(w, lambda w=w: self._pool(w))  # type: ignore[misc]
            local = number[mine] - before[w]
            pool = np.searchsorted(pools.batch_edges, local, side="right") - 1
            inside = (local - pools.batch_edges[pool]) * pools.rows[pool]
            first[mine] = pools.record_edges[pool] + inside
            count[mine] = np.minimum(pools.rows[pool], pools.records[pool] - inside)
            rows[mine], width[mine] = pools.rows[pool], pools.width[pool]
        offsets = prefix(count)
        records = np.empty(int(offsets[-1]), np.int64)
        for w in touched:
            mine = window == w
            assigned = self._assigned.get((w, epoch), lambda w=w: self._assign(w, epoch))  # type: ignore[misc]
            chosen = assigned[ranges(first[mine], count[mine])] + self.edges[w]
            records[ranges(offsets[:-1][mine], count[mine])] = chosen
        return BatchRecords(offsets, records, rows if self.static else count, width)

    def _each(self) -> str:
        return "" if self.ranks == 1 else f" on each of {self.ranks} ranks"

    def _rows(self, width: int) -> int:
        fitting = self.share // width * self.ranks  # so that ranks padded to equal rows still fit
        return fitting if self.max_rows is None else min(fitting, self.max_rows)

    def _classes(self, w: int) -> tuple[I64, I64]:
        """Returns the class of each record of window w (increasing with padded length, 0 if dropped), and counts."""
        start = int(self.edges[w])
        lengths = self.lengths.read(start, int(self.edges[w + 1]))
        long = np.flatnonzero(lengths > self.longest)
        if len(long) and self.overlong == "error":
            raise DataError(
                f"records of at most {self.longest} tokens, so that one fits the budget of {self.budget}{self._each()}",
                got=f"{int(lengths[long[0]])} tokens ({len(long)} such in this window)",
                where=f"record {start + int(long[0])}",
                fix='raise the budget or the largest shape, or pass overlong="truncate" or "drop"',
            )
        lengths[long] = self.longest
        # An empty record still takes a row, so it has the class of one token.
        if len(self.widths):
            classes = np.searchsorted(self.widths, lengths) + 1
        else:
            classes = -(-np.maximum(lengths, 1) // self.multiple)
        dropped = len(long) if self.overlong == "drop" else 0
        if dropped:
            classes[long], lengths[long] = 0, 0
        return classes, np.array([0, dropped, len(long) - dropped, int(lengths.sum()), 0], np.int64)

    def _pool(self, w: int) -> _Pools:
        """Cuts the sorted window greedily: the longest remaining record sets the padded length and so the rows."""
        classes, totals = self._classes(w)
        counts = np.bincount(classes, minlength=1).tolist()
        widths: list[int] = []
        rows: list[int] = []
        records: list[int] = []
        free = 0  # rows still free in the last batch
        for c in range(len(counts) - 1, 0, -1):
            moved = min(free, counts[c])
            if moved:
                records[-1] += moved
                free -= moved
            left = counts[c] - moved
            if left:
                widths.append(int(self.widths[c - 1]) if len(self.widths) else c * self.multiple)
                rows.append(self._rows(widths[-1]))
                records.append(left)
                free = -left % rows[-1]
        width, row, count = (np.array(values, np.int64) for values in (widths, rows, records))
        n_batches = -(-count // row) if len(row) else count
        totals[0] = int(n_batches.sum())
        totals[4] = int((width * (n_batches * row if self.static else count)).sum())
        return _Pools(width, row, count, prefix(n_batches), prefix(count), totals)

    def _assign(self, w: int, epoch: int) -> NDArray[np.uint32]:
        """Returns the records of window w by pool, permuted inside each pool for this epoch; dropped ones last."""
        classes, _ = self._classes(w)
        pools = self._pools.get(w, lambda: self._pool(w))
        key = make_key(self.key, "budget", epoch, w)
        by_class = sort_shuffled(int(classes.max(initial=0)) - classes, make_key(key, "sort"))
        pool_of = np.full(len(classes), len(pools.records), np.int64)
        pool_of[by_class[: int(pools.record_edges[-1])]] = np.repeat(np.arange(len(pools.records)), pools.records)
        return sort_shuffled(pool_of, make_key(key, "deal"))


def plan_budget(
    lengths: LengthInput,
    n_records: int | None = None,
    *,
    budget: int,
    key: int,
    max_rows: int | None = None,
    multiple: int = 1,
    shapes: Sequence[int] | None = None,
    static: bool = False,
    window: int = SUPERBLOCK,
    overlong: str = "error",
    ranks: int = 1,
) -> BudgetPlan:
    """Plans batches of at most `budget` tokens, padding included.

    The padded length of a batch is its longest record rounded up to `multiple`, or to the next of `shapes`
    (lengths). `static` also fixes the rows, to `budget // length` (at most `max_rows`), for compilers that need few
    shapes. A record that cannot fit raises with its number ("error"), is cut off ("truncate") or left out ("drop").
    With `ranks` a batch stays within the budget also when its rows are padded to a multiple of that number.

    >>> plan = plan_budget(np.array([9, 3, 4, 8, 2]), budget=16, multiple=4, key=1)
    >>> batches = plan.batch(np.arange(plan.n_batches), shuffle=False)
    >>> [(r, n) for r, n in zip(batches.rows.tolist(), batches.lengths.tolist())]
    [(1, 12), (2, 8), (2, 4)]
    """
    reader = Lengths(lengths, n_records)
    require("budget", budget, least=1)
    require("multiple", multiple, least=1)
    require("window", window, least=1)
    if max_rows is not None:
        require("max_rows", max_rows, least=1)
    require_choice("overlong", overlong, OVERLONG)
    if static and not shapes:
        raise UsageError("shapes in static mode", got=repr(shapes), fix="pass shapes=[...], the lengths to pad to")
    widths = np.array(sorted({require("shapes", s, least=1) for s in shapes or ()}), np.int64)
    if len(widths) and multiple > 1:
        raise UsageError("shapes or multiple, not both", got=f"shapes={shapes} and multiple={multiple}")
    longest = int(widths[-1] if len(widths) else multiple)
    if longest > budget // require("ranks", ranks, least=1):
        of_each = f": {budget // ranks} for each of {ranks} ranks" if ranks > 1 else ""
        raise UsageError(
            f"padded lengths of at most the budget, {budget}{of_each}",
            got=f"shape {longest}" if len(widths) else f"multiple {longest}",
            fix=f"raise the budget to {longest * ranks}: one row of each shape must fit" + " each rank" * (ranks > 1),
        )
    if static and max_rows is not None and max_rows % ranks:
        raise UsageError(
            f"max_rows that {ranks} ranks can share equally in static mode",
            got=str(max_rows),
            fix=f"max_rows={max_rows // ranks * ranks or ranks}",
        )
    edges = cut_evenly(reader.n_docs, window)
    table = np.zeros((len(edges) - 1, len(_COLUMNS)), np.int64)
    plan = BudgetPlan(
        reader, budget, widths, multiple, max_rows, static, overlong, int(key), ranks, edges, table,
        LruCache(4 * CACHED), LruCache(CACHED),
    )  # fmt: skip
    for w in range(len(table)):
        table[w] = plan._pools.get(w, lambda w=w: plan._pool(w)).totals  # type: ignore[misc]
    return plan
