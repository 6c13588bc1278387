"""A row of a batch is filled directly from encoded bytes, by any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from penstock.codecs.image.batch import fill_row
from penstock.codecs.image.decode import ImageOptions, decode
from penstock.codecs.image.geometry import crop_params
from penstock.codecs.image.normalise import normalise
from penstock.codecs.image.probe import probe
from penstock.core import randomness
from penstock.core.errors import UsageError


@pytest.fixture
def datas(photo, encode):
    turned = Image.Exif()
    turned[0x0112] = 6
    return [
        encode(photo(90, 120, 1)),
        encode(photo(400, 300, 2)),
        encode(photo(64, 64, 3), "PNG"),
        encode(photo(130, 100, 4), exif=turned),
        encode(Image.fromarray(photo(70, 80, 5)).convert("L")),
    ]


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def params(datas):
    infos = [probe(data) for data in datas]
    keys = randomness.keys(randomness.key(1, "crop"), np.arange(len(datas)))
    heights, widths = zip(*(info.oriented for info in infos), strict=True)
    return crop_params(keys, heights, widths), np.arange(len(datas)) % 2 == 0


def decode_batch(datas, size, *, crops=None, flips=None, dtype=np.uint8, mode="RGB", mean=0.0, std=1.0, threads=1):
    out = np.empty((len(datas), *size, {"L": 1, "RGB": 3, "RGBA": 4}[mode]), dtype)

    def fill(row):
        crop, flip = None if crops is None else crops[row], flips is not None and bool(flips[row])
        fill_row(out[row], datas[row], ImageOptions(mode), crop, flip, mean, std)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(len(datas))))
    return out


def test_rows_equal_the_steps_one_by_one(datas):
    crops, flips = params(datas)
    batch = decode_batch(datas, (48, 40), crops=crops, flips=flips, dtype=np.float32, mean=MEAN, std=STD)
    assert batch.shape == (5, 48, 40, 3)
    for row, data in enumerate(datas):
        pixels = decode(data, crop=crops[row], size=(48, 40))
        pixels = pixels[:, ::-1] if flips[row] else pixels
        expected = (pixels.astype(np.float64) / 255 - np.array(MEAN)) / np.array(STD)
        assert np.abs(batch[row] - expected).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_threads_change_nothing(dtype, datas):
    crops, flips = params(datas)
    same = {"crops": np.tile(crops, (20, 1)), "flips": np.tile(flips, 20), "dtype": dtype}
    one = decode_batch(datas * 20, (96, 96), **same)
    for threads in (2, 4):
        assert (one == decode_batch(datas * 20, (96, 96), **same, threads=threads)).all()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_modes(mode, datas):
    batch = decode_batch(datas, (16, 24), mode=mode, flips=[True] * 5, dtype=np.float32)
    assert batch.shape == (5, 16, 24, {"L": 1, "RGB": 3, "RGBA": 4}[mode])
    plain = decode_batch(datas, (16, 24), mode=mode)
    assert np.allclose(batch[:, :, ::-1], plain / 255.0, atol=1e-6)


def test_normalise_is_exact_and_checks_its_arguments():
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    assert (normalise(pixels)[..., 0] == (np.arange(256) / 255.0).astype(np.float32).reshape(16, 16)).all()
    three = np.repeat(pixels, 3, axis=-1)
    made = normalise(three, (0.1, 0.2, 0.3), 0.5)
    expected = ((three / 255.0 - np.array([0.1, 0.2, 0.3])) / 0.5).astype(np.float32)
    assert (made == expected).all()
    with pytest.raises(UsageError, match="1 or 3 numbers"):
        normalise(three, (0.1, 0.2))
    with pytest.raises(UsageError, match="std above 0"):
        normalise(three, 0.0, 0.0)
