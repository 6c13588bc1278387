"""The cache of `PreprocessedDataset` keeps to its bytes whatever rows hold."""

from __future__ import annotations

import sys
import tracemalloc

import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
import torch

from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.row_cache import copied, size_of


def numbers(count):
    return [{"n": i} for i in range(count)]


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (np.zeros(1000), 8000),
        (np.float64(1), 8),
        (torch.zeros(1000), 4000),
        (torch.zeros(1).expand(1000), 4000),
        ("y" * 1000, 1000),
        ("\U0001f600" * 1000, 4000),
        (b"y" * 1000, 1000),
        (list(range(1000, 2000)), 36_000),
        ([0, "y" * 10**6], 10**6),
        ((0.5, [b"y" * 1000]), 1000),
        ([[1, 2], {"k": "v" * 1000}], 1000),
        ({"a": {"b": np.zeros(1000)}}, 8000),
        ({"k" * 1000: 1}, 1000),
        pytest.param(1 << 80_000, 10_000, id="int"),
        pytest.param([1 << 80_000], 10_000, id="list of int"),
    ],
)
def test_everything_that_is_kept_is_counted(value, least):
    assert least <= size_of(value) <= 1.3 * least + 1000
    dataset = PreprocessedDataset(numbers(3), lambda record: {"v": value})
    dataset[0]
    assert dataset.cached_bytes >= least


def test_arrays_of_jax_are_counted_and_kept_as_they_are():
    value = jnp.zeros(1000, jnp.float32)
    assert size_of(value) >= 4000
    assert copied({"v": [value]})["v"][0] is value


class Custom:
    pass


def circle():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        PIL.Image.new("RGB", (100, 100)),
        np.array([None, "x"], object),
        torch.eye(3).to_sparse(),
        Custom(),
        [1, Custom()],
        {"k": [np.array([{}], object)]},
        circle(),
    ],
)
def test_what_cannot_be_measured_is_not_kept(value):
    made = []
    dataset = PreprocessedDataset(numbers(3), lambda record: made.append(record["n"]) or {"v": value})
    for _ in range(2):
        assert type(dataset[0]["v"]) is type(value)
    assert (dataset.cached_bytes, made) == (0, [0, 0])


def test_a_view_is_kept_without_what_it_is_a_view_of():
    whole = torch.zeros(5_000_000)
    dataset = PreprocessedDataset(
        numbers(20), lambda r: {"x": whole[10 * r["n"] : 10 * r["n"] + 10]}, cache_bytes=50_000
    )
    rows = [dataset[i] for i in range(20)]
    assert dataset.cached_bytes <= 50_000
    assert all(row["x"].untyped_storage().nbytes() == 40 for row in rows)
    kept = dataset._cached._cache.values()
    assert len(kept) == 20
    assert sum(row["x"].untyped_storage().nbytes() for row in kept) == 800


def test_python_objects_take_no_more_than_is_counted():
    dataset = PreprocessedDataset(numbers(200), lambda r: {"ids": [1000 + i for i in range(500)], "t": [0, "y" * 2000]})
    dataset[0]
    tracemalloc.start()
    try:
        before, counted = tracemalloc.get_traced_memory()[0], dataset.cached_bytes
        for i in range(1, 200):
            dataset[i]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * grown < dataset.cached_bytes - counted < 2 * grown


def test_copies_share_nothing():
    inner = np.zeros(2)
    row = {"a": inner, "l": [inner, [1]], "t": (inner, torch.ones(1)), "d": {"k": inner}, "o": np.array([[1]], object)}
    made = copied(row)
    made["a"][0] = made["l"][0][0] = made["t"][0][0] = made["d"]["k"][0] = 9
    made["l"][1].append(2)
    made["t"][1][0] = 9
    made["o"][0, 0] = 9
    assert inner.tolist() == [0, 0]
    assert (row["l"][1], row["t"][1].tolist(), row["o"].tolist()) == ([1], [1.0], [[1]])
    assert copied(torch.ones(2, requires_grad=True) * 2).requires_grad is False


def test_an_engine_may_use_its_memory_again_within_a_batch():
    memory = np.zeros(1, np.int64)

    def reusing(record):
        memory[0] = record["n"]
        return {"x": memory}

    for cache_bytes in (0, 1 << 20):
        rows = PreprocessedDataset(numbers(3), reusing, True, cache_bytes).__getitems__([0, 1, 2, 0])
        assert [row["x"].tolist() for row in rows] == [[0], [1], [2], [0]]
        assert sys.getrefcount(rows[0]) <= 3
