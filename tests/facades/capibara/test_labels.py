"""`labels="same"`, in every path that makes batches, and configurations that are other people's objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest

from penstock import CapibaraConfig, CapibaraDataLoader, DataLoaderConfig, UsageError
from tests.facades.capibara.conftest import TEXTS

SETTINGS = {"batch_size": 8, "max_length": 24, "shuffle": False, "remainder": "pad"}
PATHS: dict[str, dict[str, Any]] = {
    "cached": {"dataset_name": TEXTS},
    "stream": {"dataset_name": None},
    "windows": {"dataset_name": TEXTS, "layout": "windows"},
    "batch_tokens": {"dataset_name": TEXTS, "batch_tokens": 96},
    "languages": {"dataset_name": {"de": TEXTS[:30], "sw": TEXTS[30:]}},
    "micro": {"dataset_name": TEXTS, "micro_batches": 2},
}


def make(name: str, tokenizer: Any, kind: Any = CapibaraDataLoader, **more: Any) -> Any:
    settings = SETTINGS | PATHS[name] | more
    if settings["dataset_name"] is None:
        settings["dataset_name"] = datasets.Dataset.from_dict({"text": TEXTS}).to_iterable_dataset(num_shards=2)
    return kind(tokenizer=tokenizer, **settings)


class Own(CapibaraDataLoader):
    def _collate_fn(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        return super()._collate_fn([{"input_ids": one["input_ids"], "labels": one["labels"]} for one in batch])


@pytest.mark.parametrize("kind", [CapibaraDataLoader, Own])
@pytest.mark.parametrize("name", PATHS)
def test_same_labels_are_the_tokens(name: str, kind: Any, tokenizer: Any) -> None:
    if kind is Own and name in ("windows", "batch_tokens", "micro"):
        pytest.skip("these make the batch before _collate_fn, or reshape it")
    count = 0
    for same, shifted in zip(
        make(name, tokenizer, kind, labels="same"), make(name, tokenizer, labels="shifted"), strict=True
    ):
        seen = np.asarray(shifted["attention_mask"]) != 0
        if "valid" in shifted:
            seen &= np.asarray(shifted["valid"])[..., None]
        assert same["labels"].dtype == shifted["labels"].dtype
        assert np.array_equal(same["labels"], np.where(seen, shifted["input_ids"], -100))
        assert np.array_equal(same["input_ids"], shifted["input_ids"])
        after, known = np.asarray(shifted["labels"])[..., :-1], np.asarray(shifted["labels"])[..., :-1] != -100
        assert np.array_equal(after[known], np.asarray(same["labels"])[..., 1:][known])  # what a model compares
        count += 1
    assert count > 1


def test_labels_of_rows_are_not_replaced(tokenizer: Any) -> None:
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]] * 8, "labels": [[-100, 2, 3]] * 8})
    with pytest.raises(UsageError, match=r"a column 'labels' in 'all'(.|\n)*leave labels= out"):
        CapibaraDataLoader(tokenizer=tokenizer, dataset_name=rows, batch_size=4, labels="same")
    with pytest.raises(UsageError, match="labels= one of 'shifted', 'same'"):
        CapibaraDataLoader(tokenizer=tokenizer, dataset_name=TEXTS, labels="unshifted")


class Mine:
    batch_size = 6
    hidden_size = 512

    def __init__(self) -> None:
        self.max_length = 16
        self.cache_dir = None

    def save(self) -> None:
        """A method like other configurations have."""


@pytest.mark.parametrize(
    "config", [Mine(), SimpleNamespace(batch_size=6, max_length=16, lr=0.1), SimpleNamespace(data=Mine())]
)
def test_other_peoples_configurations(config: Any, tokenizer: Any) -> None:
    loader = CapibaraDataLoader(config, tokenizer=tokenizer, dataset_name=TEXTS)
    assert next(iter(loader))["input_ids"].shape == (6, 16)


def test_a_wrong_setting_names_the_right_one(tokenizer: Any) -> None:
    with pytest.raises(TypeError, match=r"CapibaraConfig\(data=DataLoaderConfig\(max_length=...\)\)"):
        CapibaraConfig(max_length=8)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'max_length'"):
        DataLoaderConfig(max_lenght=8)  # type: ignore[call-arg]
    for config in (SimpleNamespace(batch_sizes=8, max_length=9), SimpleNamespace(a=1), 7):
        with pytest.raises(UsageError, match="did you mean 'batch_size'|with such settings"):
            CapibaraDataLoader(config, tokenizer=tokenizer, dataset_name=TEXTS)
