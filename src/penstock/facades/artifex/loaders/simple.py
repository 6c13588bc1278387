"""One epoch after another over a dataset."""

from __future__ import annotations

from typing import Any

from penstock.facades.artifex.loaders.rows import DatasetLoader


def create_simple_data_loader(
    dataset: Any, batch_size: int, shuffle: bool = True, drop_last: bool = False, *, seed: int = 0
) -> DatasetLoader:
    """Batches of every record once. `drop_last` leaves out a last batch that would be short.

    >>> loader = create_simple_data_loader([{"x": i} for i in range(5)], batch_size=2)
    >>> sorted(x for batch in loader for x in batch["x"].tolist())
    [0, 1, 2, 3, 4]
    """
    return DatasetLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
