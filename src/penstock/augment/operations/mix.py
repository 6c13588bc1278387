"""Operations that mix rows of a batch and their labels: `Mixup`, `Cutmix`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Op, Shape
from penstock.augment.operations.boxes import inside
from penstock.augment.params import Drawn, beta, f32, i32, on, partners
from penstock.core import randomness
from penstock.core.randomness import U64


@dataclass(frozen=True)
class Mix(Op):
    """What `Mixup` and `Cutmix` share."""

    alpha: float = 1.0
    p: float = 1.0
    labels: str = "labels"
    classes: int | None = None
    mixes: ClassVar[bool] = True
    bounded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.01 <= self.alpha <= 100:
            raise self._wrong("alpha from 0.01 to 100", self.alpha, "alpha=0.2 for mixup, 1.0 for cutmix, are usual")
        if self.classes is not None and self.classes < 1:
            raise self._wrong("classes, a count of 1 or more,", self.classes, "classes=10")

    def mix_labels(self, xp: Arrays, labels: Any, p: Drawn) -> dict[str, Any]:
        """The label columns after mixing: one-hot labels mixed, or class numbers with their partners' and `lam`."""
        labels = xp.asarray(labels)
        drawn = xp.parameters(p, labels)
        lam, partner = xp.asarray(drawn["lam"]), drawn["partner"]
        if labels.ndim == 1 and self.classes is not None:
            labels = xp.one_hot(labels, self.classes)
        if labels.ndim == 1:
            return {self.labels: labels, f"{self.labels}_partner": labels[partner], "lam": lam}
        return {self.labels: lam[:, None] * labels + (1 - lam[:, None]) * labels[partner]}


class Mixup(Mix):
    """`lam * image + (1 - lam) * partner`, lam from Beta(alpha, alpha), the partner another row of the batch.

    Rows mix, so it belongs after `.batch(n)` in `.map_batches(augment, whole=True)`: then every rank sees the same
    global batch. The column `labels` is mixed too: one-hot rows (as passed, or made with `classes=`) by lam; class
    numbers stay, and columns `labels_partner` and `lam` are added.
    """

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        lam = np.where(on(self, keys), beta(keys, self.alpha), 1.0)
        return {"partner": partners(keys), "lam": f32(lam)}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        lam = each(p["lam"], x)
        return lam * x + (1 - lam) * x[p["partner"]]


class Cutmix(Mix):
    """Puts a rectangle of the partner over the image; lam is the share that stays. Otherwise as `Mixup`."""

    exact: ClassVar[bool] = True

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        """A rectangle of (1 - lam) of the area about a random centre, cut at the border; lam is then what remains."""
        touched = on(self, keys)
        side = np.sqrt(1 - beta(keys, self.alpha))
        low, size = [], []
        for number, length in enumerate(shape[:2]):
            half = side * length / 2
            middle = randomness.uniform(keys, 10 + number, 0, length)
            start, stop = (np.clip(np.rint(v), 0, length) for v in (middle - half, middle + half))
            low.append(i32(start))
            size.append(i32(np.where(touched, stop - start, 0)))
        lam = 1 - size[0] * size[1] / (shape[0] * shape[1])
        box = {"y": low[0], "x": low[1], "h": size[0], "w": size[1]}
        return {"partner": partners(keys), "lam": f32(lam), **box}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return xp.where(inside(xp, p, x), x[p["partner"]], x)
