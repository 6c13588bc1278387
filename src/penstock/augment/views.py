"""`Views`: several augmented versions of each image, for self-supervised training (multi-crop)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.augment.compose import Augment
from penstock.core import randomness
from penstock.core.arguments import explained_class
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.core.randomness import U64


@explained_class
class Views:
    """For `.map_batches(views)`: a column (rows, count, height, width, channels) for each name, `(count, augment)`.

    Each version is drawn with a key of its own. The column of images is removed unless `keep`.

    >>> from penstock.augment import Crop, Flip
    >>> views = Views({"large": (2, Augment(Crop(6), Flip())), "small": (3, Augment(Crop(2)))})
    >>> made = views({"image": np.zeros((4, 8, 8, 3), np.uint8)}, Augment().keys(range(4)))
    >>> made["large"].shape, made["small"].shape
    ((4, 2, 6, 6, 3), (4, 3, 2, 2, 3))
    """

    def __init__(self, views: dict[str, tuple[int, Augment]], *, image: str = "image", keep: bool = False) -> None:
        for name, one in views.items():
            good = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], int) and isinstance(one[1], Augment)
            if not good or not 1 <= one[0] <= 1000:
                fix = "Views({'global': (2, Augment(RandomResizedCrop(224))), 'local': (8, Augment(...))})"
                raise UsageError(f"(count, Augment) for {name!r}", got=repr(one)[:80], where="Views(...)", fix=fix)
        self.views, self.image, self.keep = dict(views), image, keep

    def spec(self) -> dict[str, Any]:
        """The full definition as plain JSON; part of a pipeline's fingerprint."""
        views = {name: [count, augment.spec()] for name, (count, augment) in self.views.items()}
        return {"views": views, "image": self.image, "keep": self.keep}

    def __call__(self, columns: Columns, keys: U64) -> Columns:
        for _, augment in self.views.values():
            augment.check_beside(columns, self.image)
        out = {name: column for name, column in columns.items() if self.keep or name != self.image}
        for name, count, number, augment, own in self._each(columns, keys):
            made = augment({self.image: columns[self.image]}, own)[self.image]
            if not number:
                out[name] = np.empty((len(made), count, *made.shape[1:]), made.dtype)
            out[name][:, number] = made  # type: ignore[index]
        return out

    def _each(self, columns: Columns, keys: U64) -> Any:
        if self.image not in columns:
            raise UsageError(
                f"a column {self.image!r}", got=f"columns {sorted(columns)}", fix="Views(..., image='...')"
            )
        for name, (count, augment) in self.views.items():
            for number in range(count):
                own = randomness.keys(randomness.key("view", name, number), keys.view(np.int64))
                yield name, count, number, augment, own

    def drawn(self, columns: Columns, keys: U64) -> dict[str, list[Any]]:
        """What was drawn for the first row, by view: `drawn` in `loader.why`."""
        out: dict[str, list[Any]] = {name: [] for name in self.views}
        for name, _, _, augment, own in self._each(columns, keys):
            out[name].append(augment.drawn({self.image: columns[self.image]}, own)[self.image])
        return out
