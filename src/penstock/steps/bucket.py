"""`bucket`: batches of records of similar length, padded to the bucket's boundary.

Keeps 4 bytes a record (see `order.buckets`); any step of any epoch is found directly. With `.shuffle()` before it both
the records of a bucket and the order of batches are drawn anew in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from penstock.collate.layout import Side
from penstock.core.errors import UsageError
from penstock.order.buckets import BucketPlan, bucket_of, plan_buckets
from penstock.order.superblocks import LengthInput, require_choice
from penstock.steps.base import integer_field
from penstock.steps.batch import Remainder
from penstock.steps.planned_batches import PlannedStep


@dataclass(frozen=True)
class Bucket(PlannedStep):
    """Bucket i holds lengths up to `boundaries[i]`, and one more bucket holds all longer rows.

    `sizes` are the rows of a batch over all ranks, one number for each bucket. The rows left over in a
    bucket are dropped ("drop"), returned as a shorter batch ("short"), or padded to a full batch ("pad").
    """

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    remainder: Remainder = "drop"
    balance: bool = False
    pad_id: int = 0
    side: Side = "right"

    @classmethod
    def of(
        cls,
        boundaries: Sequence[int],
        batch_size: int | None,
        sizes: Sequence[int] | None,
        remainder: Remainder,
        balance: bool,
        pad_id: int,
        side: Side,
    ) -> Bucket:
        """Completes the arguments of `Pipeline.bucket`."""
        if (batch_size is None) == (sizes is None):
            raise UsageError(
                "either batch_size or sizes in .bucket()",
                got=f"{batch_size!r} and {sizes!r}",
                fix=".bucket([128, 512], batch_size=32), or sizes=[64, 16, 8] with one more for longer records",
            )
        per_bucket = [batch_size] * (len(boundaries) + 1) if batch_size is not None else list(sizes or ())
        return cls(tuple(boundaries), tuple(per_bucket), remainder, balance, pad_id, side)

    def __post_init__(self) -> None:
        bucket_of([], self.boundaries)
        object.__setattr__(self, "boundaries", tuple(map(int, self.boundaries)))
        require_choice("remainder", self.remainder, get_args(Remainder))
        require_choice("side", self.side, get_args(Side))
        for size in self.sizes:
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                raise UsageError("batch sizes of at least 1 in .bucket()", got=repr(size))
        object.__setattr__(self, "sizes", tuple(map(int, self.sizes)))
        integer_field(self, "pad_id", None, "an integer for pad_id in .bucket()")

    def plan(self, lengths: LengthInput, records: int, key: int) -> BucketPlan:
        return plan_buckets(
            lengths, records, boundaries=self.boundaries, batch_size=self.sizes, key=key, remainder=self.remainder
        )
