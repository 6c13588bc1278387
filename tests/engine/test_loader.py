"""Iterating, epochs, state, looking at batches, errors."""

from __future__ import annotations

import gc
import json
import threading
import time

import numpy as np
import pytest

import penstock as ps
from penstock.plan.state import signed
from penstock.testing import assert_same


def numbers(n: int = 20) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n)})


def xs(loader) -> list[list[int]]:
    return [b["x"].tolist() for b in loader]


def test_each_for_is_the_next_epoch_in_another_order() -> None:
    loader = numbers().shuffle(seed=1).batch(5).to_numpy()
    first, second = xs(loader), xs(loader)
    assert first != second
    for epoch in (first, second):
        assert sorted(sum(epoch, [])) == list(range(20))
    assert loader.epoch == 2
    assert loader.step == 8
    assert len(loader) == 4
    again = numbers().shuffle(seed=1).batch(5).to_numpy()
    assert [xs(again), xs(again)] == [first, second]


def test_leaving_a_loop_keeps_the_place() -> None:
    loader = numbers().batch(5).to_numpy()
    for batch in loader:
        assert batch["x"][0] == 0
        break
    assert xs(loader) == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


def test_prefetched_batches_are_not_counted() -> None:
    loader = numbers(1000).batch(5).to_numpy(threads=2, prefetch=8)
    run = iter(loader)
    next(run)
    time.sleep(0.05)
    assert loader.state_dict()["step"] == 1
    assert loader.state_dict()["n"] == 5
    run.close()


def test_remainders() -> None:
    assert [len(b) for b in xs(numbers(11).batch(4).to_numpy())] == [4, 4]
    assert [len(b) for b in xs(numbers(11).batch(4, remainder="short").to_numpy())] == [4, 4, 3]
    last = list(numbers(11).batch(4, remainder="pad").to_numpy())[-1]
    assert last["x"].tolist() == [8, 9, 10, 10]
    assert last["valid"].tolist() == [True, True, True, False]


def test_batch_at_and_why_agree_with_iteration() -> None:
    loader = numbers(50).shuffle(seed=3).batch(7).to_numpy(threads=2)
    both = list(loader) + list(loader)
    for step, batch in enumerate(both):
        assert_same(batch, loader.batch_at(step))
        for row in range(7):
            why = loader.why(step, row)
            assert why["record"] == batch["x"][row]
            assert why["epoch"] == step // 7
            assert json.loads(json.dumps(why)) == why


def test_why_names_what_a_filter_put_in_a_place() -> None:
    loader = numbers(50).shuffle(seed=3).filter(lambda r: r["x"] > 25).batch(10).to_numpy()
    batch = loader.batch_at(0)
    whys = [loader.why(0, row) for row in range(10)]
    assert [w["record"] for w in whys] == batch["x"].tolist()
    assert any(w["refused_before"] > 0 for w in whys)
    assert loader.stats()["filtered"] > 0


def test_state_is_small_and_equal_on_every_rank() -> None:
    def at(rank: int) -> dict:
        loader = numbers(64).shuffle(seed=2).shard(rank, 4).batch(16).to_numpy()
        next(iter(loader))
        return loader.state_dict()

    states = [at(rank) for rank in range(4)]
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 1024


def base(**change) -> ps.Pipeline:
    n = change.get("n", 64)
    p = ps.from_arrays({"x": np.arange(n) + change.get("add", 0)})
    if change.get("swap"):
        p = p.take(60).shuffle(seed=change.get("seed", 2))
    else:
        p = p.shuffle(seed=change.get("seed", 2)).take(change.get("take", 60))
    p = p.map(change.get("function", keep))
    if change.get("extra"):
        p = p.filter(keep_all)
    return p.batch(change.get("batch", 4))


def keep(record: dict) -> dict:
    return record


def twice(record: dict) -> dict:
    return {"x": record["x"] * 2}


def keep_all(record: dict) -> bool:
    return True


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 65}, "source"),
        ({"add": 1}, "source"),
        ({"seed": 3}, "shuffle"),
        ({"take": 59}, "take"),
        ({"function": twice}, "map"),
        ({"extra": True}, "the steps were source > shuffle > take > map; they are"),
        ({"swap": True}, "source > take > shuffle"),
    ],
)
def test_a_state_of_another_pipeline_is_refused_and_the_difference_named(change: dict, named: str) -> None:
    state = base().to_numpy().state_dict()
    with pytest.raises(ps.StateError, match="a state of this very pipeline") as caught:
        base(**change).to_numpy().load_state_dict(state)
    assert named in str(caught.value)
    base(batch=6).to_numpy().load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("not a dict", "a state that penstock saved"),
        ({"epoch": 3}, "a state that penstock saved"),
        ({"penstock": 99}, "a state of format 1"),
        ({"penstock": 1, "step": -1, "n": 0}, "an integer of at least 0 as 'step'"),
        ({"penstock": 1, "step": 0, "n": 0, "stages": [[0, 0]]}, "stages as"),
        ({"penstock": 1, "step": 0, "n": 0, "stages": [[0, 0, 4]]}, "a fingerprint and parts"),
    ],
)
def test_bad_states_are_refused(state, text: str) -> None:
    with pytest.raises(ps.StateError, match=text):
        base().to_numpy().load_state_dict(state)


def test_an_error_in_a_map_names_the_record_and_the_function() -> None:
    def divide(record: dict) -> dict:
        return {"x": 1 // (int(record["x"]) - 7)}

    loader = numbers().map(divide).batch(5).to_numpy(threads=2)
    got = []
    with pytest.raises(ps.UserCodeError) as caught:
        for batch in loader:
            got.append(batch)
    assert len(got) == 1
    text = str(caught.value)
    assert "divide raised ZeroDivisionError in .map()" in text
    assert "ZeroDivisionError" in text
    assert "row 7" in text
    assert "fix:" in text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert loader.step == 1, "the place stays before the batch that failed"


def test_skip_errors_fills_the_place_and_says_so() -> None:
    def fragile(record: dict) -> dict:
        if record["x"] == 7:
            raise ValueError("seven")
        return record

    loader = numbers().map(fragile).skip_errors(budget=3).batch(5).to_numpy()
    rows = sum(xs(loader), [])
    assert 7 not in rows
    assert [r for i, r in enumerate(rows) if i != 7] == [i for i in range(20) if i != 7], "nobody else moved"
    assert loader.stats()["skipped"] == 1
    list(loader)
    entry = loader.ledger.entries[0]
    assert "ValueError: seven" in entry.detail

    strict = numbers().map(fragile).skip_errors(budget=0).batch(5).to_numpy()
    with pytest.raises(ps.DataError, match="at most 0 skipped"):
        list(strict)


def test_a_filter_that_likes_nothing_is_an_error_not_a_hang() -> None:
    with pytest.raises(ps.DataError, match="a record that the filter keeps") as caught:
        next(iter(numbers().filter(lambda r: False).batch(5).to_numpy()))
    assert "none among 20 tried" in str(caught.value)


def test_loops_and_loaders_leave_no_threads() -> None:
    before = threading.active_count()
    for _ in range(30):
        loader = numbers(1000).map(keep).batch(5).to_numpy(threads=2)
        next(iter(loader))
    del loader
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_auto_moves_to_threads_when_batches_are_slow() -> None:
    seen: set[str] = set()

    def slow(columns: dict) -> dict:
        seen.add(threading.current_thread().name)
        time.sleep(0.03)
        return columns

    loader = numbers(60).map_batches(slow).batch(5).to_numpy()
    assert xs(loader) == xs(numbers(60).batch(5).to_numpy())
    assert threading.current_thread().name in seen
    assert any(name.startswith("penstock-") for name in seen)


def test_stats_have_a_verdict() -> None:
    loader = numbers(100).batch(5).to_numpy()
    assert loader.stats()["verdict"] == "no batch was taken yet"
    next(iter(loader))
    assert loader.stats()["verdict"] == "too early to say: 1 of the first 20 batches"
    loader.seek_epoch(0)
    list(loader)
    stats = loader.stats()
    assert stats["batches_taken"] == 21
    assert set(stats["stage_seconds"]) == {"order", "read", "finish", "deliver"}
    assert "trainer" in stats["verdict"]


def test_virtual_sizes_cost_nothing() -> None:
    class Virtual:
        def __len__(self) -> int:
            return 10**12

        def read(self, indices):
            return {"x": indices}

        def fingerprint(self) -> str:
            return "virtual"

        def describe(self) -> dict:
            return {"kind": "virtual", "records": len(self)}

        def locate(self, index: int) -> dict:
            return {"row": index}

    import tracemalloc

    tracemalloc.start()
    loader = ps.Pipeline(Virtual()).shuffle(seed=5).batch(32).to_numpy(threads=0)
    run = iter(loader)
    seen = np.concatenate([next(run)["x"] for _ in range(200)])
    loader.load_state_dict(signed(loader.state_dict() | {"step": 10**9, "n": 32 * 10**9}))
    assert loader.batch_at(10**10)["x"].shape == (32,)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert len(np.unique(seen)) == len(seen)
    assert seen.min() < 10**11 < 9 * 10**11 < seen.max()


def test_small_windows_that_threads_have_read_are_made_by_the_consumer() -> None:
    tokens = ps.open_tokens(np.arange(40_000) % 500, vocab_size=500).windows(16).shuffle(seed=1)

    def late(pipeline: ps.Pipeline) -> bool:
        return bool(pipeline.to_numpy(threads=2)._work().late)

    assert late(tokens.batch(8))
    assert not late(tokens.repeat().batch(8192))  # 2 MiB: a copy that the trainer would wait for
    assert not late(tokens.map(lambda row: row).batch(8))
    assert not late(tokens.batch(8, remainder="pad"))
    assert not late(ps.open_tokens(np.arange(4000), [0, 1000, 4000]).pack(64).batch(8))
    plain = list(tokens.batch(8).to_numpy(threads=0))
    threaded = list(tokens.batch(8).to_numpy(threads=2))
    assert len(plain) == len(threaded)
    for one, other in zip(plain, threaded, strict=True):
        assert_same(one, other)
    stats = tokens.batch(8).to_numpy(threads=2)
    list(stats)
    assert stats.stats()["stage_seconds"]["deliver"] > 0
