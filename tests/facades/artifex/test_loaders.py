"""Loaders: order, tails, epochs, state, prefetching, caching, training pipeline, pairs of datasets, padding."""

from __future__ import annotations

import json
import threading
import time
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import UsageError
from penstock.facades.artifex.audio.config import AudioModalityConfig
from penstock.facades.artifex.audio.synthetic import SyntheticAudioDataset
from penstock.facades.artifex.datasets.base import BaseDataset, as_dataset
from penstock.facades.artifex.datasets.config import ModalityConfiguration
from penstock.facades.artifex.datasets.split import split_dataset
from penstock.facades.artifex.image.modality import ImageModalityConfig
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
from penstock.facades.artifex.text.synthetic import SyntheticTextDataset

SMALL = ImageModalityConfig(height=8)


class Numbers(BaseDataset):
    """Counts how many batches were made."""

    def __init__(self, size, delay=0.0):
        super().__init__(rngs=0)
        self.size, self.delay, self.made = size, delay, 0
        self.lock = threading.Lock()

    def __len__(self):
        return self.size

    def read(self, indices):
        with self.lock:
            self.made += 1
        time.sleep(self.delay)
        return {"x": np.asarray(indices)}


def rows(loader):
    return [batch["x"].tolist() for batch in loader]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_simple_epochs(shuffle, drop_last):
    loader = create_simple_data_loader(Numbers(23), 5, shuffle=shuffle, drop_last=drop_last)
    first, second = rows(loader), rows(loader)
    assert [len(b) for b in first] == [5] * 4 + [3] * (not drop_last)
    assert len(loader) == len(first)
    flat = list(chain(*first))
    assert len(set(flat)) == len(flat)
    if not drop_last:
        assert sorted(flat) == list(range(23))
    if shuffle:
        assert first != second
        assert flat != sorted(flat)
        assert rows(create_simple_data_loader(Numbers(23), 5, drop_last=drop_last)) == first
        assert rows(create_simple_data_loader(Numbers(23), 5, drop_last=drop_last, seed=1)) != first
    else:
        assert first == second
        assert flat == list(range(len(flat)))


def test_next_works_as_with_a_generator():
    loader = create_simple_data_loader(Numbers(4), 2, shuffle=False)
    assert [next(loader)["x"].tolist(), next(loader)["x"].tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(StopIteration):
        next(loader)
    assert next(loader)["x"].tolist() == [0, 1]


def test_too_few_records_are_said():
    with pytest.raises(UsageError, match="at least one batch of 32 records"):
        create_simple_data_loader(Numbers(5), 32, drop_last=True)
    assert [len(b) for b in rows(create_simple_data_loader(Numbers(5), 32))] == [5]


def test_state_resumes_exactly_and_is_small():
    whole = create_simple_data_loader(Numbers(50), 4, seed=3)
    everything = [rows(whole), rows(whole)]
    first = create_simple_data_loader(Numbers(50), 4, seed=3)
    taken = [next(first)["x"].tolist() for _ in range(5)]
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1024
    second = create_simple_data_loader(Numbers(50), 4, seed=3)
    second.load_state_dict(state)
    assert [taken + rows(second), rows(second)] == everything
    assert first.batch_at(14)["x"].tolist() == everything[1][1]
    assert first.why(0, 1)["record"] == everything[0][0][1]


def test_a_custom_get_batch_is_not_asked_which_records():
    class Old(Numbers):
        def get_batch(self, batch_size):
            raise AssertionError("it gives random records")

    assert sorted(chain(*rows(create_simple_data_loader(Old(9), 4)))) == list(range(9))

    class New(Numbers):
        def get_batch(self, batch_size, indices):
            return {"x": jnp.asarray(indices) * 10}

    assert sorted(chain(*rows(create_simple_data_loader(New(3), 2)))) == [0, 10, 20]


def test_multi_epoch():
    loader = create_multi_epoch_data_loader(Numbers(10), 4, num_epochs=3)
    got = [(epoch, batch["x"].tolist()) for epoch, batch in loader]
    assert [epoch for epoch, _ in got] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(loader) == 9
    passes = [list(chain(*(b for e, b in got if e == epoch))) for epoch in range(3)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert [(epoch, batch["x"].tolist()) for epoch, batch in loader] == got
    half = create_multi_epoch_data_loader(Numbers(10), 4, num_epochs=3)
    for count, _ in enumerate(half, 1):
        if count == 4:
            break
    other = create_multi_epoch_data_loader(Numbers(10), 4, num_epochs=3)
    other.load_state_dict(half.state_dict())
    assert [(epoch, batch["x"].tolist()) for epoch, batch in other] == got[4:]
    assert list(create_multi_epoch_data_loader(Numbers(10), 4, num_epochs=0)) == []
    with pytest.raises(UsageError, match="num_epochs"):
        create_multi_epoch_data_loader(Numbers(10), 4, num_epochs=-1)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_prefetch_keeps_the_tail_and_the_order(workers):
    plain = create_simple_data_loader(Numbers(23), 5)
    ahead = PrefetchDataLoader(Numbers(23, delay=0.001), 5, num_workers=workers, prefetch_size=2)
    assert [rows(ahead), rows(ahead)] == [rows(plain), rows(plain)]
    assert len(ahead) == 5


def test_prefetch_is_bounded_and_leaves_no_thread():
    before = threading.active_count()
    dataset = Numbers(400, delay=0.004)  # slow enough that each batch is worked out by itself
    loader = PrefetchDataLoader(dataset, 4, num_workers=2, prefetch_size=2)
    run = iter(loader)
    for _ in range(10):
        next(run)
    time.sleep(0.3)
    assert dataset.made <= 10 + 2 + 2 + 1
    run.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_prefetch_raises_where_the_batch_would_have_come():
    class Broken(Numbers):
        def read(self, indices):
            if 7 in indices:
                raise OSError("disk gone")
            return super().read(indices)

    loader = PrefetchDataLoader(Broken(12), 2, shuffle=False, num_workers=2)
    run = iter(loader)
    assert [next(run)["x"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(OSError, match="disk gone"):
        next(run)
    with pytest.raises(UsageError, match="prefetch_size of at least 1"):
        PrefetchDataLoader(Broken(12), 2, prefetch_size=0)


def test_cached_loader_holds_no_more_than_it_may_and_advances():
    dataset = Numbers(20)
    loader = CachedLoader(dataset, cache_size=8)
    seen = [loader.get_batch(10)["x"].tolist() for _ in range(4)]
    assert sorted(seen[0] + seen[1]) == list(range(20)) == sorted(seen[2] + seen[3])
    assert seen[0] + seen[1] != seen[2] + seen[3]
    assert len(loader._cache) == 8
    assert loader.get_batch(indices=[3, 3])["x"].tolist() == [3, 3]
    hits, made = loader.hits, dataset.made
    loader.get_batch(indices=[3])
    assert (loader.hits, dataset.made) == (hits + 1, made)
    again = CachedLoader(Numbers(20))
    again.load_state_dict({"position": 20})
    assert again.get_batch(10)["x"].tolist() == seen[2]


def test_training_pipeline_shapes_ranges_and_order():
    dataset = SyntheticImageDataset(SMALL, 50, "gradient", rngs=0)
    loader = create_training_pipeline(dataset, 16)
    batches = list(loader)
    assert [b["images"].shape for b in batches] == [(16, 8, 8, 3)] * 3
    assert all(float(b["images"].min()) >= 0 and float(b["images"].max()) <= 1 for b in batches)
    plain = list(create_training_pipeline(dataset, 16, augment=False, normalize=False))
    expected = [b["images"] for b in create_simple_data_loader(dataset, 16, drop_last=True)]
    for got, want, augmented in zip(plain, expected, batches, strict=True):
        np.testing.assert_array_equal(got["images"], want)
        assert not np.allclose(got["images"], augmented["images"])
    scaled = next(iter(create_training_pipeline(dataset, 16, augment=False)))["images"]
    assert float(scaled.min()) == 0.0
    assert float(scaled.max()) == pytest.approx(1.0, abs=1e-6)


def test_augmentation_belongs_to_the_record_not_to_the_batch():
    dataset = SyntheticImageDataset(SMALL, 24, "random", rngs=0)
    options = {"normalize": False, "shuffle": False}
    small = jnp.concatenate([b["images"] for b in create_training_pipeline(dataset, 4, **options)])
    large = jnp.concatenate([b["images"] for b in create_training_pipeline(dataset, 12, **options)])
    np.testing.assert_allclose(np.asarray(small), np.asarray(large), atol=1e-6)
    loader = create_training_pipeline(dataset, 12, **options)
    one, two = list(loader), list(loader)
    assert not np.allclose(one[0]["images"], two[0]["images"])
    other = next(iter(create_training_pipeline(dataset, 12, seed=1, **options)))
    assert not np.allclose(one[0]["images"], other["images"])


def test_training_pipeline_for_text_and_audio():
    config = ModalityConfiguration(metadata={"text_params": {"vocab_size": 50, "max_length": 12}})
    text = SyntheticTextDataset(config, 64, rngs=0)
    augmented = next(iter(create_training_pipeline(text, 64, shuffle=False)))
    plain = text.get_batch(indices=np.arange(64))
    before, after = np.asarray(plain["text_tokens"]), np.asarray(augmented["text_tokens"])
    assert augmented["texts"] == plain["texts"]
    special = np.isin(before, (0, 2, 3))
    assert (before[special] == after[special]).all()
    assert 0.05 < (before != after)[~special].mean() < 0.4
    sound = SyntheticAudioDataset(AudioModalityConfig(duration=0.05), 8)
    batch = next(iter(create_training_pipeline(sound, 4)))
    assert float(abs(batch["audio"]).max()) == pytest.approx(1.0)
    with pytest.raises(UsageError, match="to augment"):
        next(iter(create_training_pipeline(Numbers(8), 4)))


def test_validation_split_through_a_loader_never_leaks():
    _, val = split_dataset(SyntheticTextDataset(None, 60), 0.75)
    loader = create_simple_data_loader(val, 4)
    assert sorted(int(i) for b in loader for i in b["indices"]) == sorted(val.indices.tolist())


def pair(n=40, texts=None):
    images = SyntheticImageDataset(SMALL, n, rngs=1)
    return images, SyntheticTextDataset(None, texts or n, "sequences", rngs=2)


def test_align_true_is_by_index():
    images, texts = pair()
    loader = create_multi_modal_loader(images, texts, 16, align=True)
    where = {np.asarray(images[i]["images"]).tobytes(): i for i in range(40)}
    seen = []
    for batch in loader:
        assert list(batch) == ["images", "text_tokens"]
        numbers = [where[image.tobytes()] for image in np.asarray(batch["images"])]
        np.testing.assert_array_equal(batch["text_tokens"], texts.get_batch(indices=numbers)["text_tokens"])
        seen += numbers
    assert len(seen) == len(set(seen)) == 32
    assert seen != sorted(seen)


def test_align_false_is_not_and_lengths_may_differ():
    images, texts = pair(40, 30)
    with pytest.raises(UsageError, match="40 images and 30 texts"):
        create_multi_modal_loader(images, texts, 8)
    loader = create_multi_modal_loader(images, texts, 8, align=False)
    first = [(np.asarray(b["images"]).tobytes(), np.asarray(b["text_tokens"]).tobytes()) for b in loader]
    assert len(first) == len(loader) == 3
    state = loader.state_dict()
    second = [np.asarray(b["images"]).tobytes() for b in loader]
    again = create_multi_modal_loader(images, texts, 8, align=False)
    again.load_state_dict(state)
    assert [np.asarray(b["images"]).tobytes() for b in again] == second
    with pytest.raises(UsageError, match="'images' in the batches"):
        next(iter(create_multi_modal_loader(texts, texts, 8)))


def test_pad_batch_pads_every_column_and_spares_the_input():
    batch = {"images": jnp.arange(3.0)[:, None], "labels": np.arange(3), "texts": ["a", "b", "c"], "n": 7}
    full = pad_batch(batch, 5, mask="valid")
    assert full["images"][:, 0].tolist() == [0, 1, 2, 2, 2]
    assert full["labels"].tolist() == [0, 1, 2, 2, 2]
    assert full["texts"] == ["a", "b", "c", "c", "c"]
    assert full["valid"].tolist() == [True, True, True, False, False]
    assert full["n"] == 7
    assert batch["images"].shape == (3, 1)
    assert pad_batch(batch, 2)["images"].shape == (3, 1)
    with pytest.raises(UsageError, match="at least one row"):
        pad_batch({"images": jnp.zeros((0, 2))}, 4)


def test_preprocessing_is_compiled_and_right():
    rng = np.random.default_rng(0)
    images = rng.random((6, 8, 8, 3), np.float32) * 9 + 4
    batch = {"images": images, "texts": list("abcdef")}
    made = preprocess_batch(batch)
    unit = (images - images.min()) / (images.max() - images.min() + 1e-8)
    expected = (unit - unit.mean(axis=(1, 2, 3), keepdims=True)) / (unit.std(axis=(1, 2, 3), keepdims=True) + 1e-8)
    np.testing.assert_allclose(np.asarray(made["images"]), expected, atol=1e-4)
    assert made["texts"] == list("abcdef")
    assert batch["images"] is images
    inside = jax.jit(lambda x: preprocess_batch({"images": x})["images"])(images)
    np.testing.assert_allclose(np.asarray(inside), np.asarray(made["images"]), atol=1e-5)
    each = vectorized_preprocessing(images)
    np.testing.assert_allclose(np.asarray(each.max(axis=(1, 2, 3))), 1, rtol=1e-6)
    assert convert_to_float16(made)["images"].dtype == jnp.float16
    with pytest.raises(UsageError, match="a batch with 'images'"):
        preprocess_batch({"audio": images})


def test_lists_of_samples_load_too():
    loader = create_simple_data_loader([{"x": i} for i in range(4)], 2, shuffle=False)
    assert rows(loader) == [[0, 1], [2, 3]]
    assert as_dataset([1, 2])[1] == {"data": 2}


def test_two_loops_over_an_unaligned_loader_are_refused_and_an_error_moves_neither_side() -> None:
    images, texts = ([{name: i} for i in range(n)] for name, n in (("images", 12), ("text_tokens", 9)))

    def fresh(texts: Any = texts) -> Any:
        return create_multi_modal_loader(images, texts, 3, align=False, seed=4)

    def plain(batches: Any) -> list[Any]:
        return [(b["images"].tolist(), b["text_tokens"].tolist()) for b in batches]

    expected = [plain(fresh_one) for loader in [fresh()] for fresh_one in (loader, loader)]
    loader = fresh()
    older = iter(loader)
    first = plain([next(older)])
    newer = iter(loader)
    with pytest.raises(UsageError, match="one running `for`"):
        next(older)
    assert first + plain(newer) == expected[0]
    assert plain(loader) == expected[1]

    class Failing(BaseDataset):
        broken = True

        def __len__(self) -> int:
            return len(texts)

        def __getitem__(self, index: int) -> dict[str, Any]:
            if self.broken:
                raise KeyboardInterrupt
            return texts[index]

    failing = Failing()
    loader = fresh(failing)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    failing.broken = False
    assert plain(loader) == expected[0]
