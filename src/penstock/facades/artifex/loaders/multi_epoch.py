"""A fixed number of epochs in one loop, each batch with the number of its epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.core.errors import UsageError
from penstock.facades.artifex.loaders.rows import DatasetLoader


class MultiEpochLoader:
    """`(epoch, batch)` for `num_epochs` epochs, each in its own order. Leaving the loop early keeps the place.

    >>> loader = MultiEpochLoader(DatasetLoader([{"x": 1}, {"x": 2}], 2), num_epochs=3)
    >>> [epoch for epoch, batch in loader]
    [0, 1, 2]
    """

    def __init__(self, loader: DatasetLoader, num_epochs: int) -> None:
        if isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < 0:
            raise UsageError("num_epochs of at least 0", got=repr(num_epochs), fix="num_epochs=10")
        self.loader, self.num_epochs = loader, num_epochs

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self.loader.epoch >= self.num_epochs:
            self.loader.rewind()
        while (epoch := self.loader.epoch) < self.num_epochs:
            for batch in self.loader:
                yield epoch, batch

    def __len__(self) -> int:
        """Batches in all epochs."""
        return len(self.loader) * self.num_epochs

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


def create_multi_epoch_data_loader(
    dataset: Any, batch_size: int, num_epochs: int, shuffle: bool = True, drop_last: bool = False, *, seed: int = 0
) -> MultiEpochLoader:
    """`(epoch, batch)` over `num_epochs` epochs, reshuffled each time."""
    return MultiEpochLoader(
        DatasetLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed), num_epochs
    )
