"""Streams: read in order, resumed by replay."""

from __future__ import annotations

import pickle

import datasets
import numpy as np
import pytest

import penstock as ps
from penstock.sources import stream as streams
from penstock.testing import assert_elastic, assert_exact_resume


def numbers():
    for i in range(60):
        yield {"n": i, "text": f"t{i}"}


class Again:
    def __iter__(self):
        return iter([(i, i / 2) for i in range(60)])


def test_every_kind_of_stream() -> None:
    table = datasets.Dataset.from_list(list(numbers())).to_iterable_dataset()
    for stream, names in ((numbers, None), (table, None), (Again(), ["n", "x"]), (range(60), ["n"])):
        pipeline = ps.from_stream(stream, names, version="1")
        assert [b["n"].tolist() for b in pipeline.batch(25).to_numpy()] == [list(range(25)), list(range(25, 50))]
        assert len(pipeline.rows()) == 60
    assert pickle.loads(pickle.dumps(ps.from_stream(numbers).definition.origin)).columns == ["n", "text"]


def test_the_law() -> None:
    def make(batch: int) -> ps.Pipeline:
        return ps.from_stream(numbers).take(50).batch(batch)

    assert_exact_resume(lambda: make(8))
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=6)


def test_resuming_replays_and_epochs_read_again() -> None:
    read = []

    def counted():
        for record in numbers():
            read.append(record["n"])
            yield record

    loader = ps.from_stream(counted, length=60, version="1").batch(10).to_numpy(threads=0)
    it = iter(loader)
    next(it), next(it)
    state = loader.state_dict()
    other = ps.from_stream(counted, length=60, version="1").batch(10).to_numpy(threads=0)
    other.load_state_dict(state)
    del read[:]
    assert next(iter(other))["n"].tolist() == list(range(20, 30))
    assert read[:20] == list(range(1, 21)) or read[:20] == list(range(20))
    assert [b["n"][0] for b in loader][-1] == 50


def test_a_far_order_is_refused_and_a_small_one_is_read() -> None:
    small = ps.from_stream(numbers).shuffle(seed=1).batch(10).to_numpy()
    assert sorted(n for b in small for n in b["n"].tolist()) == list(range(60))
    with pytest.raises(ps.UsageError, match="in order, or nearly so"):
        list(ps.from_stream(lambda: ({"n": i} for i in range(3000)), buffer=2).shuffle(seed=1).batch(10).to_numpy())


def test_a_refilling_step_over_a_stream_that_is_not_held_is_named() -> None:
    stream = ps.from_stream(lambda: ({"n": i} for i in range(4000)), buffer=64).window_shuffle(16)
    with pytest.raises(ps.UsageError, match=r"(?s)\.filter\(\).*leave rows out in the function"):
        list(stream.filter(lambda record: record["n"] % 2 == 0).batch(8).to_numpy(threads=0))


def broken():
    yield {"n": 0}
    yield {"n": "text"}
    yield {"n": 2}


def failing():
    yield {"n": 0}
    raise ValueError("lost connection")


def test_errors() -> None:
    with pytest.raises(ps.BadRecords, match="record 1 of the stream"):
        list(ps.from_stream(broken).batch(3).to_numpy())
    kept = ps.from_stream(broken, on_error="skip").batch(3).to_numpy().batch_at(0)["n"].tolist()
    assert set(kept) == {0, 2}
    with pytest.raises(ps.UserCodeError, match="lost connection(.|\n)*record 1 of the stream"):
        list(ps.from_stream(failing, length=3).batch(3).to_numpy())
    with pytest.raises(ps.DataError, match="at least 61 records(.|\n)*got:   60"):
        list(ps.from_stream(numbers, length=70).batch(7).to_numpy(threads=0))
    for stream, text in ((numbers(), "can be read once"), (5, "got:   int"), ({"a": 1}, "got:   dict"),
                         (lambda: 5, "a function that returns an iterator")):  # fmt: skip
        with pytest.raises(ps.UsageError, match=text):
            ps.from_stream(stream)
    with pytest.raises(ps.UsageError, match="buffer= of at least 1"):
        ps.from_stream(numbers, buffer=0)


def test_large_records_are_not_all_held() -> None:
    """Only as many as threads ask back: twice what anybody did, and a few."""
    source = ps.from_stream(lambda: ({"x": b"1" * (1 << 20 if i > 40 else 1)} for i in range(400)), length=400)
    for numbers in ([0, 9], [3, 4], *([i] for i in range(10, 300))):
        source.rows().read(np.array(numbers))
    leaf = source.definition.origin
    assert len(leaf._held) == 64 and leaf._bytes == sum(size for _, size in leaf._held.values()) == 64 << 20
    assert len(leaf.read(np.array([290]))["x"]) == 1 and leaf._passed == 300


def test_a_window_of_large_records_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HELD_BYTES", 1000)
    rows = ps.from_stream(lambda: ({"x": b"1" * 100, "n": i} for i in range(3000)), length=3000)
    loader = rows.window_shuffle(300, seed=1).batch(10).to_numpy(threads=2)
    assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(3000))
    leaf = loader.definition.origin
    assert leaf._passed < 2 * 3000 and len(leaf._held) < 1500
