"""A torch DataLoader over a stream, whose batch n is the same for any number of workers, and which resumes exactly.

The stream's positions are cut into global batches; worker w of W makes batches w, w + W, ..., and torch hands them over
in turn. A rank takes its share of each. A skipped record leaves its batch one row shorter, so that no other batch
changes. The state is the number of positions given, whatever the workers: it can be restored on another number of
them, on another world or batch size. Every worker walks the stream; only the one whose turn it is makes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.core.errors import StateError
from penstock.core.pickling import with_functions
from penstock.torch_data.epoch_collate import StreamCollate, collate_at, is_random
from penstock.torch_data.loaders import data, torch
from penstock.torch_data.rank_sampler import share

FORMAT = 1

# What the loader inside takes over from the one around it.
_OPTIONS = (
    "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator",
)  # fmt: skip


class BatchStream(data.IterableDataset):  # type: ignore[misc]
    """Whole batches of a stream, each with (positions in it, whether it is the last of the pass).

    `dataset` has `elements(start)`, pairs of position and element, and `rows(pairs)`, which makes rows.
    """

    def __init__(self, dataset: Any, batch_size: int, collate: Callable[[Any], Any], drop_last: bool) -> None:
        self.dataset, self.batch_size, self.collate, self.drop_last = dataset, batch_size, collate, drop_last
        self._begin = torch.zeros(2, dtype=torch.int64).share_memory_()  # seen by workers that outlive an epoch

    def begin(self, epoch: int, start: int) -> None:
        """Where the next iteration begins, in whatever process."""
        self._begin[0], self._begin[1] = epoch, start

    def __getstate__(self) -> dict[str, Any]:
        return with_functions(self.__dict__)

    def __iter__(self) -> Iterator[tuple[int, bool, Any]]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rank, world = self.dataset.place()
        epoch, start = self._begin.tolist()
        self.dataset.set_epoch(epoch)
        for number, (placed, last) in enumerate(self._rounds(start, self.batch_size * world)):
            if number % workers != worker:
                continue
            mine = [placed[i] for i in share(len(placed), rank, world).tolist()]
            yield len(placed), last, self._batch(mine, epoch)

    def _batch(self, placed: list[Any], epoch: int) -> Any:
        """None where all records were skipped."""
        made = zip(placed, self.dataset.rows(placed), strict=True)
        rows = [(position, row) for (position, _), row in made if row is not None]
        if not rows:
            return None
        if is_random(self.collate):
            return collate_at(self.collate, epoch, [position for position, _ in rows], [row for _, row in rows])
        return self.collate([row for _, row in rows])

    def _rounds(self, start: int, size: int) -> Iterator[tuple[list[Any], bool]]:
        """Global batches; one is given once it is known whether another follows."""
        ready: list[Any] = []
        coming: list[Any] = []
        for pair in self.dataset.elements(start):
            coming.append(pair)
            if ready and (not self.drop_last or len(coming) == size):
                yield ready, False
                ready = []
            if len(coming) == size:
                ready, coming = coming, []
        if coming and not self.drop_last:
            ready = coming
        if ready:
            yield ready, True


class StreamDataLoader(data.DataLoader):  # type: ignore[misc]
    """Made by `DataLoaderBuilder`. Each new `for` is the next epoch; the first one after `load_state_dict` goes on in
    the middle.

    From outside it is torch's DataLoader over the dataset, with torch's arguments, so that trainers can take it apart
    and build their own from its attributes. Its own batches come from another DataLoader inside, over a `BatchStream`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        collate_fn: Callable[[Any], Any] = data.default_collate,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        collate = collate_fn.collate if isinstance(collate_fn, StreamCollate) else collate_fn
        outside = StreamCollate(collate, dataset)
        super().__init__(dataset, batch_size=batch_size, collate_fn=outside, drop_last=drop_last, **options)
        self._stream = BatchStream(dataset, batch_size, collate, drop_last)
        self._inside: Any = None
        self.epoch, self._given = dataset.epoch, 0
        self._restored = False  # whether the place comes from a saved state, and nothing was taken since

    def __iter__(self) -> Iterator[Any]:
        if self._given and not self._restored:
            self.epoch, self._given = self.epoch + 1, 0
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        self._restored = False
        epoch, given = self.epoch, self._given
        self.dataset.set_epoch(epoch)
        self._stream.begin(epoch, given)
        if self._inside is None or not self.persistent_workers:
            options = {name: getattr(self, name) for name in _OPTIONS}
            self._inside = data.DataLoader(self._stream, batch_size=None, collate_fn=_as_is, **options)
        for count, last, batch in self._inside:
            epoch, given = (epoch + 1, 0) if last else (epoch, given + count)
            self.epoch, self._given = epoch, given
            if batch is not None:
                yield batch

    def __len__(self) -> int:
        """Batches of a whole pass, where the number of records is known; a TypeError where it is not."""
        rows, size = self.dataset.total(), self.batch_size * self.dataset.place()[1]
        return int(rows // size if self.drop_last else -(-rows // size))

    def set_epoch(self, epoch: int) -> None:
        """Begins at an epoch; only a place just restored in that epoch is kept."""
        if not self._restored or epoch != self.epoch:
            self.epoch, self._given, self._restored = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where it is: a few numbers, the same on every rank."""
        return {"penstock_stream_loader": FORMAT, "epoch": self.epoch, "n": self._given, **self.dataset.origin()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state; workers, ranks and batch size may differ from those it was saved with."""
        fix = "pass the dict that state_dict() gave, unchanged"
        if not isinstance(state, dict) or state.get("penstock_stream_loader") != FORMAT:
            raise StateError(f"a stream loader's state of format {FORMAT}", got=str(state)[:80], fix=fix)
        for name in ("epoch", "n"):
            value = state.get(name)
            if type(value) is not int or value < 0:
                raise StateError(f"a whole number of at least 0 as {name!r} in the state", got=repr(value), fix=fix)
        self.dataset.check_origin(state)
        self.epoch, self._given, self._restored = state["epoch"], state["n"], True

    @property
    def skipped(self) -> int:
        """Records skipped so far, over all workers."""
        return int(self.dataset.skipped)


def _as_is(batch: Any) -> Any:
    return batch
