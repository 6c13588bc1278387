"""The three kinds of columns that operations work on: their usual names, layouts, and scaling to float32 and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.operations.base import Shape
from penstock.core.errors import UsageError


class Kind:
    """A kind of column. `columns` are the names under which it is looked for, in this order, when none is given."""

    name: str
    columns: tuple[str, ...]
    layout = ""

    def row_shape(self, column: Any, channels_first: bool) -> Shape:
        """Shape of one row as operations see it, or an error if the column has another layout."""
        return tuple(int(n) for n in column.shape[1:])

    def inward(self, column: Any, channels_first: bool) -> Any:
        """The column in the layout that operations know."""
        return column

    def outward(self, made: Any, column: Any, channels_first: bool) -> Any:
        """`made` in the layout of the column."""
        return made

    def to_float(self, xp: Arrays, x: Any) -> Any:
        """`x` as operations compute with it: scaled to float32 by images and audio, unchanged by tokens."""
        return x

    def from_float(self, xp: Arrays, x: Any, dtype: Any) -> Any:
        """`x` in the dtype that the column had."""
        return x

    def misfit(self, shape: Any) -> UsageError:
        return UsageError(
            self.layout,
            got=f"rows of shape {tuple(shape)}",
            where=f"Augment, {self.name} operations",
            fix=f"name the right column: Augment(..., {self.name}='...')",
        )


class Images(Kind):
    """(N, H, W, C) inside. Integers are scaled so that their largest value is 1."""

    name, columns = "image", ("image", "images")
    layout = "images (N, H, W, C) or (N, H, W)"

    def row_shape(self, column: Any, channels_first: bool) -> Shape:
        shape = super().row_shape(column, channels_first)
        if len(shape) == 2:
            return (*shape, 1)
        if len(shape) != 3:
            raise self.misfit(shape)
        return (shape[1], shape[2], shape[0]) if channels_first else shape

    def inward(self, column: Any, channels_first: bool) -> Any:
        if column.ndim == 3:
            return column[..., None]
        return column.swapaxes(1, 2).swapaxes(2, 3) if channels_first else column

    def outward(self, made: Any, column: Any, channels_first: bool) -> Any:
        if column.ndim == 3:
            return made[..., 0]
        return made.swapaxes(2, 3).swapaxes(1, 2) if channels_first else made

    def to_float(self, xp: Arrays, x: Any) -> Any:
        made = xp.astype(x, xp.float32)
        if xp.is_integer(x.dtype):
            made *= float(np.float32(1 / xp.iinfo(x.dtype).max))
        return made

    def from_float(self, xp: Arrays, x: Any, dtype: Any) -> Any:
        if x.dtype == dtype or not xp.is_integer(dtype):
            return xp.astype(x, dtype)
        x = xp.clip01(x)  # not the caller's array: that one has integers
        x *= float(xp.iinfo(dtype).max)
        return xp.astype(xp.round(x), dtype)


class Audio(Kind):
    """Time is the last axis: (N, samples) or (N, bands, frames). Integers are scaled to [-1, 1)."""

    name, columns = "audio", ("audio", "mel", "features")
    layout = "audio (N, samples) or (N, bands, frames)"

    def row_shape(self, column: Any, channels_first: bool) -> Shape:
        shape = super().row_shape(column, channels_first)
        if not shape:
            raise self.misfit(column.shape)
        return shape

    def to_float(self, xp: Arrays, x: Any) -> Any:
        made = xp.astype(x, xp.float32)
        if xp.is_integer(x.dtype):
            made *= 1 / (xp.iinfo(x.dtype).max + 1)
        return made

    def from_float(self, xp: Arrays, x: Any, dtype: Any) -> Any:
        if x.dtype == dtype or not xp.is_integer(dtype):
            return xp.astype(x, dtype)
        low, high = float(xp.iinfo(dtype).min), float(xp.iinfo(dtype).max)
        return xp.astype(xp.clip(xp.round(xp.astype(x, xp.wide) * (high + 1)), low, high), dtype)


class Tokens(Kind):
    """(N, length), integers."""

    name, columns = "tokens", ("input_ids", "text_tokens", "text")

    def row_shape(self, column: Any, channels_first: bool) -> Shape:
        return ()


IMAGES, AUDIO, TOKENS = Images(), Audio(), Tokens()
KINDS: tuple[Kind, ...] = (IMAGES, AUDIO, TOKENS)
