"""Verbs that change which rows there are and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.arguments import explained_methods
from penstock.pipeline.base import Verbs

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Self


@explained_methods
class OrderVerbs(Verbs):
    """`concat`, `zip`, `shuffle`, `window_shuffle`, `take`, `skip`, `sample`, `split`, `repeat`, `shard`."""

    __slots__ = ()

    def concat(self, *others: Self) -> Self:
        """Appends the rows of other pipelines, one after another; see `penstock.concat`.

        >>> [row["text"] for row in ps.from_texts(["a", "b"]).concat(ps.from_texts(["c"])).peek()]
        ['a', 'b', 'c']
        """
        from penstock.plan.combine import concatenated, definitions_of

        return self._new(concatenated(definitions_of([self, *others], "concat")))

    def zip(self, *others: Self) -> Self:
        """Adds the columns of other pipelines, row by row; see `penstock.zip`.

        >>> ps.from_texts(["a"]).zip(ps.from_arrays({"label": [1]})).peek()
        [{'text': 'a', 'label': np.int64(1)}]
        """
        from penstock.plan.combine import definitions_of, zipped

        return self._new(zipped(definitions_of([self, *others], "zip")))

    def shuffle(
        self, seed: int = 0, *, block: int | None = None, window: int | None = None, lanes: int | None = None
    ) -> Self:
        """Shuffles all rows, in a different order each epoch. Costs no memory: the order is computed, not stored.

        Args:
            seed: the run's seed, also for random crops and maps.
            block, window: read blocks of consecutive records, shuffled within a window, where random access is slow.
            lanes: the same on many hosts: each reads its own blocks. Best if it divides the batch, such as 256.

        >>> sorted(int(row["x"]) for row in ps.from_arrays({"x": range(4)}).shuffle(seed=7).peek(4))
        [0, 1, 2, 3]
        """
        from penstock.steps.shuffle import Shuffle

        return self.then(Shuffle(seed, block, window, lanes))

    def window_shuffle(self, size: int, seed: int = 0) -> Self:
        """Shuffles rows near each other, for streams: a row moves less than 1.5 times `size` rows.

        What a shuffle buffer does, but the order is computed: it resumes exactly, with nothing saved, and is the same
        for any ranks and threads. `.shuffle()` mixes better wherever rows can be read in any order.

        Args:
            size: rows of a window; a stream needs `from_stream(buffer=)` of four windows.

        >>> rows = ps.from_stream(lambda: ({"n": i} for i in range(8)), length=8)
        >>> [int(row["n"]) for row in rows.window_shuffle(4, seed=7).peek(8)]
        [1, 0, 2, 3, 7, 6, 5, 4]
        """
        from penstock.steps.window_shuffle import WindowShuffle

        return self.then(WindowShuffle(size, seed))

    def take(self, count: int) -> Self:
        """Keeps the first `count` rows.

        >>> [int(row["x"]) for row in ps.from_arrays({"x": range(9)}).take(2).peek()]
        [0, 1]
        """
        from penstock.steps.limit import Take

        return self.then(Take(count))

    def skip(self, count: int) -> Self:
        """Drops the first `count` rows.

        >>> [int(row["x"]) for row in ps.from_arrays({"x": range(9)}).skip(7).peek()]
        [7, 8]
        """
        from penstock.steps.limit import Skip

        return self.then(Skip(count))

    def sample(self, count: int, seed: int = 0) -> Self:
        """Keeps `count` rows chosen at random, each at most once: the same ones in every epoch.

        >>> len(ps.from_texts(["a", "b", "c"]).sample(2, seed=7).rows())
        2
        """
        from penstock.steps.sample import Sample

        return self.then(Sample(count, seed))

    def split(
        self, parts: Mapping[str, float | int | None], *, seed: int = 0, shuffle: bool = True, key: str | None = None,
        stratify: str | None = None, cache_dir: str | os.PathLike[str] | None = None, show_progress: bool | None = None,
    ) -> dict[str, Self]:  # fmt: skip
        """Divides the rows into disjoint parts: a dict of pipelines, the same in every run and epoch.

        Args:
            parts: fractions `{"train": 0.9, "val": 0.1}`, or counts `{"val": 1000, "train": None}`; None is the rest.
            shuffle: choose at random by `seed`; False cuts the rows in their order.
            key: decide by the hash of this column: equal values stay in one part, and a record stays in its part
                when others are added. Parts are then about as large as asked for.
            stratify: the same proportions for each value of this column.

        `key` and `stratify` read all rows now, once; later runs find the result in the cache, by content.

        >>> parts = ps.from_texts(["a", "b", "c", "d"]).split({"train": 0.75, "val": 0.25}, seed=7)
        >>> {name: len(part.rows()) for name, part in parts.items()}
        {'train': 3, 'val': 1}
        """
        from penstock.preparation.choose_rows import split_rows

        made = split_rows(self.definition, parts, seed, shuffle, key, stratify, cache_dir, show_progress)
        return {name: self._new(definition) for name, definition in made.items()}

    def repeat(self, times: int | None = None) -> Self:
        """Makes `times` passes in one epoch, or endless ones; a batch may hold rows of two passes.

        >>> [int(row["x"]) for row in ps.from_arrays({"x": range(2)}).repeat(2).peek()]
        [0, 1, 0, 1]
        """
        from penstock.steps.limit import Repeat

        return self.then(Repeat(times))

    def shard(self, rank: int | None = None, world: int | None = None) -> Self:
        """Keeps this rank's rows of each batch; by default rank and world size come from torch, JAX or the environment.

        >>> ps.from_arrays({"x": range(8)}).shard(1, 2).batch(4).to_numpy().batch_at(0)["x"].tolist()
        [2, 3]
        """
        return self._new(self.definition.share(rank, world))
