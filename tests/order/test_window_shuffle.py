"""Window shuffle: every row once, near its place, the same for any cut of positions; streams are read once."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.order.window_shuffle import permute_near
from penstock.testing.resume import assert_same_batches, batches


def test_every_row_once_and_near_its_place() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 100, 1003):
        for window in (1, 2, 3, 16, 99, 5000):
            key = int(rng.integers(1 << 60))
            order = permute_near(np.arange(n), n, window, key)
            assert sorted(order.tolist()) == list(range(n))
            assert np.abs(order - np.arange(n)).max() < max(1.5 * window, 1)
            some = rng.permutation(n)[: n // 2 + 1]
            assert (permute_near(some, n, window, key) == order[some]).all()  # each position alone
            assert window > 1 or (order == np.arange(n)).all()
    one, other = permute_near(np.arange(1000), 1000, 100, 1), permute_near(np.arange(1000), 1000, 100, 2)
    assert (one != other).mean() > 0.9 and (one != np.arange(1000)).mean() > 0.9
    crossed = one // 100 != np.arange(1000) // 100
    assert 0.2 < crossed.mean() < 0.8  # rows cross the edges of windows


def test_a_stream_is_read_once_in_an_epoch_and_orders_differ() -> None:
    read = []

    def numbers():
        for i in range(600):
            read.append(i)
            yield {"n": i}

    def make(seed: int) -> ps.Pipeline:
        return ps.from_stream(numbers, length=600, version="1", buffer=400).window_shuffle(100, seed=seed).batch(20)

    loader = make(1).to_numpy(threads=0)
    read.clear()
    first = [b["n"].tolist() for b in loader]
    assert len(read) <= 600 and sorted(sum(first, [])) == list(range(600))
    second = [b["n"].tolist() for b in loader]
    assert first != second != [b["n"].tolist() for b in make(2).to_numpy(threads=0)] != first
    assert_same_batches(batches(make(1).to_numpy(threads=0), 30), batches(make(1).to_numpy(threads=2), 30))


def test_refusals_say_what_to_write() -> None:
    stream = ps.from_stream(lambda: ({"n": i} for i in range(900)), length=900, buffer=100, version="1")
    with pytest.raises(ps.UsageError, match=r"(?s)holds 4 windows.*buffer=400"):
        stream.window_shuffle(100).batch(4).to_numpy()
    stream.window_shuffle(25).batch(4).to_numpy()
    with pytest.raises(ps.UsageError, match=r"\.window_shuffle\(1000\)\.repeat\(\)"):
        stream.repeat().window_shuffle(5).batch(4).to_numpy()
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ps.UsageError, match="size= in .window_shuffle"):
            stream.window_shuffle(wrong)  # type: ignore[arg-type]
    far = ps.from_stream(lambda: ({"n": i} for i in range(3000)), buffer=2, version="1").shuffle(seed=1)
    with pytest.raises(ps.UsageError, match="window_shuffle"):
        list(far.batch(10).to_numpy())
