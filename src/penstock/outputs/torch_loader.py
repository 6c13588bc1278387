"""The loader of `to_torch()`: also a torch DataLoader, so that trainers accept it and Accelerate shards it.

`accelerator.prepare(loader)` returns the loader itself, sharded for this process: `.batch(n)` stays the global batch,
each process reads its own rows, and `state_dict()` stays exact. Accelerate has no public hook for this, but reads
`_is_accelerate_prepared` of a DataLoader before it takes it apart, and leaves it alone if that is True: the loader is
sharded there. What a loader of Accelerate's own does besides is done in `_counted`: it informs Accelerate which batch
is the last one and how many of its rows are not repeated, for gradient accumulation and `gather_for_metrics`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.engine.loader import Loader, Run
from penstock.engine.output import Output
from penstock.outputs.skipped_batches import skipped_by_caller
from penstock.outputs.torch import TorchOutput
from penstock.plan.definition import Definition

data: Any = need("torch.utils.data", extra="torch", purpose="for .to_torch()")

_SAME_ROWS = ("tp", "cp", "sp")  # axes of Accelerate's device mesh whose ranks get the same rows


class PipelineBatches(data.IterableDataset):  # type: ignore[misc]
    """The dataset of a `TorchLoader`, for trainers that look for one: its elements are the loader's batches."""

    def __init__(self, loader: TorchLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise UsageError(
                "a loader that makes its batches in this process",
                got=f"{worker.num_workers} torch workers, each of which would make all of them",
                fix="use the loader itself: .to_torch(threads=) or .to_torch(workers=)",
            )
        skipped = skipped_by_caller(self)
        return iter(self.loader) if skipped is None else self._rest(*skipped)

    def _rest(self, skipped: int, epoch: int | None) -> Iterator[Any]:
        """Nothing in the place of the batches that the caller throws away, then the other batches of the epoch."""
        left = self.loader._skip_from_start(skipped, epoch)
        yield from repeat(None, skipped)
        if left:
            yield from self.loader


class TorchLoader(Loader[Any], data.DataLoader):  # type: ignore[misc]
    """A `Loader` of torch tensors that is a `torch.utils.data.DataLoader` too."""

    _shard_line = f"{Loader._shard_line}, or prepare the loader with Accelerate"
    use_stateful_dataloader = True  # Accelerate's save_state and load_state then include the position

    def __init__(
        self, definition: Definition, output: Output, *, dataset: Any = None, sampler: None = None,
        batch_sampler: None = None, **options: Any,
    ) -> None:  # fmt: skip
        # Lightning builds a loader again, with what it was built from, its attributes, and no samplers.
        if isinstance(dataset, PipelineBatches):
            self.__setstate__(dataset.loader.__getstate__())
            return
        super().__init__(definition, output, **options)
        self._prepared = False
        self._look_like_torch()

    def _look_like_torch(self) -> None:
        data.DataLoader.__init__(self, PipelineBatches(self), batch_size=None)
        object.__setattr__(self, "__dataset", self.dataset)  # where Lightning looks before it builds a loader again

    def __iter__(self) -> Run[Any]:
        run = super().__iter__()
        return self._counted(run) if self._prepared else run

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch, unless the position is in that epoch already."""
        if self._ranges.size is not None and epoch != self.epoch:
            self.seek_epoch(epoch)

    def _skip_from_start(self, batches: int, epoch: int | None) -> bool:
        """Moves to this batch of an epoch, by default the current one; whether there is such a batch."""
        if self._ranges.size is None:  # one endless epoch
            self._move(batches)
            return True
        if epoch is None:  # nothing to skip after the last batch of an epoch: the next one, as a `for` would begin it
            epoch = self.epoch if batches else self._ranges.at(self._step).epoch
        self.seek_epoch(epoch)
        end = self._ranges.epoch_end(self._step)
        self._move(self._step + batches if end is None else min(self._step + batches, end))
        return end is None or self._step < end

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Read by Accelerate when it prepares a DataLoader. True: it uses the loader as it is."""
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__") == "accelerate.accelerator":
            self._prepare(caller.f_locals["self"], caller.f_locals.get("device_placement"))
        return self._prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Accelerate sets what it has read before."""

    def _prepare(self, accelerator: Any, place: bool | None) -> None:
        """Shards this loader for a process of Accelerate, and puts its batches on the device of that process."""
        if accelerator.num_processes > 1 and not self.definition.sharded:
            mesh = accelerator._prepare_device_mesh()
            if mesh is not None and any(mesh[name].size() > 1 for name in _SAME_ROWS if name in mesh.mesh_dim_names):
                raise UsageError(
                    "a pipeline that is sharded over the data-parallel axes of the mesh",
                    got=f"one that is not, and a mesh of {mesh.mesh_dim_names} of size {tuple(mesh.shape)}",
                    where="accelerator.prepare()",
                    fix=".shard(rank, world) with the data-parallel coordinates of this process",
                )
            self._share(accelerator.process_index, accelerator.num_processes)
        batch = self.definition.batch
        if self.definition.world > 1 and batch is not None and batch.balance and batch.remainder == "short":
            raise UsageError(
                "the same number of rows on every process, for Accelerate",
                got='balance=True and remainder="short"',
                fix='remainder="drop" or "pad" in .batch()',
            )
        self._even = self._prepared = True
        placed = accelerator.device_placement if place is None else place
        if placed and isinstance(self.output.converter, TorchOutput):
            self.output.converter.place_on(accelerator.device)

    def _counted(self, run: Run[Any]) -> Run[Any]:
        """The batches, while Accelerate is informed of the last one."""
        state: Any = sys.modules["accelerate.state"].GradientState()
        self.end_of_dataloader, self.remainder = False, self._rows_of_last(self._loop_end())
        state._add_dataloader(self)
        try:
            for batch in run:
                self.end_of_dataloader = self._ended
                yield batch
        finally:
            run.close()
            state._remove_dataloader(self)

    def _rows_of_last(self, stop: int | None) -> int:
        """The rows of the last batch if it is short, so that rows after them are repeated or padding; otherwise 0."""
        if stop is None or self._plan.root.batch_plan is not None:
            return 0
        last = self._ranges.at(stop - 1).rows
        return last if last < self._ranges.section(stop - 1).rows else 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("dataset", "__dataset")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "_DataLoader__initialized"})
        self._look_like_torch()
