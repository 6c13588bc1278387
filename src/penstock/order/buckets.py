"""Length buckets: batches of records of similar length, as a function `step -> records`.

The records of a bucket are permuted and cut into batches, and the batches of all buckets are permuted, differently
each epoch. The plan stores the records sorted by bucket: 4 bytes per record, built in about 0.03 s per million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.randomness import key as make_key
from penstock.order.ragged_index import I64, BatchRecords, prefix, ranges
from penstock.order.shuffle import permute
from penstock.order.superblocks import (
    SUPERBLOCK,
    LengthInput,
    Lengths,
    cut_evenly,
    require,
    require_choice,
    require_within,
)

_TABLE = 1 << 16
REMAINDERS = ("drop", "short", "pad")


def bucket_of(lengths: Any, boundaries: Sequence[int]) -> I64:
    """Returns the bucket of each length: the first whose boundary is not exceeded, or the one after the last boundary.

    >>> bucket_of([1, 8, 9, 40], boundaries=[8, 16]).tolist()
    [0, 0, 1, 2]
    """
    return np.searchsorted(_check_boundaries(boundaries), np.asarray(lengths, np.int64), side="left")


def _find(bounds: I64, lengths: I64) -> NDArray[Any]:
    """The bucket of each length, through a table where the boundaries are small: a search costs several times more."""
    kind = np.uint8 if len(bounds) < 1 << 8 else np.uint16 if len(bounds) < 1 << 16 else np.int64
    if not len(bounds) or bounds[-1] > _TABLE:
        return np.searchsorted(bounds, lengths).astype(kind)
    top = int(bounds[-1]) + 1
    return np.searchsorted(bounds, np.arange(top + 1)).astype(kind)[np.minimum(lengths, top)]


def _check_boundaries(boundaries: Sequence[int]) -> I64:
    edges = np.array([require("boundaries", b, least=1) for b in boundaries], np.int64)
    if not np.all(edges[1:] > edges[:-1]):
        raise UsageError("increasing bucket boundaries", got=str(edges.tolist()), fix="sort them and remove duplicates")
    return edges


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """Maps steps to records. Created by `plan_buckets`; immutable."""

    key: int
    sizes: I64  # rows of a full batch, for each bucket
    widths: I64  # padded length of each bucket
    remainder: str
    members: NDArray[Any]  # records by bucket
    edges: I64  # offsets of the buckets in `members`
    batches_before: I64

    @property
    def n_batches(self) -> int:
        """Batches in an epoch."""
        return int(self.batches_before[-1])

    @property
    def left_out(self) -> int:
        """Number of records in no batch of an epoch; 0 unless the remainder is dropped.

        With a shuffle these are different records each epoch, except for those counted in `stranded`.
        """
        counts = np.diff(self.edges)
        return int((counts % self.sizes).sum()) if self.remainder == "drop" else 0

    @property
    def stranded(self) -> I64:
        """Number of records per bucket that are in no batch of any epoch: the bucket is smaller than one batch."""
        counts = np.diff(self.edges)
        return np.where(counts < self.sizes, counts, 0) if self.remainder == "drop" else np.zeros_like(counts)

    def batch(self, steps: Any, epoch: int = 0, *, shuffle: bool = True) -> BatchRecords:
        """Returns the records of many steps; without `shuffle`, buckets and records are in their original order.

        With `remainder="pad"` a bucket's last batch may hold fewer records than its `rows`: the caller pads it.
        """
        number = require_within("steps", steps, self.n_batches)
        if shuffle:
            number = permute(number, self.n_batches, make_key(self.key, "bucket order", epoch))
        bucket = np.searchsorted(self.batches_before, number, side="right") - 1
        size = self.sizes[bucket]
        first = (number - self.batches_before[bucket]) * size
        count = np.minimum(size, np.diff(self.edges)[bucket] - first)
        offsets = prefix(count)
        kth, of_record = ranges(first, count), np.repeat(bucket, count)
        records = np.empty(len(kth), np.int64)
        for b in np.unique(bucket).tolist():
            mine = of_record == b
            inside = kth[mine]
            if shuffle:
                size_of_bucket = int(self.edges[b + 1] - self.edges[b])
                inside = permute(inside, size_of_bucket, make_key(self.key, "bucket", epoch, b))
            records[mine] = self.members[self.edges[b] + inside]
        rows = size if self.remainder == "pad" else count
        return BatchRecords(offsets, records, rows, self.widths[bucket])


def plan_buckets(
    lengths: LengthInput,
    n_records: int | None = None,
    *,
    boundaries: Sequence[int],
    batch_size: int | Sequence[int],
    key: int,
    remainder: str = "drop",
) -> BucketPlan:
    """Plans batches of records of similar length.

    Bucket i holds the lengths up to `boundaries[i]`; one more bucket holds longer ones. `batch_size` is one number, or
    one per bucket. A bucket's incomplete last batch is left out ("drop"), returned as it is ("short"), or returned
    with the full number of `rows` to pad to ("pad").

    >>> plan = plan_buckets(np.array([3, 20, 4, 30, 5]), boundaries=[8, 32], batch_size=2, key=1, remainder="short")
    >>> batches = plan.batch(np.arange(plan.n_batches), shuffle=False)
    >>> batches.records.tolist(), batches.rows.tolist(), batches.lengths.tolist()
    ([0, 2, 4, 1, 3], [2, 1, 2], [8, 8, 32])
    """
    reader = Lengths(lengths, n_records)
    bounds = _check_boundaries(boundaries)
    n_buckets = len(bounds) + 1
    per_bucket = [batch_size] * n_buckets if isinstance(batch_size, int | np.integer) else list(batch_size)
    if len(per_bucket) == len(bounds) and len(per_bucket):
        per_bucket.append(per_bucket[-1])
    if len(per_bucket) != n_buckets:
        raise UsageError(
            f"one batch size, or one for each of {n_buckets} buckets (the last for longer records)",
            got=f"{len(per_bucket)} sizes",
        )
    sizes = np.array([require("batch_size", size, least=1) for size in per_bucket], np.int64)
    require_choice("remainder", remainder, REMAINDERS)

    spans = list(pairwise(cut_evenly(reader.n_docs, SUPERBLOCK).tolist()))
    counts, longest = np.zeros(n_buckets, np.int64), 0
    buckets: list[tuple[NDArray[Any], I64]] = []  # of the records of each span, in few bytes, and how many each has
    for start, stop in spans:
        block = reader.read(start, stop)
        bucket = _find(bounds, block)
        buckets.append((bucket, np.bincount(bucket, minlength=n_buckets)))
        counts += buckets[-1][1]
        longest = max(longest, int(block.max()))
    edges = prefix(counts)
    members = np.empty(reader.n_docs, np.uint32 if reader.n_docs < 1 << 32 else np.int64)
    cursor = edges[:-1].copy()
    for (start, _), (bucket, here) in zip(spans, buckets, strict=True):
        order = np.argsort(bucket, kind="stable")
        for b, (low, high) in enumerate(pairwise(prefix(here).tolist())):
            np.add(order[low:high], start, out=members[cursor[b] : cursor[b] + high - low], casting="unsafe")
        cursor += here
    n_batches = counts // sizes if remainder == "drop" else -(-counts // sizes)
    return BucketPlan(int(key), sizes, np.append(bounds, longest), remainder, members, edges, prefix(n_batches))
