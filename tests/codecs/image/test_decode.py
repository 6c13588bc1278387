"""Pixels: against Pillow's own decoding, in every mode, orientation, crop and scale."""

from __future__ import annotations

import io
import sys
import threading
import time

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from penstock.codecs.image.decode import decode
from penstock.codecs.image.jpeg import height_for, scale_for
from penstock.codecs.image.probe import probe
from penstock.core.errors import RecordError, UsageError
from tests.codecs.image import tiny_jpeg


def by_pillow(data, mode="RGB"):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode)
    return np.asarray(image).reshape(image.height, image.width, -1).astype(int)


def far(a, b):
    gap = np.abs(np.asarray(a, int) - np.asarray(b, int))
    return float(gap.mean()), int(gap.max())


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "WEBP"])
def test_lossless_formats_equal_pillow(kind, mode, photo, encode):
    data = encode(photo(33, 47), kind)
    made = decode(data, mode=mode)
    assert made.dtype == np.uint8
    assert far(made, by_pillow(data, mode)) == (0.0, 0)


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 40}])
def test_jpeg_equals_pillow_within_2(options, photo, encode):
    data = encode(photo(65, 91), **options)
    assert far(decode(data), by_pillow(data))[1] <= 2
    assert far(decode(data, mode="L"), by_pillow(data, "L"))[0] < 1.0


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_orientation_turns_pixels_crop_and_size(turn, kind, photo, encode):
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encode(photo(64, 96), kind, exif=exif, **({"subsampling": 0} if kind == "JPEG" else {}))
    upright = by_pillow(data)
    assert far(decode(data), upright)[1] <= 2
    if kind != "TIFF":  # Pillow turns TIFF itself
        assert decode(data, exif="ignore").shape == (64, 96, 3)
    cut = decode(data, crop=(5, 9, 31, 22))
    assert far(cut, upright[5:36, 9:31])[1] <= 2
    sized = decode(data, crop=(0, 0, 60, 40), size=(30, 20))
    reference = decode(encode(upright[:60, :40].astype(np.uint8), "PNG"), size=(30, 20))
    assert sized.shape == (30, 20, 3)
    assert far(sized, reference)[0] < 3.0


def test_unusual_pixels(photo, encode):
    picture = Image.fromarray(photo(40, 40))
    cmyk = encode(picture.convert("CMYK"), quality=95)
    assert far(decode(cmyk), by_pillow(cmyk)) == (0.0, 0)
    grey = encode(picture.convert("L"))
    assert decode(grey).shape == (40, 40, 3)
    assert decode(grey, mode="L").shape == (40, 40, 1)
    palette = encode(picture.quantize(16), "PNG")
    assert far(decode(palette), by_pillow(palette)) == (0.0, 0)
    two_bits = encode(picture.convert("1"), "PNG")
    assert set(np.unique(decode(two_bits))) <= {0, 255}
    ramp = np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20)
    deep = decode(encode(Image.fromarray(ramp), "PNG"), mode="L")[..., 0]
    assert far(deep, np.rint(ramp / 257.0)) == (0.0, 0)
    assert decode(encode(Image.fromarray(ramp), "PNG")).shape == (20, 20, 3)
    clear = picture.convert("RGBA")
    clear.putalpha(7)
    assert (decode(encode(clear, "PNG"), mode="RGBA")[..., 3] == 7).all()
    assert far(decode(encode(clear, "PNG")), photo(40, 40)) == (0.0, 0)


def test_animations_give_their_first_frame(photo, encode):
    frames = [Image.fromarray(np.full((20, 20, 3), tone, np.uint8)) for tone in (10, 200)]
    data = encode(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert decode(data).max() == 10


@pytest.mark.parametrize(("kind", "what"), [("F", "floating-point"), ("I", "signed 32-bit integer"), ("LAB", "'LAB'")])
def test_pixels_without_a_known_range_are_refused_by_name(kind, what, encode):
    data = encode(Image.new(kind, (8, 8), 3 if kind != "LAB" else (1, 2, 3)), "TIFF")
    with pytest.raises(RecordError, match="unsigned pixels of 8 or 16 bits") as error:
        decode(data, where="x.tiff")
    assert what in error.value.got


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_truncation_is_refused_by_name(kind, photo, encode):
    data = encode(photo(120, 120), kind)
    for share in (0.3, 0.6, 0.9):
        with pytest.raises(RecordError) as error:
            decode(data[: int(len(data) * share)], where="cut.img", size=(32, 32))
        assert "where: cut.img" in str(error.value)


def test_strict_off_takes_what_there_is(photo, encode):
    data = encode(photo(120, 120))
    assert decode(data[: len(data) // 2], strict=False).shape == (120, 120, 3)


def test_scale_is_chosen_from_crop_and_target():
    assert scale_for((0, 0, 448, 448), (224, 224)) == 2
    assert scale_for((0, 0, 447, 900), (224, 224)) == 1
    assert scale_for((0, 0, 2000, 2000), (224, 224)) == 8
    assert scale_for((0, 0, 2000, 2000), None) == 1


@pytest.mark.parametrize("crop", [(0, 0, 512, 512), (3, 5, 401, 487), (101, 33, 260, 300), (0, 0, 130, 140)])
def test_scaled_decoding_stays_close_to_full_decoding(crop, photo, encode):
    """Stated tolerance against Pillow's full decode and bilinear resize: 3 grey levels on average."""
    data = encode(photo(520, 540), quality=92)
    y, x, h, w = crop
    full = Image.open(io.BytesIO(data)).resize((64, 64), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
    assert far(decode(data, crop=crop, size=(64, 64)), np.asarray(full))[0] < 3.0


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("shrink", [1, 2, 4])
def test_stopping_at_the_crop_changes_no_pixel(subsampling, shrink, photo, encode):
    data = encode(photo(400, 200), subsampling=subsampling)
    info = probe(data)
    whole = simplejpeg.decode_jpeg(data, min_height=400 // shrink, min_width=200 // shrink)
    for top, height in ((0, 64), (31, 77), (96, 160)):
        box = (top, 0, height, 200)
        assert height_for(info, box) < 400
        if shrink == 1:
            assert (decode(data, crop=box) == whole[top : top + height]).all()
        else:
            size = (height // shrink, 200 // shrink)
            made = decode(
                data, crop=(0, 0, top + height, 200), size=((top + height) // shrink, size[1]), method="linear"
            )
            rows = (top + height) // shrink
            expected = whole[:rows]
            if (top + height) % shrink == 0:
                assert (made == expected).all()


def test_damage_inside_the_crop_is_noticed_and_below_it_is_not_looked_at(photo, encode):
    data = bytearray(encode(photo(800, 200), subsampling=0, quality=90))
    scan = data.index(b"\xff\xda") + 14
    below = bytearray(data)
    below[int(scan + 0.9 * (len(data) - scan))] ^= 0x55
    assert (decode(bytes(below), crop=(0, 0, 200, 200)) == decode(bytes(data), crop=(0, 0, 200, 200))).all()
    noticed = 0
    for at in range(scan + 40, scan + 40 + 30 * 97, 97):
        hurt = bytearray(data)
        hurt[at : at + 8] = b"\xff\xd9\xff\xd9\xff\xd9\xff\xd9"  # an end marker in the middle of the rows wanted
        with pytest.raises(RecordError, match="an intact JPEG"):
            decode(bytes(hurt), crop=(0, 0, 300, 200), where="x.jpg")
        noticed += 1
    assert noticed == 30
    with pytest.raises(RecordError, match="Premature end"):  # cut below the crop: still noticed
        decode(bytes(data[: int(len(data) * 0.9)]), crop=(0, 0, 200, 200))


def test_the_expected_complaint_does_not_hide_an_earlier_one(photo, encode):
    """A stray marker in the rows wanted, and unread data after them: libjpeg complains twice, the first one counts."""
    data = encode(photo(800, 200), subsampling=0, quality=90)
    scan = data.index(b"\xff\xda") + 14
    for at in range(scan + 40, scan + 40 + 30 * 97, 97):
        hurt = bytearray(data)
        hurt[at : at + 2] = b"\xff\xd0"
        for check in ("crop", "whole"):
            with pytest.raises(RecordError, match="premature end of data segment"):
                decode(bytes(hurt), crop=(0, 0, 300, 200), check=check)


def test_checking_the_whole_notices_more(photo, encode):
    data = encode(photo(800, 200), subsampling=0, quality=90)
    scan = data.index(b"\xff\xda") + 14
    hurt = bytearray(data)
    hurt[scan + 500 : scan + 700] = b"\xff\x00" * 100  # valid codes, but too few of them: short of data at the end
    with pytest.raises(RecordError, match="premature end of data segment"):
        decode(bytes(hurt), crop=(0, 0, 300, 200), check="whole")


def test_left_over_data_is_judged_the_same_with_every_crop(photo, encode):
    data = encode(photo(400, 200))
    junk = data[:-2] + b"\x12" * 40 + data[-2:]
    for crop in (None, (0, 0, 100, 100), (300, 0, 100, 100)):
        assert (decode(junk, crop=crop) == decode(data, crop=crop)).all()
        with pytest.raises(RecordError, match="extraneous bytes"):
            decode(junk, crop=crop, check="whole")


def test_progressive_and_restart_files_are_decoded_whole(photo, encode):
    assert probe(encode(photo(200, 90), progressive=True)).block == 0
    data = encode(photo(200, 90), restart_marker_blocks=2)
    assert probe(data).block == 0
    assert far(decode(data, crop=(0, 0, 50, 50)), by_pillow(data)[:50, :50])[1] <= 2


def test_crops_of_a_baseline_jpeg_of_several_scans():
    """Its rows cannot be cut short: the rest of a scan would be taken for damage."""
    planes = [np.random.default_rng(c).integers(90, 160, (12, 16)) for c in range(3)]
    for factors in ([(1, 1)] * 3, [(2, 2), (1, 1), (1, 1)]):
        data = tiny_jpeg.encode(planes, factors, 90, 120, scans=True)
        assert data.count(b"\xff\xda") == 3
        full = decode(tiny_jpeg.encode(planes, factors, 90, 120))
        assert np.array_equal(decode(data), full)
        assert np.array_equal(decode(data, crop=(2, 5, 20, 30)), full[2:22, 5:35])


def test_what_cannot_be_decoded_is_never_filled_with_another_image(photo, encode):
    data = encode(photo(97, 150), progressive=True)
    scan, frame = data.rindex(b"\xff\xda"), data.index(b"\xff\xc2")
    again = data[frame : frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")]
    damaged = data[:scan] + b"\0\0" + again + data[scan:]  # a warning, then the end: a second frame header
    for level in (0, 255):
        decode(encode(np.full((97, 150, 3), level, np.uint8)), size=(50, 50))
        with pytest.raises(RecordError, match="two SOF markers") as caught:
            decode(damaged, size=(50, 50), strict=False)
        assert "fetch the file again or leave it out" in str(caught.value)
        assert "strict=False" not in str(caught.value)


def test_results_do_not_share_scratch(photo, encode):
    for crop in ((0, 0, 40, 40), (0, 0, 40, 90), None):
        first = decode(encode(photo(90, 90, 1)), crop=crop)
        kept = first.copy()
        decode(encode(photo(90, 90, 2)), crop=crop)
        assert (first == kept).all()


@pytest.mark.parametrize("crop", [(-1, 0, 5, 5), (0, 0, 0, 5), (0, 0, 31, 5), (0, 48, 5, 5)])
def test_crops_outside_are_refused(crop, photo, encode):
    with pytest.raises(UsageError, match="inside 30 x 50"):
        decode(encode(photo(30, 50), "PNG"), crop=crop)


@pytest.mark.parametrize(
    "wrong", [{"mode": "HSV"}, {"exif": "maybe"}, {"check": "no"}, {"method": "lanczos", "size": (2, 2)}]
)
def test_wrong_options_are_refused(wrong, photo, encode):
    with pytest.raises(UsageError):
        decode(encode(photo(30, 50), "PNG"), **wrong)


def test_decoders_run_outside_the_interpreter_lock(photo, encode):
    """With a switch interval of minutes another thread runs only if the call itself gives the lock away."""
    big = photo(1200, 1600)
    jpeg, png = encode(big), encode(big, "PNG")
    calls = {
        "simplejpeg": lambda: simplejpeg.decode_jpeg(jpeg),
        "cv2": lambda: cv2.resize(big, (3000, 3000)),
        "pillow": lambda: Image.open(io.BytesIO(png)).load(),
    }
    steps, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            steps[0] += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    other = threading.Thread(target=count)
    other.start()
    sys.setswitchinterval(100.0)
    try:
        ran = {}
        for name, call in calls.items():
            start = steps[0]
            for _ in range(200):  # a busy machine may not have a core for the other thread at once
                call()
                if steps[0] > start:
                    break
            ran[name] = steps[0] - start
    finally:
        sys.setswitchinterval(before)
        stop.set()
        other.join()
    assert all(count > 0 for count in ran.values()), ran
