"""The numbers behind an augmentation: drawn for a whole batch from row keys, in NumPy, before any pixel is touched.

`draw(op, keys, shape)` answers a dict of arrays with one entry per row: float32, int32, uint32 (keys of noise fields)
or bool. `on` says which rows the operation touches at all. The same dict goes to NumPy, torch or JAX, so the three
cannot draw differently. A row's numbers depend on its own key alone, except a mixing partner, which depends on the
set of keys in the batch. Costs a few microseconds per operation and batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment import spec
from penstock.codecs.image.geometry import crop_params
from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.randomness import U64

Drawn = dict[str, NDArray[Any]]
Draw = Callable[[Any, U64, spec.Shape], Drawn]

ON, FIELD, GAMMA = 1000, 1001, 2000
"""Draw numbers far from those that operations count up from 0."""

SPEED_BITS = 16
SPEED_SAMPLES = 1 << 22


def operation_keys(keys: U64, seed: int, op: spec.Op, place: int) -> U64:
    """Keys of one operation: `place` counts the operations of its name before it, so adding another shifts nobody."""
    return randomness.keys(randomness.key(seed, "augment", type(op).__name__, place), keys.view(np.int64))


def draw_all(ops: Sequence[spec.Op], keys: U64, seed: int, shape: spec.Shape) -> tuple[Drawn, ...]:
    """Parameters of every operation in turn, for rows that start as `shape` (without the row axis)."""
    seen: dict[str, int] = {}
    out = []
    for op in ops:
        place = seen.get(type(op).__name__, 0)
        seen[type(op).__name__] = place + 1
        out.append(draw(op, operation_keys(keys, seed, op, place), shape))
        shape = op.shape(shape)
    return tuple(out)


def draw(op: spec.Op, keys: U64, shape: spec.Shape) -> Drawn:
    """Parameters of one operation for rows of `shape`.

    >>> made = draw(spec.Brightness(0.2), randomness.keys(randomness.key(7), np.arange(1000)), (32, 32, 3))
    >>> made["factor"].dtype, bool((abs(made["factor"] - 1) <= 0.2).all()), bool(made["on"].all())
    (dtype('float32'), True, True)
    """
    on = randomness.uniform(keys, ON) < getattr(op, "p", 1.0)
    return {"on": on, **_DRAWS[type(op)](op, keys, shape)}


def field_keys(keys: U64) -> Drawn:
    """Two 32-bit words per row that key its noise field."""
    bits = randomness.bits(keys, FIELD)
    return {"k0": (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32), "k1": (bits >> np.uint64(32)).astype(np.uint32)}


def _f32(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.astype(np.float32)


def _i32(values: NDArray[Any]) -> NDArray[np.int32]:
    return values.astype(np.int32)


def _uniform(keys: U64, pair: Any, number: int = 0) -> NDArray[np.float32]:
    return _f32(randomness.uniform(keys, number, *pair))


def _misfit(op: spec.Op, expected: str, shape: spec.Shape, fix: str) -> UsageError:
    return UsageError(expected, got=f"rows of shape {shape}", where=f"augment operation {type(op).__name__}", fix=fix)


def _nothing(_op: spec.Op, _keys: U64, _shape: spec.Shape) -> Drawn:
    return {}


def _factor(op: spec.Brightness, keys: U64, _shape: spec.Shape) -> Drawn:
    return {"factor": _uniform(keys, op.amount)}


def _colour(op: Any, keys: U64, shape: spec.Shape) -> Drawn:
    if shape[-1] != 3:
        raise _misfit(op, "three channels", shape, "leave it out for grey images, or decode to RGB")
    return _factor(op, keys, shape)


def _noise(op: Any, keys: U64, _shape: spec.Shape) -> Drawn:
    return {"level": _uniform(keys, op.level), **field_keys(keys)}


def _rot90(op: spec.Rot90, keys: U64, shape: spec.Shape) -> Drawn:
    square = shape[0] == shape[1]
    turns = np.array([t for t in op.turns if square or t % 2 == 0], np.int32)
    if not len(turns):
        raise _misfit(op, "square images for quarter turns", shape, "crop to a square first, or turns=(0, 2)")
    return {"k": turns[randomness.integers(keys, 0, len(turns))]}


def _crop(op: spec.Crop, keys: U64, shape: spec.Shape) -> Drawn:
    height, width = spec.sized(op)
    room_y, room_x = shape[0] + 2 * op.padding - height, shape[1] + 2 * op.padding - width
    if room_y < 0 or room_x < 0:
        fix = "a smaller size, more padding, or RandomResizedCrop"
        raise _misfit(op, f"images of at least {height} x {width} with padding {op.padding}", shape, fix)
    if op.where == "center":
        y, x = np.full(len(keys), room_y // 2), np.full(len(keys), room_x // 2)
    else:
        y, x = randomness.integers(keys, 0, room_y + 1), randomness.integers(keys, 1, room_x + 1)
    return {"y": _i32(y - op.padding), "x": _i32(x - op.padding)}


def _boxes(boxes: NDArray[Any]) -> Drawn:
    return {name: _i32(boxes[:, i]) for i, name in enumerate(("y", "x", "h", "w"))}


def _resized_crop(op: spec.RandomResizedCrop, keys: U64, shape: spec.Shape) -> Drawn:
    return _boxes(crop_params(keys, shape[0], shape[1], op.scale, op.ratio))


def _resize(_op: spec.Resize, keys: U64, shape: spec.Shape) -> Drawn:
    return _boxes(np.tile(np.array([0, 0, shape[0], shape[1]]), (len(keys), 1)))


def _blur(op: spec.Blur, keys: U64, _shape: spec.Shape) -> Drawn:
    return {"sigma": _uniform(keys, op.sigma)}


def partners(keys: U64) -> NDArray[np.int32]:
    """Another row for each row, the same record whatever the order of the rows: one ring through all, in key order.

    >>> partners(randomness.keys(3, np.arange(1))).tolist()
    [0]
    """
    ring = np.argsort(randomness.bits(keys, 0), kind="stable")
    out = np.empty(len(keys), np.int32)
    out[ring] = np.roll(ring, -1)
    return out


def beta(keys: U64, alpha: float) -> NDArray[np.float64]:
    """Beta(alpha, alpha) for each key, a ratio of two gammas, in logarithms as a small alpha would underflow."""
    first, second = _log_gamma_draw(keys, alpha, GAMMA), _log_gamma_draw(keys, alpha, GAMMA + 500)
    made: NDArray[np.float64] = 1.0 / (1.0 + np.exp(np.clip(second - first, -700, 700)))
    return made


def _log_gamma_draw(keys: U64, alpha: float, start: int) -> NDArray[np.float64]:
    """Logarithm of a Gamma(alpha) number per key: squeeze-free rejection from a cubed normal on alpha + 1."""
    d = alpha + 1 - 1 / 3
    c = 1 / np.sqrt(9 * d)
    cube = np.ones(len(keys))
    todo = np.ones(len(keys), bool)
    for attempt in range(start + 1, start + 100, 3):  # one in twenty is refused, so 33 rounds never run out
        radius = np.sqrt(-2 * np.log(1 - randomness.uniform(keys, attempt)))
        normal = radius * np.cos(2 * np.pi * randomness.uniform(keys, attempt + 1))
        v = np.maximum(1 + c * normal, 1e-9) ** 3
        log_u = np.log(1 - randomness.uniform(keys, attempt + 2))
        good = todo & (1 + c * normal > 0) & (log_u < normal**2 / 2 + d - d * v + d * np.log(v))
        cube[good] = v[good]
        todo &= ~good
        if not todo.any():
            break
    made: NDArray[np.float64] = np.log(d * cube) + np.log(1 - randomness.uniform(keys, start)) / alpha
    return made


def _mixup(op: spec.Mixup, keys: U64, _shape: spec.Shape) -> Drawn:
    on = randomness.uniform(keys, ON) < op.p
    lam = np.where(on, beta(keys, op.alpha), 1.0)
    return {"partner": partners(keys), "lam": _f32(lam)}


def _cutmix(op: spec.Cutmix, keys: U64, shape: spec.Shape) -> Drawn:
    """A rectangle of (1 - lam) of the area about a random centre, cut at the border; lam is then what truly stays."""
    on = randomness.uniform(keys, ON) < op.p
    side = np.sqrt(1 - beta(keys, op.alpha))
    low, size = [], []
    for number, length in enumerate(shape[:2]):
        half = side * length / 2
        middle = randomness.uniform(keys, 10 + number, 0, length)
        start, stop = (np.clip(np.rint(v), 0, length) for v in (middle - half, middle + half))
        low.append(_i32(start))
        size.append(_i32(np.where(on, stop - start, 0)))
    lam = 1 - size[0] * size[1] / (shape[0] * shape[1])
    box = {"y": low[0], "x": low[1], "h": size[0], "w": size[1]}
    return {"partner": partners(keys), "lam": _f32(lam), **box}


def _shift(op: spec.Shift, keys: U64, shape: spec.Shape) -> Drawn:
    length = shape[-1]
    return {"shift": _i32(np.rint(randomness.uniform(keys, 0, *_pair(op.amount)) * length))}


def _pair(value: Any) -> tuple[float, float]:
    return float(value[0]), float(value[1])


def _spans(op: Any, keys: U64, length: int) -> Drawn:
    """Starts and widths (rows, count): a share of the length, placed anywhere it fits."""
    starts, widths = [], []
    for i in range(op.count):
        width = np.rint(randomness.uniform(keys, 2 * i, *_pair(op.width)) * length).astype(np.int64)
        widths.append(width)
        starts.append(randomness.integers(keys, 2 * i + 1, length - width + 1))
    return {"start": _i32(np.stack(starts, 1)), "width": _i32(np.stack(widths, 1))}


def _time_mask(op: spec.TimeMask, keys: U64, shape: spec.Shape) -> Drawn:
    return _spans(op, keys, shape[-1])


def _frequency_mask(op: spec.FrequencyMask, keys: U64, shape: spec.Shape) -> Drawn:
    if len(shape) < 2:
        raise _misfit(op, "a spectrogram (rows, frequency, time)", shape, "compute mel features before it")
    return _spans(op, keys, shape[-2])


def _speed(op: spec.Speed, keys: U64, shape: spec.Shape) -> Drawn:
    if shape[-1] > SPEED_SAMPLES:
        raise _misfit(op, f"at most {SPEED_SAMPLES} samples a row", shape, "cut long recordings before it")
    return {"rate": _i32(np.rint(randomness.uniform(keys, 0, *_pair(op.amount)) * (1 << SPEED_BITS)))}


def _tokens(_op: Any, keys: U64, _shape: spec.Shape) -> Drawn:
    return field_keys(keys)


_DRAWS: dict[type, Draw] = {
    spec.Flip: _nothing, spec.Rot90: _rot90, spec.Crop: _crop, spec.RandomResizedCrop: _resized_crop,
    spec.Resize: _resize, spec.Brightness: _factor, spec.Contrast: _factor, spec.Saturation: _colour,
    spec.Hue: _colour, spec.Noise: _noise, spec.Blur: _blur, spec.Erase: _resized_crop, spec.Mixup: _mixup,
    spec.Cutmix: _cutmix, spec.Gain: _factor, spec.Shift: _shift, spec.AudioNoise: _noise,
    spec.TimeMask: _time_mask, spec.FrequencyMask: _frequency_mask, spec.Speed: _speed,
    spec.TokenMask: _tokens, spec.TokenReplace: _tokens,
}  # fmt: skip
