"""Every mode, depth, sampling, orientation and place of metadata: the right pixels, or the true reason."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from penstock.codecs.image.decode import decode
from penstock.codecs.image.probe import probe
from penstock.core.errors import RecordError
from tests.codecs.image import tiny_jpeg

MODES = ("1", "L", "P", "PA", "LA", "RGB", "RGBA", "RGBa", "La", "CMYK", "YCbCr")
KINDS = {"JPEG": 4, "PNG": 6, "GIF": 5, "BMP": 5, "WEBP": 3, "TIFF": 7, "PPM": 4, "AVIF": 3, "JPEG2000": 4}
"""How many of the modes each format can hold at least."""


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow(data: bytes, mode: str) -> np.ndarray:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    via = {"P": "RGBA", "PA": "RGBA", "RGBa": "RGBA", "La": "LA"}.get(image.mode)
    made = np.asarray((image.convert(via) if via and image.mode != mode else image).convert(mode))
    return made if made.ndim == 3 else made[..., None]


@pytest.mark.parametrize(("kind", "least"), KINDS.items())
def test_every_mode_that_a_format_can_hold(kind: str, least: int, photo: Any) -> None:
    clear = Image.fromarray(photo(24, 33)).convert("RGBA")
    clear.putalpha(Image.fromarray(np.linspace(0, 255, 24 * 33).astype(np.uint8).reshape(24, 33)))
    flat = clear.convert("RGB")
    held = 0
    for mode in MODES:
        alpha = {"P": flat.quantize(32), "PA": flat.quantize(32).convert("PA"), "La": clear.convert("LA").convert("La")}
        made = alpha.get(mode) or (clear if mode in ("RGBA", "RGBa", "LA") else flat).convert(mode)
        try:
            data = saved(made, kind)
        except (OSError, ValueError, KeyError):
            continue
        held += 1
        for wanted in ("RGB", "L", "RGBA"):
            got, want = decode(data, mode=wanted, method="pillow"), pillow(data, wanted)
            assert np.array_equal(got, want), (kind, mode, wanted)
            box = decode(data, crop=(3, 5, 17, 20), mode=wanted, method="pillow")
            assert np.array_equal(box, want[3:20, 5:25])
    assert held >= least


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("turn", [1, 3, 6, 7])
def test_method_pillow_is_pillow_for_jpeg(sampling: str, progressive: bool, turn: int, photo: Any) -> None:
    import cv2

    flag = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, flag, cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    plain = cv2.imencode(".jpg", photo(150, 203), options)[1].tobytes()
    exif = Image.Exif()
    exif[0x0112] = turn
    body = b"Exif\0\0" + exif.tobytes().removeprefix(b"Exif\0\0")
    data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + plain[2:]
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    for mode in ("RGB", "L"):
        want = upright.convert(mode).resize((40, 31), Image.Resampling.BILINEAR)
        got = decode(data, size=(31, 40), mode=mode, method="pillow")
        assert np.array_equal(got.squeeze(), np.asarray(want)), mode
        part = upright.convert(mode).crop((11, 7, 111, 107)).resize((32, 32), Image.Resampling.BILINEAR)
        got = decode(data, crop=(7, 11, 100, 100), size=(32, 32), mode=mode, method="pillow")
        assert np.array_equal(got.squeeze(), np.asarray(part)), mode


@pytest.mark.parametrize(
    "factors", [[(4, 2), (1, 1), (1, 1)], [(3, 1), (1, 1), (1, 1)], [(2, 2), (2, 1), (1, 1)], [(1, 1), (2, 2), (2, 2)]]
)
def test_odd_sampling_is_decoded_through_pillow(factors: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(1)
    data = tiny_jpeg.encode([rng.integers(90, 166, (16, 16)) for _ in factors], factors, 61, 70)
    assert np.array_equal(decode(data), pillow(data, "RGB"))
    assert decode(data, crop=(5, 6, 40, 50), size=(20, 20)).shape == (20, 20, 3)
    with pytest.raises(RecordError, match="truncated"):
        decode(data[: len(data) // 2], where="cut.jpg")


@pytest.mark.parametrize("junk", [b"junk", b"\0", b"\xff\xff\xff", b"\xff\0", b"\xff\xd0", b"\xff\xd8"])
def test_junk_between_segments_is_skipped_as_pillow_skips_it(junk: bytes, photo: Any) -> None:
    plain = saved(Image.fromarray(photo(60, 80)), "JPEG", quality=90)
    want = decode(plain)
    at, places = 2, []
    while plain[at + 1] != 0xDA:
        places.append(at)
        at += 2 + int.from_bytes(plain[at + 2 : at + 4], "big")
    for place in [*places[1:], at]:
        data = plain[:place] + junk + plain[place:]
        assert np.array_equal(decode(data), want)
        assert probe(data).width == 80
    cut = plain[: places[1]] + junk + plain[places[1] : len(plain) * 2 // 3]
    with pytest.raises(RecordError, match="JPEG"):
        decode(cut)


def test_kinds_of_jpeg_that_are_not_decoded_say_so(photo: Any) -> None:
    plain = saved(Image.fromarray(photo(40, 40)), "JPEG")
    frame = plain.index(b"\xff\xc0")
    with pytest.raises(RecordError, match="a lossless one"):
        decode(plain[: frame + 1] + b"\xc3" + plain[frame + 2 :])
    with pytest.raises(RecordError, match="12 bits"):
        decode(plain[: frame + 4] + b"\x0c" + plain[frame + 5 :])
    with pytest.raises(RecordError, match="1, 3 or 4 channels"):
        decode(plain[: frame + 9] + b"\2" + plain[frame + 10 :])


def test_16_bit_pgm_and_deep_tiff() -> None:
    ramp = np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20)
    want = np.rint(ramp / 257.0).astype(int)
    pgm = b"P5\n20 20\n65535\n" + ramp.astype(">u2").tobytes()
    assert np.abs(decode(pgm, mode="L")[..., 0] - want).max() == 0
    assert probe(pgm).bits == 16
    twelve = ramp >> 4
    pgm = b"P5\n20 20\n4095\n" + twelve.astype(">u2").tobytes()
    assert np.abs(decode(pgm, mode="L")[..., 0] - np.rint(twelve / 4095 * 255)).max() <= 1
    assert np.abs(decode(saved(Image.fromarray(ramp), "TIFF"), mode="L")[..., 0] - want).max() == 0


@pytest.mark.parametrize("order", ["<", ">"])
def test_tiff_depths_and_signs(order: str) -> None:
    ramp = np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20)
    deep = ramp.astype(order + "u2").tobytes()
    assert np.array_equal(decode(tiff(deep, order), mode="L")[..., 0], np.rint(ramp / 257.0))
    signed = tiff(deep, order, sample=2)
    with pytest.raises(RecordError, match="signed 16-bit integer"):
        decode(signed)
    with pytest.raises(RecordError, match="signed 8-bit integer"):
        decode(tiff(bytes(range(200)) * 2, order, bits=8, sample=2))
    with pytest.raises(RecordError, match="a layout that Pillow reads[^$]*convert the file"):
        decode(tiff(deep[:400], order, bits=7))
    if order == "<":  # the other order is unknown to Pillow
        assert np.array_equal(decode(tiff(deep, order, photometric=0), mode="L")[..., 0], 255 - np.rint(ramp / 257.0))
        bits = "".join(f"{value >> 4:012b}" for value in ramp.ravel())
        packed = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
        twelve = decode(tiff(packed, order, bits=12), mode="L")[..., 0]
        assert np.abs(twelve.astype(int) - np.rint((ramp >> 4) / 4095 * 255)).max() <= 1


def tiff(pixels: bytes, order: str = "<", *, bits: int = 16, photometric: int = 1, sample: int = 1) -> bytes:
    tags = {
        256: 20,
        257: 20,
        258: bits,
        259: 1,
        262: photometric,
        273: 0,
        277: 1,
        278: 20,
        279: len(pixels),
        339: sample,
    }
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    body = b"".join(struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return head + struct.pack(order + "H", len(tags)) + body + bytes(4) + pixels


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\0\0\0\x18ftypheic" + bytes(40), "HEIF"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(40), "JPEG XL"),
        (b"8BPS\0\1" + bytes(40), "Photoshop"),
        (b"P7\nWIDTH 2\nHEIGHT 2\nDEPTH 1\nMAXVAL 255\nENDHDR\n1234", "PAM"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    ],
)
def test_images_of_other_formats_are_named(data: bytes, name: str) -> None:
    with pytest.raises(RecordError, match=f"the format {name}") as caught:
        decode(data, where="a.jpg")
    assert (caught.value.where, caught.value.fix) == ("a.jpg", "convert the file to JPEG or PNG")


def test_transparency_of_palettes_and_16_bit_grey(photo: Any) -> None:
    palette = Image.fromarray(photo(20, 20)).quantize(8)
    data = saved(palette, "PNG", transparency=3)
    assert np.array_equal(decode(data, mode="RGBA"), pillow(data, "RGBA"))
    grey = np.array([[0, 1000], [1000, 65535]], np.uint16)
    data = saved(Image.fromarray(grey), "PNG", transparency=1000)
    assert decode(data, mode="RGBA")[..., 3].tolist() == [[255, 0], [0, 255]]


def exif_bytes(turn: int, kind: int = 3, order: str = ">") -> bytes:
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "IH", 8, 1)
    value = struct.pack(order + "H", turn) + bytes(2) if kind == 3 else struct.pack(order + "I", turn)
    return head + struct.pack(order + "HHI", 0x0112, kind, 1) + value + bytes(4)


XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation{}/></x:xmpmeta>'


def png_text(place: str, turn: int) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    if place.startswith("xmp"):
        info.add_itxt("XML:com.adobe.xmp", XMP.format(f'="{turn}"'), zip="zip" in place)
    elif place.startswith("profile"):
        raw = b"Exif\0\0" + exif_bytes(turn)
        info.add_text("Raw profile type exif", f"\nexif\n{len(raw):8}\n{raw.hex()}\n", zip="zip" in place)
    return info


@pytest.mark.parametrize("turn", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("place", ["eXIf", "xmp", "xmp zip", "profile", "profile zip", "eXIf after"])
def test_png_orientation_in_every_place_that_pillow_reads(turn: int, place: str, photo: Any) -> None:
    picture = Image.fromarray(photo(12, 20))
    options: dict[str, Any] = {"exif": exif_bytes(turn)} if place == "eXIf" else {"pnginfo": png_text(place, turn)}
    data = saved(picture, "PNG", **options)
    if place == "eXIf after":  # the chunk may stand behind the pixels
        body = b"eXIf" + exif_bytes(turn)
        data = data[:-12] + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) + data[-12:]
    assert probe(data).orientation == turn
    assert np.array_equal(decode(data), pillow(data, "RGB"))


@pytest.mark.parametrize(("kind", "order"), [(3, "<"), (3, ">"), (4, "<"), (4, ">")])
@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG"])
def test_orientation_of_any_type_is_what_pillow_says(kind: int, order: str, form: str, photo: Any) -> None:
    data = saved(Image.fromarray(photo(16, 24)), form, exif=b"Exif\0\0" + exif_bytes(6, kind, order))
    want = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size
    assert probe(data).oriented == want[::-1]


def test_orientation_of_jpeg_in_xmp_and_exif_first(photo: Any) -> None:
    plain = saved(Image.fromarray(photo(16, 24)), "JPEG")

    def segment(body: bytes) -> bytes:
        return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body

    xmp = segment(b"http://ns.adobe.com/xap/1.0/\0" + XMP.format(">6</tiff:Orientation").encode())
    for extra in (xmp, xmp + segment(b"Exif\0\0" + exif_bytes(3)), segment(b"Exif\0\0" + exif_bytes(1)) + xmp):
        data = plain[:2] + extra + plain[2:]
        assert np.array_equal(decode(data, method="pillow"), pillow(data, "RGB"))


def test_every_changed_bit_of_a_png_is_noticed(photo: Any) -> None:
    data = saved(Image.fromarray(photo(6, 7)), "PNG", pnginfo=png_text("xmp", 1))
    want = decode(data)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            decode(bytes(changed), where="a.png")
    for end in range(len(data)):
        with pytest.raises(RecordError):
            decode(data[:end], where="a.png")
    assert np.array_equal(decode(data + b"anything after the end"), want)
    wrong = data[:-4] + bytes(4)
    assert np.array_equal(decode(wrong, strict=False), want)
    with pytest.raises(RecordError, match="IEND.*does not match its checksum"):
        decode(wrong)


def test_arrays_of_pixels_are_cropped_and_resized_like_a_file(photo: Any) -> None:
    pixels = photo(50, 70)
    file = saved(Image.fromarray(pixels), "PNG")
    for mode in ("RGB", "L", "RGBA"):
        for method in ("antialias", "pillow", "nearest"):
            options: dict[str, Any] = {"crop": (3, 4, 40, 50), "size": (16, 18), "mode": mode, "method": method}
            assert np.array_equal(decode(pixels, **options), decode(file, **options))
    assert decode(pixels[..., 0], mode="RGB").shape == (50, 70, 3)
    for wrong, text in (
        (pixels / 255.0, "dtype uint8"),
        (pixels.transpose(2, 0, 1), "channels last"),
        (pixels[..., :2], "1, 3 or 4 channels"),
    ):
        with pytest.raises(RecordError, match=text):
            decode(wrong)


@pytest.mark.parametrize("chunks", [b"\x00\x01", b"\x02\x01", b"\x01\x02"])
def test_a_bad_colour_profile_is_no_damage_of_pixels(chunks: bytes, photo: Any) -> None:
    data = saved(Image.fromarray(photo(96, 80)), "JPEG", quality=90)
    segment = b"ICC_PROFILE\x00" + chunks + b"profile" * 9
    odd = data[:2] + b"\xff\xe2" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:]
    for options in ({}, {"size": (24, 24)}, {"crop": (8, 8, 30, 30), "size": (24, 24)}):
        assert np.array_equal(decode(memoryview(odd), **options), decode(data, **options))
    with pytest.raises(RecordError, match=r"expected an intact JPEG\n(.*\n)*.*odd\.jpg"):
        decode(odd[:-400] + odd[-2:], where="odd.jpg")  # other damage is still seen
