"""The pictures and sounds of a batch, as plain data: pixels as delivered, and the file that each was made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.core.errors import PenstockError
from penstock.core.limits import LIMITS
from penstock.plan.branches import Combined
from penstock.plan.definition import Definition, OfPipeline
from penstock.steps.base import Step
from penstock.steps.decode_audio import DecodeAudio
from penstock.steps.decode_images import DecodeImages

Pixels = NDArray[np.uint8]
SMALL_SIDE = 192  # pixels of the longer side of a picture before augmentation
_MOST_SECONDS = 60
_SOUNDS = ("audio", "waveform", "samples")
_MOST_FRAMES = 8


@dataclass(frozen=True)
class Picture:
    """A picture as delivered (`after`), and the file it is from, made smaller (`before`).

    `crop` is (y, x, height, width) of `before`, each from 0 to 1. `note` says how numbers became colours.
    """

    name: str
    after: Pixels
    note: str
    before: Pixels | None = None
    crop: tuple[float, float, float, float] | None = None
    flip: bool = False


@dataclass(frozen=True)
class Sound:
    """Samples as delivered, without padding; at most a minute of them. `rate` is None if nothing says it."""

    name: str
    samples: NDArray[Any]
    rate: int | None
    total: int


def steps_of(definition: Definition) -> Iterable[Step]:
    """All steps of a pipeline and of those it is made of."""
    origin = definition.origin
    if isinstance(origin, Combined):
        for branch in origin.branches:
            yield from steps_of(branch)
    elif isinstance(origin, OfPipeline):
        yield from steps_of(origin.definition)
    yield from definition.steps


def picture_columns(batch: dict[str, Any]) -> list[str]:
    """Columns of (rows, height, width, channels), (rows, channels, height, width), video, or grey pixels."""
    return [name for name, column in batch.items() if _layout(column) is not None]


def _layout(column: Any) -> str | None:
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "uf" or not column.size:
        return None
    shape = column.shape[-4:] if column.ndim == 5 else column.shape
    if column.ndim in (4, 5):
        if shape[-1] in (1, 3, 4) and min(shape[-3:-1]) > 4:
            return "last"
        if shape[-3] in (1, 3, 4) and min(shape[-2:]) > 4:
            return "first"
        return None
    if column.ndim == 3 and min(column.shape[1:]) > 7:
        return "grey"
    return None


def pictures(batch: dict[str, Any], name: str, rows: range, definition: Definition | None) -> list[Picture]:
    """The pictures of these rows, as they were delivered."""
    column = batch[name]
    step = _image_step(name, definition)
    layout = _layout(column)
    made = []
    for row in rows:
        values = np.asarray(column[row])
        if column.ndim == 5:
            values = values[:_MOST_FRAMES]
        if layout == "first":
            values = np.moveaxis(values, -3, -1)
        if layout == "grey":
            values = values[..., None] if values.dtype == np.uint8 else values[::-1, :, None]  # features: low is below
        if column.ndim == 5:
            values = np.concatenate(list(values), axis=1)
        pixels, note = _colours(values, step)
        made.append(Picture(name, pixels, note))
    return made


def _image_step(name: str, definition: Definition | None) -> DecodeImages | None:
    found = [] if definition is None else [s for s in steps_of(definition) if isinstance(s, DecodeImages)]
    return next((step for step in found if step.out == name), None)


def _colours(values: NDArray[Any], step: DecodeImages | None) -> tuple[Pixels, str]:
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values), ""
    values = np.nan_to_num(values.astype(np.float32))
    if step is not None and step.dtype == "float32":
        back = values * np.asarray(step.std, np.float32) + np.asarray(step.mean, np.float32)
        if back.min() >= -0.02 and back.max() <= 1.02:
            note = "" if (step.mean, step.std) == (0.0, 1.0) else "shown without mean and std"
            return _bytes(back), note
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return _bytes(values), ""
    return _bytes((values - low) / ((high - low) or 1)), f"{low:.3g} to {high:.3g}, shown from black to white"


def _bytes(values: NDArray[Any]) -> Pixels:
    return np.asarray(np.clip(np.rint(values * 255), 0, 255), np.uint8)


def with_file(picture: Picture, data: Any, why: dict[str, Any]) -> Picture:
    """The picture beside the file that it was made from; alone if that cannot be read."""
    from penstock.codecs.image.decode import decode, probe_picture

    try:
        info = probe_picture(_data(data))
        height, width = info.oriented
        scale = min(1.0, SMALL_SIDE / max(height, width))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        before = decode(_data(data), size=size, strict=False, info=info)
    except PenstockError:
        return picture
    crop = why.get("crop")
    box = None
    if crop is not None:
        y, x, h, w = (float(v) for v in crop)
        box = (y / height, x / width, h / height, w / width)
    return Picture(picture.name, picture.after, picture.note, before, box, bool(why.get("flip", False)))


def _data(data: Any) -> Any:
    from penstock.sources.folders import FilePath
    from penstock.storage.small_files import read_whole

    return read_whole(data, LIMITS) if isinstance(data, FilePath) else data


def sound_columns(batch: dict[str, Any], definition: Definition | None) -> dict[str, int | None]:
    """Columns of samples, with their rate where a step says it."""
    steps = [] if definition is None else [s for s in steps_of(definition) if isinstance(s, DecodeAudio)]
    rates: dict[str, int | None] = {step.out: step.sample_rate for step in steps if not step.features}
    named = {name: None for name in _SOUNDS if name not in rates and not steps}
    return {name: rate for name, rate in (rates | named).items() if name in batch and _samples(batch[name])}


def _samples(column: Any) -> bool:
    if isinstance(column, Ragged):
        return column.dtype.kind == "f"
    wide = isinstance(column, np.ndarray) and column.dtype.kind == "f" and column.ndim in (2, 3)
    return wide and (column.ndim == 2 or column.shape[2] <= 8)


def sounds(batch: dict[str, Any], name: str, rate: int | None, rows: range) -> list[Sound]:
    """The sounds of these rows, cut to `lengths` where the batch has them."""
    lengths, rates, made = batch.get("lengths"), batch.get("sample_rate"), []
    for row in rows:
        samples = np.asarray(batch[name][row])
        if isinstance(lengths, np.ndarray) and lengths.ndim == 1 and row < len(lengths):
            samples = samples[: max(0, int(lengths[row]))]
        own = rate
        if own is None and isinstance(rates, np.ndarray) and rates.shape[:1] == (len(batch[name]),):
            own = int(rates[row])
        made.append(Sound(name, samples[: (own or 16000) * _MOST_SECONDS], own, len(samples)))
    return made
