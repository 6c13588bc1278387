"""`.decode_audio()` on real files: slices, lengths, features, channels, bad sound, Parquet columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from penstock import BadRecords, Ragged, RecordError, UsageError
from penstock.codecs.audio import wav
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.features import log_mel
from penstock.read import read_audio, read_parquet
from penstock.testing import assert_exact_resume

RATE = 8000


def tone(seconds: float, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(8):
        (tmp_path / f"{i}_x.wav").write_bytes(wav.encode(tone(0.2 + 0.1 * i, 200 + 100 * i), RATE))
    return tmp_path


def one_batch(pipeline: Any, rows: int = 8) -> dict[str, Any]:
    return next(iter(pipeline.batch(rows).to_numpy(threads=0)))  # type: ignore[no-any-return]


def test_whole_files_are_ragged_and_padded_with_lengths_and_a_mask(folder: Path) -> None:
    audio = read_audio(folder, labels="name").decode_audio(16000, mask=True)
    batch = one_batch(audio)
    assert isinstance(batch["audio"], Ragged)
    assert batch["audio"].dtype == np.float32
    assert batch["lengths"].tolist() == [3200 + 1600 * i for i in range(8)]
    assert batch["label"].tolist() == list(range(8))
    for path, row in zip(batch["path"], batch["audio"], strict=True):
        assert np.array_equal(row, decode(folder / path, sample_rate=16000))
    padded = one_batch(audio.pad())
    assert padded["audio"].shape == padded["mask"].shape == (8, 14400)
    assert padded["mask"].sum(axis=1).tolist() == batch["lengths"].tolist()
    assert not padded["audio"][~padded["mask"]].any()


def test_a_slice_is_the_one_that_why_says(folder: Path) -> None:
    loader = read_audio(folder, "name").shuffle(seed=3).decode_audio(RATE, duration=0.25).batch(8).to_numpy(threads=0)
    batch = loader.batch_at(1)
    assert batch["audio"].shape == (8, 2000)
    starts = set()
    for row in range(8):
        why = loader.why(1, row)["from"]
        want = decode(why["file"], start=why["start"], duration=0.25)
        length = int(batch["lengths"][row])
        assert length == min(2000, round(why["seconds"] * RATE))
        assert np.array_equal(batch["audio"][row, :length], want)
        assert not batch["audio"][row, length:].any()
        starts.add(why["start"])
    assert len(starts) > 4
    first = one_batch(read_audio(folder, "name").decode_audio(RATE, duration=0.25, offset="start"))
    assert np.array_equal(first["audio"][7], decode(folder / "7_x.wav", duration=0.25))


def test_features_are_those_of_the_padded_row(folder: Path) -> None:
    audio = read_audio(folder, "name")
    samples = one_batch(audio.decode_audio(RATE, duration=0.5, offset="start"))
    made = one_batch(audio.decode_audio(RATE, duration=0.5, offset="start", features="log_mel", n_mels=20, mask=True))
    want = log_mel(samples["audio"], RATE, n_fft=400, hop=160, n_mels=20, pad="constant")
    assert np.array_equal(made["audio"], want)
    assert made["audio"].shape == (8, 20, 26)
    assert made["lengths"].tolist() == (1 + samples["lengths"] // 160).tolist()
    assert made["mask"].sum(axis=1).tolist() == made["lengths"].tolist()
    cepstrum = one_batch(audio.decode_audio(RATE, duration=0.5, features="mfcc", n_mels=40, n_mfcc=13, out="mfcc"))
    assert cepstrum["mfcc"].shape == (8, 13, 26)


def test_channels(tmp_path: Path) -> None:
    left, right = tone(0.1), -0.5 * tone(0.1)
    soundfile.write(tmp_path / "a.flac", np.stack([left, right], axis=1), RATE)
    soundfile.write(tmp_path / "b.wav", left, RATE)
    audio = read_audio(tmp_path, None)
    assert np.abs(one_batch(audio.decode_audio(RATE), 2)["audio"][0] - (left + right) / 2).max() < 1e-3
    both = one_batch(audio.decode_audio(RATE, duration=0.1, mono=False), 2)["audio"]
    assert both.shape == (2, 800, 2)
    assert np.abs(both[0, :, 1] - right).max() < 1e-3
    assert np.array_equal(both[1, :, 0], both[1, :, 1])
    with pytest.raises(BadRecords, match="3 channels, or one"):
        one_batch(audio.decode_audio(RATE, duration=0.1, mono=False, channels=3), 2)


def test_bad_sound_is_named_filled_and_excluded(folder: Path) -> None:
    whole = (folder / "3_x.wav").read_bytes()
    (folder / "3_x.wav").write_bytes(whole[:-100])
    (folder / "5_x.wav").write_bytes(b"")
    audio = read_audio(folder, "name")
    with pytest.raises(BadRecords) as caught:
        one_batch(audio.decode_audio(RATE))
    assert [one.row for one in caught.value.errors] == [3, 5]
    assert str(folder / "3_x.wav") in caught.value.errors[0].where
    loader = audio.decode_audio(RATE, duration=0.1).skip_errors().batch(8).to_numpy(threads=0)
    assert not {"3_x.wav", "5_x.wav"} & set(next(iter(loader))["path"])
    clean = read_audio(folder, "name", exclude=loader.ledger)
    assert one_batch(clean.decode_audio(RATE), 6)["label"].tolist() == [0, 1, 2, 4, 6, 7]


def test_parquet_with_audio_structs(tmp_path: Path) -> None:
    rows = [{"bytes": wav.encode(tone(0.1 * (i + 1)), RATE), "path": None} for i in range(3)]
    pq.write_table(pa.table({"speech": rows}), tmp_path / "a.parquet")
    batch = one_batch(read_parquet(tmp_path / "a.parquet").decode_audio(RATE, column="speech"), 3)
    assert batch.keys() == {"audio", "lengths"}
    assert batch["lengths"].tolist() == [800, 1600, 2400]


def test_wrong_arguments_are_refused_while_building(folder: Path) -> None:
    audio = read_audio(folder, "name")
    for options, text in (
        ({"sample_rate": 0}, "sample_rate= of at least 1"),
        ({"offset": "end"}, "offset= one of"),
        ({"duration": 0.0}, "at least one sample"),
        ({"mono": False}, "duration= with several channels"),
        ({"features": "mfcc", "duration": 1.0, "n_mfcc": 90}, "n_mfcc from 1 to n_mels"),
        ({"features": "mel", "duration": 1.0, "mono": False}, "mono=True with features"),
    ):
        with pytest.raises(UsageError, match=text):
            audio.decode_audio(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"a column 'flac' of files(.|\n)*decode_audio\(16000, column='audio'\)"):
        audio.decode_audio(column="flac").peek(1)


def test_buckets_and_second_budgets_come_from_headers(folder: Path) -> None:
    clips = read_audio(folder, "name", sample_rate=16000)
    seen = []
    for batch in clips.shuffle(seed=2).bucket([6000, 16000], 2).to_numpy(threads=0):
        width = batch["audio"].shape[1]
        assert width in (6000, 16000)
        assert (batch["lengths"] <= width).all()
        for path, row, length in zip(batch["path"], batch["audio"], batch["lengths"], strict=True):
            assert np.array_equal(row[:length], decode(folder / path, sample_rate=16000))
            assert not row[length:].any()
        seen += batch["path"].tolist()
    assert sorted(seen) == [f"{i}_x.wav" for i in range(8)]
    budget = 2 * 16000  # two seconds a step
    steps = list(clips.shuffle(seed=2).batch_tokens(budget).to_numpy(threads=0))
    assert all(batch["audio"].size <= budget for batch in steps)
    assert sorted(p for batch in steps for p in batch["path"][batch["valid"]]) == sorted(seen)
    make = lambda: clips.shuffle(seed=2).batch_tokens(budget)  # noqa: E731
    assert_exact_resume(make)


def test_recordings_are_no_stream_of_tokens(folder: Path) -> None:
    clips = read_audio(folder, "name", sample_rate=16000)
    with pytest.raises(UsageError, match=r"decode_audio\(duration="):
        next(iter(clips.windows(100).batch(2).to_numpy(threads=0)))
    (folder / "3_x.wav").write_bytes(b"nothing")
    with pytest.raises(RecordError, match=r"3_x\.wav"):
        read_audio(folder, "name", sample_rate=16000).bucket([6000], 2).to_numpy()
    clean = read_audio(folder, "name", sample_rate=16000, exclude=["3_x.wav"])
    labels = [n for batch in clean.bucket([90000], 7).to_numpy(threads=0) for n in batch["label"].tolist()]
    assert sorted(labels) == [0, 1, 2, 4, 5, 6, 7]
