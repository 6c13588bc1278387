"""Datasets written as the guide writes them, without random access: one pass per epoch, drawn anew, resumed exactly."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import penstock as ps
from penstock import DataError, UsageError
from penstock.facades.artifex.datasets import passes, scan
from penstock.facades.artifex.datasets.base import BaseDataset
from penstock.facades.artifex.loaders.cached import CachedLoader
from penstock.facades.artifex.loaders.epochs import DatasetLoader


class Guide(BaseDataset):
    """`__len__`, `__iter__` and a random `get_batch`, as in the guide; counts what it loads."""

    def __init__(self, size=40, width=4, *, rngs=0, noise=False):
        super().__init__(None, "train", rngs=rngs)
        self.size, self.width, self.noise = size, width, noise
        self.loads = 0

    def _load_sample(self, index):
        self.loads += 1
        value = np.full(self.width, index, np.float32)
        if self.noise:
            value = value + np.asarray(jax.random.uniform(self.rngs.sample(), (self.width,))) / 2
        return value

    def __len__(self):
        return self.size

    def __iter__(self):
        for i in range(len(self)):
            yield {"data": self._load_sample(i), "index": jnp.array(i)}

    def get_batch(self, batch_size):
        indices = jax.random.randint(jax.random.key(0), (batch_size,), 0, len(self))
        return {"data": jnp.stack([self._load_sample(int(i)) for i in indices]), "indices": indices}


class Transform(BaseDataset):
    """The guide's TransformDataset."""

    def __init__(self, base_dataset, transforms):
        super().__init__(None, "train", rngs=0)
        self.base_dataset, self.transforms = base_dataset, transforms

    def __len__(self):
        return len(self.base_dataset)

    def __iter__(self):
        for sample in self.base_dataset:
            made = sample
            for transform in self.transforms:
                made = transform(made)
            yield made

    def get_batch(self, batch_size):
        raise AssertionError("it is not asked which records to return")


LOADERS = {
    "simple": lambda data: ps.create_simple_data_loader(data, 6),
    "in order": lambda data: ps.create_simple_data_loader(data, 6, shuffle=False),
    "prefetch": lambda data: ps.PrefetchDataLoader(data, 6, num_workers=3),
    "epochs": lambda data: (batch for _, batch in ps.create_multi_epoch_data_loader(data, 6, num_epochs=1)),
}


def order(batches):
    return [int(i) for batch in batches for i in batch["indices"]]


@pytest.fixture(params=[None, 40])
def window(request, monkeypatch):
    """With 40, more records than fit: their window is 32 records."""
    if request.param:
        monkeypatch.setattr(passes, "KEEP_BYTES", request.param * passes._nbytes(next(iter(Guide()))))
        monkeypatch.setattr(scan, "KEEP_BYTES", 1000)
    return request.param


@pytest.mark.parametrize("name", LOADERS)
def test_every_record_is_loaded_once_per_epoch(name, window):
    data = Guide(200)
    for made in (data, Transform(data, [dict]), ps.TransformDataset(None, data, [dict]), ps.ValidatedDataset(
        data, validate=lambda sample: True)):  # fmt: skip
        for _ in range(2):
            before = data.loads
            rows = order(LOADERS[name](made))
            assert sorted(rows) == list(range(200))
            assert (rows == list(range(200))) == (name == "in order")
            assert data.loads - before == 200


def test_splits_are_read_in_one_pass_each(window):
    data = Guide(200)
    train, val = ps.split_dataset(data, 0.8)
    for _ in range(2):
        data.loads = 0
        rows = [order(ps.create_simple_data_loader(part, 7)) for part in (train, val)]
        assert sorted(rows[0] + rows[1]) == list(range(200))
        assert set(rows[0]) == set(train.indices.tolist())
        assert rows[0] != sorted(rows[0])
        assert data.loads <= 400
    data.loads = 0
    assert [int(s["index"]) for s in ps.SubsetDataset(data, [7, 3, 7, 190])] == [7, 3, 7, 190]
    assert data.loads == 191
    inner, _ = ps.split_dataset(train, 0.5)
    assert set(order(ps.create_simple_data_loader(inner, 9))) < set(train.indices.tolist())


@pytest.mark.parametrize("wrap", [
    lambda data: ps.split_dataset(data)[0],
    lambda data: ps.TransformDataset(None, data, [dict]),
    lambda data: ps.ValidatedDataset(data, validate=lambda sample: True),
    lambda data: Transform(data, [dict]),
])  # fmt: skip
def test_wrappers_of_random_passes_resume(wrap):
    def make():
        return ps.create_simple_data_loader(wrap(Guide(50, noise=True)), 5)

    first, other = make(), make()
    next(first), next(first)
    state = first.state_dict()
    other.load_state_dict(state)
    assert order(other) == order(first)
    with pytest.raises(ps.StateError):
        ps.create_simple_data_loader(wrap(Guide(49, noise=True)), 5).load_state_dict(state)


def test_get_batch_and_cached_loader_go_through_passes(window):
    class NoBatch(Guide):
        get_batch = BaseDataset.get_batch

    data = NoBatch(64)
    for take in (data.get_batch, CachedLoader(data, cache_size=1).get_batch):
        data.loads = 0
        rows = [int(i) for _ in range(16) for i in take(8)["indices"]]
        assert sorted(rows[:64]) == sorted(rows[64:]) == list(range(64))
        assert rows[:64] != rows[64:]
        assert data.loads <= 130


def test_a_window_holds_the_order_together(monkeypatch):
    monkeypatch.setattr(passes, "KEEP_BYTES", 40 * passes._nbytes(next(iter(Guide()))))
    loader = ps.create_simple_data_loader(Guide(500), 10)
    first, second = order(loader), order(loader)
    assert first != second
    assert max(abs(row - i) for i, row in enumerate(first)) < 32
    assert sum(row == i for i, row in enumerate(first)) < 50
    most = 0
    running = iter(loader)
    for _ in running:
        most = max(most, len(loader._passes._held))
    assert most <= 64 + 10


def test_small_datasets_keep_the_order_of_random_access():
    class ByItem(Guide):
        def __getitem__(self, index):
            return {"data": self._load_sample(index), "index": index}

    for epoch in range(2):
        assert order(ps.create_simple_data_loader(Guide(), 7, seed=epoch)) == order(
            ps.create_simple_data_loader(ByItem(), 7, seed=epoch)
        )


def test_random_transforms_draw_anew_in_every_epoch():
    class R(BaseDataset):
        def __len__(self):
            return 4

        def __iter__(self):
            for _ in range(4):
                yield {"x": np.random.rand()}

    loader = ps.create_simple_data_loader(R(), 4, shuffle=False)
    assert [b["x"].tolist() for b in loader] != [b["x"].tolist() for b in loader]


@pytest.mark.parametrize("rngs", [lambda: 3, lambda: nnx.Rngs(3), lambda: nnx.Rngs(0, sample=1)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_resume_is_exact_with_keys_of_rngs(rngs, shuffle, window):
    def make():
        return DatasetLoader(Guide(70, noise=True, rngs=rngs()), 8, shuffle=shuffle, seed=5)

    def values(batches):
        return [np.asarray(batch["data"]).tolist() for batch in batches]

    loader = make()
    whole = values(loader) + values(loader)
    assert len({json.dumps(v) for v in whole}) == 18
    for taken in (0, 1, 5, 9, 12):
        first = make()
        got = []
        while len(got) < taken:
            got += values(islice(first, taken - len(got)))
        assert got == whole[:taken]
        state = json.loads(json.dumps(first.state_dict()))
        assert len(json.dumps(state)) < 1024
        second = make()
        second.load_state_dict(state)
        rest = values(second)
        assert rest == whole[taken : taken + len(rest)]
        assert len(rest) == 9 - taken % 9
        if taken:
            assert values(first) == rest or taken == 9


def test_batch_at_and_why_and_pickling():
    loader = ps.create_simple_data_loader(Guide(30), 4)
    batches = list(loader)
    assert np.array_equal(loader.batch_at(3)["data"], batches[3]["data"])
    assert loader.why(3, 1)["record"] == int(batches[3]["indices"][1])
    copy = pickle.loads(pickle.dumps(loader))
    assert order(copy) == order(loader)
    other = ps.create_simple_data_loader(Guide(31), 4)
    with pytest.raises(ps.StateError):
        other.load_state_dict(loader.state_dict())
    with pytest.raises(ps.StateError):
        ps.create_simple_data_loader(Guide(30), 4).load_state_dict({"penstock": 1, "kind": "passes", "loader": {}})


def test_two_ranks_share_every_batch():
    whole = list(ps.create_simple_data_loader(Guide(40), 8))
    parts = [ps.create_simple_data_loader(Guide(40), 8).shard(rank, 2) for rank in range(2)]
    for batch, one, two in zip(whole, *parts, strict=True):
        assert order([batch]) == order([one, two])


def test_a_dataset_with_only_get_batch_is_called_once_per_batch():
    class Only(BaseDataset):
        def __init__(self):
            super().__init__(rngs=0)
            self.calls = []

        def __len__(self):
            return 10

        def get_batch(self, batch_size):
            self.calls.append(batch_size)
            return {"x": jnp.full(batch_size, len(self.calls))}

    for make in (lambda d: ps.create_simple_data_loader(d, 4), lambda d: ps.PrefetchDataLoader(d, 4, num_workers=2)):
        data = Only()
        loader = make(data)
        assert [b["x"].tolist() for b in loader] == [[1] * 4, [2] * 4, [3] * 2]
        assert [int(b["x"][0]) for b in loader] == [4, 5, 6]
        assert data.calls == [4, 4, 2] * 2
    first = ps.create_simple_data_loader(Only(), 4)
    next(first), next(first)
    second = ps.create_simple_data_loader(Only(), 4)
    second.load_state_dict(first.state_dict())
    assert [int(b["x"][0]) for b in second] == [3]
    later = ps.create_simple_data_loader(Only(), 4)
    list(first), next(first)
    later.load_state_dict(first.state_dict())
    assert [int(b["x"][0]) for b in later] == [5, 6]  # as the calls of the first epoch and one more were repeated
    doubled = ps.TransformDataset(None, Only(), [lambda b: {**b, "x": b["x"] * 10}])
    assert [int(b["x"][0]) for b in ps.create_simple_data_loader(doubled, 4)] == [10, 20, 30]
    with pytest.raises(UsageError, match="records can be distinguished"):
        ps.split_dataset(Only())
    Only.get_batch = lambda self, batch_size: None
    with pytest.raises(UsageError, match="a dict of arrays from Only.get_batch"):
        next(iter(ps.create_simple_data_loader(Only(), 4)))


def test_a_get_batch_that_takes_indices_is_asked_for_them():
    class Indexed(BaseDataset):
        def __len__(self):
            return 10

        def get_batch(self, indices):
            return {"x": jnp.asarray(indices) * 10}

    rows = [b["x"].tolist() for b in ps.create_simple_data_loader(Indexed(), 4, seed=2)]
    assert sorted(sum(rows, [])) == list(range(0, 100, 10))
    assert ps.create_simple_data_loader(Indexed(), 4, seed=2).state_dict()


def test_foreign_datasets_and_what_is_none():
    class Foreign:
        def __len__(self):
            return 3

        def __iter__(self):
            return iter([{"x": i} for i in range(3)])

    assert sorted(int(b["x"][0]) for b in ps.create_simple_data_loader(Foreign(), 1)) == [0, 1, 2]
    for wrong in ("text", {"x": [1, 2]}, {1, 2}, SimpleNamespace(), iter([])):
        with pytest.raises(UsageError, match="a dataset"):
            ps.create_simple_data_loader(wrong, 1)


def test_a_wrong_length_and_an_error_in_a_pass_are_raised():
    class Short(Guide):
        def __len__(self):
            return 50

        def __iter__(self):
            return islice(super().__iter__(), 45)

    with pytest.raises(DataError, match="50 samples from Short.__iter__(.|\n)*45"):
        list(ps.create_simple_data_loader(Short(), 5, shuffle=False))

    class Broken(Guide):
        def _load_sample(self, index):
            if index == 17 and not self.loads > 100:
                self.loads += 1000
                raise OSError("disk gone")
            return super()._load_sample(index)

    loader = ps.create_simple_data_loader(Broken(), 5, shuffle=False)
    with pytest.raises(OSError, match="disk gone"):
        list(loader)
    assert order(loader)[:5] == [15, 16, 17, 18, 19]  # the next loop goes on with the batch that failed

    class Arrays(Guide):
        def __iter__(self):
            yield from np.zeros((40, 2))

    with pytest.raises(UsageError, match=r"a dict as each sample\n.*ndarray\n.*Arrays.__iter__"):
        next(iter(ps.create_simple_data_loader(Arrays(), 2)))


def test_aligned_pairs_of_iterated_datasets(window):
    class Images(Guide):
        def __iter__(self):
            return ({"images": s["data"]} for s in super().__iter__())

    class Texts(Guide):
        def __iter__(self):
            return ({"text_tokens": s["data"]} for s in super().__iter__())

    images, texts = Images(50), Texts(50)
    batches = list(ps.create_multi_modal_loader(images, texts, 5))
    assert len(batches) == 10
    for batch in batches:
        np.testing.assert_array_equal(batch["images"], batch["text_tokens"])
    assert (images.loads, texts.loads) == (50, 50)


def test_reading_by_number_past_the_budget_is_refused(monkeypatch):
    monkeypatch.setattr(scan, "KEEP_BYTES", 2000)
    data = Guide(50)
    data.__dict__["_scan"] = scan.Scan(data.__iter__, 2000)
    assert int(data[49]["index"]) == 49
    with pytest.raises(UsageError, match=r"__getitem__\(index\)"):
        data.read(np.array([48, 49]))
