"""Many pictures into one array: decode, crop, resize, mirror, normalise, each straight into its row.

Peak memory is the batch, one scratch picture per thread and nothing else. Rows are independent, so threads may
fill one batch together; the result does not depend on their number.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.decode import How, decode_onto
from penstock.codecs.image.geometry import Box, opencv
from penstock.codecs.image.jpeg import CHANNELS
from penstock.codecs.image.normalise import Stat, normalise
from penstock.codecs.image.probe import Data, ImageInfo
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits

_MODES = {channels: mode for mode, channels in CHANNELS.items()}
_local = threading.local()


def decode_into(
    out_row: NDArray[Any],
    data: Data,
    *,
    crop: Box | None = None,
    flip: bool = False,
    mean: Stat = 0.0,
    std: Stat = 1.0,
    exif: str = "apply",
    method: str = "antialias",
    strict: bool = True,
    check: str = "crop",
    where: str = "",
    limits: Limits = LIMITS,
    info: ImageInfo | None = None,
) -> None:
    """Decodes one image into `out_row` (H, W, C), a contiguous uint8 or float32 array: 1, 3 or 4 channels.

    uint8 rows get pixels and ignore `mean` and `std`; float32 rows get `(pixels / 255 - mean) / std`.

    >>> import io, PIL.Image
    >>> file = io.BytesIO(); PIL.Image.new("L", (40, 30), 255).save(file, "PNG")
    >>> row = np.empty((8, 8, 3), np.float32)
    >>> decode_into(row, file.getvalue(), flip=True); float(row.min())
    1.0
    """
    mode = _MODES.get(out_row.shape[2]) if out_row.ndim == 3 else None
    if mode is None or out_row.dtype not in (np.uint8, np.float32) or not out_row.flags.c_contiguous:
        raise UsageError(
            "a contiguous row (H, W, C) of uint8 or float32 with 1, 3 or 4 channels",
            got=f"{out_row.dtype} {out_row.shape}",
        )
    how = How(mode, exif, method, strict, check, limits)
    fill_row(out_row, data, how, crop, flip, mean, std, where, info)


def fill_row(
    row: NDArray[Any],
    data: Data,
    how: How,
    crop: Box | None,
    flip: bool,
    mean: Stat,
    std: Stat,
    where: str = "",
    info: ImageInfo | None = None,
) -> None:
    """`decode_into` for a row that is known to fit."""
    if row.dtype == np.uint8:
        decode_onto(row, data, how, crop, where, info)
        if flip:
            mirror(row)
        return
    pixels = _small(row.shape)
    decode_onto(pixels, data, how, crop, where, info)
    if flip:
        mirror(pixels)
    normalise(pixels, mean, std, out=row)


def mirror(pixels: NDArray[np.uint8]) -> None:
    """Left to right, in place."""
    opencv().flip(pixels, 1, dst=pixels)


def _small(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """This thread's uint8 picture of the target size, kept between calls."""
    held: NDArray[np.uint8] | None = getattr(_local, "small", None)
    if held is None or held.shape != shape:
        held = _local.small = np.empty(shape, np.uint8)
    return held


def decode_batch(
    datas: Sequence[Data],
    size: tuple[int, int],
    *,
    crops: Any = None,
    flips: Any = None,
    dtype: Any = np.uint8,
    mode: str = "RGB",
    mean: Stat = 0.0,
    std: Stat = 1.0,
    exif: str = "apply",
    method: str = "antialias",
    strict: bool = True,
    check: str = "crop",
    names: Sequence[str] | None = None,
    limits: Limits = LIMITS,
    infos: Sequence[ImageInfo] | None = None,
    threads: int = 1,
) -> NDArray[Any]:
    """A batch (n, H, W, C) from n encoded images; `crops` (n, 4) and `flips` (n,) as from `geometry`.

    When images are bad it raises `BadRecords` naming every one of them.

    >>> import io, PIL.Image
    >>> file = io.BytesIO(); PIL.Image.new("RGB", (40, 30)).save(file, "PNG")
    >>> decode_batch([file.getvalue()] * 3, (8, 8)).shape
    (3, 8, 8, 3)
    """
    if mode not in CHANNELS:
        raise UsageError(f"mode one of {', '.join(CHANNELS)}", got=repr(mode))
    out = np.empty((len(datas), *size, CHANNELS[mode]), dtype)
    errors: list[RecordError] = []

    def one(row: int) -> None:
        where = names[row] if names is not None else f"row {row}"
        crop = None if crops is None else crops[row]
        try:
            decode_into(
                out[row], datas[row], crop=crop, flip=flips is not None and bool(flips[row]), mean=mean, std=std,
                exif=exif, method=method, strict=strict, check=check, where=where, limits=limits,
                info=None if infos is None else infos[row],
            )  # fmt: skip
        except RecordError as error:
            error.row = row
            errors.append(error)

    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, range(len(datas))))
    else:
        for row in range(len(datas)):
            one(row)
    if errors:
        raise BadRecords(sorted(errors, key=lambda error: error.row))
    return out
