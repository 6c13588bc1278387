"""`decode_images(masks=)`: masks get the crop and flip of their image, and keep their class numbers."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.codecs.image.mask import decode_mask


def saved(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def pair(number: int) -> tuple[bytes, bytes, np.ndarray]:
    """A picture painted from its mask of 6 classes, and the mask as a palette image."""
    classes = np.kron(np.random.default_rng(number).integers(0, 6, (5, 7)), np.ones((16, 16), int)).astype(np.uint8)
    return saved(Image.fromarray(classes * 40)), saved(with_palette(classes)), classes


def with_palette(classes: np.ndarray) -> Image.Image:
    image = Image.frombytes("P", classes.shape[::-1], classes.tobytes())
    image.putpalette([(200 - 7 * i) % 256 for i in range(256) for _ in range(3)])
    return image


PAIRS = [pair(i) for i in range(12)]
ROWS = ps.from_arrays({"img": [p[0] for p in PAIRS], "msk": [p[1] for p in PAIRS]})


@pytest.mark.parametrize("crop", ["random", "center", None])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_mask_follows_its_image(crop: Any, layout: Any) -> None:
    made = ROWS.shuffle(seed=1).decode_images(
        (48, 40), crop=crop, column="img", masks="msk", layout=layout, dtype="uint8", method="nearest"
    )
    for batch in made.batch(6).to_numpy(threads=0):
        assert batch["msk"].shape == (6, 48, 40)
        assert batch["msk"].dtype == np.uint8
        image = batch["image"][..., 0] if layout == "NHWC" else batch["image"][:, 0]
        assert (np.abs(image.astype(int) - 40 * batch["msk"].astype(int)) <= 2).mean() > 0.9
    loader = made.batch(6).to_numpy(threads=2)
    assert np.array_equal(loader.batch_at(1)["msk"], made.batch(6).to_numpy(threads=0).batch_at(1)["msk"])


def test_class_numbers_are_those_stored() -> None:
    classes = np.random.default_rng(0).integers(0, 4, (20, 30)).astype(np.uint8)
    deep = Image.fromarray(classes.astype(np.uint16))
    binary = Image.fromarray(classes > 1)
    for data, want in (
        (saved(Image.fromarray(classes)), classes),
        (saved(with_palette(classes)), classes),
        (saved(deep), classes),
        (saved(binary), (classes > 1).astype(np.uint8)),
        (grey_png(classes, 2), classes),
        (grey_png(classes, 4), classes),
        (classes, classes),
    ):
        assert np.array_equal(decode_mask(data, (20, 30), None, (20, 30)), want)
        assert np.array_equal(decode_mask(data, (20, 30), (2, 3, 10, 20), (10, 20)), want[2:12, 3:23])


def grey_png(values: np.ndarray, bits: int) -> bytes:
    import struct
    import zlib

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = []
    for row in values:
        text = "".join(f"{v:0{bits}b}" for v in row)
        text += "0" * (-len(text) % 8)
        rows.append(b"\0" + bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8)))
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_masks_that_do_not_belong_are_bad_records() -> None:
    picture = saved(Image.new("RGB", (30, 20)))
    for mask, text in (
        (saved(Image.new("L", (20, 30))), "the size of its image"),
        (saved(Image.new("RGB", (30, 20))), "one channel"),
        (saved(Image.fromarray(np.full((20, 30), 300, np.uint16))), "from 0 to 255"),
        (saved(Image.new("L", (30, 20)))[:-30], "intact PNG"),
        (b"no picture", "an image"),
    ):
        rows = ps.from_arrays({"img": [picture] * 2, "msk": [saved(Image.new("L", (30, 20))), mask]})
        with pytest.raises(ps.BadRecords, match=text) as caught:
            rows.decode_images(8, column="img", masks=["msk"]).batch(2).to_numpy(threads=0).batch_at(0)
        assert caught.value.errors[0].row == 1
    with pytest.raises(ps.UsageError, match="a column 'gone'"):
        ROWS.decode_images(8, column="img", masks="gone").peek(1)


def test_fingerprints_without_masks_stay() -> None:
    from penstock.steps.decode_images import DecodeImages

    assert "masks" not in DecodeImages((8, 8)).spec()
    assert DecodeImages((8, 8), masks=("m",)).spec()["masks"] == ["m"]
