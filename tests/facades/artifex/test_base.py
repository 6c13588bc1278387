"""`BaseDataset`: every way a subclass may reach its records, seeds, batches that advance, state."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from penstock import StateError, UsageError
from penstock.facades.artifex.datasets import scan
from penstock.facades.artifex.datasets.base import BaseDataset, as_dataset, batch_at
from penstock.facades.artifex.datasets.rngs import Streams, seed_of
from penstock.facades.artifex.image.synthetic import SyntheticImageDataset
from penstock.facades.artifex.text.dataset import SimpleTextDataset


class Sized(BaseDataset):
    def __len__(self):
        return 10


class ByItem(Sized):
    def __getitem__(self, index):
        return {"x": np.array([index, index]), "text": f"t{index}", "index": index}


class ByRead(Sized):
    def read(self, indices):
        text = np.array([f"t{i}" for i in indices], object)
        return {"x": np.stack([indices, indices], axis=1), "text": text, "index": np.asarray(indices)}


class ByIteration(Sized):
    passes = 0

    def __iter__(self):
        self.passes += 1
        for i in range(10):
            yield {"x": jnp.array([i, i]), "text": f"t{i}", "index": jnp.array(i)}

    def get_batch(self, batch_size):
        raise AssertionError("it cannot be told which records to give")


@pytest.mark.parametrize("kind", [ByItem, ByRead, ByIteration])
def test_every_way_gives_the_same(kind):
    dataset = kind(rngs=0)
    batch = batch_at(dataset, np.array([7, 0, 7]))
    assert list(batch) == ["x", "texts", "indices"]
    assert batch["x"].tolist() == [[7, 7], [0, 0], [7, 7]]
    assert batch["texts"] == ["t7", "t0", "t7"]
    assert isinstance(batch["x"], jax.Array)
    assert dataset[9]["text"] == "t9"
    assert dataset.get_sample(3)["text"] == "t3"
    assert [sample["text"] for sample in dataset] == [f"t{i}" for i in range(10)]
    columns = dataset.read(np.array([2, 5]))
    assert columns["text"].tolist() == ["t2", "t5"]
    assert columns["x"].tolist() == [[2, 2], [5, 5]]
    if kind is not ByItem:  # whose own it is
        assert dataset[-1]["text"] == "t9"
        for index in (10, -11):
            with pytest.raises(IndexError):
                dataset[index]
    with pytest.raises(IndexError):
        dataset.get_sample(-1)


def test_same_content_same_fingerprint_and_other_content_another():
    one, two = ByItem(), ByRead()
    assert one.fingerprint() == two.fingerprint()

    class Other(ByItem):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "x": np.array([index, 99])}

    assert Other().fingerprint() != one.fingerprint()


def test_iterated_only_once_within_the_budget(monkeypatch):
    dataset = ByIteration()
    for _ in range(5):
        batch_at(dataset, np.array([9, 1, 4]))
    assert dataset.passes == 1
    small = scan.Scan(lambda: ({"x": i} for i in range(10)), keep_bytes=500)
    assert [small.take([i])[0]["x"] for i in (8, 0, 9)] == [8, 0, 9]
    with pytest.raises(UsageError, match="to read more than"):
        small.take([8, 9])
    assert len(small._kept) < 5
    with pytest.raises(IndexError):
        small.take([10])


def test_a_remembered_sample_cannot_be_spoiled():
    dataset = ByIteration()
    dataset[3]["text"] = "changed"
    assert dataset[3]["text"] == "t3"


def test_batches_advance_through_shuffled_passes():
    dataset = ByItem(rngs=nnx.Rngs(0))
    rows = [int(i) for _ in range(10) for i in dataset.get_batch(3)["indices"]]
    passes = [rows[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert passes[0] != list(range(10))
    assert [int(i) for i in ByItem(rngs=0).get_batch(30)["indices"]] == rows
    assert [int(i) for i in ByItem(rngs=1).get_batch(30)["indices"]] != rows


def test_indices_are_honoured_and_move_nothing():
    dataset, other = ByItem(rngs=0), ByItem(rngs=0)
    assert dataset.get_batch(2, indices=[4, 4])["x"].tolist() == [[4, 4], [4, 4]]
    assert dataset.get_batch(indices=jnp.array([1]))["x"].tolist() == [[1, 1]]
    assert dataset.get_batch(5)["indices"].tolist() == other.get_batch(5)["indices"].tolist()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "a batch size or indices"),
        ({"batch_size": 0}, "a batch size of at least 1"),
        ({"batch_size": True}, "a batch size of at least 1"),
        ({"indices": [10]}, r"record numbers in \[0, 10\)"),
        ({"indices": [-1]}, r"record numbers in \[0, 10\)"),
        ({"indices": [0.5]}, "a list of record numbers"),
        ({"batch_size": 3, "indices": [1]}, "3 indices, as batch_size says"),
    ],
)
def test_nonsense_is_refused(arguments, text):
    with pytest.raises(UsageError, match=text):
        ByItem().get_batch(**arguments)


def test_what_is_missing_is_named():
    class Nothing(BaseDataset):
        pass

    class OnlyBatches(BaseDataset):
        def get_batch(self, batch_size):
            return {"x": batch_size}

    assert OnlyBatches(rngs=0).get_batch(3) == {"x": 3}
    with pytest.raises(UsageError, match="__len__ in OnlyBatches"):
        len(OnlyBatches())
    with pytest.raises(UsageError, match="__iter__ in Nothing"):
        list(Nothing())

    class OnlyIterates(BaseDataset):
        def __iter__(self):
            yield from ({"x": i} for i in range(3))

    assert [sample["x"] for sample in list(OnlyIterates())] == [0, 1, 2]
    with pytest.raises(UsageError, match="__getitem__ in Sized"):
        Sized()[0]
    with pytest.raises(UsageError, match="at least one record"):
        SyntheticImageDataset(dataset_size=0).get_batch(1)


def test_uneven_samples_are_refused():
    ragged = as_dataset([{"x": np.zeros((2, 4))}, {"x": np.zeros((3, 5))}])
    with pytest.raises(UsageError, match="samples of one shape in 'x'"):
        ragged.get_batch(2)
    with pytest.raises(UsageError, match="one without 'x'"):
        as_dataset([{"x": 1}, {"y": 1}]).get_batch(indices=[0, 1])
    with pytest.raises(UsageError, match="a dataset"):
        as_dataset(5)


def test_state_goes_on_where_it_was():
    dataset = ByItem(rngs=3)
    dataset.get_batch(7)
    dataset.rngs.sample()
    state = dataset.state_dict()
    later = [dataset.get_batch(4)["indices"].tolist(), jax.random.key_data(dataset.rngs.sample()).tolist()]
    again = ByItem(rngs=3)
    again.load_state_dict(state)
    assert [again.get_batch(4)["indices"].tolist(), jax.random.key_data(again.rngs.sample()).tolist()] == later
    with pytest.raises(StateError, match="a state that penstock saved"):
        again.load_state_dict({"step": 3})
    with pytest.raises(StateError, match="an integer of at least 0 as 'position'"):
        again.load_state_dict({"position": -3})


def test_datasets_can_be_pickled():
    dataset = SimpleTextDataset(None, ["a", "b", "c"], rngs=nnx.Rngs(4))
    dataset.get_batch(2)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.get_batch(4)["texts"] == dataset.get_batch(4)["texts"]


def test_all_seeds_that_mean_the_same():
    assert {seed_of(r) for r in (7, np.int64(7), nnx.Rngs(7), nnx.Rngs(params=1, sample=7), jax.random.key(7))} == {7}
    assert seed_of(jax.random.PRNGKey(7)) == 7
    assert seed_of(None) == 0 == seed_of(nnx.Rngs(0))
    assert seed_of(Streams(5)) == 5
    assert seed_of(nnx.Rngs(params=3)) == 3
    rngs = nnx.Rngs(7)
    assert seed_of(rngs) == 7 == seed_of(rngs)  # reading it draws nothing
    rngs.sample()
    assert seed_of(rngs) != 7

    class Mine:
        def sample(self):
            return jax.random.key(11)

    assert seed_of(Mine()) == 11
    for wrong in ("seed", 1.5, True, np.zeros(2)):
        with pytest.raises(UsageError, match="rngs"):
            seed_of(wrong)


def test_streams_always_advance():
    rngs = Streams(nnx.Rngs(0))
    assert "sample" in rngs
    drawn = [tuple(jax.random.key_data(key).tolist()) for key in (rngs.sample(), rngs.sample(), rngs.params(), rngs())]
    assert len(set(drawn)) == 4
    assert drawn[0] == tuple(jax.random.key_data(Streams(0).sample()).tolist())
