"""What a subclass overrides decides how its records are read: no faster way of a base class bypasses it."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps

SMALL = ps.ImageModalityConfig(height=4)
ROWS = [{"x": np.ones(3) * i} for i in range(8)]

# A dataset of each way to read records, and a column of its batches.
KINDS = {
    "columns": (ps.SyntheticImageDataset, (SMALL, 8), {}, "images"),
    "texts": (ps.SimpleTextDataset, (None, ["a b", "c d"] * 4), {}, "text_tokens"),
    "paired": (ps.MultiModalPairedDataset, ([("a", "b")], {"a": np.ones((8, 3)), "b": np.ones((8, 2))}), {}, "a"),
    "samples": (ps.CachedDataset, (None, [np.ones(3) * i for i in range(8)]), {}, "data"),
    "transformed": (ps.TransformDataset, (None, ROWS, []), {}, "x"),
    "subset": (ps.SubsetDataset, (ROWS, range(8)), {}, "x"),
    "validated": (ps.ValidatedDataset, (ROWS,), {"validate": bool}, "x"),
}


def _sevens(sample):
    wide = {name for name, value in sample.items() if getattr(value, "ndim", 0)}
    return {name: np.asarray(value) * 0 + 7 if name in wide else value for name, value in sample.items()}


def _subclasses(base):
    class Item(base):
        def __getitem__(self, index):
            return _sevens(super().__getitem__(index))

    class Pass(base):
        def __iter__(self):
            return (_sevens(sample) for sample in super().__iter__())

    class Collate(base):
        def collate_fn(self, samples):
            return _sevens(super().collate_fn(samples))

    class Drawn(base):
        def get_batch(self, batch_size):
            return _sevens(super().get_batch(batch_size))

    return {"__getitem__": Item, "__iter__": Pass, "collate_fn": Collate, "get_batch": Drawn}


def _batches(dataset):
    yield "get_batch", lambda: dataset.get_batch(2)
    yield "indices", lambda: dataset.get_batch(indices=[3, 1])
    yield "simple", lambda: next(iter(ps.create_simple_data_loader(dataset, 2)))
    yield "prefetch", lambda: next(iter(ps.PrefetchDataLoader(dataset, 2)))
    yield "split", lambda: next(iter(ps.create_simple_data_loader(ps.split_dataset(dataset)[0], 2)))
    yield "wrapped", lambda: next(iter(ps.create_simple_data_loader(ps.TransformDataset(None, dataset, []), 2)))
    yield "pipeline", lambda: ps.Pipeline(dataset).batch(2).to_numpy(threads=0).batch_at(0)


# A batch is not collated in a pipeline, and `get_batch(n)` decides itself which records it returns.
ONLY = {"collate_fn": {"pipeline"}, "get_batch": {"indices", "split", "pipeline"}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["__getitem__", "__iter__", "collate_fn", "get_batch"])
def test_every_way_to_a_batch_calls_what_a_subclass_overrides(kind, method):
    base, arguments, options, column = KINDS[kind]
    dataset = _subclasses(base)[method](*arguments, **options)
    for name, batch in _batches(dataset):
        if name not in ONLY.get(method, ()):
            assert set(np.asarray(batch()[column]).ravel().tolist()) == {7}, name


def test_an_epoch_has_every_record_once():
    class Tens(ps.CachedDataset):
        def get_batch(self, batch_size):
            batch = super().get_batch(batch_size)
            return {**batch, "data": batch["data"] * 10}

    loader = ps.create_simple_data_loader(Tens(None, list(range(9))), 4)
    for _ in range(2):
        assert sorted(x for batch in loader for x in batch["data"].tolist()) == list(range(0, 90, 10))
    with pytest.raises(ps.UsageError, match="records can be distinguished"):
        ps.split_dataset(Tens(None, list(range(9))))


def test_a_subclass_of_a_subclass_and_a_mixin():
    class Sevens:
        def __getitem__(self, index):
            return _sevens(super().__getitem__(index))

    class Mixed(Sevens, ps.SyntheticImageDataset):
        pass

    class Later(Mixed):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return {**sample, "images": sample["images"] + 1}

    for made, value in ((Mixed(SMALL, 8), 7), (Later(SMALL, 8), 8)):
        batch = next(iter(ps.create_simple_data_loader(made, 4)))
        assert set(np.asarray(batch["images"]).ravel().tolist()) == {value}
    assert Mixed(SMALL, 8).fingerprint() != ps.SyntheticImageDataset(SMALL, 8).fingerprint()


def test_a_get_batch_that_calls_a_missing_one_is_told_so():
    class Only(ps.BaseDataset):
        def __len__(self):
            return 4

        def get_batch(self, batch_size):
            return super().get_batch(batch_size)

    with pytest.raises(ps.UsageError, match="__getitem__ in Only"):
        Only().get_batch(2)
