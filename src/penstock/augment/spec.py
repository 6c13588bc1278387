"""What each augmentation is: frozen definitions, no arrays and no framework.

An operation holds its ranges and its probability `p`; two equal definitions do the same to the same keys. Ranges are
checked when the definition is made. `amount` is half the width of a range around "no change" (`Brightness(0.2)` draws
a factor from 0.8 to 1.2), or the range itself as (low, high). `exact` operations only move values or set them, so
integer pixels stay integers; the others compute in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil
from typing import Any, ClassVar

from penstock.core.errors import UsageError

Range = tuple[float, float]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One augmentation. `kind` is the column it works on: image, audio or tokens."""

    kind: ClassVar[str] = "image"
    exact: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    def spec(self) -> dict[str, Any]:
        """The definition as plain JSON, for fingerprints.

        >>> Flip().spec()
        {'op': 'Flip', 'axis': 'horizontal', 'p': 0.5}
        """
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"op": type(self).__name__} | {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    def shape(self, shape: Shape) -> Shape:
        """Shape of one row after the operation."""
        return shape

    def __post_init__(self) -> None:
        p = getattr(self, "p", 1.0)
        if not 0 <= p <= 1:
            raise self._wrong("p, a probability from 0 to 1,", p)

    def _wrong(self, expected: str, got: Any, fix: str = "") -> UsageError:
        name = type(self).__name__
        return UsageError(f"{expected} in {name}", got=repr(got), where=f"augment operation {name}", fix=fix or HOW)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _range(self, name: str, around: float | None, least: float, most: float = float("inf")) -> None:
        """Makes field `name` a (low, high): a lone number is a half width `around` a centre, or (0, number)."""
        given = getattr(self, name)
        try:
            if isinstance(given, int | float):
                pair = (0.0, float(given)) if around is None else (around - float(given), around + float(given))
            else:
                low, high = given
                pair = (float(low), float(high))
        except (TypeError, ValueError):
            raise self._wrong(f"{name} as one number or (low, high)", given) from None
        if not least <= pair[0] <= pair[1] <= most:
            raise self._wrong(f"{name} within {least:g} <= low <= high <= {most:g}", given)
        self._set(name, pair)

    def _size(self) -> None:
        given = getattr(self, "size")  # noqa: B009  only the sized operations have it
        pair = (given, given) if isinstance(given, int) else given
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(v, int) and v > 0 for v in pair)):
            raise self._wrong("size as a positive integer or (height, width)", given, "for example size=(24, 32)")
        self._set("size", pair)


HOW = "give a range inside these bounds, or leave the operation out"


@dataclass(frozen=True)
class Flip(Op):
    """Mirrors left to right ("horizontal") or top to bottom ("vertical")."""

    axis: str = "horizontal"
    p: float = 0.5
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axis not in ("horizontal", "vertical"):
            raise self._wrong('axis "horizontal" or "vertical"', self.axis, 'axis="horizontal"')


@dataclass(frozen=True)
class Rot90(Op):
    """Turns by quarter turns, counter-clockwise, one of `turns` each as likely. Oblong images draw from the even ones
    only, as the shape of a batch cannot depend on the row."""

    turns: tuple[int, ...] = (0, 1, 2, 3)
    p: float = 1.0
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("turns", tuple(self.turns))
        if not self.turns or not set(self.turns) <= {0, 1, 2, 3}:
            raise self._wrong("turns out of 0, 1, 2, 3", self.turns, "turns=(0, 1, 2, 3)")


@dataclass(frozen=True)
class Crop(Op):
    """Cuts a window of `size` at a random place (or the centre), after a border of `padding` filled with `fill`."""

    size: int | tuple[int, int]
    padding: int = 0
    fill: float = 0.0
    where: str = "random"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._size()
        if self.padding < 0:
            raise self._wrong("padding of 0 or more", self.padding, "padding=4")
        if self.where not in ("random", "center"):
            raise self._wrong('where "random" or "center"', self.where, 'where="random"')
        if not 0 <= self.fill <= 1:
            raise self._wrong("fill from 0 (black) to 1 (white)", self.fill)

    def shape(self, shape: Shape) -> Shape:
        return (*sized(self), *shape[2:])


@dataclass(frozen=True)
class RandomResizedCrop(Op):
    """A random part, `scale` of the area and `ratio` wide/high, resized to `size` with a triangle filter."""

    size: int | tuple[int, int]
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._size()
        self._range("scale", None, 1e-6, 1.0)
        self._range("ratio", None, 1e-6)

    def shape(self, shape: Shape) -> Shape:
        return (*sized(self), *shape[2:])


@dataclass(frozen=True)
class Resize(Op):
    """Resizes to `size` with an antialiased triangle filter (Pillow's BILINEAR). No randomness."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._size()

    def shape(self, shape: Shape) -> Shape:
        return (*sized(self), *shape[2:])


def sized(op: Any) -> tuple[int, int]:
    """`op.size`, which is a pair once the definition is made."""
    height, width = op.size
    return int(height), int(width)


@dataclass(frozen=True)
class _Factor(Op):
    amount: float | Range = 0.2
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 1.0, 0.0)


class Brightness(_Factor):
    """Multiplies by a factor, clipped to [0, 1]."""


class Contrast(_Factor):
    """Stretches about the mean of the picture by a factor, clipped to [0, 1]."""


class Saturation(_Factor):
    """Stretches about each pixel's grey by a factor, clipped to [0, 1]. Three channels."""


@dataclass(frozen=True)
class Hue(Op):
    """Turns the HSV hue by a share of the colour circle (0.5 is the opposite colour). Three channels."""

    amount: float | Range = 0.1
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 0.0, -0.5, 0.5)


@dataclass(frozen=True)
class Noise(Op):
    """Adds Gaussian noise whose standard deviation is drawn from `level` (a number means (0, number)), clipped."""

    level: float | Range = 0.05
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("level", None, 0.0)


@dataclass(frozen=True)
class Blur(Op):
    """Gaussian blur, sigma in pixels drawn from `sigma`; edges repeat the last pixel. Costs 2 * radius + 1 taps twice,
    with radius three times the largest sigma."""

    sigma: float | Range = (0.1, 2.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("sigma", None, 0.0, 50.0)

    @property
    def radius(self) -> int:
        return ceil(3 * high(self.sigma))


def high(pair: Any) -> float:
    """Upper end of a range field."""
    return float(pair[1])


@dataclass(frozen=True)
class Erase(Op):
    """Sets a random rectangle, `scale` of the area and `ratio` wide/high, to `fill`."""

    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    fill: float = 0.0
    p: float = 0.5
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("scale", None, 1e-6, 1.0)
        self._range("ratio", None, 1e-6)
        if not 0 <= self.fill <= 1:
            raise self._wrong("fill from 0 (black) to 1 (white)", self.fill)


@dataclass(frozen=True)
class Mix(Op):
    """What `Mixup` and `Cutmix` share."""

    alpha: float = 1.0
    p: float = 1.0
    labels: str = "labels"
    classes: int | None = None
    mixes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.01 <= self.alpha <= 100:
            raise self._wrong("alpha from 0.01 to 100", self.alpha, "alpha=0.2 for mixup, 1.0 for cutmix, are usual")
        if self.classes is not None and self.classes < 1:
            raise self._wrong("classes, a count of 1 or more,", self.classes, "classes=10")


class Mixup(Mix):
    """`lam * image + (1 - lam) * partner`, lam from Beta(alpha, alpha), the partner another row of the batch.

    Rows mix, so it belongs after `.batch(n)` in `.map_batches(augment, whole=True)`: then every rank sees the same
    global batch. The column `labels` is mixed too: one-hot rows (given so, or made with `classes=`) by lam; plain
    class numbers stay and get company: `labels_partner` and `lam`.
    """


class Cutmix(Mix):
    """Puts a rectangle of the partner over the image; lam is the share that stays. Otherwise as `Mixup`."""

    exact: ClassVar[bool] = True


@dataclass(frozen=True)
class _Audio(Op):
    kind: ClassVar[str] = "audio"


@dataclass(frozen=True)
class Gain(_Audio):
    """Multiplies by a factor. Not clipped."""

    amount: float | Range = 0.3
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 1.0, 0.0)


@dataclass(frozen=True)
class Shift(_Audio):
    """Moves in time by a share of the length, coming round at the other end (`wrap`) or leaving silence."""

    amount: float | Range = 0.1
    wrap: bool = True
    p: float = 1.0
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 0.0, -1.0, 1.0)


@dataclass(frozen=True)
class AudioNoise(_Audio):
    """Adds Gaussian noise whose standard deviation is drawn from `level` (a number means (0, number))."""

    level: float | Range = 0.05
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("level", None, 0.0)


@dataclass(frozen=True)
class _Mask(_Audio):
    width: float | Range = 0.1
    count: int = 1
    p: float = 1.0
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("width", None, 0.0, 1.0)
        if not 1 <= self.count <= 64:
            raise self._wrong("count from 1 to 64", self.count, "count=2")


class TimeMask(_Mask):
    """Silences `count` spans of time, each `width` (a share of the length) long. Waveforms and spectrograms."""


class FrequencyMask(_Mask):
    """Silences `count` bands of a spectrogram (rows, frequency, time), each `width` (a share of the bands) high."""


@dataclass(frozen=True)
class Speed(_Audio):
    """Plays faster or slower by a factor, pitch and all: windowed-sinc resampling, same length out (cut, or silence at
    the end). The factor is a multiple of 2**-16; rows are at most 2**22 samples. Costs 33 multiplications a sample."""

    amount: float | Range = 0.1
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("amount", 1.0, 0.25, 4.0)


@dataclass(frozen=True)
class _Tokens(Op):
    kind: ClassVar[str] = "tokens"
    exact: ClassVar[bool] = True

    def _ids(self) -> None:
        given = getattr(self, "special")  # noqa: B009  both token operations have it
        special = tuple(sorted({int(v) for v in given}))
        if any(not 0 <= v < 2**31 for v in special):
            raise self._wrong("special, ids of 0 or more,", given, "special=(pad_id, bos_id, eos_id)")
        self._set("special", special)
        rate = getattr(self, "rate")  # noqa: B009
        if not 0 <= rate <= 1:
            raise self._wrong("rate, a share from 0 to 1,", rate)


@dataclass(frozen=True)
class TokenMask(_Tokens):
    """Sets a share `rate` of tokens to `mask_id`. Ids in `special` and negative ids are never touched."""

    mask_id: int
    special: tuple[int, ...]
    rate: float = 0.15
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ids()
        if not 0 <= self.mask_id < 2**31:
            raise self._wrong("mask_id, an id of 0 or more,", self.mask_id, "mask_id=tokenizer.mask_token_id")


@dataclass(frozen=True)
class TokenReplace(_Tokens):
    """Sets a share `rate` of tokens to random ids below `vocab_size`, never to or from one in `special`."""

    vocab_size: int
    special: tuple[int, ...]
    rate: float = 0.05
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ids()
        if not 0 < self.vocab_size < 2**31 or self.choices < 1:
            raise self._wrong(
                "vocab_size with at least one id that is not special", self.vocab_size, "vocab_size=50257"
            )

    @property
    def choices(self) -> int:
        return self.vocab_size - sum(1 for v in self.special if v < self.vocab_size)
