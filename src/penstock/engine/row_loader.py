"""Loads any dataset that is read by row number: the core decides which rows make a batch, the dataset makes it.

The pipeline runs over row numbers alone, so the order, epochs, exact resume, `batch_at`, `why` and ordered threads are
the core's own. The output then asks `batch_of` for the batch of those numbers; loaders over datasets differ in it only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.randomness import U64
from penstock.engine.output import Output
from penstock.plan.definition import Definition
from penstock.steps.base import Step
from penstock.steps.batch import Batch
from penstock.steps.map_batches import MapBatches
from penstock.steps.shuffle import Shuffle

I64 = NDArray[np.int64]
BatchOf = Callable[[I64, U64 | None], Any]


class RowNumbers:
    """A source of the numbers of a dataset's rows, with the identity of that dataset.

    `recipe` is added to the identity: what is done to the rows when a batch is made.
    """

    def __init__(self, dataset: Any, recipe: str = "") -> None:
        self.dataset, self.recipe = dataset, recipe

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: I64) -> Columns:
        return {"row": np.asarray(indices, np.int64)}

    def fingerprint(self) -> str:
        """The dataset's own, where it has one; else its class and length."""
        own, kind = getattr(self.dataset, "fingerprint", None), type(self.dataset)
        identity = own() if callable(own) else f"{kind.__module__}.{kind.__qualname__}:{len(self)}"
        return f"{identity}{self.recipe}"

    def describe(self) -> dict[str, Any]:
        own = getattr(self.dataset, "describe", None)
        facts: dict[str, Any] = own() if callable(own) else {}
        return facts or {"kind": type(self.dataset).__name__, "records": len(self)}

    def locate(self, index: int) -> dict[str, Any]:
        own = getattr(self.dataset, "locate", None)
        if not callable(own):
            return {"row": int(index)}
        found = own(int(index))
        return found if isinstance(found, dict) else {"row": int(index), "record": found}


class RowBatches(Output):
    """The output: row numbers in, what `batch_of(rows, keys)` returns out.

    `keys` is a random key per row where the definition has them, else None. `size` returns the bytes of a batch.
    """

    name = "dataset"

    def __init__(self, batch_of: BatchOf, size: Callable[[Any], int]) -> None:
        self.batch_of, self.size = batch_of, size

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return columns

    def deliver(self, columns: Columns) -> Any:
        keys = np.asarray(columns["key"]) if "key" in columns else None
        return self.batch_of(np.asarray(columns["row"]), keys)

    def nbytes(self, batch: Any) -> int:
        return self.size(batch)


def _with_keys(columns: Columns, keys: U64) -> Columns:
    return {**columns, "key": keys}


def row_definition(
    dataset: Any,
    rows: int,
    *,
    shuffle: bool,
    seed: int,
    drop_last: bool,
    recipe: str = "",
    keys: bool = False,
    order: Sequence[Step] | None = None,
) -> Definition:
    """Global batches of `rows` row numbers of a dataset, with a random key per row if `keys`.

    `order` are steps that decide the order instead of `shuffle`.
    """
    steps: list[Step] = list(order) if order is not None else [Shuffle(seed)] if shuffle else []
    if keys:
        steps.append(MapBatches(_with_keys, version="keys"))
    steps.append(Batch(rows, remainder="drop" if drop_last else "short"))
    return Definition(RowNumbers(dataset, recipe), tuple(steps))
