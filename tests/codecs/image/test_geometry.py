"""Random boxes from keys: always inside, distributed as asked, the same wherever they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs.image.geometry import center_crop_params, crop_params, flip_params, orient, stored_box
from penstock.core import randomness
from penstock.core.errors import UsageError


def keys(n, seed=3):
    return randomness.keys(randomness.key(seed, "crop"), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.01, 1), st.floats(0.2, 1), st.integers(0, 2**32))
def test_boxes_are_inside(height, width, low, slim, seed):
    boxes = crop_params(keys(20, seed), height, width, (low, 1.0), (slim, 1 / slim))
    y, x, h, w = boxes.T
    assert (y >= 0).all()
    assert (x >= 0).all()
    assert (h >= 1).all()
    assert (w >= 1).all()
    assert (y + h <= height).all()
    assert (x + w <= width).all()


def test_area_and_ratio_are_as_asked():
    boxes = crop_params(keys(20_000), 400, 400)
    area = boxes[:, 2] * boxes[:, 3] / 160_000
    ratio = np.log(boxes[:, 3] / boxes[:, 2])
    assert area.min() >= 0.07
    assert 0.46 < area.mean() < 0.5
    assert abs(ratio.mean()) < 0.01
    assert abs(ratio).max() < np.log(4 / 3) + 0.05
    centre = boxes[:, :2] + boxes[:, 2:] / 2
    assert np.abs(centre.mean(axis=0) - 200).max() < 2


def test_a_row_does_not_depend_on_its_batch():
    whole = crop_params(keys(50), np.arange(100, 150), 200)
    part = crop_params(keys(50)[17:19], np.arange(117, 119), 200)
    assert (whole[17:19] == part).all()


def test_the_values_are_fixed_for_ever():
    boxes = crop_params(keys(3), [375, 500, 64], [500, 333, 64])
    assert boxes.tolist() == GOLDEN
    assert flip_params(keys(8)).tolist() == GOLDEN_FLIPS


def test_what_cannot_fit_falls_back_to_the_centre():
    box = crop_params(keys(1), 10, 1000, (1.0, 1.0), (1.0, 1.0))[0]
    assert box.tolist() == [0, 495, 10, 10]


def test_flips_are_fair_and_independent_of_the_crop():
    flips = flip_params(keys(20_000))
    boxes = crop_params(keys(20_000), 400, 400)
    assert abs(flips.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(flips, boxes[:, 1])[0, 1]) < 0.03
    assert not flip_params(keys(100), p=0.0).any()


def test_centre():
    assert center_crop_params([300], [200], share=0.875).tolist() == [[62, 12, 175, 175]]
    assert center_crop_params(1, 1, share=0.1).tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("turn", range(1, 9))
def test_cutting_stored_pixels_then_turning_equals_turning_then_cutting(turn):
    stored = np.arange(7 * 11, dtype=np.uint8).reshape(7, 11, 1)
    shown = orient(stored, turn)
    y, x, h, w = stored_box((1, 1, 4, 3), turn, 7, 11)
    assert (orient(stored[y : y + h, x : x + w], turn) == shown[1:5, 1:4]).all()


@pytest.mark.parametrize("wrong", [{"scale": (0.0, 1.0)}, {"scale": (0.5, 1.5)}, {"ratio": (2.0, 1.0)}])
def test_wrong_ranges(wrong):
    with pytest.raises(UsageError, match="as \\(low, high\\)"):
        crop_params(keys(1), 10, 10, **wrong)


GOLDEN = [[13, 96, 331, 382], [26, 4, 356, 315], [3, 3, 57, 43]]
GOLDEN_FLIPS = [False, False, False, True, False, True, False, True]
