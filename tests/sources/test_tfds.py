"""Real TFDS datasets, built here without TensorFlow: configs, splits, ArrayRecord and TFRecord files."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, DataError, UsageError
from penstock.facades.capibara.loader import CapibaraDataLoader
from penstock.facades.capibara.resolve import resolve_dataset
from penstock.sources.base import Source
from penstock.sources.tfds import TFDSource

COUNTS = {"train": 30, "test": 7}


class PenstockToy(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """Texts, labels and lists of numbers, in two configs."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de"), tfds.core.BuilderConfig(name="en")]  # noqa: RUF012

    def _info(self) -> Any:
        features = {
            "text": tfds.features.Text(),
            "label": tfds.features.ClassLabel(num_classes=3),
            "ids": tfds.features.Sequence(tfds.features.Scalar(dtype=np.int64)),
            "pixels": tfds.features.Tensor(shape=(2, 2), dtype=np.float32),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager: Any) -> Any:
        return {name: self._generate_examples(count) for name, count in COUNTS.items()}

    def _generate_examples(self, count: int) -> Any:
        for i in range(count):
            yield i, example(self.builder_config.name, i)


def example(config: str, i: int) -> dict[str, Any]:
    pixels = np.full((2, 2), i, np.float32)
    return {"text": f"{config} {i} ünï שלום", "label": i % 3, "ids": list(range(i % 4)), "pixels": pixels}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    for config in ("de", "en"):
        PenstockToy(config=config, data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


@pytest.fixture
def folder(data_dir: Path) -> Path:
    return data_dir / "penstock_toy" / "en" / "1.0.0"


def check(source: Any, config: str, count: int) -> None:
    assert isinstance(source, Source)
    assert len(source) == count
    got = source.read(np.arange(count))
    assert isinstance(got["ids"], Ragged)
    numbers = [int(text.split()[1]) for text in got["text"]]
    assert sorted(numbers) == list(range(count)), "TFDS stores records in an order of its own, each once"
    for row, i in enumerate(numbers):
        want = example(config, i)
        assert got["text"][row] == want["text"]
        assert got["label"][row] == want["label"]
        assert got["ids"][row].tolist() == want["ids"]
        assert np.array_equal(got["pixels"][row], want["pixels"])
    back = source.read(np.array([3, 0, 3]))
    assert back["text"].tolist() == [got["text"][i] for i in (3, 0, 3)]


def test_array_records_without_tensorflow(folder: Path) -> None:
    check(TFDSource.open(folder, "train"), "en", 30)
    check(TFDSource.open(folder, "test"), "en", 7)
    assert "tensorflow" not in sys.modules


def test_a_part_of_a_split(folder: Path) -> None:
    whole, part = TFDSource.open(folder, "train"), TFDSource.open(folder, "train[10:15]")
    assert part.read(np.arange(5))["text"].tolist() == whole.read(np.arange(10, 15))["text"].tolist()
    assert part.locate(2)["record"] == 12
    with pytest.raises(UsageError, match="split= one of 'test', 'train'|split= one of 'train', 'test'"):
        TFDSource.open(folder, "dev")


def as_tfrecord(folder: Path, out: Path) -> Path:
    """The same dataset in TFRecord files, framed as TensorFlow frames them (with sums of zero)."""
    shutil.copytree(folder, out)
    builder = tfds.builder_from_directory(str(folder))
    for split in COUNTS:
        raw = builder.as_data_source(split=split).data_source
        frames = b""
        for data in raw.__getitems__(list(range(len(raw)))):
            frames += struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4)
        name = f"penstock_toy-{split}.array_record-00000-of-00001"
        (out / name).unlink()
        (out / name.replace("array_record", "tfrecord")).write_bytes(frames)
    info = json.loads((out / "dataset_info.json").read_text())
    info["fileFormat"] = "tfrecord"
    for split in info["splits"]:
        split["filepathTemplate"] = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    (out / "dataset_info.json").write_text(json.dumps(info))
    return out


def test_tfrecords_by_number(folder: Path, tmp_path: Path) -> None:
    out = as_tfrecord(folder, tmp_path / "penstock_toy" / "en" / "1.0.0")
    check(TFDSource.open(out, "train"), "en", 30)
    part = TFDSource.open(out, "train[10:15]")
    assert part.read(np.arange(5))["text"].tolist() == (
        TFDSource.open(folder, "train[10:15]").read(np.arange(5))["text"].tolist()
    )
    assert "tensorflow" not in sys.modules
    file = next(out.glob("*train*"))
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DataError, match="complete TFRecord frames"):
        TFDSource.open(out, "train")


def test_identity_is_content(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "penstock_toy" / "en" / "1.0.0"
    shutil.copytree(folder, copy)
    here, there = TFDSource.open(folder, "train"), TFDSource.open(copy, "train")
    assert here.fingerprint() == there.fingerprint()
    others = [TFDSource.open(folder, "test"), TFDSource.open(folder, "train[:5]")]
    assert len({here.fingerprint(), *(o.fingerprint() for o in others)}) == 3
    again = pickle.loads(pickle.dumps(here))
    assert again.read(np.array([4]))["text"].tolist() == here.read(np.array([4]))["text"].tolist()


def test_threads_read_at_once(folder: Path) -> None:
    source = TFDSource.open(folder, "train")
    want = source.read(np.arange(30))["text"].tolist()
    wrong: list[int] = []

    def read(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(30)
        for _ in range(5):
            if source.read(order)["text"].tolist() != [want[i] for i in order]:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_bad_record_is_named(folder: Path, tmp_path: Path) -> None:
    out = as_tfrecord(folder, tmp_path / "penstock_toy" / "en" / "1.0.0")
    file = next(out.glob("*train*"))
    data = bytearray(file.read_bytes())
    (length,) = struct.unpack_from("<Q", data, 0)
    data[12 : 12 + length] = b"\xff" * length
    file.write_bytes(data)
    with pytest.raises(BadRecords, match="split 'train', record 0"):
        TFDSource.open(out, "train").read(np.array([2, 0]))


def test_names_resolve(data_dir: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def first(name: Any, **ask: Any) -> str:
        return str(resolve_dataset(name, **ask).peek(1)[0]["text"])[:2]

    assert first("penstock_toy/en", data_dir=str(data_dir)) == "en"
    assert first("penstock_toy:de", data_dir=str(data_dir)) == "de"
    assert first("penstock_toy/de:1.0.0", data_dir=str(data_dir), split="test") == "de"
    assert first(folder) == "en"
    source = tfds.builder_from_directory(str(folder)).as_data_source(split="test")
    assert len(resolve_dataset(source).rows()) == 7
    # Registered, but not prepared there: it is prepared, without TensorFlow.
    assert first("penstock_toy/de", data_dir=str(tmp_path)) == "de"
    assert (tmp_path / "penstock_toy" / "de" / "1.0.0" / "features.json").is_file()
    assert "tensorflow" not in sys.modules


def test_a_tfds_name_feeds_the_loader(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = {"data_dir": str(data_dir), "cache_dir": str(tmp_path), "split": "test", "eos": False}
    loader = CapibaraDataLoader(
        tokenizer="bytes", dataset_name="penstock_toy/en", batch_size=7, max_length=64, **settings
    )
    (batch,) = loader
    rows = zip(np.asarray(batch["input_ids"]), np.asarray(batch["attention_mask"]), strict=True)
    texts = sorted(bytes(ids[mask == 1].astype(np.uint8)).decode() for ids, mask in rows)
    assert texts == sorted(example("en", i)["text"] for i in range(7))
