"""A torch DataLoader over a stream, whose batch n is the same for any number of workers, and which resumes exactly.

The stream's positions are cut into global batches; worker w of W makes batches w, w + W, ..., and torch hands them over
in turn. A rank takes its share of each. A skipped record leaves its batch one row shorter, so that no other batch
changes. The state is the number of positions given, whatever the workers: it can be restored on another number of
them, on another world or batch size. Every worker walks the stream; only the one whose turn it is makes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock._errors import StateError
from penstock._ship import shipped
from penstock.outputs.map_loader import share
from penstock.outputs.torch_data import data

FORMAT = 1


class BatchStream(data.IterableDataset):  # type: ignore[misc]
    """Whole batches of a stream, each with (positions in it, whether it is the last of the pass).

    `dataset` has `elements(start)`, pairs of position and element, and `rows(pairs)`, which makes rows.
    """

    def __init__(self, dataset: Any, batch_size: int, collate: Callable[[Any], Any], drop_last: bool) -> None:
        self.dataset, self.batch_size, self.collate, self.drop_last = dataset, batch_size, collate, drop_last
        self.start = 0

    def __getstate__(self) -> dict[str, Any]:
        return shipped(self.__dict__)

    def __iter__(self) -> Iterator[tuple[int, bool, Any]]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rank, world = self.dataset.place()
        for number, (placed, last) in enumerate(self._rounds(self.batch_size * world)):
            if number % workers != worker:
                continue
            mine = [placed[i] for i in share(len(placed), rank, world).tolist()]
            rows = [row for row in self.dataset.rows(mine) if row is not None]
            yield len(placed), last, self.collate(rows) if rows else None

    def _rounds(self, size: int) -> Iterator[tuple[list[Any], bool]]:
        """Global batches; one is given once it is known whether another follows."""
        ready: list[Any] = []
        coming: list[Any] = []
        for pair in self.dataset.elements(self.start):
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
    the middle."""

    def __init__(
        self, dataset: Any, batch_size: int, collate: Callable[[Any], Any], drop_last: bool, **options: Any
    ) -> None:
        batches = BatchStream(dataset, batch_size, collate, drop_last)
        super().__init__(batches, batch_size=None, collate_fn=_as_is, **options)
        self.epoch, self._given, self._begun = dataset.epoch, 0, False

    def __iter__(self) -> Iterator[Any]:
        if self._begun and self._given:
            self.epoch, self._given = self.epoch + 1, 0
        self._begun = False
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        stream: BatchStream = self.dataset
        stream.dataset.set_epoch(self.epoch)
        stream.start = self._given
        for count, last, batch in super().__iter__():
            self._begun = True
            if last:
                self.epoch, self._given = self.epoch + 1, 0
            else:
                self._given += count
            if batch is not None:  # all of its records were skipped
                yield batch

    def __len__(self) -> int:
        """Batches of a whole pass, where the number of records is known; a TypeError where it is not."""
        stream: BatchStream = self.dataset
        rows, size = stream.dataset.total(), stream.batch_size * stream.dataset.place()[1]
        return int(rows // size if stream.drop_last else -(-rows // size))

    def set_epoch(self, epoch: int) -> None:
        """Begins at an epoch; keeps a place restored in the middle of it."""
        if epoch != self.epoch:
            self.epoch, self._given = epoch, 0
        self._begun = False

    def state_dict(self) -> dict[str, Any]:
        """Where it is: a few numbers, the same on every rank."""
        dataset = self.dataset.dataset
        return {
            "penstock_stream_loader": FORMAT,
            "seed": dataset.seed,
            "buffer_size": dataset.buffer_size,
            "epoch": self.epoch,
            "n": self._given,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state; workers, ranks and batch size may differ from those it was saved with."""
        fix = "pass the dict that state_dict() gave, unchanged"
        if not isinstance(state, dict) or state.get("penstock_stream_loader") != FORMAT:
            raise StateError(f"a stream loader's state of format {FORMAT}", got=str(state)[:80], fix=fix)
        for name in ("epoch", "n"):
            value = state.get(name)
            if type(value) is not int or value < 0:
                raise StateError(f"a whole number of at least 0 as {name!r} in the state", got=repr(value), fix=fix)
        dataset = self.dataset.dataset
        for name in ("seed", "buffer_size"):
            if state.get(name) != getattr(dataset, name):
                raise StateError(
                    f"a state of a stream with {name}={getattr(dataset, name)}, which decides the order",
                    got=f"{name}={state.get(name)!r}",
                    fix="make the dataset with the arguments it was saved with",
                )
        self.epoch, self._given, self._begun = state["epoch"], state["n"], False

    @property
    def skipped(self) -> int:
        """Records skipped so far, over all workers."""
        return int(self.dataset.dataset.skipped)


def _as_is(batch: Any) -> Any:
    return batch
