"""Datasets and loaders of document 003 pickle and deep-copy, with the user's lambdas and their position."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.facades.artifex.datasets.transformed import TransformDataset
from penstock.facades.artifex.loaders.cached import CachedLoader

IMAGES = ps.ImageModalityConfig(height=8)


def _synthetic() -> Any:
    return ps.SyntheticImageDataset(IMAGES, dataset_size=10, rngs=3)


DATASETS: dict[str, Callable[[], Any]] = {
    "synthetic": _synthetic,
    "cached": lambda: ps.CachedDataset(None, [np.full(2, i) for i in range(10)], preprocess=lambda x: x * 2),
    "by path": lambda: ps.MemoryEfficientDataset(None, [f"{i}" for i in range(10)], load=lambda p: np.full(2, int(p))),
    "transformed": lambda: TransformDataset(None, _synthetic(), [lambda s: {**s, "images": s["images"] * 0.5}]),
}
LOADERS: dict[str, Callable[[], Any]] = {
    "simple": lambda: ps.create_simple_data_loader(_synthetic(), 3, seed=4),
    "prefetching": lambda: ps.PrefetchDataLoader(_synthetic(), 3, num_workers=2),
    "training": lambda: ps.create_training_pipeline(_synthetic(), 3, seed=4),
    "list": lambda: ps.create_simple_data_loader([{"x": i} for i in range(10)], 3),
}
COPIES = (copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)))


def same(a: Any, b: Any) -> None:
    assert sorted(a) == sorted(b)
    for name in a:
        np.testing.assert_array_equal(np.asarray(a[name]), np.asarray(b[name]))


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", DATASETS)
def test_datasets(name: str, how: Callable[[Any], Any]) -> None:
    dataset = DATASETS[name]()
    dataset.get_batch(4)
    other = how(dataset)
    assert other.fingerprint() == dataset.fingerprint()
    same(other.get_batch(4), dataset.get_batch(4))  # both go on from the same place
    same(other.get_batch(indices=[7, 1]), dataset.get_batch(indices=[7, 1]))


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", LOADERS)
def test_loaders(name: str, how: Callable[[Any], Any]) -> None:
    loader = LOADERS[name]()
    next(loader)
    other = how(loader)
    assert other.state_dict() == loader.state_dict()
    same(next(other), next(loader))
    for a, b in zip(other, loader, strict=True):
        same(a, b)


@pytest.mark.parametrize("how", COPIES)
def test_a_cached_loader_leaves_its_cache_behind(how: Callable[[Any], Any]) -> None:
    loader = CachedLoader(_synthetic(), 5)
    loader.get_batch(3)
    other = how(loader)
    same(other.get_batch(3), loader.get_batch(3))
    assert other.misses == 6
