"""Verbs that make batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.core.arguments import explained_methods
from penstock.pipeline.base import Verbs

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Self


@explained_methods
class BatchVerbs(Verbs):
    """`batch`, `unbatch`, `rebatch`, `bucket`, `batch_tokens`."""

    __slots__ = ()

    def batch(
        self, size: int | None = None, *, per_rank: int | None = None,
        remainder: Literal["drop", "pad", "short"] = "drop", balance: bool = False,
    ) -> Self:  # fmt: skip
        """Makes batches of `size` rows over all ranks together, or of `per_rank` on each.

        Args:
            remainder: the last rows of an epoch: "drop" them, "pad" the batch (column `valid`), or make it "short".
            balance: assign packed rows to ranks by the cost of their attention.

        >>> [len(b["x"]) for b in ps.from_arrays({"x": range(5)}).batch(2, remainder="short").to_numpy()]
        [2, 2, 1]
        """
        from penstock.steps.batch import Batch

        return self.then(Batch(size, per_rank, remainder, balance))

    def unbatch(self, *, cache_dir: str | os.PathLike[str] | None = None, show_progress: bool | None = None) -> Self:
        """Divides rows that hold several records: arrays of one length in all columns. After `.batch()`: removes it.

        Without `.batch()` before it, all rows are counted now, once; later runs find the counts in the cache.

        >>> ps.from_arrays({"x": [[1, 2], [3, 4]]}).unbatch().peek(3)
        [{'x': np.int64(1)}, {'x': np.int64(2)}, {'x': np.int64(3)}]
        """
        if self.definition.batch is not None:
            from penstock.plan.unbatch import unbatched

            return self._new(unbatched(self.definition))
        from penstock.preparation.count_rows import flat_mapped
        from penstock.steps.flat_map import rows_of_arrays

        return self._new(flat_mapped(self.definition, rows_of_arrays, None, "1", cache_dir, show_progress))

    def rebatch(
        self, size: int | None = None, *, per_rank: int | None = None,
        remainder: Literal["drop", "pad", "short"] = "drop", balance: bool = False,
    ) -> Self:  # fmt: skip
        """Replaces the batches by others of `size` rows: `.unbatch().batch(size)`.

        >>> [len(b["x"]) for b in ps.from_arrays({"x": range(6)}).batch(2).rebatch(3).to_numpy()]
        [3, 3]
        """
        return self.unbatch().batch(size, per_rank=per_rank, remainder=remainder, balance=balance)

    def bucket(
        self, boundaries: Sequence[int], batch_size: int | None = None, *, sizes: Sequence[int] | None = None,
        remainder: Literal["drop", "pad", "short"] = "drop", balance: bool = False, pad_id: int = 0,
        side: Literal["right", "left"] = "right",
    ) -> Self:  # fmt: skip
        """Makes batches of documents of similar length, padded to the bucket's boundary; instead of `.batch()`.

        Args:
            boundaries: longest length of each bucket; one more bucket holds what is longer.
            batch_size, sizes: rows of a batch, one number for all buckets or one for each. Keeps 4 bytes a record.

        >>> documents = ps.open_tokens(range(9), [0, 1, 2, 5, 9])
        >>> [b["input_ids"].shape for b in documents.bucket([2, 4], batch_size=2).to_numpy()]
        [(2, 2), (2, 4)]
        """
        from penstock.steps.bucket import Bucket

        return self.then(Bucket.of(boundaries, batch_size, sizes, remainder, balance, pad_id, side))

    def batch_tokens(
        self, budget: int, *, shapes: Sequence[int] | None = None, max_rows: int | None = None, multiple: int = 1,
        static: bool = False, overlong: Literal["error", "truncate", "drop"] = "error", balance: bool = False,
        pad_id: int = 0, side: Literal["right", "left"] = "right", ranks: int | None = None,
    ) -> Self:  # fmt: skip
        """Makes batches of at most `budget` tokens over all ranks, padding counted; instead of `.batch()`.

        Args:
            shapes: lengths to pad to; otherwise the longest row, rounded up to `multiple`.
            static: always the same number of rows for a length, for compiled programs.
            ranks: number of ranks for which the budget holds even with the rows that only complete their shares.

        >>> documents = ps.open_tokens(range(9), [0, 1, 2, 5, 9])
        >>> max(b["input_ids"].size for b in documents.batch_tokens(8).to_numpy()) <= 8
        True
        """
        from penstock.steps.budget import BatchTokens

        return self.then(BatchTokens.of(
            budget, shapes, max_rows=max_rows, multiple=multiple, static=static, overlong=overlong, balance=balance,
            pad_id=pad_id, side=side, ranks=ranks,
        ))  # fmt: skip
