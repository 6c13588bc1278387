"""Streams: real `IterableDataset`s, tokenised on the way, with the promises a stream can keep."""

from __future__ import annotations

import json
from typing import Any

import datasets
import numpy as np
import pytest

from penstock.core.errors import StateError, UsageError
from penstock.facades.capibara.loader import CapibaraDataLoader
from tests.facades.capibara.conftest import TEXTS

SETTINGS = {"batch_size": 8, "max_length": 24, "shuffle_buffer": 16, "seed": 5}


def stream(texts: list[str] | None = None) -> Any:
    rows = TEXTS if texts is None else texts
    return datasets.Dataset.from_dict({"text": rows}).to_iterable_dataset(num_shards=min(3, len(rows)))


def make(tokenizer: Any, data: Any = None, **more: Any) -> CapibaraDataLoader:
    return CapibaraDataLoader(tokenizer=tokenizer, dataset_name=data or stream(), **(SETTINGS | more))


def ids(batch: dict[str, Any]) -> np.ndarray:
    return np.asarray(batch["input_ids"])


def test_batches_are_those_of_prepared_data(tokenizer: Any) -> None:
    streamed = list(make(tokenizer, shuffle=False))
    prepared = CapibaraDataLoader(tokenizer=tokenizer, dataset_name=TEXTS, **(SETTINGS | {"shuffle": False}))
    for got, want in zip(streamed, prepared, strict=True):
        assert got.keys() == want.keys()
        for name, array in got.items():
            assert array.dtype == want[name].dtype
            assert np.array_equal(array, want[name])


def test_shuffled_epochs_repeat_exactly_and_differ(tokenizer: Any) -> None:
    loader = make(tokenizer, batch_size=6)
    epochs = [np.concatenate([ids(b) for b in loader]) for _ in range(2)]
    assert loader.epoch == 2
    assert not np.array_equal(*epochs)
    assert sorted(map(bytes, epochs[0])) == sorted(map(bytes, epochs[1])), "each text once"
    again = make(tokenizer, batch_size=6)
    assert all(np.array_equal(e, np.concatenate([ids(b) for b in again])) for e in epochs)
    once = sum(int(b["attention_mask"].sum()) for b in make(tokenizer, batch_size=6))
    assert loader.stats()["tokens"]["all"] == 2 * once


@pytest.mark.parametrize("taken", [1, 4, 9])
def test_resume_goes_on_exactly(tokenizer: Any, taken: int) -> None:
    whole = make(tokenizer)
    want = [ids(b) for _ in range(2) for b in whole]
    loader = make(tokenizer)
    got = []
    while len(got) < taken:
        for batch in loader:
            got.append(ids(batch))
            if len(got) == taken:
                break
    state = json.loads(json.dumps(loader.state_dict()))
    other = make(tokenizer)
    other.load_state_dict(state)
    while len(got) < len(want):
        got += [ids(b) for b in other]
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert np.array_equal(ids(other.batch_at(taken)), want[taken])


def test_ranks_share_each_batch(tokenizer: Any) -> None:
    want = [ids(b) for b in make(tokenizer)]
    for world in (2, 4):
        parts = [[ids(b) for b in make(tokenizer, rank=rank, world=world)] for rank in range(world)]
        assert all(np.array_equal(w, np.concatenate(pieces)) for w, *pieces in zip(want, *parts, strict=True))
    halfway = make(tokenizer, rank=0, world=2)
    next(iter(halfway))
    alone = make(tokenizer)
    alone.load_state_dict(halfway.state_dict())
    assert np.array_equal(ids(next(iter(alone))), want[1])


def test_blank_texts_are_passed_over_and_why_knows(tokenizer: Any) -> None:
    loader = make(tokenizer, stream(["a", "", "b", " ", "c", "d"]), batch_size=2, shuffle=False)
    texts = [tokenizer.decode(r, skip_special_tokens=True) for b in loader for r in ids(b)]
    assert texts == ["a", "b", "c", "d"]
    assert loader.why(1, row=0)["from"]["record_of_epoch"] == 4


@pytest.mark.parametrize("remainder", ["drop", "short", "pad"])
def test_the_rest_of_an_epoch(tokenizer: Any, remainder: str) -> None:
    batches = list(make(tokenizer, stream(TEXTS[:5]), batch_size=4, remainder=remainder))
    assert [len(b["input_ids"]) for b in batches] == {"drop": [4], "short": [4, 1], "pad": [4, 4]}[remainder]
    if remainder == "pad":
        assert batches[1]["valid"].tolist() == [True, False, False, False]
        assert (batches[1]["labels"][1:] == -100).all()


def test_what_a_stream_cannot_do(tokenizer: Any) -> None:
    loader = make(tokenizer)
    with pytest.raises(TypeError, match="a stream has no length"):
        len(loader)
    with pytest.raises(UsageError, match="leave streaming=True out"):
        make(tokenizer, layout="windows")
    with pytest.raises(StateError, match="a state of this very stream"):
        make(tokenizer, seed=6).load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="a state of a stream loader"):
        loader.load_state_dict({"penstock": 1})
    with pytest.raises(UsageError, match="at least one batch in the stream"):
        list(make(tokenizer, stream(["a"])))


def test_collate_is_honoured_here_too(tokenizer: Any) -> None:
    class Short(CapibaraDataLoader):
        def _collate_fn(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
            return {"lengths": np.array([len(one["input_ids"]) for one in batch])}

    loader = Short(tokenizer=tokenizer, dataset_name=stream(), **SETTINGS)
    want = [b["attention_mask"].sum(axis=1).tolist() for b in make(tokenizer)]
    assert [b["lengths"].tolist() for b in loader] == want
