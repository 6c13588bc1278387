"""`decode_video` on real MP4 and WebM files: frames by time, random clips under the law, damage as bad records."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.codecs.video.decode import open_video
from penstock.core.limits import Limits
from penstock.testing import assert_elastic, assert_exact_resume
from tests.codecs.media_files import encoded_sound, encoded_video, film_with_sound, level, tone

FPS = 10
VIDEOS = [encoded_video(20 + i % 5, FPS, "mp4" if i % 2 else "webm") for i in range(4)] * 10
ROWS = ps.from_arrays({"video": VIDEOS, "label": np.arange(len(VIDEOS))})


def shown(frame: np.ndarray) -> float:
    """The grey level of the left half."""
    return float(frame[8:-8, 4 : frame.shape[1] // 2 - 4].mean())


def made(batch: int = 4, **options: Any) -> Any:
    given = {"clip": "random", "fps": 5.0, "crop": None, **options}
    return ROWS.shuffle(seed=2).decode_video(4, (48, 64), **given).batch(batch)


@pytest.mark.parametrize("kind", ["mp4", "webm"])
def test_frames_are_those_of_their_times(kind: str) -> None:
    data = encoded_video(30, FPS, kind)
    with open_video(data) as video:
        assert (video.info.height, video.info.width, round(video.info.fps)) == (48, 64, FPS)
        assert abs(video.info.seconds - 3.0) <= 0.11
    rows = ps.from_arrays({"video": [data]})
    for clip, fps, times in (
        ("consecutive", None, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        ("consecutive", 2.0, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]),
        ("uniform", None, [0.25, 0.75, 1.25, 1.75, 2.25, 2.75]),
    ):
        row = rows.decode_video(6, (48, 64), clip=clip, fps=fps, crop=None).peek(1)[0]  # type: ignore[arg-type]
        assert row["video"].shape == (6, 48, 64, 3)
        assert np.abs(row["times"] - times).max() < 0.06
        for frame, time in zip(row["video"], row["times"], strict=True):
            assert abs(shown(frame) - level(int(time * FPS + 1e-4))) <= 3
            assert abs(shown(frame[:, ::-1]) - (255 - level(int(time * FPS + 1e-4)))) <= 3


def test_far_frames_are_reached_by_seeks_and_short_videos_repeat_their_last_frame() -> None:
    long = encoded_video(220, FPS, gop=15)
    row = ps.from_arrays({"video": [long]}).decode_video(4, (48, 64), crop=None).peek(1)[0]
    for frame, time in zip(row["video"], row["times"], strict=True):
        assert abs(shown(frame) - level(int(time * FPS + 1e-4))) <= 3
    short = ps.from_arrays({"video": [encoded_video(3, FPS)]})
    row = short.decode_video(6, (48, 64), clip="consecutive", crop=None).peek(1)[0]
    assert [round(shown(f) / 5) for f in row["video"]] == [round(level(i) / 5) for i in (0, 1, 2, 2, 2, 2)]


def test_the_law_and_why() -> None:
    assert_exact_resume(made)
    assert_elastic(made, batch=4, worlds=(1, 2), threads=(0, 2))
    loader = made().to_numpy(threads=0)
    batch, starts = loader.batch_at(1), set()
    for row in range(4):
        why = loader.why(1, row)["from"]
        assert np.allclose(why["times"], batch["times"][row])
        starts.add(why["times"][0])
        assert abs(shown(batch["video"][row, 0]) - level(int(why["times"][0] * FPS + 1e-4))) <= 3
    assert len(starts) == 4


def test_crop_flip_and_layout_are_one_for_the_clip() -> None:
    batch = made(crop="random", flip=1.0, scale=(0.3, 0.6)).to_numpy(threads=0).batch_at(0)
    planes = made(crop="random", flip=1.0, scale=(0.3, 0.6), layout="NCHW").to_numpy(threads=0).batch_at(0)
    assert planes["video"].shape == (4, 4, 3, 48, 64)
    assert np.array_equal(planes["video"].transpose(0, 1, 3, 4, 2), batch["video"])
    plain = made(crop="random", flip=0.0, scale=(0.3, 0.6)).to_numpy(threads=0).batch_at(0)
    assert np.array_equal(plain["video"][:, :, :, ::-1], batch["video"])
    assert made().to_torch(threads=0).batch_at(0)["video"].shape == (4, 4, 48, 64, 3)


def test_damage_is_a_bad_record() -> None:
    good = encoded_video(6, FPS)
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    for bad in (
        good[: len(good) // 3],
        good[:40],
        b"no video",
        playlist,
        encoded_sound(tone(0.2, 16000), 16000, "m4a"),
    ):
        rows = ps.from_arrays({"video": [good, bad]})
        with pytest.raises(ps.BadRecords) as caught:
            list(rows.decode_video(2, 16).batch(2).to_numpy(threads=0))
        assert caught.value.errors[0].row == 1
        kept = rows.skip_errors().decode_video(2, 16).batch(2).to_numpy(threads=0).batch_at(0)
        assert np.array_equal(kept["video"][0], kept["video"][1])
    with pytest.raises(ps.BadRecords, match="at most 100 pixels|1 to 100 pixels"):
        ps.from_arrays({"video": [good]}).decode_video(2, 16, limits=Limits(pixels=100)).peek(1)


@pytest.mark.parametrize("kind", ["mp4", "webm", "matroska"])
def test_a_file_that_was_cut_is_no_shorter_video(kind: str) -> None:
    """FFmpeg ends early without an error: the last frame that was there filled the clip."""
    good = film_with_sound(kind, 40, 1.0)
    if kind == "mp4":
        index = good[good.index(b"moov") - 4 :]  # as with -movflags faststart: the index before the frames
        good = good[: good.index(b"mdat") - 4] + index + good[good.index(b"mdat") - 4 : good.index(b"moov") - 4]
    for share in (0.95, 0.6):
        with pytest.raises(ps.BadRecords, match="bytes less than its headers state"):
            ps.from_arrays({"video": [good[: int(len(good) * share)]]}).decode_video(4, 16).peek(1)


@pytest.mark.parametrize("kind", ["mp4", "webm", "matroska"])
def test_sound_of_another_length_does_not_stretch_the_video(kind: str) -> None:
    """Matroska states one length, of the longest track: half of such a clip was its last frame."""
    for seconds in (1.0, 7.0):
        film = film_with_sound(kind, 30, seconds)
        row = ps.from_arrays({"video": [film], "n": [1]}).decode_video(3, (48, 64), crop=None).peek(1)[0]
        assert row["times"].tolist() == pytest.approx([0.5, 1.5, 2.5], abs=0.02)
        assert [shown(frame) for frame in row["video"]] == pytest.approx([level(5), level(15), level(25)], abs=12)
        heard = ps.from_arrays({"audio": [film], "n": [1]}).decode_audio(48_000).peek(1)[0]
        assert len(heard["audio"]) / 48_000 == pytest.approx(seconds, abs=0.1)


def test_changed_bytes_never_crash() -> None:
    rng, outcomes = random.Random(3), set()
    for kind in ("mp4", "webm"):
        data = encoded_video(8, FPS, kind)
        for _ in range(50):
            changed = bytearray(data)
            for _ in range(rng.randint(1, 20)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            try:
                row = ps.from_arrays({"video": [bytes(changed)]}).decode_video(3, 16).peek(1)[0]
                assert row["video"].shape == (3, 16, 16, 3)
                outcomes.add("decoded")
            except ps.BadRecords:
                outcomes.add("refused")
    assert outcomes == {"decoded", "refused"}


def test_wrong_arguments_are_refused() -> None:
    for wrong, text in (
        ({"frames": 0}, "frames"), ({"size": 0}, "size"), ({"clip": "all"}, "clip= one of"), ({"fps": 5.0}, "fps="),
        ({"clip": "random", "fps": 0.0}, "fps="), ({"flip": 2.0}, "flip"), ({"crop": "left"}, "crop= one of"),
    ):  # fmt: skip
        with pytest.raises(ps.UsageError, match=text):
            ROWS.decode_video(**{"frames": 2, "size": 8, **wrong})  # type: ignore[arg-type]
