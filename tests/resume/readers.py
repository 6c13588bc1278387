"""A pipeline of every reader, and of every media verb, over small files made here, as functions of the batch size."""

from __future__ import annotations

import csv
import io
import json
import shutil
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

import penstock as ps
from penstock import Pipeline
from penstock.augment import Augment, Flip, RandomResizedCrop, SpecAugment
from penstock.chat.engine import PromptEngine
from penstock.facades.artifex.loaders.pass_order import PassOrder
from penstock.facades.capibara.collate import Fill
from penstock.facades.capibara.languages import Stretch
from penstock.preparation.prompts import prepare_prompts
from tests.codecs.media_files import encoded_sound, encoded_video, tone

N = 72
ROWS = [{"text": f"row {i} " + "é" * (i % 4), "n": i, "x": i / 8} for i in range(N)]
DATA = Path(__file__).parents[1] / "data"
CHATS = [{"messages": [{"role": r, "content": f"{r} {i}"} for r in ("user", "assistant")]} for i in range(N)]
CHAT = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


class Records:
    """A dataset with `__len__` and `__getitem__`, as torch has them."""

    fingerprint = "seventy-two records"

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"n": number, "pair": np.array([number, -number])}


def streamed() -> Iterator[dict[str, Any]]:
    yield from ROWS


def make_files(root: Path) -> None:
    """Everything that the pipelines below read."""
    for i in range(N):
        (root / "texts").mkdir(exist_ok=True)
        (root / "texts" / f"{i:02d}.txt").write_text(ROWS[i]["text"])
    (root / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (root / "a.json").write_text(json.dumps(ROWS))
    with open(root / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    table = pa.Table.from_pylist(ROWS)
    pyarrow.feather.write_feather(table, root / "a.arrow")
    pyarrow.parquet.write_table(table, root / "a.parquet", row_group_size=20)
    records = ArrayRecordWriter(str(root / "a.array_record"), "group_size:1")
    for row in ROWS:
        records.write(row["text"].encode())
    records.close()
    datasets.Dataset.from_list(ROWS).save_to_disk(root / "hf")
    lines = ps.read_jsonl(root / "a.jsonl", fields=["text", "n"])
    lines.write(root / "shards", "webdataset", show_progress=False)
    documents = np.cumsum([0] + [i * 13 % 29 for i in range(N)])
    tokens = ps.open_tokens((np.arange(documents[-1]) * 7919 % 251).astype(np.uint16), documents, 251)
    ps.prepare(lines.select("text"), "bytes", root / "store", show_progress=False)
    prepare_prompts(CHATS, PromptEngine("bytes", chat_template=CHAT), root / "chats")
    ps.convert(tokens, root / "megatron", to="megatron", show_progress=False)
    ps.convert(tokens, root / "mds", to="mds", show_progress=False)
    (np.arange(900) % 250).astype(np.uint16).tofile(root / "nanogpt.bin")
    (np.arange(900) % 250).astype(np.uint32).tofile(root / "dolma.npy")
    _make_tfds(root)
    _make_media(root)


def _make_tfds(root: Path) -> None:
    import tensorflow_datasets as tfds  # here: child processes import this module

    with tfds.core.registered.skip_registration():

        class LawToy(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
            VERSION = tfds.core.Version("1.0.0")

            def _info(self) -> Any:
                features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "n": np.int64})
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, manager: Any) -> Any:
                return {"train": self._generate_examples()}

            def _generate_examples(self) -> Any:
                for row in ROWS:
                    yield row["n"], {"text": row["text"], "n": row["n"]}

    LawToy(data_dir=root, file_format="array_record").download_and_prepare()


def _make_media(root: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in ("images", "sounds", "videos"):
        for kind in ("one", "two"):
            (root / folder / kind).mkdir(parents=True)
    for i in range(N):
        kind = "two" if i % 3 else "one"
        pixels = rng.integers(0, 256, (24 + i % 5, 30 - i % 7, 3), np.uint8)
        Image.fromarray(pixels).save(root / "images" / kind / f"{i:02d}.png")
        with wave.open(str(root / "sounds" / kind / f"{i:02d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(rng.integers(-9000, 9000, 900 + 37 * i, np.int16).tobytes())
    (root / "encoded").mkdir()
    for i in range(24):
        (root / "encoded" / f"{i:02d}.m4a").write_bytes(encoded_sound(tone(0.2 + 0.02 * i, 16_000), 16_000, "m4a"))
    film = encoded_video(12, 10, "mp4", 16, 16)
    for i in range(24):
        (root / "videos" / ("two" if i % 3 else "one") / f"{i:02d}.mp4").write_bytes(film)
    sounds = sorted((root / "sounds").rglob("*.wav"))
    cuts = [
        {"path": str(p.relative_to(root)), "start": 0.01 * (i % 3), "seconds": 0.03 + 0.001 * i}
        for i, p in enumerate(sounds)
    ]
    (root / "cuts.jsonl").write_text("".join(json.dumps(cut) + "\n" for cut in cuts))
    captions = [{"key": f"{i:02d}", "caption": f"picture {i}"} for i in reversed(range(N))]
    (root / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in captions))
    (root / "flat").mkdir()
    for path in (root / "images").rglob("*.png"):
        shutil.copy(path, root / "flat" / path.name)


def _jpegs() -> dict[str, list[Any]]:
    made = []
    for i in range(N):
        file = io.BytesIO()
        Image.new("RGB", (20, 16), (i * 3, 255 - i * 3, 90)).save(file, "PNG")
        made.append(file.getvalue())
    return {"key": [f"{i}" for i in range(N)], "png": made, "cls": [b"%d" % i for i in range(N)]}


MIXED = Augment(Flip(), RandomResizedCrop(12), seed=3)
MASKED = Augment(SpecAugment(), seed=5)

READERS: dict[str, Callable[[Path, int], Pipeline]] = {
    "read_text": lambda at, b: ps.read_text(at / "texts").shuffle(seed=1).batch(b),
    "read_text by line": lambda at, b: ps.read_text(at / "a.jsonl", by="line").shuffle(seed=1).batch(b),
    "read_jsonl": lambda at, b: ps.read_jsonl(at / "a.jsonl", fields=["text", "n"]).shuffle(seed=1).batch(b),
    "read_json": lambda at, b: ps.read_json(at / "a.json").shuffle(seed=1).batch(b),
    "read_csv": lambda at, b: ps.read_csv(at / "a.csv").shuffle(seed=1).batch(b),
    "read_parquet": lambda at, b: ps.read_parquet(at / "a.parquet").shuffle(seed=1, block=8, window=2).batch(b),
    "read_arrow": lambda at, b: ps.read_arrow(at / "a.arrow").shuffle(seed=1).batch(b),
    "read_array_record": lambda at, b: ps.read_array_record(at / "a.array_record").shuffle(seed=1).batch(b),
    "read_tfrecords": lambda at, b: (
        ps.read_tfrecords(str(DATA / "tfrecord" / "plain*")).repeat(20).shuffle(seed=1).batch(b)
    ),
    "read_tar": lambda at, b: ps.read_tar(str(at / "shards" / "*.tar")).shuffle(seed=1).batch(b),
    "read_mds": lambda at, b: ps.read_mds(at / "mds").shuffle(seed=1).batch(b),
    "read_images": lambda at, b: ps.read_images(at / "images").shuffle(seed=1).decode_images(8).batch(b),
    "read_audio": lambda at, b: (
        ps.read_audio(at / "sounds", sample_rate=8000).shuffle(seed=1).batch(b).pad(to=4000, truncate=True)
    ),
    "read_videos": lambda at, b: (
        ps.read_videos(at / "videos").shuffle(seed=1).decode_video(2, (8, 8), clip="random", fps=5.0).repeat(3).batch(b)
    ),
    "from_texts": lambda at, b: ps.from_texts([row["text"] for row in ROWS]).shuffle(seed=1).batch(b),
    "from_arrays": lambda at, b: ps.from_arrays({"n": np.arange(N)}).shuffle(seed=1).batch(b),
    "from_records": lambda at, b: ps.from_records(ROWS).shuffle(seed=1).batch(b),
    "from_dataset": lambda at, b: ps.from_dataset(Records()).shuffle(seed=1).batch(b),
    "from_stream": lambda at, b: ps.from_stream(streamed, length=N).window_shuffle(9, seed=1).batch(b),
    "from_hf": lambda at, b: ps.from_hf(at / "hf").shuffle(seed=1).batch(b),
    "from_tfds": lambda at, b: ps.from_tfds(at / "law_toy" / "1.0.0").shuffle(seed=1).batch(b),
    "open_store": lambda at, b: ps.open_store(at / "store").windows(8).shuffle(seed=1).batch(b),
    "open_store with loss masks": lambda at, b: ps.open_store(at / "chats").windows(8).shuffle(seed=1).batch(b),
    "open_tokens": lambda at, b: ps.open_tokens(np.arange(900) % 250, [0, 300, 900]).windows(8).shuffle(1).batch(b),
    "open_megatron": lambda at, b: ps.open_megatron(at / "megatron").windows(8).shuffle(seed=1).batch(b),
    "open_nanogpt": lambda at, b: ps.open_nanogpt(at / "nanogpt.bin").windows(8).shuffle(seed=1).batch(b),
    "open_dolma": lambda at, b: ps.open_dolma(at / "dolma.npy", dtype="uint32").windows(8).shuffle(seed=1).batch(b),
    "open_mds": lambda at, b: ps.open_mds(at / "mds").windows(8).shuffle(seed=1).batch(b),
    "pair": lambda at, b: (
        ps.pair(ps.read_images(at / "flat", None), ps.read_jsonl(at / "captions.jsonl", fields=["key", "caption"]))
        .shuffle(seed=1)
        .decode_images(8, crop="random")
        .batch(b)
    ),
}

FACADES: dict[str, Callable[[Path, int], Pipeline]] = {
    "Capibara's padding": lambda at, b: (
        ps.read_text(at / "texts").tokenize("bytes", show_progress=False).shuffle(seed=1).batch(b).then(Fill(20))
    ),
    "Capibara's languages": lambda at, b: (
        ps.mix([ps.read_csv(at / "a.csv").shuffle(seed=1), ps.read_csv(at / "a.csv")], seed=3)
        .then(Stretch(70))
        .batch(b)
    ),
    "Artifex's passes": lambda at, b: ps.read_csv(at / "a.csv").then(PassOrder(3)).batch(b),
}

MEDIA: dict[str, Callable[[Path, int], Pipeline]] = {
    "parts of shards": lambda at, b: (
        ps.from_arrays(_jpegs()).decode_parts("cls").decode_images(12, column="png").shuffle(seed=2).batch(b)
    ),
    "augmented images": lambda at, b: (
        ps.read_images(at / "images").shuffle(seed=2).decode_images(16).map_batches(MIXED).batch(b)
    ),
    "paths of a manifest": lambda at, b: (
        ps.read_jsonl(at / "cuts.jsonl", fields=["path", "start", "seconds"])
        .shuffle(seed=2)
        .decode_audio(8000, column="path", media_root=at, cut=("start", "seconds"), min_duration=0.04)
        .pad(to=400, truncate=True)
        .batch(b)
    ),
    "features, masked": lambda at, b: (
        ps.read_audio(at / "sounds")
        .shuffle(seed=2)
        .decode_audio(8000, duration=0.1, features="log_mel")
        .map_batches(MASKED)
        .batch(b)
    ),
    "AAC": lambda at, b: ps.read_audio(at / "encoded", None).decode_audio(8000, duration=0.1).repeat(3).batch(b),
}
