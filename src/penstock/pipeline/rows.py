"""Verbs that change what is in each record, or drop records for what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.core.arguments import explained_methods
from penstock.pipeline.base import Verbs

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Self

    from penstock.core.functions import BatchFunction, Predicate, RecordFunction


@explained_methods
class RowVerbs(Verbs):
    """`map`, `flat_map`, `map_batches`, `select`, `drop`, `rename`, `filter`, `cache`, `dedup` and more."""

    __slots__ = ()

    def map(self, function: RecordFunction, *, version: str | None = None) -> Self:
        """Applies `function(record) -> record` to each record. One Python call per record; `map_batches` is faster.

        Args:
            function: a parameter called `rng` gets a NumPy generator keyed by (seed, epoch, record).
            version: names what the function's source does not show, for the fingerprint.

        >>> ps.from_texts(["a"]).map(lambda record: {"text": record["text"] * 2}).peek()
        [{'text': 'aa'}]
        """
        from penstock.steps.map import Map

        return self.then(Map(function, version))

    def flat_map(
        self, function: Callable[..., Iterable[dict[str, Any]]],
        count: int | Callable[[dict[str, Any]], int] | None = None, *, version: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None, show_progress: bool | None = None,
    ) -> Self:  # fmt: skip
        """Applies `function(record) -> list of records` to each record: one becomes several rows, or none.

        Args:
            count: how many rows a record becomes: a number, the same for all; or a function of the record. Without a
                number, all records are counted now, once, by `count` or by calling `function`; later runs find the
                counts in the cache, by content. `.shuffle()` then comes after it.
            function: a parameter `rng` gets a generator keyed by the record; it must not change the number of rows.

        >>> rows = ps.from_texts(["a b", "c"]).flat_map(lambda r: [{"word": w} for w in r["text"].split()])
        >>> [row["word"] for row in rows.peek()]
        ['a', 'b', 'c']
        """
        from penstock.preparation.count_rows import flat_mapped

        return self._new(flat_mapped(self.definition, function, count, version, cache_dir, show_progress))

    def map_batches(self, function: BatchFunction, *, whole: bool = False, version: str | None = None) -> Self:
        """Applies `function(columns) -> columns` to blocks of rows; each row must be independent of the others.

        Args:
            function: a parameter called `keys` gets a random key per row; see `penstock.randomness`.
            whole: after `.batch()`: pass the global batch on every rank, so that rows may be mixed.

        >>> ps.from_arrays({"x": [1, 2]}).map_batches(lambda columns: {"x": columns["x"] * 2}).peek(1)
        [{'x': np.int64(2)}]
        """
        from penstock.steps.map_batches import MapBatches

        return self.then(MapBatches(function, whole, version))

    def select(self, *columns: str) -> Self:
        """Keeps only these columns, in this order.

        >>> ps.from_arrays({"x": [1], "y": [2], "z": [3]}).select("z", "x").peek()
        [{'z': np.int64(3), 'x': np.int64(1)}]
        """
        from penstock.steps.choose_columns import Select, column_names

        return self.then(Select(column_names(columns, "select")))

    def drop(self, *columns: str) -> Self:
        """Removes these columns and keeps all others.

        >>> ps.from_arrays({"x": [1], "y": [2]}).drop("y").peek()
        [{'x': np.int64(1)}]
        """
        from penstock.steps.choose_columns import Drop, column_names

        return self.then(Drop(column_names(columns, "drop")))

    def rename(self, names: Mapping[str, str]) -> Self:
        """Renames columns: `{"old": "new"}`. The others stay as they are.

        >>> ps.from_arrays({"x": [1], "y": [2]}).rename({"y": "label"}).peek()
        [{'x': np.int64(1), 'label': np.int64(2)}]
        """
        from penstock.steps.choose_columns import Rename

        return self.then(Rename.of(names))

    def filter(
        self, function: Predicate, *, batched: bool = False, version: str | None = None, exact: bool = False,
        cache_dir: str | os.PathLike[str] | None = None, show_progress: bool | None = None,
    ) -> Self:  # fmt: skip
        """Keeps records for which `function` returns True, or with `batched` the rows of its mask for a block of rows.

        A loader refills the place of a rejected row, so that other rows keep theirs; `prepare` and `tokenize` drop it.

        Args:
            exact: an epoch has each kept record exactly once. All records are read now, once, by several threads;
                later runs find the result in the cache, by content. `function` sees them as in the first epoch.
                Rows that steps before it reject are left out too. `.shuffle()` comes after it.

        >>> {row["text"] for row in ps.from_texts(["a", "b"]).filter(lambda record: record["text"] > "a").peek()}
        {'b'}
        """
        from penstock.steps.filter import Filter

        step = Filter(function, batched, version)
        if not exact:
            return self.then(step)
        from penstock.preparation.choose_rows import filtered_exactly

        return self._new(filtered_exactly(self.definition, step, cache_dir, show_progress))

    def cache(
        self, *, memory: int | None = None, cache_dir: str | os.PathLike[str] | None = None,
        show_progress: bool | None = None,
    ) -> Self:  # fmt: skip
        """Computes all rows now, once, and reads them from disk from then on: in later epochs and later runs.

        Kept by content under the cache folder: other data, steps or functions are other rows, never old ones. Rows that
        steps before it reject are left out. `.shuffle()` and random steps come after it.

        Args:
            memory: hold the rows in memory instead, at most this many bytes, or it is refused. For this run only;
                child processes share them.

        >>> from tempfile import mkdtemp
        >>> ps.from_texts(["a"]).map(lambda r: {"n": len(r["text"])}).cache(cache_dir=mkdtemp()).peek()
        [{'n': np.int64(1)}]
        """
        from penstock.preparation.cache_rows import cached_rows, rows_in_memory

        if memory is not None:
            return self._new(rows_in_memory(self.definition, memory, cache_dir, show_progress))
        return self._new(cached_rows(self.definition, cache_dir, show_progress))

    def enumerate(self, column: str = "index") -> Self:
        """Adds a column with the number of each row, from 0 in each epoch: the record's number where no order changed.

        >>> [int(row["index"]) for row in ps.from_texts(["a", "b", "c"]).skip(1).enumerate().peek()]
        [0, 1]
        """
        from penstock.steps.enumerate import Enumerate

        return self.then(Enumerate(column))

    def dedup(
        self, field: str = "text", *, method: Literal["exact", "minhash"] = "exact", threshold: float = 0.8,
        ngram: int = 5, num_perm: int = 128, cache_dir: str | os.PathLike[str] | None = None,
        show_progress: bool | None = None,
    ) -> Self:  # fmt: skip
        """Keeps the first of records with the same `field`, or with "minhash" of texts that are almost the same.

        Reads all records now, once: later runs find the result in the cache, by content. Duplicates are dropped or
        refilled as by `.filter()`.

        Args:
            threshold: of "minhash": the Jaccard similarity of runs of `ngram` words from which texts are the same.
            num_perm: of "minhash": numbers in a signature; more are more exact and slower.

        >>> from tempfile import mkdtemp
        >>> ps.from_texts(["a", "a"]).dedup(cache_dir=mkdtemp()).tokenize("bytes", cache_dir=mkdtemp()).rows().size
        1
        """
        from penstock.preparation.dedup import deduplicated

        arguments = field, method, threshold, ngram, num_perm, cache_dir, show_progress
        return self._new(deduplicated(self.definition, *arguments))

    def skip_errors(self, budget: int | float | None = None) -> Self:
        """Replaces bad records by others and lists them in `loader.ledger`.

        More than `budget` of them (a count, or a fraction of the rows) are an error; None allows any number.

        >>> numbers = ps.from_texts(["1", "x"]).map(lambda record: {"x": int(record["text"])})
        >>> {int(row["x"]) for row in numbers.skip_errors(budget=1).peek()}
        {1}
        """
        from penstock.steps.skip_errors import SkipErrors

        return self.then(SkipErrors(budget))
