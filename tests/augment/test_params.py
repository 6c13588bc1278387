"""Parameters: order independence, frequencies, ranges, identity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.augment import (  # fmt: skip
    AudioNoise,
    Augment,
    Blur,
    Brightness,
    Contrast,
    Crop,
    Cutmix,
    Erase,
    Flip,
    FrequencyMask,
    Gain,
    Hue,
    Mixup,
    Noise,
    RandomResizedCrop,
    Resize,
    Rot90,
    Saturation,
    Shift,
    Speed,
    TimeMask,
    TokenMask,
    TokenReplace,
    params,
)
from penstock.augment.arrays_numpy import NUMPY
from penstock.augment.field import normal, words
from penstock.core import randomness
from penstock.core.errors import UsageError

N = 20_000
KEYS = randomness.keys(randomness.key(9, "test"), np.arange(N))


def chi_square(counts: np.ndarray, shares: Any) -> float:
    expected = counts.sum() * np.asarray(shares, float)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", [Flip, Brightness, Blur, Erase, Gain], ids=lambda k: k.__name__)
def test_probability(kind: Any, p: float) -> None:
    on = params.draw(kind(p=p), KEYS, (8, 8, 3))["on"]
    assert chi_square(np.array([on.sum(), (~on).sum()]), [p, 1 - p]) < 10.8  # one in a thousand, one degree of freedom


def test_quarter_turns_are_even_and_oblong_images_only_turn_by_half() -> None:
    turns = params.draw(Rot90(), KEYS, (8, 8, 3))["k"]
    assert chi_square(np.bincount(turns, minlength=4), [0.25] * 4) < 16.3
    assert set(params.draw(Rot90(), KEYS, (8, 9, 3))["k"].tolist()) == {0, 2}


def test_operations_draw_apart_from_each_other() -> None:
    first, second, third = params.draw_all((Brightness(), Contrast(), Brightness()), KEYS, 0, (8, 8, 3))
    for one, other in ((first, second), (first, third)):
        assert abs(np.corrcoef(one["factor"], other["factor"])[0, 1]) < 0.03


def test_adding_another_operation_shifts_nobody() -> None:
    alone = params.draw_all((Brightness(),), KEYS, 0, (8, 8, 3))[0]
    later = params.draw_all((Flip(), Noise(), Brightness()), KEYS, 0, (8, 8, 3))[2]
    np.testing.assert_array_equal(alone["factor"], later["factor"])


def test_seed_epoch_and_record_each_matter() -> None:
    def factor(seed: int, epoch: int, record: int) -> float:
        augment = Augment(Brightness(), seed=seed)
        batch = {"image": np.zeros((1, 2, 2, 3), np.float32)}
        return float(augment.params(batch, augment.keys([record], epoch))["image"][0]["factor"][0])

    assert len({factor(0, 0, 0), factor(1, 0, 0), factor(0, 1, 0), factor(0, 0, 1)}) == 4
    assert factor(3, 2, 1) == factor(3, 2, 1)


def test_parameters_are_golden() -> None:
    """These numbers are part of the promise: another machine or release draws the same."""
    made = params.draw(Brightness(0.2), randomness.keys(randomness.key(7), np.arange(3)), (4, 4, 3))["factor"]
    np.testing.assert_allclose(made, [1.013835, 1.191618, 1.132985], atol=1e-6)


def test_words_are_two_rounds_of_a_32_bit_mix() -> None:
    """The field's definition, again in plain Python integers."""

    def mix(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
        x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
        return x ^ (x >> 16)

    k0, k1 = 0xDEADBEEF, 0x12345678
    expected = [mix(mix((i * 0x9E3779B9 + k0) % 2**32) ^ k1) for i in range(50)]
    made = words(NUMPY, np.array([k0], np.uint32), np.array([k1], np.uint32), np.arange(50, dtype=np.uint32))
    assert made.tolist() == expected


def test_noise_is_standard_normal() -> None:
    """Moments and a chi-square over 20 equal bins of the normal distribution, over rows and along a row."""
    drawn = params.field_keys(KEYS[:200])
    field = normal(NUMPY, drawn["k0"], drawn["k1"], np.empty((200, 1001)))
    assert field.shape == (200, 1001)
    assert field.dtype == np.float32
    from statistics import NormalDist

    edges = [NormalDist().inv_cdf(i / 20) for i in range(1, 20)]
    assert chi_square(np.bincount(np.searchsorted(edges, field.ravel()), minlength=20), [0.05] * 20) < 43.8
    assert abs(np.corrcoef(field[:, 0], field[:, 501])[0, 1]) < 0.25
    assert abs(np.mean(field[:, :500] * field[:, 501:])) < 0.012
    assert abs(np.mean(field[:-1] * field[1:])) < 0.009


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_beta_has_the_moments_and_quantiles_of_beta(alpha: float) -> None:
    from scipy import stats

    made = params.beta(KEYS, alpha)
    assert stats.kstest(made, stats.beta(alpha, alpha).cdf).pvalue > 0.001


def test_resized_crop_boxes_fit() -> None:
    box = params.draw(RandomResizedCrop(8), KEYS, (20, 31, 3))
    assert (box["y"] >= 0).all()
    assert (box["y"] + box["h"] <= 20).all()
    assert (box["x"] >= 0).all()
    assert (box["x"] + box["w"] <= 31).all()
    share = box["h"] * box["w"] / (20 * 31)
    assert share.min() > 0.06
    assert 0.3 < share.mean() < 0.5


IDENTITIES = [
    Flip(p=0), Flip("vertical", p=0), Rot90((0,)), Crop(16), RandomResizedCrop(16, (1, 1), (1, 1)), Resize(16),
    Brightness(0), Contrast(0), Saturation(0), Hue(0), Noise(0), Blur(0.0), Blur((1, 2), p=0), Erase(p=0),
    Mixup(p=0, classes=2), Cutmix(p=0, classes=2),
]  # fmt: skip
AUDIO_IDENTITIES = [Gain(0), Shift(0), AudioNoise(0), TimeMask(0), Speed(0), Speed(p=0), Gain(p=0)]


@pytest.mark.parametrize("op", IDENTITIES, ids=repr)
def test_no_range_is_no_change(op: Any, images: np.ndarray) -> None:
    batch = {"image": images, "labels": np.zeros(len(images), int)}
    augment = Augment(op)
    keys = augment.keys(np.arange(len(images)))
    np.testing.assert_array_equal(augment(batch, keys)["image"], images)
    np.testing.assert_array_equal(augment.torch(batch, keys)["image"].numpy(), images)


@pytest.mark.parametrize("op", AUDIO_IDENTITIES, ids=repr)
def test_no_range_is_no_change_in_audio(op: Any, waves: np.ndarray) -> None:
    augment = Augment(op)
    keys = augment.keys(np.arange(len(waves)))
    np.testing.assert_array_equal(augment({"audio": waves}, keys)["audio"], waves)
    np.testing.assert_array_equal(augment.torch({"audio": waves}, keys)["audio"].numpy(), waves)


def test_no_range_is_no_change_in_jax(images: np.ndarray, waves: np.ndarray) -> None:
    """All of them in one program, as compiling is what takes time."""
    batch = {"image": images[:4], "audio": waves, "labels": np.zeros(4, int)}
    augment = Augment(*IDENTITIES, *AUDIO_IDENTITIES)
    made = augment.jax(batch, augment.keys(np.arange(4)))
    np.testing.assert_array_equal(made["image"], images[:4])
    np.testing.assert_array_equal(made["audio"], waves)


WRONG = [
    (lambda: Flip(p=1.5), "p, a probability from 0 to 1, in Flip", "1.5"),
    (lambda: Flip("diagonal"), 'axis "horizontal" or "vertical" in Flip', "'diagonal'"),
    (lambda: Rot90((4,)), "turns out of 0, 1, 2, 3 in Rot90", "(4,)"),
    (lambda: Crop(0), "size as a positive integer or (height, width) in Crop", "0"),
    (lambda: Crop(8, padding=-1), "padding of 0 or more in Crop", "-1"),
    (lambda: Crop(8, where="top"), 'where "random" or "center" in Crop', "'top'"),
    (lambda: Crop(8, fill=9), "fill from 0 (black) to 1 (white) in Crop", "9"),
    (
        lambda: RandomResizedCrop(8, (0.5, 1.5)),
        "scale within 1e-06 <= low <= high <= 1 in RandomResizedCrop",
        "(0.5, 1.5)",
    ),
    (lambda: Brightness(2.0), "amount within 0 <= low <= high <= inf in Brightness", "2.0"),
    (lambda: Contrast((1.2, 0.8)), "amount within 0 <= low <= high <= inf in Contrast", "(1.2, 0.8)"),
    (lambda: Saturation("much"), "amount as one number or (low, high) in Saturation", "'much'"),
    (lambda: Hue(0.6), "amount within -0.5 <= low <= high <= 0.5 in Hue", "0.6"),
    (lambda: Noise(float("nan")), "level within 0 <= low <= high <= inf in Noise", "nan"),
    (lambda: Blur(51), "sigma within 0 <= low <= high <= 50 in Blur", "51"),
    (lambda: Erase(fill=-1), "fill from 0 (black) to 1 (white) in Erase", "-1"),
    (lambda: Mixup(alpha=0), "alpha from 0.01 to 100 in Mixup", "0"),
    (lambda: Cutmix(classes=0), "classes, a count of 1 or more, in Cutmix", "0"),
    (lambda: Shift(1.5), "amount within -1 <= low <= high <= 1 in Shift", "1.5"),
    (lambda: FrequencyMask(count=0), "count from 1 to 64 in FrequencyMask", "0"),
    (lambda: Speed((0.1, 1)), "amount within 0.25 <= low <= high <= 4 in Speed", "(0.1, 1)"),
    (lambda: TokenMask(-1, special=(0,)), "mask_id, an id of 0 or more, in TokenMask", "-1"),
    (lambda: TokenMask(1, special=(0,), rate=2), "rate, a share from 0 to 1, in TokenMask", "2"),
    (
        lambda: TokenReplace(2, special=(0, 1)),
        "vocab_size with at least one id that is not special in TokenReplace",
        "2",
    ),
    (lambda: TokenReplace(9, special=(-5,)), "special, ids of 0 or more, in TokenReplace", "(-5,)"),
]


@pytest.mark.parametrize(("make", "expected", "got"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong_ranges_are_refused_with_four_parts(make: Any, expected: str, got: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.expected == expected
    assert caught.value.got == got
    assert caught.value.where == f"augment operation {expected.rsplit(maxsplit=1)[-1]}"
    assert caught.value.fix


MISFITS = [
    (Crop(40), "images of at least 40 x 40 with padding 0"),
    (Rot90((1, 3)), "square images for quarter turns"),
    (Hue(), "three channels"),
]


@pytest.mark.parametrize(("op", "expected"), MISFITS, ids=repr)
def test_images_that_do_not_fit_are_refused(op: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        params.draw(op, KEYS[:2], (16, 12, 1))
    assert caught.value.expected == expected
    assert caught.value.got == "rows of shape (16, 12, 1)"
    assert caught.value.fix


def test_equal_definitions_are_equal_and_kinds_are_not() -> None:
    assert Brightness(0.2) == Brightness((0.8, 1.2))
    assert Brightness() != Contrast()
    assert len({Brightness(), Brightness(), Contrast()}) == 2
