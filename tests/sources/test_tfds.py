"""Real TFDS datasets, built here without TensorFlow: configs, splits, ArrayRecord and TFRecord files."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

import penstock as ps
from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, DataError, PenstockError, StoreError, UsageError
from penstock.facades.capibara.loader import CapibaraDataLoader
from penstock.facades.capibara.resolve import resolve_dataset
from penstock.sources.base import Source
from penstock.sources.tfds import TFDSource
from penstock.sources.tfrecord import RecordFiles
from tests.hostile.fuzzing import fuzz

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


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def masked(data: bytes) -> bytes:
    """CRC32C bit by bit, by its definition, and TFRecord's mask."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def as_tfrecord(folder: Path, out: Path) -> Path:
    """The same dataset in TFRecord files, framed as TensorFlow frames them."""
    shutil.copytree(folder, out)
    builder = tfds.builder_from_directory(str(folder))
    for split in COUNTS:
        raw = builder.as_data_source(split=split).data_source
        frames = b""
        for data in raw.__getitems__(list(range(len(raw)))):
            frames += frame(bytes(data))
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
    with pytest.raises(BadRecords, match=r"(?s)checksum of its data differs.*record 0.*split 'train', record 0"):
        TFDSource.open(out, "train").read(np.array([2, 0]))
    data[12 + length : 16 + length] = masked(b"\xff" * length)  # a sum that holds, over what is no example
    file.write_bytes(data)
    with pytest.raises(BadRecords, match=r"(?s)an example that TFDS can decode.*split 'train', record 0"):
        TFDSource.open(out, "train").read(np.array([2, 0]))
    data[8] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match="checksum of the length at byte 0"):
        TFDSource.open(out, "train")


def test_a_file_that_is_cut_is_no_bad_record(folder: Path, tmp_path: Path) -> None:
    out = as_tfrecord(folder, tmp_path / "penstock_toy" / "en" / "1.0.0")
    loader = ps.from_tfds(out, split="train").skip_errors().batch(1).to_numpy(threads=0)
    batches, file = iter(loader), next(out.glob("*train*"))
    next(batches)
    os.truncate(file, 10)
    with pytest.raises(StoreError, match="as it was when it was opened"):
        next(batches)
    assert loader.ledger.total == 0


@pytest.mark.parametrize("cut", [5, 60_000])
def test_an_array_record_file_that_is_cut_is_no_bad_record(folder: Path, tmp_path: Path, cut: int) -> None:
    """TFDS opens a file when it reads the first record of it: all records of one that was cut seemed to be bad."""
    out = tmp_path / "penstock_toy" / "en" / "1.0.0"
    shutil.copytree(folder, out)
    file = next(out.glob("*train*array_record*"))
    loader = ps.from_tfds(out, split="train").skip_errors().batch(1).to_numpy(threads=0)
    os.truncate(file, file.stat().st_size - cut)
    with pytest.raises(DataError, match=f"(?s)ArrayRecord file.*where: .*{re.escape(file.name)}"):
        next(iter(loader))
    assert loader.ledger.total == 0


def test_an_array_record_file_that_is_cut_while_it_is_read(folder: Path, tmp_path: Path) -> None:
    """Its reader then returns records that are empty, without an error."""
    out = tmp_path / "penstock_toy" / "en" / "1.0.0"
    shutil.copytree(folder, out)
    file = next(out.glob("*train*array_record*"))
    source = ps.from_tfds(out, split="train").definition.origin
    raw, last = source._raw, len(source) - 1
    assert len(source.read(np.array([0]))) == len(source.columns)

    class Cut:
        def __getitems__(self, numbers: list[int]) -> list[bytes]:
            os.truncate(file, 0)
            return list(raw.__getitems__(numbers))

    source._raw = Cut()
    with pytest.raises(StoreError, match="as it was when it was opened"):
        source.read(np.array([last]))


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


class PenstockShapes(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """Images, each of one grey level."""

    VERSION = tfds.core.Version("2.0.0")

    def _info(self) -> Any:
        features = {"image": tfds.features.Image(shape=(8, 8, 3)), "label": tfds.features.ClassLabel(num_classes=3)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager: Any) -> Any:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        for i in range(6):
            file = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(file, "PNG")
            file.seek(0)
            yield i, {"image": file, "label": i % 3}  # TFDS would encode an array with TensorFlow


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    PenstockShapes(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder / "penstock_shapes" / "2.0.0"


def test_images_that_tfds_does_not_decode_are_decoded_here(shapes: Path) -> None:
    skip = {"image": tfds.decode.SkipDecoding()}
    decoded = ps.from_tfds(shapes).rows().read(np.arange(6))["image"]
    data_source = tfds.builder_from_directory(str(shapes)).as_data_source(split="train", decoders=skip)
    for pipeline in (ps.from_tfds(data_source), ps.from_tfds(shapes, decoders=skip), resolve_dataset(data_source)):
        raw = pipeline.rows().read(np.arange(6))["image"]
        assert all(isinstance(one, bytes) and one.startswith(b"\x89PNG") for one in raw)
        batch = pipeline.decode_images(8, column="image", dtype="uint8").batch(6).to_numpy(threads=0).batch_at(0)
        assert np.array_equal(batch["image"], decoded)
        again = pickle.loads(pickle.dumps(pipeline.definition.origin))
        assert again.read(np.array([2]))["image"][0] == raw[2]
        assert pipeline.fingerprint() != ps.from_tfds(shapes).fingerprint()


def test_other_decoders_are_refused(shapes: Path) -> None:
    builder = tfds.builder_from_directory(str(shapes))
    raw = builder.as_data_source(split="train", deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
    with pytest.raises(UsageError, match="deserialize_method RAW_BYTES"):
        ps.from_tfds(raw)
    with pytest.raises(UsageError, match="decoders for features"):
        ps.from_tfds(shapes, decoders={"picture": tfds.decode.SkipDecoding()})
    with pytest.raises(UsageError, match="SkipDecoding"):
        ps.from_tfds(shapes, decoders={"image": np.array})
    with pytest.raises(UsageError, match="own split 'train'"):
        ps.from_tfds(builder.as_data_source(split="train"), "test")


def test_a_folder_without_its_version(shapes: Path, data_dir: Path, tmp_path: Path) -> None:
    assert len(ps.from_tfds(shapes.parent).rows()) == 6
    assert len(resolve_dataset(shapes.parent).rows()) == 6
    with pytest.raises(UsageError, match=r"2 of them(.|\n)*add one of de/1.0.0, en/1.0.0"):
        ps.from_tfds(data_dir / "penstock_toy")
    shutil.copytree(shapes, tmp_path / "2.0.0")
    shutil.copytree(shapes, tmp_path / "2.0.1")
    with pytest.raises(UsageError, match=r"add one of 2\.0\.0, 2\.0\.1"):
        ps.from_tfds(tmp_path)


def test_a_name(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"a prepared TFDS dataset 'penstock_nothing'(.|\n)*download_and_prepare"
    ):
        ps.from_tfds("penstock_nothing")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        ps.from_tfds("./penstock_nothing")
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(data_dir))
    monkeypatch.setattr(tfds.core.utils.file_utils, "list_data_dirs", lambda **_: [str(data_dir)])
    assert len(ps.from_tfds("penstock_toy/en", "test").rows()) == 7


DAMAGE = {
    "no data": r"the files of split 'train'(.|\n)*1 missing, first penstock_shapes-train",
    "no features": r"no features\.json: it was made by an old TFDS",
    "no info": "neither, nor a version below|a folder that TFDS prepared",
    "bad info": "a TFDS dataset that can be read",
    "bad features": "not JSON",
    "unknown feature": "a TFDS dataset that can be read",
    "foreign class": "features that TFDS itself defines(.|\n)*'os.path.Thing'",
    "empty file": "an ArrayRecord file",
    "unknown format": "a TFDS dataset that can be read",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_missing_is_said_with_the_folder(shapes: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "2.0.0"
    shutil.copytree(shapes, folder)
    data = next(folder.glob("*train*"))
    info, features = folder / "dataset_info.json", folder / "features.json"
    match damage:
        case "no data":
            data.unlink()
        case "no features":
            features.unlink()
        case "no info":
            info.unlink()
        case "bad info":
            info.write_text('{"name": 3')
        case "bad features":
            features.write_text("{")
        case "unknown feature":
            features.write_text(features.read_text().replace("image_feature.Image", "image_feature.Painting"))
        case "foreign class":
            features.write_text(
                re.sub(r"tensorflow_datasets[\w.]*image_feature\.Image", "os.path.Thing", features.read_text())
            )
        case "empty file":
            data.write_bytes(b"")
        case "unknown format":
            info.write_text(info.read_text().replace('"array_record"', '"stone_tablet"'))
    with pytest.raises(PenstockError, match=DAMAGE[damage]) as caught:
        ps.from_tfds(folder).peek(1)
    assert str(folder) in str(caught.value)


def test_mutated_array_records_are_refused(shapes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "2.0.0"
    shutil.copytree(shapes, folder)
    file = next(folder.glob("*train*"))

    def read(data: bytes) -> object:
        file.write_bytes(data)
        skip = {"image": tfds.decode.SkipDecoding()}
        columns = ps.from_tfds(folder, decoders=skip).rows().read(np.arange(6))
        return columns["image"].tolist(), columns["label"].tolist()

    assert fuzz(read, file.read_bytes(), 60)["refused"]


def test_mutated_tfrecords_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"

    def read(data: bytes) -> list[bytes]:
        path.write_bytes(data)
        found = RecordFiles([(str(path), 0, 5)]).__getitems__(range(5))
        for one in found:
            if isinstance(one, DataError):
                raise one
        return [bytes(one) for one in found if isinstance(one, bytes)]

    counts = fuzz(read, b"".join(frame(b"record %d" % i * i) for i in range(5)), 600, checked=True)
    assert counts["refused"] > 400
