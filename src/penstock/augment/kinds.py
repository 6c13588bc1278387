"""The three kinds of columns that operations work on: their usual names, layouts, and scaling to float32 and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.operations.base import Op, Shape
from penstock.core.errors import UsageError


class Kind:
    """A kind of column. `columns` are the names under which it is looked for, in this order, when none is given."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    layout: ClassVar[str] = ""

    def channels_first(self, column: Any, declared: bool | None) -> bool:
        """Whether the channels of a column are its second axis."""
        return False

    def row_shape(self, column: Any, channels_first: bool) -> Shape:
        """Shape of one row as operations see it, or an error if the column has another layout."""
        return tuple(int(n) for n in column.shape[1:])

    def inward(self, column: Any, channels_first: bool) -> Any:
        """The column in the layout that operations know."""
        return column

    def outward(self, made: Any, column: Any, channels_first: bool) -> Any:
        """`made` in the layout of the column."""
        return made

    def check_values(self, xp: Arrays, x: Any, ops: Sequence[Op]) -> Any:
        """`x`, or an error if the operations would compute with values that they do not expect."""
        return x

    def enter(self, xp: Arrays, x: Any) -> Any:
        """`x` on the scale of operations, before the first one."""
        return x

    def leave(self, xp: Arrays, x: Any) -> Any:
        """`x` on the scale of the column, after the last one."""
        return x

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


CHANNELS = (1, 3, 4)
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Images(Kind):
    """(N, H, W, C) inside. Integers are scaled so that their largest value is 1; floats are in [0, 1], or normalised by
    `mean` and `std`, which is undone before the first operation and done again after the last."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    name: ClassVar[str] = "image"
    columns: ClassVar[tuple[str, ...]] = ("image", "images")
    layout: ClassVar[str] = "images (N, H, W, C) or (N, H, W)"

    def channels_first(self, column: Any, declared: bool | None) -> bool:
        """Whether the channels of a column are its second axis: as declared, or by its shape where only one can be."""
        if declared is not None or column.ndim != 4:
            return bool(declared)
        first, last = int(column.shape[1]) in CHANNELS, int(column.shape[3]) in CHANNELS
        if first == last:
            raise UsageError(
                "to know which axis of the images holds the channels",
                got=f"rows of shape {tuple(int(n) for n in column.shape[1:])}",
                where="Augment, image operations",
                fix="channels_first=False for (N, H, W, C), channels_first=True for (N, C, H, W)",
            )
        return first

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
        return made.swapaxes(-1, -2).swapaxes(-2, -3) if channels_first else made

    def check_values(self, xp: Arrays, x: Any, ops: Sequence[Op]) -> Any:
        needing = [type(op).__name__ for op in ops if op.needs_range()]
        if not needing or not all(x.shape):
            return x
        if xp.is_integer(x.dtype):
            if str(x.dtype).rpartition(".")[2] not in ("uint8", "uint16"):
                raise self._unknown_range(f"integers of dtype {x.dtype}", needing)
            return x
        low, high = (min(self._scaled(v)) if v == 0 else max(self._scaled(v)) for v in (0.0, 1.0))
        found = xp.bounds(x)
        if found is None:
            return xp.spoiled_outside(x, low - TOLERANCE, high + TOLERANCE)
        if not (low - TOLERANCE <= found[0] and found[1] <= high + TOLERANCE):  # NaN too
            raise self._unknown_range(f"floats from {found[0]:.4g} to {found[1]:.4g}", needing)
        return x

    def _scaled(self, value: float) -> list[float]:
        """The value of black (0) or white (1) in each channel of the column."""
        return [(value - m) / s for m, s in zip(self.mean, self.std, strict=True)] or [value]

    def _unknown_range(self, got: str, needing: list[str]) -> UsageError:
        normalised = f"as mean={self.mean} and std={self.std} say" if self.std else "uint8, or floats from 0 to 1"
        return UsageError(
            f"images whose black and white {needing[0]} knows: {normalised}",
            got=got,
            where="Augment, image operations",
            fix="augment before normalising (decode_images without mean and std), or declare it: "
            "Augment(..., mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))",
        )

    def enter(self, xp: Arrays, x: Any) -> Any:
        if not self.std or xp.is_integer(x.dtype):
            return x
        return xp.astype(x, xp.float32) * xp.constant(self.std, x, xp.float32) + xp.constant(self.mean, x, xp.float32)

    def leave(self, xp: Arrays, x: Any) -> Any:
        if not self.std or xp.is_integer(x.dtype):
            return x
        return (x - xp.constant(self.mean, x, xp.float32)) / xp.constant(self.std, x, xp.float32)

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
