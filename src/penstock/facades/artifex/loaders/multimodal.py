"""Batches of images and texts, paired by index or independent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing, randomness
from penstock.core.arguments import explained_call
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.engine.loop import Loop
from penstock.facades.artifex.datasets.base import BaseDataset, as_dataset, batch_at
from penstock.facades.artifex.datasets.overrides import Access
from penstock.facades.artifex.loaders.epochs import Batch, DatasetLoader
from penstock.plan import state as states


class AlignedDataset(BaseDataset):
    """Record i of an image dataset and record i of a text dataset, as one record.

    >>> both = AlignedDataset([{"images": 1}, {"images": 2}], [{"text_tokens": 10}, {"text_tokens": 20}])
    >>> both.get_batch(indices=[1])["text_tokens"].tolist()
    [20]
    """

    def __init__(self, image_dataset: Any, text_dataset: Any) -> None:
        self.image_dataset, self.text_dataset = as_dataset(image_dataset), as_dataset(text_dataset)
        base = self.image_dataset
        super().__init__(base.config, base.split, rngs=base.seed)
        self.rngs = base.rngs
        if len(base) != len(self.text_dataset):
            raise UsageError(
                "datasets of the same length, to align them by index",
                got=f"{len(base)} images and {len(self.text_dataset)} texts",
                where="create_multi_modal_loader",
                fix="cut the longer one, or align=False",
            )

    def __len__(self) -> int:
        return len(self.image_dataset)

    def _access(self) -> Access:
        kinds = {self.image_dataset.access(), self.text_dataset.access()}
        if "batches" in kinds:
            raise UsageError(
                "datasets whose records can be distinguished, to align them by index",
                got="a class with only get_batch(batch_size)",
                where="create_multi_modal_loader",
                fix="define __getitem__(index) or __iter__() too, or align=False",
            )
        return "pass" if "pass" in kinds else "index"

    def _pass(self) -> Iterator[dict[str, Any]]:
        for images, texts in zip(self.image_dataset._pass(), self.text_dataset._pass(), strict=False):
            yield _join(images, texts)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        return {
            "images": self.image_dataset.read(indices)["images"],
            "text_tokens": self.text_dataset.read(indices)["text_tokens"],
        }

    def batch_at(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        return _join(batch_at(self.image_dataset, indices), batch_at(self.text_dataset, indices))

    def fingerprint(self) -> str:
        return hashing.content_id(["aligned", self.image_dataset.fingerprint(), self.text_dataset.fingerprint()])

    def _pass_id(self) -> str:
        return hashing.content_id(["aligned", self.image_dataset._pass_id(), self.text_dataset._pass_id()])


def _join(images: Batch, texts: Batch) -> Batch:
    for name, batch in (("images", images), ("text_tokens", texts)):
        if name not in batch:
            raise UsageError(
                f"{name!r} in the batches of the {'image' if name == 'images' else 'text'} dataset",
                got=f"{sorted(batch)}",
            )
    return {"images": images["images"], "text_tokens": texts["text_tokens"]}


class UnalignedLoader:
    """Batches of two datasets in two independent orders. An epoch ends with the shorter one.

    It has one position: where a newer `for` has begun, an older one is refused its next batch.
    """

    def __init__(self, images: DatasetLoader, texts: DatasetLoader) -> None:
        self.images, self.texts = images, texts
        self._taken = 0
        self._loop = Loop(independent=False)

    def __iter__(self) -> Iterator[Batch]:
        self._loop = Loop(independent=False)
        return self._batches(self._loop)

    def _batches(self, loop: Loop) -> Iterator[Batch]:
        while self._follows(loop) and self._taken < len(self):
            step = min(self.images.step, self.texts.step)
            for side in (self.images, self.texts):
                if side.step != step:  # an error or Ctrl-C came after the batch of one of the two was taken
                    side._move(step)
            batch = _join(_next(self.images), _next(self.texts))
            self._taken += 1
            yield batch
        self._taken = 0

    def _follows(self, loop: Loop) -> bool:
        if self._loop is not loop:
            loop.detach()  # raises
        return True

    def shard(self, rank: int | None = None, world: int | None = None) -> UnalignedLoader:
        """A copy for one rank's rows of each batch, at the start."""
        return UnalignedLoader(self.images.shard(rank, world), self.texts.shard(rank, world))

    def __len__(self) -> int:
        return min(len(self.images), len(self.texts))

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of both loaders and the number of batches taken in this epoch."""
        inside = {"images": self.images.state_dict(), "texts": self.texts.state_dict()}
        return states.write("two loaders", {**inside, "given": self._taken})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state of both loaders."""
        saved = states.read(state, "two loaders")
        taken = states.number(saved, "given")
        self.images.load_state_dict(saved.get("images"))  # type: ignore[arg-type]
        self.texts.load_state_dict(saved.get("texts"))  # type: ignore[arg-type]
        self._taken = taken


def _next(loader: DatasetLoader) -> Batch:
    """The next batch, of the next epoch if this one has ended."""
    try:
        return next(loader)
    except StopIteration:
        return next(loader)


@explained_call
def create_multi_modal_loader(
    image_dataset: Any,
    text_dataset: Any,
    batch_size: int,
    align: bool = True,
    *,
    shuffle: bool = True,
    drop_last: bool = True,
    seed: int = 0,
) -> DatasetLoader | UnalignedLoader:
    """Batches `{"images", "text_tokens"}`; each `for` is one epoch, reshuffled. Incomplete last batches are dropped.

    `align=True` pairs by index: both come from the same records, and the datasets must have one length. `align=False`
    draws each in an order of its own.
    """
    options: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last}
    if align:
        return DatasetLoader(AlignedDataset(image_dataset, text_dataset), batch_size, seed=seed, **options)
    return UnalignedLoader(
        DatasetLoader(image_dataset, batch_size, seed=randomness.key(seed, "images") >> 1, **options),
        DatasetLoader(text_dataset, batch_size, seed=randomness.key(seed, "texts") >> 1, **options),
    )
