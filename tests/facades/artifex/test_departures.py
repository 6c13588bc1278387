"""What the guide's users expect where it is easy to differ: rngs, padding, order of arguments, configs, messages."""

from __future__ import annotations

import subprocess
import sys
import wave
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

import penstock as ps
from penstock import UsageError
from penstock.facades.artifex.datasets.base import BaseDataset, as_dataset
from penstock.facades.artifex.datasets.cached import CachedDataset
from penstock.facades.artifex.datasets.memory import MemoryEfficientDataset

SMALL = ps.ImageModalityConfig(height=8)


def pixels(dataset, n):
    return {image.tobytes() for image in np.asarray(dataset.get_batch(indices=np.arange(n))["images"])}


# rngs


def test_one_rngs_for_train_and_val_makes_different_data():
    rngs = nnx.Rngs(0)
    train = ps.SyntheticImageDataset(SMALL, 100, rngs=rngs)
    val = ps.SyntheticImageDataset(SMALL, 20, rngs=rngs)
    assert not pixels(train, 100) & pixels(val, 20)
    assert pixels(ps.SyntheticImageDataset(SMALL, 20, rngs=nnx.Rngs(0)), 20) <= pixels(train, 100)  # the same seed


def test_the_second_dataset_of_one_rngs_is_the_same_in_another_process():
    code = """
from flax import nnx
import penstock as ps
rngs = nnx.Rngs(3)
first, second = (ps.SyntheticTextDataset(None, 9, rngs=rngs) for _ in range(2))
print(first.seed, second.seed, second.get_sample_text(4))
"""
    done = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert done[0].stdout == done[1].stdout
    assert done[0].stdout.split()[0] == "3"


def test_dataset_rngs_is_the_object_given():
    rngs = nnx.Rngs(0, sample=1)
    dataset = ps.SyntheticImageDataset(SMALL, 10, rngs=rngs)
    assert dataset.rngs is rngs
    assert ps.ImageModality(SMALL, rngs=rngs).rngs is rngs
    assert all(part.rngs is rngs for part in ps.split_dataset(dataset))
    layer = nnx.Dropout(0.5, rngs=dataset.rngs)
    assert layer(jnp.ones(8)).shape == (8,)
    assert isinstance(dataset.rngs.fork(), nnx.Rngs)
    state = dataset.state_dict()
    drawn = jax.random.key_data(rngs.sample()).tolist()
    dataset.load_state_dict(state)
    assert jax.random.key_data(rngs.sample()).tolist() == drawn


# collate_fn and pad_batch


def test_collate_pads_unequal_lengths_with_a_mask():
    batch = as_dataset([{"x": np.array([1, 2, 3])}, {"x": [4]}]).get_batch(indices=[0, 1])
    assert batch["x"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch["x_mask"].tolist() == [[True, True, True], [True, False, False]]
    assert list(as_dataset([{"x": np.zeros(2)}] * 2).get_batch(2)) == ["x"]  # equal lengths: no mask

    class Ragged(BaseDataset):
        def __len__(self):
            return 2

        def read(self, indices):
            return {"x": ps.Ragged.of([np.arange(i + 1) for i in indices])}

    assert Ragged().get_batch(indices=[1, 0])["x_mask"].tolist() == [[True, True], [True, False]]


def test_audio_of_unequal_lengths_is_padded_with_a_mask():
    long, short = (ps.SyntheticAudioDataset(ps.AudioModalityConfig(duration=d, n_mels=8), 2)[0] for d in (0.2, 0.1))
    batch = ps.SyntheticAudioDataset(ps.AudioModalityConfig(), 2).collate_fn([long, short])
    assert batch["audio"].shape == batch["audio_mask"].shape == (2, 3200)
    assert batch["audio_mask"].sum(axis=1).tolist() == [3200, 1600]
    np.testing.assert_array_equal(batch["audio"][1, :1600], short["audio"])
    assert not np.asarray(batch["audio"][1, 1600:]).any()
    assert batch["mel"].shape[:2] == (2, 8)
    assert batch["mel_mask"].shape == (2, batch["mel"].shape[2])
    assert batch["sample_rate"] == [16000, 16000]


def test_nested_samples_are_stacked_and_odd_ones_refused():
    batch = as_dataset([{"obs": {"a": np.ones(3), "b": {"c": i}}} for i in range(2)]).get_batch(indices=[0, 1])
    assert batch["obs"]["a"].shape == (2, 3)
    assert batch["obs"]["b"]["c"].tolist() == [0, 1]
    with pytest.raises(UsageError, match="numbers in 'x' of every sample"):
        as_dataset([{"x": 1.0}, {"x": None}]).get_batch(indices=[0, 1])
    with pytest.raises(UsageError, match=r"the same keys in every sample of 'obs'"):
        as_dataset([{"obs": {"a": 1}}, {"obs": {"b": 1}}]).get_batch(indices=[0, 1])


def test_pad_batch_pads_columns_of_different_lengths_alike():
    full = ps.pad_batch({"images": jnp.zeros((3, 2)), "labels": np.arange(4), "texts": ["a"] * 4, "k": (1, 2)}, 5)
    assert [len(full[name]) for name in ("images", "labels", "texts", "k")] == [5, 5, 5, 2]
    assert full["labels"].tolist() == [0, 1, 2, 3, 3]
    with pytest.raises(UsageError, match="columns of at most 5 rows"):
        ps.pad_batch({"images": jnp.zeros((3, 2)), "labels": np.arange(7)}, 5)


# Arguments and configurations


def test_factories_take_type_and_config_in_either_order():
    text = ps.ModalityConfiguration("text", "text", {"text_params": {"max_length": 7}})
    for made in (ps.create_text_dataset("synthetic", text), ps.create_text_dataset(text, "synthetic")):
        assert made.get_batch(2)["text_tokens"].shape == (2, 7)
    assert len(ps.create_text_dataset("simple", text, texts=["a", "b"])) == 2
    assert ps.create_image_dataset(SMALL, "mnist_like").get_batch(1)["images"].shape == (1, 8, 8, 3)
    assert ps.create_image_dataset(SMALL).get_batch(1)["images"].shape == (1, 8, 8, 3)
    assert ps.create_audio_dataset(ps.AudioModalityConfig(duration=0.1))[0]["audio"].shape == (1600,)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ps.SyntheticTextDataset(SMALL, 5), "a text configuration"),
        (lambda: ps.SyntheticTextDataset(ps.ModalityConfiguration(metadata={"vocab_size": 5})), "text_params"),
        (lambda: ps.SyntheticTextDataset(ps.ModalityConfiguration("image", "image")), "a text configuration"),
        (lambda: ps.SyntheticImageDataset(ps.AudioModalityConfig()), "config: ImageModalityConfig"),
        (lambda: ps.MNISTLikeDataset(ps.ModalityConfiguration()), "config: ImageModalityConfig"),
        (lambda: ps.SyntheticAudioDataset(SMALL), "config: AudioModalityConfig"),
        (lambda: ps.SyntheticImageDataset(pattern_type="gradients"), "fix:   pattern_type='gradient'"),
        (lambda: ps.SyntheticTextDataset(pattern_type="palindrome"), "fix:   pattern_type='palindromes'"),
        (lambda: ps.create_image_dataset(["synthetic"], SMALL), "dataset_type one of"),
    ],
)
def test_a_configuration_of_another_kind_is_refused(make, text):
    with pytest.raises(UsageError, match=text):
        make()


def test_memory_efficient_honours_size_and_rate(tmp_path):
    photos, sounds = [], []
    for i, size in enumerate([(64, 48), (31, 80), (8, 8)]):
        photos.append(tmp_path / f"{i}.png")
        Image.new("RGB", size, (255, 0, 0)).save(photos[-1])
        sounds.append(tmp_path / f"{i}.wav")
        with wave.open(str(sounds[-1]), "wb") as file:
            file.setparams((1, 2, 8000 * (i + 1), 0, "NONE", ""))
            file.writeframes((np.sin(np.arange(4000 * (i + 1))) * 9000).astype("<i2").tobytes())
    batch = MemoryEfficientDataset(SMALL, photos).get_batch(indices=[0, 1, 2])
    assert batch["data"].shape == (3, 8, 8, 3)
    assert batch["data"][0, 0, 0].tolist() == [1.0, 0.0, 0.0]
    config = ps.AudioModalityConfig(sample_rate=16000, duration=0.75)
    batch = MemoryEfficientDataset(config, sounds).get_batch(indices=[0, 1, 2])
    assert batch["data"].shape == (3, 12000)
    assert not np.asarray(batch["data"][:, 9000:]).any()  # half a second of sound each
    assert MemoryEfficientDataset(SMALL, photos).fingerprint() != MemoryEfficientDataset(None, photos).fingerprint()
    assert MemoryEfficientDataset(None, photos)[0]["data"].dtype == np.uint8


def test_a_cached_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "a.txt"

    def length(name):
        return np.array([len(Path(name).read_text())])

    for given in (str(path), path):
        path.write_text("one")
        cached = CachedDataset(None, [given], tmp_path / "c", preprocess=length)
        memory = CachedDataset(None, [given], preprocess=length)
        assert int(cached[0]["data"][0]) == int(memory[0]["data"][0]) == 3
        path.write_text("three more")
        assert int(cached[0]["data"][0]) == int(memory[0]["data"][0]) == 10
        assert int(CachedDataset(None, [given], tmp_path / "c", preprocess=length)[0]["data"][0]) == 10


# Messages


def test_augmenting_the_wrong_shape_or_key_is_refused():
    key = jax.random.key(0)
    images = np.zeros((2, 4, 4, 3), np.float32)
    with pytest.raises(UsageError, match=r"shape \(H, W, C\)(.|\n)*augment_batch_jit"):
        ps.augment_image(images, key)
    with pytest.raises(UsageError, match=r"shape \(N, H, W, C\)"):
        ps.augment_batch_jit(images[0], key)
    with pytest.raises(UsageError, match=r"shape \(samples,\)"):
        ps.augment_audio(np.zeros((2, 9)), 16000, key)
    with pytest.raises(UsageError, match=r"shape \(length,\)"):
        ps.augment_text_tokens(np.zeros((2, 9), int), 10, key)
    with pytest.raises(UsageError, match=r"batch\['images'\] = batch.pop\('image'\)") as caught:
        ps.augment_batch({"image": images}, key)
    assert isinstance(caught.value, KeyError)
    assert str(caught.value).startswith("expected a batch with 'images'")


def test_audio_and_text_augmentation_can_be_jitted_without_static_arguments():
    key = jax.random.key(0)
    sound, tokens = np.sin(np.arange(200.0)).astype(np.float32), np.arange(20) + 4
    np.testing.assert_allclose(
        jax.jit(ps.augment_audio)(sound, 16000, key), ps.augment_audio(sound, 16000, key), atol=1e-6
    )
    np.testing.assert_array_equal(
        jax.jit(ps.augment_text_tokens)(tokens, 100, key), ps.augment_text_tokens(tokens, 100, key)
    )


def test_a_forgotten_init_is_named():
    class Mine(BaseDataset):
        def __init__(self):
            self.data = [1]

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return {"x": 1}

    with pytest.raises(UsageError, match=r"super\(\).__init__\(config, split, rngs=rngs\) in Mine.__init__"):
        Mine().get_batch(1)
    assert not hasattr(Mine(), "config")


@pytest.mark.parametrize(("sample", "text"), [(np.ones(3), "ndarray"), ((1, 2), "a tuple of 2"), (None, "NoneType")])
def test_samples_that_are_not_dicts_are_named(sample, text):
    class Mine(BaseDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return sample

    for read in (lambda: Mine().get_batch(1), lambda: Mine().read(np.array([0]))):
        with pytest.raises(UsageError, match=f"a dict as each sample\n.*{text}\n.*Mine.__getitem__"):
            read()


def test_torch_style_tuples_are_refused_with_the_fix():
    data = [(np.ones(2), i) for i in range(4)]
    with pytest.raises(UsageError, match=r'"images": sample\[0\], "labels": sample\[1\]'):
        next(iter(ps.create_simple_data_loader(data, 2)))


def test_a_pipeline_is_neither_iterated_nor_counted():
    pipeline = ps.from_arrays({"x": range(4)})
    with pytest.raises(TypeError, match="an output before iterating"):
        iter(pipeline)
    with pytest.raises(TypeError, match=r"len\(pipeline.batch\(32\).to_numpy\(\)\)"):
        len(pipeline)
    assert bool(pipeline)
    with pytest.raises(UsageError, match="a dataset"):
        ps.create_simple_data_loader(pipeline, 2)


def test_a_pipeline_over_any_dataset_class():
    class Mine:
        fingerprint = "1"

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": np.full(2, index)}

    assert ps.Pipeline(Mine()).batch(4).to_jax().batch_at(0)["x"][:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="a source, or a dataset"):
        ps.Pipeline(5)


def test_images_are_processed_inside_jit():
    images = np.random.default_rng(0).integers(0, 256, (2, 12, 9, 3)).astype(np.uint8)
    for config in (SMALL, ps.ImageModalityConfig(height=9, width=5, channels=1, normalize=False)):
        modality = ps.ImageModality(config)
        inside = jax.jit(modality.process)(images)
        np.testing.assert_allclose(inside, modality.process(images), atol=1e-4 * (1 if config.normalize else 255))
        np.testing.assert_allclose(jax.jit(modality.process)(images[0]), inside[0], atol=1e-4)
    with pytest.raises(UsageError, match="value_range= for images inside a jitted function"):
        jax.jit(ps.ImageModality(SMALL).process)(images / 255)
    scaled = jax.jit(lambda x: ps.ImageModality(SMALL).process(x, value_range=(0, 1)))(images / 255)
    np.testing.assert_allclose(scaled, ps.ImageModality(SMALL).process(images), atol=1e-4)


# Loaders


def numbers(n):
    return [{"x": i, "images": np.full((2, 2, 1), np.nan if i % 4 == 3 else 0.5)} for i in range(n)]


def test_a_prefetching_loader_starts_its_epoch_anew_after_leaving_early():
    loader = ps.PrefetchDataLoader(numbers(20), 5, shuffle=False)
    assert [int(next(iter(loader))["x"][0]) for _ in range(3)] == [0, 0, 0]
    for count, _ in enumerate(loader):
        if count == 1:
            state = loader.state_dict()
            break
    assert [int(b["x"][0]) for b in loader] == [0, 5, 10, 15]
    assert loader.epoch == 1
    again = ps.PrefetchDataLoader(numbers(20), 5, shuffle=False)
    again.load_state_dict(state)
    assert [int(b["x"][0]) for b in again] == [10, 15]
    assert [int(b["x"][0]) for b in again] == [0, 5, 10, 15]
    shuffled = ps.PrefetchDataLoader(numbers(20), 5)
    first = next(iter(shuffled))["x"].tolist()
    whole = [b["x"].tolist() for b in shuffled]
    assert whole[0] == first
    assert [b["x"].tolist() for b in shuffled] != whole
    assert loader.queue.maxsize == 2
    assert loader.queue is loader.queue
    assert [len(b["x"]) for b in ps.PrefetchDataLoader(numbers(7), 5, drop_last=True)] == [5]


def test_loaders_over_validated_datasets_have_full_batches():
    data = ps.ValidatedDataset(numbers(40))
    for made in (data, ps.split_dataset(data)[0], ps.TransformDataset(None, data, [dict])):
        for loader in (ps.create_simple_data_loader(made, 5), ps.PrefetchDataLoader(made, 5)):
            batches = list(loader)
            assert [len(b["x"]) for b in batches][: len(made) // 5] == [5] * (len(made) // 5)
            seen = {int(x) for b in batches for x in b["x"]}
            assert all(x % 4 != 3 for x in seen)
            assert len(seen) > len(made) / 2
            state = loader.state_dict()
            loader.load_state_dict(state)
    first, second = (ps.create_simple_data_loader(data, 5) for _ in range(2))
    next(first)
    second.load_state_dict(first.state_dict())
    assert [b["x"].tolist() for b in second] == [b["x"].tolist() for b in list(first)]


def test_a_missing_field_names_the_argument(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n')
    with pytest.raises(ps.PenstockError, match="text_field="):
        ps.read_jsonl(str(path)).peek()
