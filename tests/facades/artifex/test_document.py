"""A tour of the data loading guide: each of its examples, in order, with the shapes it promises.

Every test is one example: what a user types after changing the import lines and filling in the placeholders. Custom
classes are written the way the guide writes them, `"sample" in self.rngs` and random `get_batch` included.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from penstock.facades.artifex.audio.config import AudioModalityConfig
from penstock.facades.artifex.audio.synthetic import SyntheticAudioDataset, create_audio_dataset
from penstock.facades.artifex.augment import (
    augment_audio_batch,
    augment_batch,
    augment_batch_jit,
    augment_image,
    augment_text_batch,
)
from penstock.facades.artifex.datasets.base import BaseDataset
from penstock.facades.artifex.datasets.config import BaseModalityConfig, ModalityConfiguration
from penstock.facades.artifex.datasets.split import split_dataset
from penstock.facades.artifex.datasets.validated import validate_sample
from penstock.facades.artifex.image.mnist_like import MNISTLikeDataset, create_image_dataset
from penstock.facades.artifex.image.modality import ImageModality, ImageModalityConfig, ImageRepresentation
from penstock.facades.artifex.image.synthetic import SyntheticImageDataset
from penstock.facades.artifex.loaders.cached import CachedLoader
from penstock.facades.artifex.loaders.epochs import (
    PrefetchDataLoader,
    create_multi_epoch_data_loader,
    create_simple_data_loader,
)
from penstock.facades.artifex.loaders.multimodal import create_multi_modal_loader
from penstock.facades.artifex.loaders.pipeline import create_training_pipeline
from penstock.facades.artifex.loaders.preprocess import (
    convert_to_float16,
    pad_batch,
    preprocess_batch,
    vectorized_preprocessing,
)
from penstock.facades.artifex.multimodal.paired import MultiModalPairedDataset
from penstock.facades.artifex.multimodal.synthetic import create_synthetic_multi_modal_dataset
from penstock.facades.artifex.text.dataset import SimpleTextDataset
from penstock.facades.artifex.text.synthetic import SyntheticTextDataset, create_text_dataset


@pytest.fixture
def rngs():
    return nnx.Rngs(0)


@pytest.fixture
def config():
    return ImageModalityConfig(representation=ImageRepresentation.RGB, height=32, width=32, normalize=True)


@pytest.fixture
def dataset(config, rngs):
    return SyntheticImageDataset(config=config, dataset_size=1000, pattern_type="random", rngs=rngs)


@pytest.fixture
def text_config():
    return ModalityConfiguration(
        name="text",
        modality_type="text",
        metadata={
            "text_params": {
                "vocab_size": 10000,
                "max_length": 512,
                "pad_token_id": 0,
                "unk_token_id": 1,
                "bos_token_id": 2,
                "eos_token_id": 3,
                "case_sensitive": False,
            }
        },
    )


def test_quick_start(dataset):
    batch = dataset.get_batch(batch_size=32)
    assert batch["images"].shape == (32, 32, 32, 3)
    assert isinstance(batch["images"], jax.Array)


@pytest.mark.parametrize("pattern", ["random", "gradient", "checkerboard", "circles"])
def test_image_patterns(config, rngs, pattern):
    made = SyntheticImageDataset(config=config, dataset_size=5000, pattern_type=pattern, rngs=rngs)
    assert len(made) == 5000
    assert made.get_batch(4)["images"].shape == (4, 32, 32, 3)


def test_mnist_like_and_factory(config, rngs):
    mnist_config = ImageModalityConfig(
        representation=ImageRepresentation.GRAYSCALE, height=28, width=28, normalize=True
    )
    mnist = MNISTLikeDataset(config=mnist_config, dataset_size=60000, num_classes=10, rngs=rngs)
    assert mnist.get_batch(16)["images"].shape == (16, 28, 28, 1)
    made = create_image_dataset(
        dataset_type="synthetic", config=config, pattern_type="gradient", dataset_size=10000, rngs=rngs
    )
    assert len(made) == 10000


def test_iterating_over_datasets(dataset):
    for sample in dataset:
        assert sample["images"].shape == (32, 32, 3)
        break
    batch_size = 128
    seen = []
    for _ in range(len(dataset) // batch_size):
        images = dataset.get_batch(batch_size)["images"]
        assert images.shape == (128, 32, 32, 3)
        seen.append(np.asarray(images))
    rows = np.concatenate(seen).reshape(7 * 128, -1)
    assert len(np.unique(rows[:, :8], axis=0)) == 7 * 128  # every batch is new


def test_images_from_arrays(config, rngs):
    modality = ImageModality(config=config, rngs=rngs)
    raw_images = jnp.array(np.random.default_rng(0).integers(0, 256, (5, 48, 64, 3)), jnp.uint8)
    processed = modality.process(raw_images)
    assert processed.shape == (5, 32, 32, 3)
    assert 0.0 <= float(processed.min()) < float(processed.max()) <= 1.0


@pytest.mark.parametrize("pattern", ["random_sentences", "repeated_phrases", "sequences", "palindromes"])
def test_text_patterns(text_config, rngs, pattern):
    made = SyntheticTextDataset(config=text_config, dataset_size=5000, pattern_type=pattern, rngs=rngs)
    batch = made.get_batch(8)
    assert batch["text_tokens"].shape == (8, 512)
    assert len(batch["texts"]) == 8
    second = create_text_dataset(text_config, "synthetic", pattern_type=pattern, dataset_size=7, rngs=rngs)
    assert (made.seed, second.seed != 0) == (0, True)  # each draws from the stream


def test_text_from_strings_and_access(text_config, rngs):
    texts = ["The quick brown fox", "Data flows downhill", "Neural networks learn", "Every word has a number"]
    made = SimpleTextDataset(config=text_config, texts=texts, split="train", rngs=rngs)
    batch = made.get_batch(batch_size=32)
    assert batch["text_tokens"].shape == (32, 512)
    assert len(batch["texts"]) == 32
    for number, sample in enumerate(made):
        assert sample["text_tokens"].shape == (512,)
        assert sample["text"] == texts[number]
        assert int(sample["index"]) == number
    assert made.get_sample_text(0) == texts[0]
    assert set(made.get_vocab_stats()) == {"unique_tokens", "vocab_coverage", "total_sequences", "max_length"}
    assert made.get_vocab_stats()["total_sequences"] == 4


def test_audio():
    audio_config = AudioModalityConfig(sample_rate=16000, duration=1.0, n_mels=80, hop_length=512, normalize=True)
    made = SyntheticAudioDataset(config=audio_config, n_samples=1000, audio_types=["sine", "noise", "chirp"])
    sample = made[0]
    assert sample["audio"].shape == (16000,)
    assert (sample["audio_type"], sample["sample_rate"], sample["duration"]) == ("sine", 16000, 1.0)
    made = create_audio_dataset(
        dataset_type="synthetic", config=audio_config, n_samples=5000, audio_types=["sine", "noise"]
    )
    batch = made.collate_fn([made[0], made[1], made[2], made[3]])
    assert batch["audio"].shape == (4, 16000)
    assert len(batch["audio_type"]) == 4


def test_aligned_multi_modal(rngs):
    made = create_synthetic_multi_modal_dataset(
        modalities=["image", "text", "audio"],
        num_samples=1000,
        alignment_strength=0.8,
        image_shape=(32, 32, 3),
        text_vocab_size=1000,
        text_sequence_length=50,
        audio_sample_rate=16000,
        audio_duration=1.0,
        rngs=rngs,
    )
    sample = made[0]
    assert list(sample.keys()) == ["image", "text", "audio", "alignment_score", "latent"]
    shapes = {name: sample[name].shape for name in ("image", "text", "audio", "latent")}
    assert shapes == {"image": (32, 32, 3), "text": (50,), "audio": (16000,), "latent": (32,)}
    assert sample["alignment_score"] == 0.8


def test_paired():
    image_data, text_data, audio_data = jnp.zeros((6, 8, 8, 3)), jnp.zeros((6, 20), jnp.int32), jnp.zeros((6, 100))
    made = MultiModalPairedDataset(
        pairs=[("image", "text"), ("image", "audio"), ("text", "audio")],
        data={"image": image_data, "text": text_data, "audio": audio_data},
        alignments=jnp.ones((len(image_data),)),
    )
    sample = made[0]
    assert (sample["image"].shape, sample["text"].shape, sample["audio"].shape) == ((8, 8, 3), (20,), (100,))
    assert float(sample["alignment_scores"]) == 1.0
    assert made.get_batch(4)["audio"].shape == (4, 100)


class CustomImageDataset(BaseDataset):
    """Images by path, all loaded at once; batches drawn at random."""

    def __init__(self, config: BaseModalityConfig, image_paths: list[str], split: str = "train", *, rngs: nnx.Rngs):
        super().__init__(config, split, rngs=rngs)
        self.image_paths = image_paths
        self.images = self._load_images()

    def _load_images(self):
        return [jax.random.uniform(jax.random.key(zlib.crc32(path.encode())), (32, 32, 3)) for path in self.image_paths]

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        for i, image in enumerate(self.images):
            yield {"images": image, "index": jnp.array(i), "path": self.image_paths[i]}

    def get_batch(self, batch_size: int) -> dict[str, jax.Array]:
        key = self.rngs.sample() if "sample" in self.rngs else jax.random.key(0)
        indices = jax.random.randint(key, (batch_size,), 0, len(self))
        return {
            "images": jnp.stack([self.images[int(i)] for i in indices]),
            "indices": indices,
            "paths": [self.image_paths[int(i)] for i in indices],
        }


@pytest.fixture
def custom(config):
    paths = [f"folder/image{i}.jpg" for i in range(20)]
    return CustomImageDataset(config=config, image_paths=paths, split="train", rngs=nnx.Rngs(params=0, sample=1))


def test_custom_dataset(custom):
    first, second = custom.get_batch(8), custom.get_batch(8)
    assert first["images"].shape == (8, 32, 32, 3)
    assert len(first["paths"]) == 8
    assert first["indices"].tolist() != second["indices"].tolist()  # it advances
    assert custom.get_sample(3)["path"] == "folder/image3.jpg"
    assert custom.get_data_statistics()["size"] == 20


def test_custom_dataset_through_every_loader(custom):
    """Under a loader the same class gives every record once, with the very keys of its own batches."""
    for loader in (
        create_simple_data_loader(custom, 6),
        PrefetchDataLoader(custom, 6, num_workers=2),
        (batch for _, batch in create_multi_epoch_data_loader(custom, 6, num_epochs=1)),
    ):
        batches = list(loader)
        assert list(batches[0]) == list(custom.get_batch(2))
        assert sorted(int(i) for b in batches for i in b["indices"]) == list(range(20))
        for batch in batches:
            expected = np.stack([custom.images[int(index)] for index in batch["indices"]])
            np.testing.assert_array_equal(batch["images"], expected)
    train, val = split_dataset(custom, train_ratio=0.8, seed=42)
    assert {int(s["index"]) for s in train}.isdisjoint({int(s["index"]) for s in val})
    assert val.get_batch(4)["images"].shape == (4, 32, 32, 3)
    assert CachedLoader(custom, cache_size=4).get_batch(5)["images"].shape == (5, 32, 32, 3)
    images = next(iter(create_training_pipeline(custom, 10)))["images"]
    assert images.shape == (10, 32, 32, 3)


class OwnCachedDataset(BaseDataset):
    """Prepared records are remembered."""

    def __init__(self, config, data_source: list, cache_dir: str, split: str = "train", *, rngs: nnx.Rngs):
        super().__init__(config, split, rngs=rngs)
        self.data_source = data_source
        self.cache_dir = cache_dir
        self.cache = {}

    def _load_and_preprocess(self, index: int):
        if index not in self.cache:
            self.cache[index] = self._expensive_preprocessing(self.data_source[index])
        return self.cache[index]

    def _expensive_preprocessing(self, data):
        return data * 2

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self):
        for i in range(len(self)):
            yield {"data": self._load_and_preprocess(i), "index": jnp.array(i)}

    def get_batch(self, batch_size: int):
        key = self.rngs.sample() if "sample" in self.rngs else jax.random.key(0)
        indices = jax.random.randint(key, (batch_size,), 0, len(self))
        return {"data": jnp.stack([self._load_and_preprocess(int(i)) for i in indices]), "indices": indices}


def test_custom_dataset_with_caching(config, rngs, tmp_path):
    made = OwnCachedDataset(config, [jnp.full((3,), float(i)) for i in range(10)], str(tmp_path), rngs=rngs)
    batch = made.get_batch(4)
    np.testing.assert_array_equal(np.asarray(batch["data"])[:, 0], 2 * np.asarray(batch["indices"]))
    assert len(list(made)) == 10 == len(made.cache)


class OwnTransformDataset(BaseDataset):
    """Functions over another dataset."""

    def __init__(self, config, base_dataset: BaseDataset, transforms=None, split: str = "train", *, rngs: nnx.Rngs):
        super().__init__(config, split, rngs=rngs)
        self.base_dataset = base_dataset
        self.transforms = transforms or []

    def _apply_transforms(self, sample: dict) -> dict:
        for transform in self.transforms:
            sample = transform(sample)
        return sample

    def __len__(self) -> int:
        return len(self.base_dataset)

    def __iter__(self):
        for sample in self.base_dataset:
            yield self._apply_transforms(sample)

    def get_batch(self, batch_size: int):
        return self._apply_transforms(self.base_dataset.get_batch(batch_size))


def normalize_images(sample):
    if "images" in sample:
        images = sample["images"]
        sample["images"] = (images - images.min()) / (images.max() - images.min() + 1e-8)
    return sample


def add_noise(sample, noise_level=0.1):
    if "images" in sample:
        noise = noise_level * jax.random.normal(jax.random.key(0), sample["images"].shape)
        sample["images"] = jnp.clip(sample["images"] + noise, 0, 1)
    return sample


def random_flip(sample):
    if "images" in sample and jax.random.bernoulli(jax.random.key(0), 0.5):
        sample["images"] = jnp.flip(sample["images"], axis=-2)
    return sample


def test_custom_dataset_with_transformations(config, rngs):
    dataset = SyntheticImageDataset(config, 40, rngs=rngs)
    transforms = [normalize_images, add_noise, random_flip]
    made = OwnTransformDataset(config=config, base_dataset=dataset, transforms=transforms, rngs=rngs)
    assert made.get_batch(16)["images"].shape == (16, 32, 32, 3)
    assert next(iter(made))["images"].shape == (32, 32, 3)
    assert next(iter(create_simple_data_loader(made, 4)))["images"].shape == (4, 32, 32, 3)


def test_augmentation_examples(config, text_config, rngs):
    dataset = SyntheticImageDataset(config, 16, rngs=rngs)
    key = jax.random.key(0)
    assert augment_image(dataset[0]["images"], key).shape == (32, 32, 3)
    for batch in create_simple_data_loader(dataset, 8):
        key, subkey = jax.random.split(key)
        assert augment_batch(batch, subkey)["images"].shape == (8, 32, 32, 3)
        assert augment_batch_jit(batch["images"], subkey).shape == (8, 32, 32, 3)
    text = SyntheticTextDataset(config=text_config, dataset_size=8, rngs=rngs).get_batch(4)
    assert augment_text_batch(text, 10000, key)["text_tokens"].shape == (4, 512)
    audio = SyntheticAudioDataset(AudioModalityConfig(duration=0.1), 8).get_batch(4)
    assert augment_audio_batch(audio, 16000, key)["audio"].shape == (4, 1600)


def test_simple_loader(dataset):
    loader = create_simple_data_loader(dataset=dataset, batch_size=128, shuffle=True, drop_last=True)
    assert [batch["images"].shape for batch in loader] == [(128, 32, 32, 3)] * 7


def test_multi_epoch_loader(config):
    small = SyntheticImageDataset(config, 300, rngs=0)
    loader = create_multi_epoch_data_loader(dataset=small, batch_size=128, num_epochs=10, shuffle=True)
    epochs = [(epoch, batch["images"].shape[0]) for epoch, batch in loader]
    assert epochs == [(e, n) for e in range(10) for n in (128, 128, 44)]


def test_prefetching_loader(dataset):
    loader = PrefetchDataLoader(dataset=dataset, batch_size=128, shuffle=True, num_workers=4, prefetch_size=2)
    assert [batch["images"].shape[0] for batch in loader] == [128] * 7 + [104]


def test_compiled_preprocessing(dataset):
    batch = preprocess_batch(dataset.get_batch(16))
    np.testing.assert_allclose(np.asarray(batch["images"].mean(axis=(1, 2, 3))), 0, atol=1e-5)
    np.testing.assert_allclose(np.asarray(batch["images"].std(axis=(1, 2, 3))), 1, atol=1e-4)
    assert vectorized_preprocessing(dataset.get_batch(16)["images"]).shape == (16, 32, 32, 3)


class OwnMemoryEfficientDataset(BaseDataset):
    """Records are loaded when asked for."""

    def __init__(self, config, data_paths: list[str], split: str = "train", *, rngs: nnx.Rngs):
        super().__init__(config, split, rngs=rngs)
        self.data_paths = data_paths

    def _load_sample(self, index: int):
        return jax.random.uniform(jax.random.key(index), (32, 32, 3))

    def __len__(self) -> int:
        return len(self.data_paths)

    def __iter__(self):
        for i in range(len(self)):
            yield {"data": self._load_sample(i), "index": jnp.array(i)}

    def get_batch(self, batch_size: int):
        key = self.rngs.sample() if "sample" in self.rngs else jax.random.key(0)
        indices = jax.random.randint(key, (batch_size,), 0, len(self))
        return {"data": jnp.stack([self._load_sample(int(i)) for i in indices]), "indices": indices}


def test_memory_efficient_loading(config, rngs):
    made = OwnMemoryEfficientDataset(config, ["a", "b", "c"], rngs=rngs)
    assert made.get_batch(5)["data"].shape == (5, 32, 32, 3)
    assert next(iter(create_simple_data_loader(made, 2)))["data"].shape == (2, 32, 32, 3)


def test_cached_loader(dataset):
    loader = CachedLoader(dataset, cache_size=256)
    one, two = loader.get_batch(32), loader.get_batch(32)
    assert one["images"].shape == (32, 32, 32, 3)
    assert not np.array_equal(one["images"], two["images"])


def test_split(dataset):
    train_dataset, val_dataset = split_dataset(dataset, train_ratio=0.8, seed=42)
    assert (len(train_dataset), len(val_dataset)) == (800, 200)
    pixels = {image.tobytes() for image in np.asarray(val_dataset.get_batch(200)["images"])}
    assert len(pixels) == 200
    loader = create_simple_data_loader(train_dataset, 200)
    assert not any(image.tobytes() in pixels for batch in loader for image in np.asarray(batch["images"]))


def test_training_pipeline(dataset):
    pipeline = create_training_pipeline(dataset=dataset, batch_size=128, augment=True, normalize=True, shuffle=True)
    shapes = [batch["images"].shape for batch in pipeline]
    assert shapes == [(128, 32, 32, 3)] * 7


def test_multi_modal_loader(config, text_config, rngs):
    image_dataset = SyntheticImageDataset(config, 200, rngs=rngs)
    text_dataset = SyntheticTextDataset(text_config, 200, rngs=rngs)
    loader = create_multi_modal_loader(
        image_dataset=image_dataset, text_dataset=text_dataset, batch_size=64, align=True
    )
    shapes = [(batch["images"].shape, batch["text_tokens"].shape) for batch in loader]
    assert shapes == [((64, 32, 32, 3), (64, 512))] * 3


def test_troubleshooting(dataset, config, rngs):
    class OnDemandDataset(BaseDataset):
        def __init__(self, data_paths, **kwargs):
            super().__init__(**kwargs)
            self.data_paths = data_paths

        def get_batch(self, batch_size):
            pass

    assert OnDemandDataset(["a"], config=config, rngs=rngs).get_batch(3) is None
    batch = dataset.get_batch(4)
    assert convert_to_float16(batch)["images"].dtype == jnp.float16
    assert jax.jit(lambda b: b)(batch)["images"].shape == (4, 32, 32, 3)
    cache = {(dataset, 4): batch}  # datasets are keys
    assert cache[(dataset, 4)] is batch
    last = list(create_simple_data_loader(dataset, batch_size=128))[-1]
    assert last["images"].shape[0] == 104
    assert pad_batch(last, 128)["images"].shape[0] == 128


def test_data_corruption(config, rngs):
    class OwnValidatedDataset(BaseDataset):
        def __init__(self, base_dataset, **kwargs):
            super().__init__(**kwargs)
            self.base_dataset = base_dataset

        def get_batch(self, batch_size):
            batch = self.base_dataset.get_batch(batch_size)
            samples = [{"images": batch["images"][i]} for i in range(batch["images"].shape[0])]
            valid = [sample for sample in samples if validate_sample(sample)]
            if valid:
                batch["images"] = jnp.stack([sample["images"] for sample in valid])
            return batch

    images = jnp.full((6, 32, 32, 3), 0.5).at[2].set(jnp.nan).at[4].set(7.0)
    raw = SimpleNamespace(get_batch=lambda n: {"images": images[:n]})
    made = OwnValidatedDataset(raw, config=config, rngs=rngs)
    assert made.get_batch(6)["images"].shape == (4, 32, 32, 3)
