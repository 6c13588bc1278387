"""Hugging Face datasets by name and folder, their images, audio and labels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cv2
import datasets
import numpy as np
import pytest

import penstock as ps
from penstock.codecs.audio import wav
from penstock.testing import assert_exact_resume


def png(value: int) -> bytes:
    return cv2.imencode(".png", np.full((5, 5, 3), value, np.uint8))[1].tobytes()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
        yield


def labelled() -> datasets.Dataset:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": png(i), "path": f"{i}.png"} for i in range(8)], "label": [i % 2 for i in range(8)]}
    return datasets.Dataset.from_dict(rows, features=features)


def test_a_saved_folder(tmp_path: Path) -> None:
    labelled().save_to_disk(tmp_path / "one")
    pipeline = ps.from_hf(tmp_path / "one").decode_images(4, column="image")
    assert pipeline.classes == ("cat", "dog")
    batch = pipeline.shuffle(seed=1).batch(8).to_numpy().batch_at(0)
    assert ((batch["image"][:, 0, 0, 0] * 255).round().astype(int) % 2 == batch["label"]).all()
    assert_exact_resume(lambda: pipeline.shuffle(seed=1).batch(3), epochs=1)
    datasets.DatasetDict({"train": labelled(), "test": labelled().select([0])}).save_to_disk(tmp_path / "two")
    assert len(ps.from_hf(tmp_path / "two", "test").rows()) == 1
    with pytest.raises(ps.UsageError, match="'train', 'test'"):
        ps.from_hf(tmp_path / "two")
    with pytest.raises(ps.UsageError, match="'train', 'test'"):
        ps.from_hf(tmp_path / "two", split="validation")


def test_a_folder_that_load_dataset_reads(tmp_path: Path) -> None:
    folder = tmp_path / "mini" / "data"
    folder.mkdir(parents=True)
    labelled().to_parquet(folder / "train-00000-of-00001.parquet")
    labelled().select([1]).to_parquet(folder / "test-00000-of-00001.parquet")
    pipeline = ps.from_hf(str(tmp_path / "mini"), split="train")
    assert pipeline.classes == ("cat", "dog") and len(pipeline.rows()) == 8
    assert pipeline.decode_images(4, column="image").peek(1)[0]["image"].shape == (4, 4, 3)
    assert len(ps.from_hf(str(tmp_path / "mini"), split="train[:50%]").rows()) == 4
    with pytest.raises(ps.UsageError, match="one split of a dataset"):
        ps.from_hf(str(tmp_path / "mini"))
    with pytest.raises(ps.UsageError, match="a split and configuration(.|\n)*dev"):
        ps.from_hf(str(tmp_path / "mini"), split="dev")


def test_image_and_audio_folders(tmp_path: Path) -> None:
    for i in range(4):
        folder = tmp_path / "images" / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(png(i))
    pipeline = ps.from_hf(tmp_path / "images", split="train")
    assert pipeline.classes == ("cat", "dog")
    images = pipeline.decode_images(4, column="image", media_root=tmp_path / "images").batch(4).to_numpy().batch_at(0)
    assert ((images["image"][:, 0, 0, 0] * 255).round().astype(int) % 2 == images["label"]).all()
    sounds = [{"bytes": wav.encode(np.full(50, i / 10), 8000), "path": None} for i in range(3)]
    dataset = datasets.Dataset.from_dict({"audio": sounds}).cast_column("audio", datasets.Audio(decode=False))
    batch = ps.from_hf(dataset).decode_audio(8000, duration=0.005, offset="start").batch(3).to_numpy().batch_at(0)
    assert np.allclose(batch["audio"][:, 0], [0, 0.1, 0.2], atol=1e-3)


def test_a_folder_for_which_datasets_needs_a_package_names_it_and_our_reader(tmp_path: Path) -> None:
    """datasets 5 prepares folders of audio with torchcodec, which is no dependency of ours."""
    for i in range(3):
        (tmp_path / "yes").mkdir(exist_ok=True)
        (tmp_path / "yes" / f"{i}.wav").write_bytes(wav.encode(np.full(50, i / 10), 8000))
    with pytest.raises(ps.StorageError, match=r"No module named 'torchcodec'(.|\n)*penstock\.read_audio\(") as caught:
        ps.from_hf(tmp_path, split="train")
    assert "connection" not in str(caught.value)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ps.StorageError, match="nobody/nothing"):  # this test has no network
        ps.from_hf("nobody/nothing", split="train")
    with pytest.raises(ps.UsageError, match="split= and config= with the name"):
        ps.from_hf(labelled(), split="train")


def test_classes_of_several_columns() -> None:
    names = {"a": datasets.ClassLabel(names=["x"]), "b": datasets.ClassLabel(names=["y", "z"])}
    pipeline = ps.from_hf(datasets.Dataset.from_dict({"a": [0], "b": [1]}, features=datasets.Features(names)))
    assert pipeline.class_names == {"a": ("x",), "b": ("y", "z")}
    with pytest.raises(ps.UsageError, match=r"class_names\['a'\]"):
        pipeline.classes  # noqa: B018
    assert ps.from_texts(["a"]).classes == ()
    one = ps.from_hf(labelled())
    assert ps.concat([one, one]).classes == ps.mix([one, one.take(3)]).shuffle(seed=1).classes == ("cat", "dog")


def test_a_name_that_is_no_folder_either_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ps.PenstockError, match="no file or folder of that name in") as caught:
        ps.from_hf("nosuchfolder")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["./nosuchfolder", "a/b/c", "no such folder", "nosuchfolder/"])
def test_a_missing_folder_that_is_no_name_of_the_hub_is_refused_before_any_request(name: str) -> None:
    with pytest.raises(ps.PenstockError, match="the hub has names such as 'owner/name'"):
        ps.from_hf(name)


def test_a_name_without_a_connection_is_refused_before_retries(tmp_path: Path) -> None:
    """It took 23 s of retries."""
    hidden = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    code = "import penstock as ps\ntry: ps.from_hf('nosuchfolder')\nexcept ps.StorageError as error: print(error)"
    asked = hidden | {"HF_ENDPOINT": "https://hub.invalid", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True)
    assert "no connection to hub.invalid" in done.stdout
    assert "retry" not in done.stderr.lower()
