"""`batch_tokens`: batches of at most n tokens, padding included ("dynamic batch size").

Short records come in large batches, long ones in small, and rows x padded length never exceeds the budget (rows
that only fill up the shares of ranks are not counted: see `BatchTokens`). The plan takes a few numbers for a million
records (see `order.budget`); any step of any epoch is found directly.
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
    """At most `budget` tokens in the rows of a step, over all ranks together, padding included.

    A batch is padded to its longest row, rounded up to `multiple` or to the next of `shapes`. With `static` all
    batches of one length have the same number of rows, so that there are only as many shapes as `shapes` has lengths.
    A document without tokens is a row of padding like any other: `valid` is True, its mask all 0, its labels all -100.

    Which rows a step has does not depend on the number of ranks. If the rows do not divide evenly, a rank may get one
    row more than others, and filler rows (`valid` is False) are not counted in the budget. With `ranks` they are: each
    rank, for that number of ranks or any divisor of it, then gets at most its even share of the budget. `ranks` is part
    of the plan, so it must not change when a run is resumed with another world size.
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
        """Leaves out `ranks` if it is None, so that fingerprints from before this argument existed stay valid."""
        return {name: value for name, value in super().spec().items() if name != "ranks" or value is not None}

    def plan(self, lengths: LengthInput, records: int, key: int) -> BudgetPlan:
        return plan_budget(
            lengths, records, budget=self.budget, key=key, max_rows=self.max_rows, multiple=self.multiple,
            shapes=self.shapes, static=self.static, overlong=self.overlong, ranks=self.ranks or 1,
        )  # fmt: skip
