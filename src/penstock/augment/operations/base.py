"""`Op`: what every augmentation operation is.

An operation is a frozen dataclass with its ranges and its probability `p`; two equal definitions do the same to the
same keys. Ranges are checked when it is made. `amount` is half the width of a range around "no change"
(`Brightness(0.2)` draws a factor from 0.8 to 1.2), or the range itself as (low, high).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

from penstock.augment.arrays import Arrays
from penstock.augment.params import Drawn, uniform
from penstock.core.errors import UsageError
from penstock.core.randomness import U64

Range = tuple[float, float]
Shape = tuple[int, ...]


class Op(ABC):
    """One augmentation: `draw` makes parameters from row keys, `apply` uses them on a batch of any framework."""

    kind: ClassVar[str] = "image"
    """The kind of column it works on: image, audio or tokens."""
    exact: ClassVar[bool] = False
    """True if it only moves or sets values, so that integers stay integers; others compute in float32."""
    bounded: ClassVar[bool] = True
    """True if it counts on 0 for black and 1 for white, to clip or to fill; only then the range of values matters."""
    geometric: ClassVar[bool] = False
    """True if it moves pixels, so that masks have to follow."""
    mirrors: ClassVar[bool] = False
    """True if it turns left into right, so that paired keypoints change sides."""
    mixes: ClassVar[bool] = False
    """True if a row's result depends on other rows of the batch."""
    row_by_row: ClassVar[bool] = False
    """True if it is faster on the host one row at a time: rows then stay in the processor's cache."""
    p: float = 1.0

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        """Parameters for rows of `shape`, one entry of each array per key; raises if rows of that shape do not fit."""
        return {}

    @abstractmethod
    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        """The operation on a batch `x` with parameters `p`, in the framework of `xp`. Must not write to `x` or `p`."""

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        """A geometric operation on class numbers: no averaging, `fill` outside of the image."""
        return self.apply(xp, x, p)

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        """Where a geometric operation puts points (rows, n, 2) of x and y, in images of (height, width) `size`."""
        raise UsageError(
            f"an operation that moves boxes and keypoints: {type(self).__name__} has no method points()",
            fix="write points(self, xp, at, p, size) beside its apply_mask()",
        )

    def sides(self, height: Any, width: Any, p: dict[str, Any]) -> tuple[Any, Any]:
        """Height and width after the operation, of images of this height and width: numbers or arrays (rows, 1)."""
        return height, width

    def needs_range(self) -> bool:
        """Whether its result is wrong for images whose black is not 0 or whose white is not 1."""
        return self.bounded

    def check_dtype(self, dtype: Any) -> None:  # noqa: B027  most operations work on any dtype
        """Raises if it cannot work on a column of this dtype."""

    def shape(self, shape: Shape) -> Shape:
        """Shape of one row after the operation."""
        return shape

    def describe(self, p: Drawn) -> dict[str, Any]:
        """The parameters of the first row as plain values, for `loader.why`."""
        return {name: values[0].tolist() for name, values in p.items() if name not in ("on", "k0", "k1")}

    def spec(self) -> dict[str, Any]:
        """The definition as plain JSON, for fingerprints.

        >>> from penstock.augment import Flip
        >>> Flip().spec()
        {'op': 'Flip', 'axis': 'horizontal', 'p': 0.5}
        """
        plain = {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}
        return {"op": type(self).__name__} | {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise self._wrong("p, a probability from 0 to 1,", self.p)

    def _wrong(self, expected: str, got: Any, fix: str = "") -> UsageError:
        name = type(self).__name__
        return UsageError(f"{expected} in {name}", got=repr(got), where=f"augment operation {name}", fix=fix or FIX)

    def _misfit(self, expected: str, shape: Shape, fix: str) -> UsageError:
        where = f"augment operation {type(self).__name__}"
        return UsageError(expected, got=f"rows of shape {shape}", where=where, fix=fix)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _range(self, name: str, around: float | None, least: float, most: float = float("inf")) -> None:
        """Makes field `name` a (low, high): one number is a half width `around` a centre, or (0, number)."""
        value = getattr(self, name)
        try:
            if isinstance(value, int | float):
                pair = (0.0, float(value)) if around is None else (around - float(value), around + float(value))
            else:
                low, high = value
                pair = (float(low), float(high))
        except (TypeError, ValueError):
            raise self._wrong(f"{name} as one number or (low, high)", value) from None
        if not least <= pair[0] <= pair[1] <= most:
            raise self._wrong(f"{name} within {least:g} <= low <= high <= {most:g}", value)
        self._set(name, pair)


FIX = "use a range inside these bounds, or leave the operation out"


@dataclass(frozen=True)
class Factor(Op):
    """Base of operations that draw one factor around 1."""

    amount: float | Range = 0.2
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 1.0, 0.0)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return {"factor": uniform(keys, self.amount)}
