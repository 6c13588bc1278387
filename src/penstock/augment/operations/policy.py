"""Policies that draw operations too: `RandAugment`, `TrivialAugment`, `AugMix`, as torchvision defines them.

Every row draws operations from one list, and their strengths. On the host and in torch the rows of one operation are
computed together; JAX compiles a switch that runs row by row.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Op, Shape
from penstock.augment.operations.boxes import fill_value
from penstock.augment.operations.color import LUMA, check_colour, stretch
from penstock.augment.operations.tone import contrast_stretched, equalized, posterized, sharpened, solarized
from penstock.augment.operations.warp import check_moving
from penstock.augment.params import Drawn, beta, dirichlet, f32, i32
from penstock.augment.warp import F64, affine, coefficients, move_points, warp
from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.randomness import U64

NAMES = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
SIGNED = frozenset(NAMES[1:10])
AUGMIX = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Posterize", "Solarize", "AutoContrast", "Equalize")


def _same(_xp: Arrays, x: Any, _p: dict[str, Any]) -> Any:
    return x


def _moved(xp: Arrays, x: Any, p: dict[str, Any], fill: float, nearest: bool) -> Any:
    return warp(xp, x, p["m"], fill_value(xp, fill, x.dtype), nearest)


def _brightness(xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
    return xp.clip01(x * each(1 + p["value"], x))


def _color(xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
    return stretch(xp, x, _grey(xp, x), {"factor": 1 + p["value"]})


def _contrast(xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
    return stretch(xp, x, _grey(xp, x).mean(axis=(1, 2), keepdims=True), {"factor": 1 + p["value"]})


def _grey(xp: Arrays, x: Any) -> Any:
    return xp.matmul(x, xp.constant(LUMA, x))[..., None]


def _sharpness(xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
    return sharpened(xp, x, 1 + p["value"])


def _posterize(xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
    return posterized(xp, x, p["value"])


def _solarize(xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
    return solarized(xp, x, p["value"] * (1 / 255))


def _auto_contrast(xp: Arrays, x: Any, _p: dict[str, Any]) -> Any:
    return contrast_stretched(xp, x)


def _equalize(xp: Arrays, x: Any, _p: dict[str, Any]) -> Any:
    return equalized(xp, x)


TONES = (_brightness, _color, _contrast, _sharpness, _posterize, _solarize, _auto_contrast, _equalize)
BRANCH = np.array([0, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9], np.int32)
"""Which function of a policy runs each of `NAMES`: nothing, the one that moves pixels, or one of `TONES`."""


class Policy(Op):
    """Base: draws names and strengths, (rows, steps) each."""

    fill: float = 0.0
    interpolation: str = "nearest"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moving(self, self.fill, self.interpolation, '"nearest"')

    @abstractmethod
    def table(self, shape: Shape) -> dict[str, F64]:
        """The strengths of each operation by level, for images of `shape`."""

    def drawn_steps(self, names: NDArray[np.int64], level: Any, keys: U64, shape: Shape) -> Drawn:
        """Parameters of steps whose operations `names` (rows, steps) of `table` and levels are drawn."""
        check_colour(self, shape)
        table = self.table(shape)
        order = [NAMES.index(name) for name in table]
        strengths = np.stack([np.broadcast_to(values, len(next(iter(table.values())))) for values in table.values()])
        value = strengths[names, level]
        steps = np.arange(names.shape[1])
        minus = randomness.uniform(keys[:, None], 500 + steps) < 0.5
        which = np.array(order)[names]
        signed = np.isin(which, [NAMES.index(name) for name in SIGNED])
        value = np.where(signed & minus, -value, value)
        moves = [self._coefficients(which[:, i], value[:, i], shape) for i in steps]
        made = {name: np.stack([one[name] for one in moves], 1) for name in ("m", "f")}
        return {"name": i32(which), "value": f32(value), **made}

    def _coefficients(self, which: NDArray[np.int64], value: F64, shape: Shape) -> dict[str, NDArray[np.float32]]:
        """The maps of operations that move pixels; the others stay where they are.

        Shears are about the top left corner, as in the paper's code and torchvision.
        """
        height, width = shape[:2]
        maps = np.tile(np.eye(3), (len(value), 1, 1))
        maps[which == 1, 0, 1] = -value[which == 1]  # torchvision: tan of minus the angle
        maps[which == 2, 1, 0] = -value[which == 2]
        maps[which == 3, 0, 2] = np.trunc(value[which == 3])
        maps[which == 4, 1, 2] = np.trunc(value[which == 4])
        turn = which == 5
        if turn.any():
            maps[turn] = affine(height, width, -value[turn], 0.0, 0.0, 1.0, 0.0, 0.0)
        return coefficients(maps)

    def step(self, xp: Arrays, x: Any, p: dict[str, Any], i: Any) -> Any:
        """Step i of every row. Loops over steps are `xp.loop`, so that JAX compiles the functions once."""
        move = partial(_moved, fill=self.fill, nearest=self.interpolation == "nearest")
        branch = xp.constant(BRANCH, p["name"])[p["name"][:, i]]
        return xp.branches((_same, move, *TONES), branch, x, {"value": p["value"][:, i], "m": p["m"][:, i]})

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return xp.loop(int(p["name"].shape[1]), lambda i, made: self.step(xp, made, p, i), x)

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        for i in range(int(p["name"].shape[1])):
            x = warp(xp, x, p["m"][:, i], fill, True)
        return x

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        for i in range(int(p["name"].shape[1])):
            at = move_points(xp, at, p["f"][:, i])
        return at

    def describe(self, p: Drawn) -> dict[str, Any]:
        pairs = zip(p["name"][0].tolist(), p["value"][0].tolist(), strict=True)
        return {"steps": [{"op": NAMES[name], "value": value} for name, value in pairs]}


def _positive(op: Op, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
            raise op._wrong(f"{name}, an integer of 1 or more,", value)


@dataclass(frozen=True)
class RandAugment(Policy):
    """`num_ops` operations out of 14, drawn evenly, all at level `magnitude` of `bins`; half of the signed ones are
    negative. torchvision's RandAugment; masks, boxes and keypoints follow the ones that move pixels."""

    num_ops: int = 2
    magnitude: int = 9
    bins: int = 31
    fill: float = 0.0
    interpolation: str = "nearest"
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, num_ops=self.num_ops, bins=self.bins)
        if not 0 <= self.magnitude < self.bins or self.bins < 2:
            raise self._wrong(f"magnitude from 0 to bins - 1 = {self.bins - 1}", self.magnitude, "magnitude=9")

    def table(self, shape: Shape) -> dict[str, F64]:
        height, width = shape[:2]
        return _table(self.bins, 0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, 4)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        names = randomness.integers(keys[:, None], np.arange(self.num_ops), len(NAMES))
        return self.drawn_steps(names, self.magnitude, keys, shape)


@dataclass(frozen=True)
class TrivialAugment(Policy):
    """One operation out of 14 at a random level: torchvision's TrivialAugmentWide."""

    bins: int = 31
    fill: float = 0.0
    interpolation: str = "nearest"
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, bins=self.bins)

    def table(self, shape: Shape) -> dict[str, F64]:
        return _table(self.bins, 0.99, 32.0, 32.0, 135.0, 0.99, 6)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        names = randomness.integers(keys[:, None], np.arange(1), len(NAMES))
        level = randomness.integers(keys[:, None], 100 + np.arange(1), self.bins)
        return self.drawn_steps(names, level, keys, shape)


@dataclass(frozen=True)
class AugMix(Policy):
    """The picture mixed with `width` chains of one to three operations (or exactly `depth`) at a level below
    `severity` of 10: torchvision's AugMix. Weights are Dirichlet(`alpha`). Masks and boxes cannot follow a mixture."""

    severity: int = 3
    width: int = 3
    depth: int | None = None
    alpha: float = 1.0
    all_ops: bool = True
    fill: float = 0.0
    interpolation: str = "bilinear"
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, severity=self.severity, width=self.width, depth=1 if self.depth is None else self.depth)
        if self.severity > 10 or self.width > 16 or (self.depth or 1) > 8 or not 0.01 <= self.alpha <= 100:
            raise self._wrong("severity to 10, width to 16, depth to 8 and alpha from 0.01 to 100", repr(self))

    @property
    def deepest(self) -> int:
        return 3 if self.depth is None else self.depth

    def table(self, shape: Shape) -> dict[str, F64]:
        height, width = shape[:2]
        full = _table(10, 0.3, width / 3, height / 3, 30.0, 0.9, 4)
        full["Posterize"] = 4 - np.rint(np.arange(10) / (9 / 4))
        names = (*AUGMIX[:5], *AUGMIX[5:], *(NAMES[6:10] if self.all_ops else ()))
        return {name: full[name] for name in names}

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        chains, steps = self.width, self.width * self.deepest
        count = len(AUGMIX) + 4 * self.all_ops
        names = randomness.integers(keys[:, None], np.arange(steps), count)
        level = randomness.integers(keys[:, None], 200 + np.arange(steps), self.severity)
        depth = np.full((len(keys), chains), self.deepest)
        if self.depth is None:
            depth = 1 + randomness.integers(keys[:, None], 400 + np.arange(chains), 3)
        rest = 1 - beta(keys, self.alpha)
        weights = dirichlet(keys, self.alpha, chains) * rest[:, None]
        more = {"depth": i32(depth), "weight": f32(weights), "kept": f32(1 - rest)}
        return self.drawn_steps(names, level, keys, shape) | more

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        def further(i: Any, state: Any) -> Any:
            made, total = state
            chain, place = i // self.deepest, i % self.deepest
            made = xp.where(xp.asarray(place == 0), x, made)
            made = xp.where(each(p["depth"][:, chain] > place, x), self.step(xp, made, p, i), made)
            share = xp.where(xp.asarray(place == self.deepest - 1), p["weight"][:, chain], 0.0)
            return made, total + each(share, x) * made

        _, total = xp.loop(self.width * self.deepest, further, (x, x * each(p["kept"], x)))
        return xp.clip01(total)

    def apply_mask(self, xp: Arrays, x: Any, p: dict[str, Any], fill: int) -> Any:
        raise self._mixture("masks")

    def points(self, xp: Arrays, at: Any, p: dict[str, Any], size: tuple[Any, Any]) -> Any:
        raise self._mixture("boxes and keypoints")

    def _mixture(self, what: str) -> UsageError:
        fix = "RandAugment or TrivialAugment move them"
        return UsageError(f"no {what} with AugMix: it mixes pictures that were moved differently", got=what, fix=fix)

    def describe(self, p: Drawn) -> dict[str, Any]:
        steps = super().describe(p)["steps"]
        chains = [steps[i * self.deepest : i * self.deepest + d] for i, d in enumerate(p["depth"][0].tolist())]
        return {"kept": p["kept"][0].tolist(), "weights": p["weight"][0].tolist(), "chains": chains}


def _table(bins: int, shear: float, x: float, y: float, degrees: float, factor: float, bits: int) -> dict[str, F64]:
    """Strengths by level, in the order of `NAMES`."""
    up, none = np.linspace(0.0, 1.0, bins), np.zeros(bins)
    strongest = (shear, shear, x, y, degrees, factor, factor, factor, factor)
    made = {name: up * most for name, most in zip(NAMES[1:10], strongest, strict=True)}
    coarse = 8 - np.rint(np.arange(bins) / max((bins - 1) / bits, 1e-9))
    last = {"Posterize": coarse, "Solarize": np.linspace(255.0, 0.0, bins), "AutoContrast": none, "Equalize": none}
    return {"Identity": none, **made, **last}
