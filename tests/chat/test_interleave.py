"""Interleaved media: placeholder runs are exact, and cutting never separates them from what they stand for."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock import RecordError, UsageError
from penstock.chat.interleave import AudioTokens, ImageTokens, Interleave
from penstock.codecs.audio import probe as sound
from penstock.codecs.audio import wav
from penstock.codecs.image import probe as picture
from penstock.codecs.image.decode import decode

IDS = {"image": 300, "audio": 301}


def test_costs_come_from_headers_alone(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (90, 60)).save(file, "PNG")
    head = file.getvalue()[:40]  # no pixels there
    size = picture.probe(head).oriented
    seconds = sound.probe(wav.encode(np.zeros(8000), 8000)).seconds
    made = Interleave("bytes", IDS, image=ImageTokens(patch=10))("a<image>b<audio>c", images=[size], audio=[seconds])
    assert made.ids.tolist() == [97, *[300] * 54, 98, *[301] * 25, 99]
    assert made.mask("image").sum() == 54
    assert made.mask().sum() == 79
    assert made.labels()[[0, 54, 55, 80, 81]].tolist() == [-100, 98, -100, 99, -100]


@pytest.mark.parametrize(("height", "width"), [(60, 90), (1, 5000), (333, 777), (14, 14), (4000, 3000)])
@pytest.mark.parametrize("most", [None, 1, 7, 100])
def test_a_picture_resized_as_told_has_as_many_patches_as_placeholders(height: int, width: int, most: int) -> None:
    cost = ImageTokens(patch=7, merge=2, most=most)
    tall, wide = cost.resized(height, width)
    assert (tall // 14) * (wide // 14) == cost.tokens(height, width)
    assert tall % 14 == wide % 14 == 0
    assert most is None or cost.tokens(height, width) <= most


def test_pixels_fit_the_placeholders() -> None:
    file = io.BytesIO()
    Image.new("RGB", (90, 60)).save(file, "JPEG")
    cost = ImageTokens(patch=8)
    info = picture.probe(file.getvalue())
    pixels = decode(file.getvalue(), size=cost.resized(*info.oriented))
    patches = pixels.reshape(pixels.shape[0] // 8, 8, pixels.shape[1] // 8, 8, 3).swapaxes(1, 2).reshape(-1, 8, 8, 3)
    assert len(patches) == cost.tokens(*info.oriented)


words = st.lists(st.sampled_from(["<image>", "<audio>", "one ", "two", "é "]), max_size=9)


@given(words, st.integers(1, 60), st.booleans())
@settings(max_examples=150, deadline=None)
def test_cutting_keeps_media_whole(pieces: list[str], length: int, framed: bool) -> None:
    brackets = {"image": (302, 303)} if framed else {}
    media = {"images": [(20 * (i + 1), 30) for i in range(pieces.count("<image>"))],
             "audio": [0.05 * (i + 1) for i in range(pieces.count("<audio>"))]}  # fmt: skip
    options = {"image": ImageTokens(patch=10), "brackets": brackets}
    whole = Interleave("bytes", IDS, **options)("".join(pieces), **media)
    made = Interleave("bytes", IDS, length=length, **options)("".join(pieces), **media)
    assert len(made.ids) <= length
    assert made.ids.tolist() == whole.ids[: len(made.ids)].tolist()
    assert made.spans == whole.spans[: len(made.spans)]
    assert len(made.spans) + len(made.dropped) == len(whole.spans)
    for kind in ("image", "audio"):
        assert (made.ids == IDS[kind]).sum() == sum(s.length for s in made.spans if s.kind == kind)
    if framed:
        assert (made.ids == 302).sum() == (made.ids == 303).sum() == len(made.kept("image"))
    if len(whole.ids) > length:
        with pytest.raises(RecordError, match=f"at most {length} tokens"):
            Interleave("bytes", IDS, length=length, overflow="error", **options)("".join(pieces), **media)
    counted = Interleave("bytes", IDS, length=length, **options).count("".join(pieces), **media)
    assert counted == len(whole.ids)


def test_text_and_media_must_agree() -> None:
    make = Interleave("bytes", {"image": 300})
    with pytest.raises(RecordError, match="as many images as <image> in the text"):
        make("<image><image>", images=[(10, 10)], where="row 3")
    with pytest.raises(RecordError, match="1 in '<image>'"):
        make("<image>", images=[(10, 10), (10, 10)])
    with pytest.raises(RecordError, match="as many audios as <audio>"):
        make("<audio> is plain text here", audio=[1.0])
    assert make("<audio>").ids.tolist() == list(b"<audio>")
    with pytest.raises(RecordError, match="a picture with pixels"):
        make("<image>", images=[(0, 10)])
    with pytest.raises(RecordError, match="a known length"):
        Interleave("bytes", IDS)("<audio>", audio=[-1.0])


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="multiples of patch"):
        ImageTokens(size=(30, 28))
    with pytest.raises(UsageError, match='ids for "image"'):
        Interleave("bytes", {"video": 3})
    with pytest.raises(UsageError, match='overflow="cut" or "error"'):
        Interleave("bytes", IDS, overflow="drop")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1"):
        AudioTokens(hop=0)
