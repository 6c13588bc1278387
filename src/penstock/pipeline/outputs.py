"""The last verb: what a pipeline's batches are made of. The loader's options are described once, in `to_numpy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import explained_methods
from penstock.pipeline.base import Verbs

if TYPE_CHECKING:
    import os

    import datasets
    import jax
    import torch
    from numpy.typing import DTypeLike, NDArray

    from penstock.engine.loader import Loader


@explained_methods
class Outputs(Verbs):
    """`to_numpy`, `to_torch`, `to_jax`, and datasets for trainers: `to_dataset`, `to_hf`."""

    __slots__ = ()

    def to_numpy(
        self, *, ids: DTypeLike = "int64", floats: Any = None, threads: int | None = None, prefetch: int = 3,
        max_bytes: int = 512 << 20, timeout: float | None = None, isolate: bool | None = None, workers: int = 0,
        on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> Loader[dict[str, NDArray[Any]]]:  # fmt: skip
        """Returns a loader of dicts of NumPy arrays. Columns that are still ragged are `penstock.Ragged`.

        Args:
            ids: dtype of token ids and labels.
            floats: dtype of floating-point columns, such as "float16" or "bfloat16"; None: as they are.
            threads: threads of this process that compute batches; 0: when asked for; None: as many as help.
            prefetch: batches ready ahead of use, at most `max_bytes` of them.
            timeout: seconds to wait for a batch before raising; None: warn only.
            workers, isolate: child processes instead of threads; `isolate=True` is `workers=1`. False: none; None: one
                with `threads=None`, where that is safe and makes the trainer's steps shorter.
            on_worker_death: "restart" computes the lost batches again.

        >>> next(iter(ps.from_arrays({"x": range(4)}).batch(2).to_numpy(threads=0)))
        {'x': array([0, 1])}
        """
        from penstock.engine.loader import Loader
        from penstock.outputs.numpy import NumpyOutput

        return Loader(
            self.definition, NumpyOutput(ids, floats), threads=threads, prefetch=prefetch, max_bytes=max_bytes,
            timeout=timeout, isolate=isolate, workers=workers, on_worker_death=on_worker_death,
        )  # fmt: skip

    def to_torch(
        self, *, device: torch.device | str | int | None = None, pin_memory: bool = False,
        memory_format: torch.memory_format | None = None, ids: DTypeLike = "int64", floats: Any = None,
        threads: int | None = None, prefetch: int = 3, max_bytes: int = 512 << 20, timeout: float | None = None,
        isolate: bool | None = None, workers: int = 0, on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> Loader[dict[str, torch.Tensor]]:  # fmt: skip
        """Returns a loader of dicts of torch tensors; columns of strings are lists. Other options: see `to_numpy`.

        Args:
            device: where tensors are placed; `pin_memory` makes that copy asynchronous.
            memory_format: `torch.channels_last` stores columns of 4 axes, images with layout="NCHW", that way.

        >>> next(iter(ps.from_arrays({"x": range(4)}).batch(2).to_torch(threads=0)))
        {'x': tensor([0, 1])}
        """
        from penstock.outputs.torch import TorchOutput
        from penstock.outputs.torch_loader import TorchLoader

        return TorchLoader(
            self.definition, TorchOutput(device, pin_memory, ids, floats, memory_format), threads=threads,
            prefetch=prefetch, max_bytes=max_bytes, timeout=timeout, isolate=isolate, workers=workers,
            on_worker_death=on_worker_death,
        )  # fmt: skip

    def to_jax(
        self, *, sharding: jax.sharding.Sharding | Any | None = None, ids: DTypeLike = "int32",
        floats: Any = None, micro_batches: int = 1, threads: int | None = None, prefetch: int = 3,
        max_bytes: int = 512 << 20, timeout: float | None = None, isolate: bool | None = None, workers: int = 0,
        on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> Loader[dict[str, jax.Array]]:  # fmt: skip
        """Returns a loader of dicts of JAX arrays. Other options: see `to_numpy`.

        Args:
            sharding: a sharding or a device; over several processes each one reads the rows that its devices hold.
            micro_batches: with k, arrays of shape (k, rows / k, ...) for gradient accumulation.

        >>> next(iter(ps.from_arrays({"x": range(4)}).batch(2).to_jax(threads=0)))["x"].tolist()
        [0, 1]
        """
        from penstock.engine.loader import Loader
        from penstock.outputs.jax import JaxOutput, shared_by

        output = JaxOutput(sharding, ids, micro_batches, floats)
        return Loader(
            shared_by(self.definition, output), output, threads=threads, prefetch=prefetch, max_bytes=max_bytes,
            timeout=timeout, isolate=isolate, workers=workers, on_worker_death=on_worker_death,
        )  # fmt: skip

    def to_dataset(
        self, style: Literal["map", "iterable"] | None = None, *, ids: DTypeLike = "int64", floats: Any = None
    ) -> torch.utils.data.Dataset[Any]:
        """Returns a torch `Dataset` of rows, for trainers that make batches, order and resume by themselves.

        Put no `.batch()` before it. What `to_torch()` promises of order and resuming is then up to the trainer.

        Args:
            style: "map" for random access, "iterable" for rows in order; default "map" if the pipeline has an end.

        >>> ps.from_arrays({"x": [1, 2], "name": ["a", "b"]}).to_dataset()[1]
        {'x': 2, 'name': 'b'}
        """
        from penstock.outputs.torch_dataset import row_dataset

        made: torch.utils.data.Dataset[Any] = row_dataset(self.definition, style, ids, floats)
        return made

    def to_hf(
        self, *, streaming: bool = False, cache_dir: str | os.PathLike[str] | None = None
    ) -> datasets.Dataset | datasets.IterableDataset:
        """Returns a Hugging Face dataset of the rows that `prepare` would store, for trainers that take nothing else.

        Args:
            streaming: an `IterableDataset`, read when it is iterated; default: written to Arrow files, once.
            cache_dir: of these files; default HF's cache.

        >>> ps.from_texts(["a", "b"]).to_hf()[1]
        {'text': 'b'}
        """
        from penstock.outputs.hf import hf_dataset

        made: datasets.Dataset | datasets.IterableDataset = hf_dataset(self.definition, streaming, cache_dir)
        return made
