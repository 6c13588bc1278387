"""Resizing: close to Pillow's antialiased bilinear, within the tolerance stated here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from penstock.codecs.image.resize import kernel, resize
from penstock.core.errors import UsageError

# mean difference in grey levels from Pillow's BILINEAR, by shrink factor, on test pictures with hard edges and grain
TOLERANCE = {0.5: 0.4, 0.8: 0.4, 1.0: 0.0, 1.1: 1.3, 1.3: 1.3, 1.5: 1.3, 1.8: 1.0, 2.0: 0.5, 2.5: 1.0, 3.0: 0.5,
             3.9: 1.0, 5.0: 1.5, 8.0: 1.5}  # fmt: skip


@pytest.mark.parametrize("shrink", TOLERANCE)
def test_close_to_pillow(shrink, photo):
    gaps = []
    for seed in range(3):
        image = photo(240, 320, seed)
        size = (round(240 / shrink), round(320 / shrink))
        reference = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR)
        gaps.append(np.abs(resize(image, size).astype(int) - np.asarray(reference).astype(int)).mean())
    assert np.mean(gaps) <= TOLERANCE[shrink]


def test_plain_linear_is_not_within_that_tolerance(photo):
    image = photo(240, 320)
    reference = np.asarray(Image.fromarray(image).resize((107, 80), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resize(image, (80, 107), method="linear").astype(int) - reference).mean() > 2 * TOLERANCE[3.0]


def test_fine_stripes_turn_grey_instead_of_aliasing():
    stripes = np.zeros((120, 120, 3), np.uint8)
    stripes[:, ::2] = 255
    made = resize(stripes, (40, 40))[2:-2, 2:-2]
    assert made.astype(int).max() - made.astype(int).min() < 80
    assert np.ptp(resize(stripes, (40, 41), method="linear").astype(int)) > 200


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pillow_method_is_pillow(channels, photo):
    image = np.concatenate([photo(50, 70), photo(50, 70, 1)[..., :1]], axis=-1)[..., :channels]
    image = np.ascontiguousarray(image)
    picture = Image.fromarray(image if channels > 1 else image[..., 0])
    reference = np.asarray(picture.resize((31, 23), Image.Resampling.BILINEAR)).reshape(23, 31, channels)
    assert (resize(image, (23, 31), method="pillow") == reference).all()
    assert resize(image, (23, 31)).shape == (23, 31, channels)


def test_out_is_written_in_place(photo):
    batch = np.zeros((2, 20, 30, 3), np.uint8)
    assert resize(photo(50, 70), (20, 30), out=batch[1]) is not None
    assert batch[1].any()
    assert not batch[0].any()
    assert (batch[1] == resize(photo(50, 70), (20, 30))).all()
    grey = np.zeros((1, 20, 30, 1), np.uint8)
    resize(photo(50, 70)[..., :1], (20, 30), out=grey[0])
    assert grey.any()


def test_fractional_boxes_agree_with_pillow(photo):
    image = photo(120, 160)
    box = (10.5, 7.25, 60.5, 80.75)
    reference = Image.fromarray(image).resize(
        (50, 40), Image.Resampling.BILINEAR, box=(box[1], box[0], box[1] + box[3], box[0] + box[2])
    )
    gap = np.abs(resize(image, (40, 50), box=box).astype(int) - np.asarray(reference).astype(int)).mean()
    assert gap < 2.0


@pytest.mark.parametrize("box", [(3.5, 8.25, 60.0, 90.0), (0.0, 0.5, 41.0, 47.5), (10.25, 0.0, 20.5, 30.25)])
def test_positions_are_exact_to_a_fraction_of_a_pixel(box):
    """On a slope every symmetric filter gives the slope's value at the centre of the new pixel."""
    slope = (np.add.outer(np.arange(80) * 1.5, np.arange(100) * 1.0))[..., None].repeat(3, axis=-1)
    made = resize(np.rint(slope).astype(np.uint8), (40, 50), box=box)
    y = box[0] + (np.arange(40) + 0.5) * box[2] / 40 - 0.5
    x = box[1] + (np.arange(50) + 0.5) * box[3] / 50 - 0.5
    expected = np.add.outer(y * 1.5, x)
    assert np.abs(made[2:-2, 2:-2, 0] - expected[2:-2, 2:-2]).max() < 0.9


def test_threads_do_not_share_scratch(photo):
    pictures = [photo(300, 300, seed) for seed in range(4)]
    alone = [resize(picture, (170, 170)) for picture in pictures]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda i: resize(pictures[i % 4], (170, 170)), range(200)))
    assert all((made == alone[i % 4]).all() for i, made in enumerate(together))


def test_rows_of_a_larger_picture_do_not_bleed_in():
    image = np.zeros((60, 60, 3), np.uint8)
    image[:30] = 200
    assert (resize(image[:30], (15, 30)) == 200).all()


@pytest.mark.parametrize("shrink", [1.2, 1.5, 2.0, 2.7, 3.0])
def test_kernels_have_the_variance_a_wide_triangle_has_over_the_plain_one(shrink):
    taps = kernel(shrink).astype(float)
    at = np.arange(len(taps)) - len(taps) // 2
    assert taps.sum() == pytest.approx(1.0)
    assert (taps * at**2).sum() == pytest.approx((shrink**2 - 1) / 6, abs=0.01)


def test_wrong_arguments():
    with pytest.raises(UsageError, match="method one of antialias, pillow, linear, nearest"):
        resize(np.zeros((4, 4, 3), np.uint8), (2, 2), method="cubic")
    with pytest.raises(UsageError, match="at least 1 x 1"):
        resize(np.zeros((4, 4, 3), np.uint8), (0, 2))
