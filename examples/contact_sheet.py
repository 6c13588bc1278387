"""A contact sheet of photographs before and after augmentation, as a PNG.

python examples/contact_sheet.py [FOLDER [SHEET.png]]; without a folder, images are generated

The upper row of each pair is the image; the lower row is its augmented version in this epoch.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from penstock.augment import Augment, Blur, Brightness, Contrast, Erase, Hue, Noise, Saturation
from penstock.read import read_images

SIDE, ACROSS, PAIRS, GAP = 128, 8, 3, 4


def make_up(folder: Path) -> None:
    """Generates landscapes: sky, hills and a sun."""
    rng = np.random.default_rng(0)
    for i in range(ACROSS * PAIRS):
        width, height = (int(side) for side in rng.integers(220, 420, 2))
        down = np.linspace(0, 1, height)[:, None, None]
        top, bottom = rng.integers(90, 256, 3), rng.integers(0, 160, 3)
        picture = Image.fromarray(
            np.broadcast_to(top * (1 - down) + bottom * down, (height, width, 3)).astype(np.uint8)
        )
        draw = ImageDraw.Draw(picture)
        x, y, r = (float(v) for v in rng.uniform(0.2, 0.6, 3) * (width, height / 2, 80))
        draw.ellipse((x - r, y - r, x + r, y + r), fill=(255, 220, 120))
        hills = [(k * width / 40, height * (0.7 + 0.12 * np.sin(k / 4 + i))) for k in range(41)]
        draw.polygon([*hills, (width, height), (0, height)], fill=tuple(int(v) for v in rng.integers(20, 120, 3)))
        picture.save(folder / f"{i:02d}.jpg", quality=92)


def main(folder: Path, target: Path) -> None:
    photographs = read_images(folder, labels=None).shuffle(seed=3)
    augment = Augment(
        Brightness(0.3), Contrast(0.3), Saturation(0.5), Hue(0.08), Blur(p=0.3), Noise(0.03), Erase(p=0.4), seed=3
    )
    plain = photographs.decode_images(SIDE, crop="center")
    changed = photographs.decode_images(SIDE, crop="random", scale=(0.3, 1.0)).map_batches(augment)
    rows = []
    loaders = [pipeline.take(ACROSS * PAIRS).batch(ACROSS).to_numpy() for pipeline in (plain, changed)]
    for before, after in zip(*loaders, strict=True):
        assert before["path"].tolist() == after["path"].tolist()
        rows += [strip(before["image"]), strip(after["image"])]
    Image.fromarray(np.concatenate(rows)).save(target)
    print(f"{len(rows) // 2 * ACROSS} pictures, before and after: {target}")


def strip(images: Any) -> Any:
    """One row of images, separated by white."""
    pixels = (np.clip(images, 0, 1) * 255).round().astype(np.uint8)
    framed = np.pad(pixels, ((0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    return framed.transpose(1, 0, 2, 3).reshape(SIDE + GAP, -1, 3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        make_up(Path(made))
        main(
            Path(sys.argv[1] if sys.argv[1:] else made),
            Path(sys.argv[2] if sys.argv[2:] else f"{tempfile.gettempdir()}/contact_sheet.png"),
        )
