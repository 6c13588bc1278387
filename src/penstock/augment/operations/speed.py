"""`Speed`."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any, ClassVar

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Op, Range, Shape
from penstock.augment.params import Drawn, i32, scaled
from penstock.core.randomness import U64

BITS = 16
ONE = 1 << BITS
"""Rates are fixed-point numbers with this unit, so that every framework reads at exactly the same positions."""
MOST = 1 << 22
REACH = 16
"""Half width of the resampling filter, in samples."""
LOW = 10
"""Low bits of a sample number that are multiplied apart, as sample * rate does not fit 32 bits."""


@dataclass(frozen=True)
class Speed(Op):
    """Plays faster or slower by a factor, which changes the pitch too: windowed-sinc resampling, same length out (cut,
    or silence at the end). The factor is a multiple of 2**-16; rows are at most 2**22 samples. Costs 33
    multiplications a sample."""

    amount: float | Range = 0.1
    p: float = 1.0
    kind: ClassVar[str] = "audio"
    row_by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 1.0, 0.25, 4.0)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        if shape[-1] > MOST:
            raise self._misfit(f"at most {MOST} samples a row", shape, "cut long recordings before it")
        return {"rate": i32(scaled(keys, self.amount, ONE))}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        """Sample t of the result is the input at t * rate."""
        length, rate = x.shape[-1], p["rate"][:, None]
        sample = xp.indices(length, x)
        high, low = (sample >> LOW) * rate, (sample & ((1 << LOW) - 1)) * rate
        rest = BITS - LOW
        sums = ((high & ((1 << rest) - 1)) << LOW) + low
        at = (high >> rest) + (sums >> BITS)
        part = xp.astype(sums & (ONE - 1), xp.float32) * (1 / ONE)
        cutoff = xp.clip(ONE / xp.astype(rate, xp.float32), None, 1)
        silence = xp.full((*x.shape[:-1], REACH + 1), 0, x)
        around = xp.concatenate([silence, x, silence], -1)
        first = xp.clip(at, None, length) + 2  # of the samples within reach, in `around`

        def add(i: Any, total: Any) -> Any:
            distance = (i + 1 - REACH) - part
            weight = cutoff * xp.sinc(cutoff * distance) * xp.cos(distance * (pi / 2 / REACH)) ** 2
            total += _per_sample(weight, x) * xp.gather(around, -1, first + i)
            return total

        total = xp.loop(2 * REACH, add, xp.full(x.shape, 0, x))
        total = xp.where(_per_sample(at < length, x), total, 0.0)  # positions past the end of the recording
        return xp.where(each(p["rate"] == ONE, x), x, total)


def _per_sample(values: Any, x: Any) -> Any:
    """(rows, samples) in a shape that broadcasts against `x`."""
    return values.reshape(len(x), *[1] * (x.ndim - 2), x.shape[-1])
