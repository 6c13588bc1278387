"""Cached, transformed, validated, memory-efficient datasets and the split."""

from __future__ import annotations

import io
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock import DataError, RecordError, UsageError
from penstock.facades.artifex.datasets.base import as_dataset
from penstock.facades.artifex.datasets.cached import CachedDataset
from penstock.facades.artifex.datasets.memory import MemoryEfficientDataset
from penstock.facades.artifex.datasets.split import SubsetDataset, split_dataset
from penstock.facades.artifex.datasets.transformed import TransformDataset
from penstock.facades.artifex.datasets.validated import ValidatedDataset, validate_sample
from penstock.facades.artifex.image.mnist_like import MNISTLikeDataset
from penstock.facades.artifex.image.modality import ImageModalityConfig
from penstock.facades.artifex.image.synthetic import SyntheticImageDataset
from penstock.facades.artifex.text.synthetic import SyntheticTextDataset
from penstock.pipeline import Pipeline

SMALL = ImageModalityConfig(height=8)


class Counted:
    def __init__(self):
        self.calls = 0

    def __call__(self, data):
        self.calls += 1
        return np.asarray(data, np.float32) * 2


def test_cache_prepares_once():
    work = Counted()
    dataset = CachedDataset(None, [np.full(3, i) for i in range(6)], preprocess=work, rngs=0)
    for _ in range(3):
        assert sorted(dataset.get_batch(6)["data"][:, 0].tolist()) == [0, 2, 4, 6, 8, 10]
    assert work.calls == 6
    assert [float(s["data"][0]) for s in dataset] == [0, 2, 4, 6, 8, 10]
    assert work.calls == 6


def test_cache_size_is_a_limit():
    work = Counted()
    dataset = CachedDataset(None, list(np.eye(6)), preprocess=work, cache_size=2)
    list(dataset)
    assert len(dataset.cache) == 2
    dataset[5], dataset[0]
    assert work.calls == 7


def test_disk_cache_survives_the_process_and_is_keyed_by_content(tmp_path):
    data = [np.full(3, i) for i in range(4)]
    list(CachedDataset(None, data, tmp_path, preprocess=np.sqrt))
    assert len(list(tmp_path.glob("*.npy"))) == 4
    assert not list(tmp_path.glob("*.tmp"))

    def refuse(data):
        raise AssertionError("it was on disk")

    again = CachedDataset(None, data[::-1], tmp_path, preprocess=np.sqrt)
    again._expensive_preprocessing = refuse
    assert [float(s["data"][0]) ** 2 for s in again] == pytest.approx([3, 2, 1, 0])
    other = CachedDataset(None, data, tmp_path, preprocess=np.square)
    assert [float(s["data"][0]) for s in other] == [0, 1, 4, 9]


def test_a_damaged_cache_file_is_made_again(tmp_path):
    data = [np.arange(5)]
    list(CachedDataset(None, data, tmp_path))
    (path,) = tmp_path.glob("*.npy")
    for bad in (b"", b"rubbish", pickle.dumps({"a": 1}), path.read_bytes()[:-3]):
        path.write_bytes(bad)
        assert CachedDataset(None, data, tmp_path)[0]["data"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UsageError, match="text, bytes, numbers or arrays"):
        CachedDataset(None, [object()], tmp_path)[0]


def test_cached_subclass_hook():
    class Mine(CachedDataset):
        def _expensive_preprocessing(self, data):
            return data + 100

    assert Mine(None, [1, 2]).get_batch(indices=[1])["data"].tolist() == [102]
    assert pickle.loads(pickle.dumps(CachedDataset(None, [1, 2])))[1]["data"] == 2


def test_transforms_apply_in_order_and_leave_the_base_alone():
    base = as_dataset([{"x": np.full(2, float(i))} for i in range(5)])

    def double(sample):
        sample["x"] = sample["x"] * 2
        return sample

    def add(sample):
        sample["x"] = sample["x"] + 1
        return sample

    dataset = TransformDataset(None, base, [double, add], rngs=0)
    assert dataset[3]["x"].tolist() == [7, 7]
    assert base[3]["x"].tolist() == [3, 3]
    assert dataset.get_batch(indices=[3, 0])["x"].tolist() == [[7, 7], [1, 1]]
    assert [float(s["x"][0]) for s in dataset] == [1, 3, 5, 7, 9]
    assert Pipeline(dataset).batch(5).to_numpy()._work().batches(0, 1)[0]["x"][:, 0].tolist() == [1, 3, 5, 7, 9]
    assert dataset.fingerprint() != TransformDataset(None, base, [add, double]).fingerprint()
    with pytest.raises(UsageError, match="a dict from nothing"):
        TransformDataset(None, base, [_returns_nothing])[0]
    with pytest.raises(UsageError, match="transforms: functions"):
        TransformDataset(None, base, ["flip"])


def _returns_nothing(sample):
    return None


_returns_nothing.__name__ = "nothing"


def spoiled(bad=(2, 5), n=8):
    rows = [{"images": np.full((4, 4, 1), i / 10), "labels": i, "name": f"n{i}"} for i in range(n)]
    for i in bad:
        rows[i]["images"] = np.full((4, 4, 1), (np.nan, 2.0, -1.0)[i % 3])
    return as_dataset(rows)


def test_validated_batches_hold_only_good_rows_in_every_column():
    dataset = ValidatedDataset(spoiled())
    batch = dataset.get_batch(indices=[1, 2, 3, 5])
    assert batch["labels"].tolist() == [1, 3]
    assert batch["name"] == ["n1", "n3"]
    assert batch["images"].shape == (2, 4, 4, 1)
    assert [s["labels"] for s in dataset] == [0, 1, 3, 4, 6, 7]
    with pytest.raises(RecordError, match="record 5"):
        dataset[5]
    with pytest.raises(DataError, match="none of them valid"):
        dataset.get_batch(indices=[2, 5])


def test_validated_in_the_core_fills_the_places():
    dataset = ValidatedDataset(spoiled())
    with pytest.raises(ps.BadRecords, match="record 2"):
        dataset.read(np.arange(8))
    loader = Pipeline(dataset).skip_errors().batch(4).to_numpy(threads=0)
    labels = [batch["labels"].tolist() for batch in loader]
    assert [len(one) for one in labels] == [4, 4]
    assert not {2, 5} & {one for batch in labels for one in batch}


def test_validate_sample():
    good = jnp.full((32, 32, 3), 0.5)
    assert validate_sample({"images": good})
    assert not validate_sample({"images": good.at[0, 0, 0].set(jnp.nan)})
    assert not validate_sample({"images": good.at[0, 0, 0].set(1.01)})
    assert not validate_sample({"images": good.at[0, 0, 0].set(-0.01)})
    assert not validate_sample({"images": good[:31]})
    assert validate_sample({"images": good[:31]}, shape=None)


def test_own_check():
    dataset = ValidatedDataset(spoiled(bad=()), validate=lambda sample: sample["labels"] % 2 == 0)
    assert dataset.get_batch(indices=[0, 1, 2])["labels"].tolist() == [0, 2]


def test_files_are_loaded_when_asked_for(tmp_path):
    paths = []
    for i in range(3):
        paths.append(tmp_path / f"{i}.npy")
        np.save(paths[-1], np.full((2, 2), i))
    dataset = MemoryEfficientDataset(None, paths, rngs=0)
    assert dataset.get_batch(indices=[2, 0])["data"][:, 0, 0].tolist() == [2, 0]
    assert [int(s["index"]) for s in dataset] == [0, 1, 2]
    before = dataset.fingerprint()
    np.save(paths[1], np.full((2, 2), 9))
    assert MemoryEfficientDataset(None, paths).fingerprint() != before
    picture = tmp_path / "a.png"
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (1, 2, 3)).save(file, "PNG")
    picture.write_bytes(file.getvalue())
    assert MemoryEfficientDataset(None, [picture])[0]["data"].shape == (4, 6, 3)
    evil = tmp_path / "evil.npy"
    np.save(evil, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(RecordError, match=r"a \.npy file of numbers"):
        MemoryEfficientDataset(None, [evil])[0]
    liar = tmp_path / "liar.npy"
    with open(liar, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with pytest.raises(RecordError, match=r"shape \(1000000000000,\) in 0 bytes"):
        MemoryEfficientDataset(None, [liar])[0]
    for fine in (np.array(3), np.zeros((0, 4)), np.asfortranarray(np.arange(6).reshape(2, 3))):
        np.save(tmp_path / "fine.npy", fine)
        np.testing.assert_array_equal(MemoryEfficientDataset(None, [tmp_path / "fine.npy"])[0]["data"], fine)
    with pytest.raises(FileNotFoundError):
        MemoryEfficientDataset(None, [tmp_path / "none.npy"])[0]
    with pytest.raises(UsageError, match="a path with the extension"):
        MemoryEfficientDataset(None, ["x.xyz"])[0]
    with pytest.raises(UsageError, match="a list of paths"):
        MemoryEfficientDataset(None, "x.npy")


@pytest.mark.parametrize("ratio", [0.0, 0.29, 0.8, 1.0])
def test_split_is_disjoint_complete_and_stable(ratio):
    full = SyntheticTextDataset(None, 100)
    train, val = split_dataset(full, ratio)
    assert len(train) == round(100 * ratio)
    assert sorted([*train.indices, *val.indices]) == list(range(100))
    again, _ = split_dataset(full, ratio)
    np.testing.assert_array_equal(train.indices, again.indices)
    if 0 < ratio < 1:
        assert not np.array_equal(split_dataset(full, ratio, seed=1)[0].indices, train.indices)
        assert not np.array_equal(np.sort(train.indices), np.arange(len(train)))


def test_split_never_leaks():
    train, val = split_dataset(SyntheticTextDataset(None, 97), 0.8)
    mine = set(val.indices.tolist())
    seen = set()
    for _ in range(20):
        batch = val.get_batch(7)
        seen |= {int(i) for i in batch["indices"]}
        assert batch["texts"] == [val.dataset.get_sample_text(int(i)) for i in batch["indices"]]
    assert seen == mine
    assert {int(sample["index"]) for sample in train} == set(range(97)) - mine
    assert {int(i) for i in Pipeline(train).batch(77).to_numpy(threads=0).batch_at(0)["index"]} == set(range(97)) - mine


def test_split_of_a_custom_dataset_and_of_a_split():
    train, val = split_dataset([{"x": i} for i in range(10)], 0.5)
    inner, rest = split_dataset(train, 0.6)
    values = [s["x"] for part in (inner, rest, val) for s in part]
    assert sorted(values) == list(range(10))
    with pytest.raises(UsageError, match="train_ratio from 0 to 1"):
        split_dataset(train, 1.5)
    with pytest.raises(UsageError, match="record numbers"):
        SubsetDataset(train, [5])
    digits = split_dataset(MNISTLikeDataset(dataset_size=20))[1].get_batch(4)
    assert digits["labels"].shape == (4,)


def test_subset_of_images_is_those_images():
    full = SyntheticImageDataset(SMALL, 20)
    part = SubsetDataset(full, [3, 19])
    np.testing.assert_array_equal(part[1]["images"], full[19]["images"])
    np.testing.assert_array_equal(part.get_batch(indices=[0])["images"][0], full[3]["images"])
