"""A fixed set of row numbers as one bit for each row, with random access to the n-th row of the set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.core.hashing import content_id

I64 = NDArray[np.int64]
BLOCK = 64  # bytes whose bits are counted together
AT_ONCE = 1 << 12


@dataclass(frozen=True)
class RowSet:
    """Row numbers in ascending order. Costs one bit a row, and 8 bytes for each 512 rows once it is used.

    >>> chosen = RowSet.of(np.array([False, True, True, False, True]))
    >>> len(chosen), chosen.rows(np.array([0, 2, 1])).tolist()
    (3, [1, 4, 2])
    """

    bits: bytes
    count: int

    @classmethod
    def of(cls, flags: NDArray[np.bool_]) -> RowSet:
        """From one bool per row."""
        return cls(np.packbits(flags).tobytes(), int(np.count_nonzero(flags)))

    def __len__(self) -> int:
        return self.count

    @cached_property
    def _table(self) -> tuple[NDArray[np.uint8], I64]:
        """The bytes in blocks, and the number of rows of the set before each block."""
        size = -(-max(1, len(self.bits)) // BLOCK)
        table = np.zeros((size, BLOCK), np.uint8)
        table.reshape(-1)[: len(self.bits)] = np.frombuffer(self.bits, np.uint8)
        counts = np.bitwise_count(table).sum(axis=1, dtype=np.int64)
        return table, np.concatenate([[0], np.cumsum(counts)])

    def rows(self, numbers: I64) -> I64:
        """The row with each of these numbers in the set."""
        table, before = self._table
        out = np.empty(len(numbers), np.int64)
        for at in range(0, len(numbers), AT_ONCE):
            some = numbers[at : at + AT_ONCE]
            block = np.searchsorted(before, some, "right") - 1
            found = np.cumsum(np.unpackbits(table[block], axis=1), axis=1, dtype=np.int32)
            inside = (found <= (some - before[block])[:, None]).sum(axis=1)
            out[at : at + AT_ONCE] = block * (8 * BLOCK) + inside
        return out

    def mask(self, rows: I64) -> NDArray[np.bool_]:
        """Whether each of these rows is in the set.

        >>> RowSet.of(np.array([False, True])).mask(np.array([1, 0, 7])).tolist()
        [True, False, False]
        """
        bits = np.frombuffer(self.bits, np.uint8)
        known = rows >> 3 < len(bits)
        found: NDArray[np.bool_] = bits[np.where(known, rows >> 3, 0)] >> (7 - (rows & 7)) & 1 == 1
        return found & known

    def spec(self) -> str:
        return content_id([self.bits])

    def __repr__(self) -> str:
        return f"{self.count:,} rows"
