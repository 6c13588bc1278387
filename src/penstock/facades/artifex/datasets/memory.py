"""A dataset of paths whose files are read on access and not kept in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.codecs.npy import read_npy
from penstock.core.errors import RecordError, UsageError
from penstock.core.hashing import content_id
from penstock.facades.artifex.datasets.base import BaseDataset
from penstock.storage.filesystem import file_id

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
SOUNDS = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3"})


def load_file(path: str) -> Any:
    """Loads a file by its extension: `.npy` as an array, images as uint8 (H, W, C), audio as float32 (n,)."""
    ending = Path(path).suffix.lower()
    if ending == ".npy":
        try:
            with open(path, "rb") as file:
                return read_npy(file)
        except (ValueError, EOFError) as error:
            raise RecordError(
                "a .npy file of numbers", got=str(error)[:200], where=path, fix="write it again"
            ) from error
    if ending in IMAGES:
        from penstock.codecs.image.decode import decode as decode_image

        return decode_image(Path(path).read_bytes(), where=path)
    if ending in SOUNDS:
        from penstock.codecs.audio.decode import decode as decode_audio

        return decode_audio(path, where=path)
    raise UsageError(
        "a path with the extension .npy, of an image or of audio",
        got=path,
        where="MemoryEfficientDataset",
        fix="load=function(path) -> array",
    )


class MemoryEfficientDataset(BaseDataset):
    """Samples `{"data": array, "index": i}`; creating it reads nothing.

    Pass `load=`, or define `_load_sample(index)` in a subclass.

    >>> import numpy as np
    >>> dataset = MemoryEfficientDataset(None, ["a", "bb"], load=lambda path: np.full(2, len(path)))
    >>> dataset.get_batch(indices=[1])["data"].tolist()
    [[2, 2]]
    """

    def __init__(
        self,
        config: Any,
        data_paths: Sequence[str | os.PathLike[str]],
        split: str = "train",
        *,
        load: Callable[[str], Any] | None = None,
        rngs: Any = None,
    ) -> None:
        super().__init__(config, split, rngs=rngs)
        if isinstance(data_paths, str | os.PathLike):
            raise UsageError("data_paths: a list of paths", got="one path", fix="data_paths=[path]")
        self.data_paths = [os.fspath(path) for path in data_paths]
        self._load = load

    def _load_sample(self, index: int) -> Any:
        path = self.data_paths[index]
        return load_file(path) if self._load is None else self._load(path)

    def __len__(self) -> int:
        return len(self.data_paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = self._place(index)
        return {"data": self._load_sample(place), "index": place}

    def locate(self, index: int) -> dict[str, Any]:
        return {"path": self.data_paths[index], "row": int(index)}

    def fingerprint(self) -> str:
        """Returns a hash of the files' bytes; with a custom `load` or `_load_sample`, of every record."""
        own = self._load is not None or type(self)._load_sample is not MemoryEfficientDataset._load_sample
        return super().fingerprint() if own else content_id(["files", *map(file_id, self.data_paths)])
