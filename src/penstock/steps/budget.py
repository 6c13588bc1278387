"""`batch_tokens`: batches of at most so many tokens, padding counted ("dynamic batch size").

Short records come in large batches, long ones in small, and rows x padded length never exceeds the budget. The plan
takes a few numbers for a million records (see `order.budget`); any step of any epoch is found directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from penstock._errors import UsageError
from penstock.batching.layout import Side
from penstock.order._superblocks import LengthSource, require, require_choice
from penstock.order.budget import OVERLONG, BudgetPlan, plan_budget
from penstock.steps.planned import PlannedStep

Overlong = Literal["error", "truncate", "drop"]


@dataclass(frozen=True)
class BatchTokens(PlannedStep):
    """`budget` tokens a step over all ranks together.

    A batch is padded to its longest row, rounded up to `multiple` or to the next of `shapes`. `static` gives every
    batch of a length the same number of rows, so that there are only as many shapes as `shapes` has lengths.
    """

    budget: int
    max_rows: int | None = None
    multiple: int = 1
    shapes: tuple[int, ...] | None = None
    static: bool = False
    overlong: Overlong = "error"
    balance: bool = False
    pad_id: int = 0
    side: Side = "right"

    @property
    def name(self) -> str:
        return "batch_tokens"

    @classmethod
    def of(cls, budget: int, shapes: Sequence[int] | None, **options: object) -> BatchTokens:
        """Completes the arguments of `Pipeline.batch_tokens`."""
        return cls(budget, shapes=None if shapes is None else tuple(shapes), **options)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        require("budget", self.budget, least=1)
        require("multiple", self.multiple, least=1)
        if self.max_rows is not None:
            require("max_rows", self.max_rows, least=1)
        require_choice("overlong", self.overlong, OVERLONG)
        require_choice("side", self.side, get_args(Side))
        if self.static and not self.shapes:
            raise UsageError(
                "shapes in .batch_tokens(static=True)", got=repr(self.shapes), fix="shapes=[256, 1024], to pad to"
            )

    def plan(self, lengths: LengthSource, records: int, key: int) -> BudgetPlan:
        return plan_budget(
            lengths, records, budget=self.budget, key=key, max_rows=self.max_rows, multiple=self.multiple,
            shapes=self.shapes, static=self.static, overlong=self.overlong,
        )  # fmt: skip
