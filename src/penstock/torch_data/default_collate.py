"""Batches that are already made, in a shape that torch's own DataLoader accepts. Changes a table inside torch.

Why: torch's DataLoader asks a dataset for many rows at once (`__getitems__`) and then collates them one by one. Our
datasets make the complete batch in one call, about 10 times faster; `Rows` carries it and looks like a list of samples.
A user's DataLoader without `collate_fn` uses torch's `default_collate`, which would stack the samples again. torch has
a table from the type of a sample to a collate function for this purpose; it is in a private module, so it is touched
here only, when a dataset is made (`accept_made_batches`), and for two types of our own: nobody else's data is affected.
With `collate_fn=made_batch` the table is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.optional import need


class Rows(Sequence[Any]):
    """A batch that is already made, as the list of samples that a collate function expects."""

    def __init__(self, batch: Any, row: Callable[[int], Any], count: int) -> None:
        self.batch, self._row, self._count = batch, row, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        return self._row(index % self._count)


class TupleRow(tuple[Any, ...]):
    """A sample of `Rows`; torch's default collate recognises by this type that the batch is already made."""

    __slots__ = ()


class DictRow(dict[str, Any]):
    """The same, for samples that are dicts."""


def made_batch(rows: Any, **_: Any) -> Any:
    """Collates `Rows` by taking out the batch that is already made; other samples are collated by torch."""
    default = need("torch.utils.data._utils.collate", extra="torch").default_collate
    return rows.batch if isinstance(rows, Rows) else default([_plain(row) for row in rows])


def _plain(row: Any) -> Any:
    return tuple(row) if isinstance(row, TupleRow) else dict(row) if isinstance(row, DictRow) else row


def accept_made_batches() -> None:
    """Registers the two sample types with torch's default collate function."""
    known = need("torch.utils.data._utils.collate", extra="torch").default_collate_fn_map
    known[TupleRow] = known[DictRow] = made_batch
