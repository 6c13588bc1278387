"""A dataset of paths whose files are read on access and not kept in memory."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.npy import read_npy
from penstock.core.arguments import explained_class
from penstock.core.errors import RecordError, UsageError
from penstock.core.hashing import content_id
from penstock.core.limits import LIMITS
from penstock.facades.artifex.audio.config import AudioModalityConfig
from penstock.facades.artifex.datasets.base import BaseDataset
from penstock.facades.artifex.image.modality import ImageModality, ImageModalityConfig
from penstock.storage.file_ids import file_id
from penstock.storage.filesystem import Options, scheme
from penstock.storage.objects import read_all

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
SOUNDS = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3"})


def load_file(path: str, config: Any = None, storage_options: Options = None) -> Any:
    """Loads a file by its extension: `.npy` as an array, images as uint8 (H, W, C), audio as float32 (n,).

    Images and audio are brought to the size, or to the sample rate and duration, of a configuration of their kind.
    """
    ending = Path(path).suffix.lower()
    if ending == ".npy":
        try:
            if scheme(path):
                return read_npy(io.BytesIO(read_all(path, storage_options, limit=LIMITS.record_bytes)))
            with open(path, "rb") as file:
                return read_npy(file)
        except (ValueError, EOFError) as error:
            raise RecordError(
                "a .npy file of numbers", got=str(error)[:200], where=path, fix="write it again"
            ) from error
    if ending in IMAGES:
        from penstock.codecs.image.decode import decode as decode_image

        data = read_all(path, storage_options, limit=LIMITS.record_bytes) if scheme(path) else Path(path).read_bytes()
        pixels = decode_image(data, where=path)
        return ImageModality(config).pixels(pixels) if isinstance(config, ImageModalityConfig) else pixels
    if ending in SOUNDS:
        from penstock.codecs.audio.decode import decode as decode_audio

        sound = read_all(path, storage_options, limit=LIMITS.record_bytes) if scheme(path) else path
        if not isinstance(config, AudioModalityConfig):
            return decode_audio(sound, where=path)
        return _waveform(
            decode_audio(sound, duration=config.duration, sample_rate=config.sample_rate, where=path), config
        )
    raise UsageError(
        "a path with the extension .npy, of an image or of audio",
        got=path,
        where="MemoryEfficientDataset",
        fix="load=function(path) -> array",
    )


def _waveform(audio: NDArray[np.float32], config: AudioModalityConfig) -> NDArray[np.float32]:
    """Cut or padded to the configured length, and scaled to a peak of 1 if that is configured."""
    out = np.zeros(config.samples, np.float32)
    out[: len(audio)] = audio[: config.samples]
    peak = np.abs(out).max(initial=0)
    return out / peak if config.normalize and peak > 0 else out


@explained_class
class MemoryEfficientDataset(BaseDataset):
    """Samples `{"data": array, "index": i}`; creating it reads nothing.

    With an `ImageModalityConfig` images have its size, channels and scale; with an `AudioModalityConfig` audio has its
    sample rate and duration (cut, or padded with silence). Pass `load=`, or define `_load_sample(index)` in a subclass,
    for arrays of your own, which are left unchanged. `storage_options` are for paths that are URLs.

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
        storage_options: Options = None,
    ) -> None:
        super().__init__(config, split, rngs=rngs)
        if isinstance(data_paths, str | os.PathLike):
            raise UsageError("data_paths: a list of paths", got="one path", fix="data_paths=[path]")
        self.data_paths = [os.fspath(path) for path in data_paths]
        self._load, self._storage_options = load, storage_options

    def _load_sample(self, index: int) -> Any:
        path = self.data_paths[index]
        return load_file(path, self.config, self._storage_options) if self._load is None else self._load(path)

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
        if own:
            return super().fingerprint()
        made = isinstance(self.config, ImageModalityConfig | AudioModalityConfig)
        config = [json.dumps(self.config.plain(), sort_keys=True)] if made else []
        return content_id(["files", *config, *(file_id(path, self._storage_options) for path in self.data_paths)])
