"""Configuration of image datasets (`ImageModalityConfig`), and conversion of arrays of any size and dtype to it.

`ImageModality.process` converts channels, resizes with an antialiased filter and scales pixels to [0, 1]. It costs two
matrix products per image if the size differs, and one pass over the pixels otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.filter_resize import METHODS, resize_images, weights
from penstock.core.arguments import explained_class
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.config import BaseModalityConfig
from penstock.facades.artifex.datasets.rngs import as_streams
from penstock.outputs.arrays import is_traced, jax_array, jax_module


class ImageRepresentation(Enum):
    """The channels of an image."""

    RGB = "rgb"
    GRAYSCALE = "grayscale"
    RGBA = "rgba"


CHANNELS = {ImageRepresentation.RGB: 3, ImageRepresentation.GRAYSCALE: 1, ImageRepresentation.RGBA: 4}
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@explained_class
@dataclass(frozen=True)
class ImageModalityConfig(BaseModalityConfig):
    """Size, channels and scale of images.

    `width=None` means `height`; `channels=None` follows from the representation. With `normalize` pixels are in
    [0, 1], without it in [0, 255]. `augmentation` is a flag for training pipelines; datasets never augment.

    >>> config = ImageModalityConfig(height=28, representation=ImageRepresentation.GRAYSCALE)
    >>> config.shape
    (28, 28, 1)
    """

    representation: ImageRepresentation = ImageRepresentation.RGB
    height: int = 64
    width: int | None = None
    channels: int | None = None
    normalize: bool = True
    augmentation: bool = False
    resize_method: str = "bilinear"

    def __post_init__(self) -> None:
        try:
            kind = ImageRepresentation(self.representation)
        except ValueError as error:
            known = ", ".join(repr(one.value) for one in ImageRepresentation)
            raise UsageError(f"representation one of {known}", got=repr(self.representation)) from error
        object.__setattr__(self, "representation", kind)
        object.__setattr__(self, "width", self.height if self.width is None else self.width)
        object.__setattr__(self, "channels", CHANNELS[kind] if self.channels is None else self.channels)
        for name in ("height", "width", "channels"):
            side = getattr(self, name)
            if isinstance(side, bool) or not isinstance(side, int) or side < 1:
                raise UsageError(f"{name} of at least 1", got=repr(side), where="ImageModalityConfig", fix=f"{name}=32")
        if self.resize_method not in METHODS:
            raise UsageError(f"resize_method one of {', '.join(map(repr, METHODS))}", got=repr(self.resize_method))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image."""
        return self.height, self.width or self.height, self.channels or 3


@explained_class
class ImageModality:
    """Converts images to the configured size, channels and scale.

    >>> modality = ImageModality(ImageModalityConfig(height=2))
    >>> modality.process(np.full((5, 8, 8, 3), 255, np.uint8)).shape
    (5, 2, 2, 3)
    """

    def __init__(self, config: ImageModalityConfig | None = None, *, rngs: Any = None) -> None:
        self.config = config or ImageModalityConfig()
        self.rngs = as_streams(rngs)

    def process(self, images: Any, *, value_range: tuple[float, float] | None = None) -> Any:
        """Converts (N, H, W, C), or one image (H, W, C), to a JAX array of the configured size, channels and scale.

        `value_range` is (black, white) of the input. By default it is the full range of unsigned integers, 0 to 255
        for other integers, 0 to 1 for floats if none is above 1, else 0 to 255. Inside a jitted function values are not
        known, so floats and wide integers need it.
        """
        if is_traced(images):
            return self._traced(images, value_range)
        return jax_array(self.pixels(images, value_range=value_range))

    def pixels(self, images: Any, *, value_range: tuple[float, float] | None = None) -> NDArray[np.float32]:
        """The same as a NumPy array."""
        array = np.asarray(images)
        _check_shape(array)
        batch = array if array.ndim == 4 else array[None]
        low, high = value_range or _guess_range(batch)
        height, width, channels = self.config.shape
        pixels = resize_images(batch, height, width, self.config.resize_method)
        pixels = (pixels - np.float32(low)) * np.float32(1.0 / (high - low))
        pixels = np.clip(convert_channels(pixels, channels), 0.0, 1.0)
        if not self.config.normalize:
            pixels *= np.float32(255.0)
        return pixels if array.ndim == 4 else np.asarray(pixels[0])

    def _traced(self, images: Any, value_range: tuple[float, float] | None) -> Any:
        """The same inside a jitted function."""
        _check_shape(images)
        fixed = images.dtype.kind == "b" or (images.dtype.kind == "u" and images.dtype.itemsize <= 2)
        if value_range is None and not fixed:
            raise UsageError(
                "value_range= for images inside a jitted function",
                got=f"dtype {images.dtype}",
                where="ImageModality.process",
                fix="value_range=(0, 1)",
            )
        low, high = value_range or _guess_range(np.empty(0, images.dtype))
        height, width, channels = self.config.shape
        xp = jax_module().numpy
        batch = images if images.ndim == 4 else images[None]
        pixels = batch.astype("float32")
        if pixels.shape[1:3] != (height, width):
            down, across = (
                weights(before, after, self.config.resize_method)
                for before, after in zip(pixels.shape[1:3], (height, width), strict=True)
            )
            pixels = xp.einsum("ah,bw,nhwc->nabc", down, across, pixels, precision="highest")
        pixels = xp.clip(convert_channels((pixels - low) * (1.0 / (high - low)), channels, xp), 0.0, 1.0)
        pixels = pixels if self.config.normalize else pixels * 255.0
        return pixels if images.ndim == 4 else pixels[0]


def _check_shape(array: Any) -> None:
    if array.ndim not in (3, 4) or array.size == 0:
        raise UsageError(
            "images of shape (N, H, W, C) or (H, W, C)",
            got=f"shape {array.shape}",
            where="ImageModality.process",
            fix="add the missing axis, for example images[..., None] for grey ones",
        )


def _guess_range(images: NDArray[Any]) -> tuple[float, float]:
    if images.dtype.kind == "b":
        return 0.0, 1.0
    if images.dtype.kind == "u" and images.dtype.itemsize <= 2:
        return 0.0, float(np.iinfo(images.dtype).max)
    if images.dtype.kind not in "iuf":
        raise UsageError("images of numbers", got=f"dtype {images.dtype}", where="ImageModality.process")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 255.0):  # a NaN fails this too
        raise UsageError(
            "pixel values from 0 to 1 or from 0 to 255",
            got=f"values from {low} to {high}",
            where="ImageModality.process",
            fix="value_range=(black, white), for example (-1, 1)",
        )
    return (0.0, 1.0) if images.dtype.kind == "f" and high <= 1.0 else (0.0, 255.0)


def convert_channels(pixels: Any, channels: int, xp: Any = np) -> Any:
    """Converts between grey, RGB and RGBA, pixels in [0, 1]. Alpha is dropped, or added as opaque.

    >>> convert_channels(np.ones((1, 2, 2, 1), np.float32), 4).shape
    (1, 2, 2, 4)
    """
    have = pixels.shape[-1]
    if have == channels:
        return pixels
    if have not in (1, 3, 4) or channels not in (1, 3, 4):
        raise UsageError(
            f"images with {channels} channels",
            got=f"{have}",
            where="ImageModality.process",
            fix="select channels first",
        )
    colour = pixels[..., :3]
    if channels == 1:
        grey = colour[..., 0] * LUMA[0] + colour[..., 1] * LUMA[1] + colour[..., 2] * LUMA[2]
        return grey[..., None]
    if have == 1:
        colour = xp.repeat(pixels, 3, axis=-1)
    return colour if channels == 3 else xp.concatenate([colour, xp.ones_like(colour[..., :1])], axis=-1)
