"""A batch as plain data: it is the delivered batch, with the provenance of its rows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

import penstock as ps
from penstock.core.columns import Ragged
from penstock.view.batches import batch_alone, batch_of

WORDS = "the river runs past the old mill and turns its wheel while children throw stones into café foam"


def texts(count: int = 60) -> list[str]:
    draw = np.random.default_rng(7)
    return [" ".join(draw.choice(WORDS.split(), draw.integers(3, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for i in range(12):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        (root / ("cat" if i % 2 else "dog")).mkdir(exist_ok=True)
        file = io.BytesIO()
        Image.fromarray(small).resize((90 - i, 60 + i), Image.Resampling.BICUBIC).save(file, "JPEG", quality=95)
        (root / ("cat" if i % 2 else "dog") / f"{i:02d}.jpg").write_bytes(file.getvalue())
    return root


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audio")
    for i in range(6):
        wave = np.sin(np.arange(4000 + 1000 * i) * (0.02 + 0.01 * i)).astype(np.float32) / 2
        (root / "a").mkdir(exist_ok=True)
        soundfile.write(root / "a" / f"{i}.wav", wave, 8000)
    return root


def pipelines(images: Path, recordings: Path) -> dict[str, ps.Pipeline]:
    tokens = ps.from_texts(texts()).tokenize("bytes", show_progress=False)
    return {
        "windows": tokens.windows(16).shuffle(seed=7).batch(4),
        "pack": tokens.pack(128).shuffle(seed=7).batch(3),
        "pad": tokens.shuffle(seed=7).batch(4).pad(to="longest"),
        "bucket": tokens.shuffle(seed=7).bucket([64, 256], batch_size=4),
        "images": ps.read_images(images).decode_images(32, crop="random").shuffle(seed=7).batch(5),
        "normalised": ps.read_images(images)
        .decode_images(32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3), layout="NCHW")
        .batch(5, remainder="short"),
        "audio": ps.read_audio(recordings).decode_audio(8000, duration=0.25).shuffle(seed=7).batch(3),
        "ragged audio": ps.read_audio(recordings).decode_audio(8000).batch(3),
        "records": ps.from_records([{"x": i, "name": f"n{i}"} for i in range(9)])
        .filter(lambda r: r["x"] != 3)
        .batch(4),
        "mixed": ps.mix([tokens.windows(16), tokens.windows(16)], weights=[1, 2], seed=7).batch(4),
        "zipped": ps.zip([ps.read_images(images).decode_images(16), ps.from_arrays({"n": range(12)})]).batch(4),
        "global": ps.from_arrays({"x": range(20)}).shard(1, 2).batch(4).map_batches(lambda c: c, whole=True),
        "padded tail": ps.from_arrays({"x": range(10)}).batch(4, remainder="pad"),
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Ragged):
        return bool(np.array_equal(a.values, b.values) and np.array_equal(a.offsets, b.offsets))
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def test_the_batch_looked_at_is_the_delivered_batch_and_its_provenance(images: Path, recordings: Path) -> None:
    for name, pipeline in pipelines(images, recordings).items():
        loader = pipeline.to_numpy(threads=0)
        for step in (0, 2, 5):
            look, batch = loader.look(step), loader.batch_at(step)
            assert look.batch.keys() == batch.keys(), name
            assert all(equal(look.batch[key], batch[key]) for key in batch), name
            assert [look.why(row) for row in range(look.rows)] == [loader.why(step, r) for r in range(look.rows)], name
        assert loader.step == 0


def test_the_tokens_shown_are_those_of_batch_at_for_every_framework_and_rank() -> None:
    tokens = ps.from_texts(texts()).tokenize("bytes", show_progress=False)
    for pipeline in (tokens.windows(16).shuffle(seed=7).batch(4), tokens.pack(96).shuffle(seed=7).batch(4)):
        for loader in (pipeline.to_numpy(), pipeline.to_torch(), pipeline.to_jax(micro_batches=2)):
            shown = batch_of(loader, 3)
            wanted = np.asarray(loader.batch_at(3)["input_ids"]).reshape(4, -1)
            assert [row.tokens[0].ids for row in shown.rows] == wanted.tolist()
            assert [row.why for row in shown.rows] == [loader.why(3, row) for row in range(4)]
        second = pipeline.shard(1, 2).to_numpy()
        mine = [row.tokens[0].ids for row in batch_of(second, 3).rows]
        assert mine == second.batch_at(3)["input_ids"].tolist() and len(mine) == 2


def test_tokens_are_text_with_segments_fill_and_loss() -> None:
    data = texts(10)
    pack = ps.from_texts(data).tokenize("bytes", show_progress=False).pack(256)
    shown = batch_of(pack.batch(2))
    row = shown.rows[0].tokens[0]
    batch = pack.batch(2).to_numpy().batch_at(0)
    assert row.pieces is not None and row.segments == batch["segment_ids"][0].tolist()
    documents = [one["document"] for one in shown.rows[0].why["from"]["documents"]]  # type: ignore[index]
    first = "".join(p for p, s in zip(row.pieces, row.segments, strict=True) if s == 1)
    assert first == data[documents[0]]
    assert row.filled == int((batch["segment_ids"][0] > 0).sum()) and sum(row.spans) == row.total == 256
    assert row.spans[-1] == row.total - row.filled and len(row.spans) == len(documents) + 1
    assert row.trained is not None and row.shift == "next"
    begins = [one["at"] for one in shown.rows[0].why["from"]["documents"]]  # type: ignore[index]
    assert [i for i, t in enumerate(row.trained[: row.filled]) if not t] == begins  # nothing predicts a first token
    assert 0 < (shown.fill or 0) <= 1


def test_the_loss_mask_of_an_instruction_is_on_the_answer(tmp_path: Path) -> None:
    records = [{"instruction": f"Double {i}.", "input": "", "output": f"it is {2 * i}"} for i in range(20)]
    engine = ps.PromptEngine("bytes", template="alpaca", mask="prompt")
    ps.prepare_prompts(ps.from_records(records), engine, tmp_path / "sft", show_progress=False)
    for pipeline in (
        ps.open_store(tmp_path / "sft").pack(512),
        ps.open_store(tmp_path / "sft").pack(512, labels="same"),
    ):
        row = batch_of(pipeline.batch(2)).rows[0].tokens[0]
        assert row.pieces is not None and row.trained is not None and row.segments is not None
        for number in range(1, max(row.segments) + 1):
            mine = [i for i, segment in enumerate(row.segments) if segment == number]
            said = "".join(row.pieces[i] for i in mine)
            trained = "".join(row.pieces[i] for i in mine if row.trained[i])
            assert trained.startswith("it is ") and said.endswith(trained) and trained.split()[2].isdigit()


def test_labels_of_the_same_place_and_of_other_kinds() -> None:
    ids = np.array([[5, 6, 7, 8], [5, 6, 7, 0]])
    same = np.array([[-100, -100, 7, 8], [-100, 6, 7, -100]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
    shown = batch_alone({"input_ids": ids, "labels": same, "attention_mask": mask})
    first, second = (row.tokens[0] for row in shown.rows)
    assert first.shift == "same" and first.trained == [False, False, True, True] and first.n_trained == 2
    assert second.padding == [False, False, False, True] and second.filled == 3 and second.spans == [3, 1]
    masked = batch_alone({"input_ids": ids, "labels": np.array([[-100, 99, -100, -100]] * 2)})
    assert masked.rows[0].tokens[0].shift == "other" and masked.rows[0].tokens[0].trained == [False, True, False, False]
    shifted = np.array([[6, 7, 8, 9], [6, 7, -100, -100]])
    row = batch_alone({"input_ids": ids, "labels": shifted}).rows[0].tokens[0]
    assert row.shift == "next" and row.trained == [False, True, True, True] and row.beyond == 1


def test_pictures_before_and_after(images: Path) -> None:
    pipeline = ps.read_images(images).decode_images(32, crop="random", dtype="uint8").shuffle(seed=7).batch(5)
    loader = pipeline.to_numpy()
    shown, batch = batch_of(loader, 1), loader.batch_at(1)
    for row in shown.rows:
        picture = row.pictures[0]
        assert np.array_equal(picture.after, batch["image"][row.number])
        why = row.why["from"]  # type: ignore[index]
        original = np.asarray(Image.open(why["file"]).convert("RGB"))
        assert picture.before is not None and picture.before.shape == original.shape  # smaller than SMALL_SIDE
        assert np.abs(picture.before.astype(int) - original).max() <= 2
        y, x, height, width = why["crop"]
        tall, wide = original.shape[:2]
        assert picture.crop == pytest.approx((y / tall, x / wide, height / tall, width / wide))
        assert picture.flip == why["flip"]
        assert any(value.text.endswith(("(cat)", "(dog)")) for value in row.values)
    normal = ps.read_images(images).decode_images(32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3), layout="NCHW").batch(5)
    plain = ps.read_images(images).decode_images(32, dtype="uint8").batch(5)
    for a, b in zip(batch_of(normal).rows, batch_of(plain).rows, strict=True):
        assert np.abs(a.pictures[0].after.astype(int) - b.pictures[0].after).max() <= 1


def test_sounds_are_the_samples_without_padding(recordings: Path) -> None:
    loader = ps.read_audio(recordings).decode_audio(8000, duration=0.75).batch(3).to_numpy()
    shown, batch = batch_of(loader, 0), loader.batch_at(0)
    for row in shown.rows:
        sound = row.sounds[0]
        assert sound.rate == 8000 and sound.total == batch["lengths"][row.number]
        assert np.array_equal(sound.samples, batch["audio"][row.number][: sound.total])


def test_a_pipeline_without_batch_and_parts_of_a_batch() -> None:
    shown = batch_of(ps.from_records([{"x": i} for i in range(3)]))
    assert shown.total == 3 and "no .batch()" in shown.notes[0]
    part = batch_of(ps.from_arrays({"x": range(100)}).batch(50), 1, first=20, rows=5)
    assert [row.number for row in part.rows] == [20, 21, 22, 23, 24] and part.total == 50
    assert [row.values[0].text for row in part.rows] == ["70", "71", "72", "73", "74"]
    assert batch_of(ps.from_arrays({"x": range(100)}).batch(50), 1, first=500).rows == []


def test_what_is_not_a_batch_is_refused() -> None:
    with pytest.raises(ps.UsageError, match="a dict or a tuple of arrays"):
        batch_alone(7)
    with pytest.raises(ps.UsageError, match="a pipeline or a loader"):
        batch_of({"x": 1})  # type: ignore[arg-type]
    with pytest.raises(ps.UsageError, match="at least 0"):
        batch_of(ps.from_arrays({"x": range(4)}).batch(2), -1)
