"""The interface of outputs: from the NumPy columns of a batch to a framework's own objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from penstock.core.columns import Columns, Compact
from penstock.core.errors import StageError
from penstock.steps.rows import Memory


class Output(ABC):
    """Converts columns and delivers them. Any thread may call it.

    `convert` uses NumPy only, so a child process can run it; `deliver` runs in the process that asked for the batch.
    """

    name: ClassVar[str]
    memory: Memory | None = None  # final dtype and buffers of token ids; None: they stay as read
    wraps: bool = False  # whether `make` only wraps columns that have their final dtype, without a copy
    expands: bool = False  # whether `expand` makes batches from compact columns

    @property
    def converter(self) -> Output:
        """The output whose `convert` and place this one uses: itself, unless it only rearranges another's batches."""
        return self

    @abstractmethod
    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        """Final dtypes and contiguous memory; `ids` are the columns of token ids."""

    @abstractmethod
    def deliver(self, columns: Columns) -> Any:
        """One batch as the framework's own object."""

    def make(self, columns: Columns, ids: frozenset[str]) -> Any:
        """`deliver(convert(columns, ids))`; an output may do both in one pass."""
        return self.deliver(self.convert(columns, ids))

    @abstractmethod
    def nbytes(self, batch: Any) -> int:
        """Bytes that a delivered batch holds."""

    def expand(self, small: Compact) -> Any:
        """One batch made on the device from compact columns and their recipe; called only where `expands`."""
        raise StageError("an output that expands compact columns", got=self.name)
