"""`batch_tokens`: batches of at most so many tokens, padding counted ("dynamic batch size").

Short records come in large batches, long ones in small, and rows x padded length never exceeds the budget (what fills
up the shares of several ranks is another matter: see `BatchTokens`). The plan
takes a few numbers for a million records (see `order.budget`); any step of any epoch is found directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from penstock.collate.layout import Side
from penstock.core.errors import UsageError
from penstock.order.budget import OVERLONG, BudgetPlan, plan_budget
from penstock.order.superblocks import LengthInput, require, require_choice
from penstock.steps.base import integer_field
from penstock.steps.planned_batches import PlannedStep

Overlong = Literal["error", "truncate", "drop"]


@dataclass(frozen=True)
class BatchTokens(PlannedStep):
    """At most `budget` tokens in the rows of a step, over all ranks together, padding counted.

    A batch is padded to its longest row, rounded up to `multiple` or to the next of `shapes`. `static` gives every
    batch of a length the same number of rows, so that there are only as many shapes as `shapes` has lengths. A document
    without tokens is a row of padding like any other: `valid` is True, its mask all 0 and its labels all -100.

    Which rows a step has does not depend on the number of ranks. Where they cannot share it equally, a rank may get a
    row more than others, and rows that only fill up (`valid` is False) come on top of the budget. `ranks` is the number
    of ranks the budget is to hold for, such rows counted: each of so many ranks, or of any divisor, then gets at most
    its even share of the budget. It is part of the plan, so it stays the same when a run goes on elsewhere.
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
    ranks: int | None = None

    @property
    def name(self) -> str:
        return "batch_tokens"

    @classmethod
    def of(cls, budget: int, shapes: Sequence[int] | None, **options: object) -> BatchTokens:
        """Completes the arguments of `Pipeline.batch_tokens`."""
        return cls(budget, shapes=None if shapes is None else tuple(shapes), **options)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        for name in ("budget", "multiple", "max_rows", "ranks"):
            if getattr(self, name) is not None or name in ("budget", "multiple"):
                integer_field(self, name, 1, f"{name}: an integer of 1 or more")
        integer_field(self, "pad_id", None, "an integer for pad_id in .batch_tokens()")
        if self.shapes is not None:
            object.__setattr__(self, "shapes", tuple(require("shapes", s, least=1) for s in self.shapes))
        require_choice("overlong", self.overlong, OVERLONG)
        require_choice("side", self.side, get_args(Side))
        if self.static and not self.shapes:
            raise UsageError(
                "shapes in .batch_tokens(static=True)", got=repr(self.shapes), fix="shapes=[256, 1024], to pad to"
            )

    def spec(self) -> dict[str, Any]:
        """Without `ranks` where none are given: plans are what they were before there was such an argument."""
        return {name: value for name, value in super().spec().items() if name != "ranks" or value is not None}

    def plan(self, lengths: LengthInput, records: int, key: int) -> BudgetPlan:
        return plan_budget(
            lengths, records, budget=self.budget, key=key, max_rows=self.max_rows, multiple=self.multiple,
            shapes=self.shapes, static=self.static, overlong=self.overlong, ranks=self.ranks or 1,
        )  # fmt: skip
