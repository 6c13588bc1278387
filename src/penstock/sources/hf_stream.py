"""A Hugging Face `IterableDataset` as an endless supply of records in a fixed order.

A stream has no records by number, so its promise is narrower than a source's: the order of an epoch is the same every
time (for the same data, seed and buffer), and record n is reached by reading over the n before it. Restoring costs that
replay, at the speed the dataset skips.

`lanes_of` and `lane_of` read a stream in parts that can be read side by side: a lane holds some of its shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.optional import need

MAX_LANES = 16  # one process may have to hold all of them open, each with a row group in memory

# How `datasets` builds streams out of steps that treat every record alone: a part of the shards then has a part of the
# rows. Not so for skip, take, batched functions or functions of the record's number, and mixtures of datasets.
_ROW_WISE = frozenset({
    "ExamplesIterable", "ArrowExamplesIterable", "ShuffledDataSourcesExamplesIterable",
    "ShuffledDataSourcesArrowExamplesIterable", "SelectColumnsIterable", "MappedExamplesIterable",
    "FilteredExamplesIterable", "RebatchedArrowExamplesIterable", "FormattedExamplesIterable",
    "BufferShuffledExamplesIterable", "InterleavedShardsExamplesIterable",
})  # fmt: skip
_NOT_ALONE = ("with_indices", "batched", "drop_last_batch")


def lanes_of(dataset: Any) -> int:
    """The number of parts in which an `IterableDataset` can be read without changing its rows; at most `MAX_LANES`.

    1 where shards cannot be distinguished, or where steps of the dataset look at more than one record.

    >>> import datasets
    >>> stream = datasets.Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset(num_shards=3)
    >>> lanes_of(stream), lanes_of(stream.map(lambda row: row)), lanes_of(stream.take(2))
    (3, 3, 1)
    """
    node = getattr(dataset, "_ex_iterable", None)
    if getattr(dataset, "_distributed", None) is not None:
        return 1
    while node is not None:
        if type(node).__name__ not in _ROW_WISE or any(getattr(node, name, False) for name in _NOT_ALONE):
            return 1
        following = getattr(node, "ex_iterable", None)
        if following is None:
            return max(1, min(MAX_LANES, int(dataset.num_shards)))
        node = following
    return 1


def lane_of(dataset: Any, lane: int, lanes: int, epoch: int) -> Any:
    """One of `lanes` parts of an `IterableDataset` in an epoch: every `lanes`-th shard."""
    part = dataset.shard(num_shards=lanes, index=lane, contiguous=False)
    part.set_epoch(epoch)
    return part


class HFStream:
    """Records of an `IterableDataset`, epoch by epoch.

    >>> import datasets
    >>> stream = HFStream(datasets.Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset())
    >>> [record["x"] for record in stream.records(start=1)]
    [2, 3]
    """

    def __init__(self, dataset: Any, *, seed: int | None = None, buffer: int = 10_000) -> None:
        datasets = need("datasets", extra="hf", purpose="for streamed datasets")
        if not isinstance(dataset, datasets.IterableDataset):
            raise UsageError("a datasets.IterableDataset", got=type(dataset).__name__, fix="load with streaming=True")
        self.dataset, self.seed, self.buffer = dataset, seed, buffer

    def records(self, start: int = 0, epoch: int = 0) -> Iterator[dict[str, Any]]:
        """The records of an epoch from `start` on. Each call is a pass of its own."""
        ordered = self.dataset
        if self.seed is not None:
            ordered = ordered.shuffle(randomness.key(self.seed, "stream", epoch) >> 32, buffer_size=self.buffer)
        yield from ordered.skip(start) if start else ordered

    @property
    def columns(self) -> list[str]:
        """Names of the columns; the first record is read where the dataset does not know them."""
        return list(self.dataset.column_names or next(self.records(), {}))

    def fingerprint(self) -> str:
        """What a stream can know of itself without reading: names, features, seed. Not its content."""
        info = self.dataset.info
        return f"hf-stream:{info.dataset_name}:{info.config_name}:{self.dataset.features}:{self.seed}:{self.buffer}"

    def describe(self) -> dict[str, Any]:
        return {"kind": "Hugging Face stream", "shards": self.dataset.num_shards, "columns": self.columns}

    def __repr__(self) -> str:
        return f"HFStream({self.describe()})"
