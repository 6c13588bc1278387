"""The lane shuffle is a bijection for all ragged sizes, each host reads its blocks once, and rows are well mixed."""

from __future__ import annotations

from math import gcd, lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.core.randomness import key
from penstock.order import lanes as lanes_module
from penstock.order.lanes import (
    LaneOrder,
    fleet_amplification,
    lane_cut,
    lane_order,
    listed_lane_order,
    permute_lanes,
    unpermute_lanes,
)
from penstock.order.ragged_index import I64
from penstock.order.shuffle import permute, permute_each, unpermute


@pytest.mark.parametrize("lanes", [1, 2, 7, 16])
@pytest.mark.parametrize("block", [1, 3, 8])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_bijective_and_invertible_for_every_small_size(lanes: int, block: int, window: int) -> None:
    for n in range(160):
        positions = np.arange(n)
        records = permute_lanes(positions, n, lanes, block, window, key(n))
        assert np.array_equal(np.sort(records), positions), n
        assert np.array_equal(unpermute_lanes(records, n, lanes, block, window, key(n)), positions), n


@given(
    st.integers(1, 2**62), st.integers(1, 2**16), st.integers(1, 2**62), st.integers(1, 2**62),
    st.integers(0, 2**64 - 1), st.data(),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_any_size_is_invertible(n: int, lanes: int, block: int, window: int, k: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=10, unique=True)), np.int64)
    records = permute_lanes(positions, n, lanes, block, window, k)
    assert records.min() >= 0
    assert records.max() < n
    assert np.array_equal(unpermute_lanes(records, n, lanes, block, window, k), positions)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 20), st.integers(1, 5), st.data())
@settings(max_examples=200, deadline=None)
def test_blocks_of_any_sizes_are_bijective_and_invertible(
    sizes: list[int], lanes: int, window: int, data: st.DataObject
) -> None:
    block = data.draw(st.none() | st.integers(1, 50))
    order = listed_lane_order(np.array(sizes, np.int64), lanes, window, data.draw(st.integers(0, 2**64 - 1)), block)
    positions = np.arange(sum(sizes))
    records = order.permute(positions)
    assert np.array_equal(np.sort(records), positions)
    assert np.array_equal(order.unpermute(records), positions)


def test_permute_each_is_permute_for_each_size_and_key() -> None:
    sizes = np.array([1, 5, 64, 65, 1000, 4097, 2**40 + 3] * 50)
    index = np.arange(len(sizes)) % np.minimum(sizes, 5000)
    keys = (np.arange(len(sizes)) // 100).astype(np.uint64)
    found = permute_each(index, sizes, keys)
    expected = [int(permute([i], n, int(k))[0]) for i, n, k in zip(index, sizes.tolist(), keys, strict=True)]
    back = [int(unpermute([i], n, int(k))[0]) for i, n, k in zip(found, sizes.tolist(), keys, strict=True)]
    assert found.tolist() == expected
    assert permute_each(found, sizes, keys, inverse=True).tolist() == back == index.tolist()
    with pytest.raises(UsageError, match="inside their ranges"):
        permute_each(np.array([70]), np.array([70]), np.array([0], np.uint64))


def block_hosts(order: LaneOrder, block_of: I64, hosts: int, batch: int) -> float:
    """Blocks that each host touches in an epoch, summed over hosts, divided by the number of blocks."""
    touched = 0
    records = order.permute(np.arange(order.n))
    seen: list[set[int]] = [set() for _ in range(hosts)]
    for at in range(0, order.n, batch):
        step = np.arange(at, min(order.n, at + batch))
        for host in range(hosts):
            seen[host].update(block_of[records[step[lane_cut(step % order.lanes, host, hosts)]]].tolist())
    touched = sum(map(len, seen))
    return touched / len(np.unique(block_of))


@pytest.mark.parametrize("hosts", [1, 3, 8, 48])
def test_read_amplification_is_within_1_percent_of_the_formula(hosts: int) -> None:
    lanes, block = 64, 24
    n = 200 * lanes * block + 5555  # neither full blocks nor the same number for each lane
    order = lane_order(n, lanes, block, 8, key(hosts))
    batch = lcm(lanes, hosts) * 2
    measured = block_hosts(order, np.arange(n) // block, hosts, batch)
    formula = 1 + (hosts - gcd(hosts, lanes)) / lanes
    assert fleet_amplification(hosts, lanes, batch) == formula
    assert abs(measured / formula - 1) < 0.01, (measured, formula)


@pytest.mark.parametrize("hosts", [1, 3, 8])
def test_blocks_that_a_source_declares_are_read_once_too(hosts: int) -> None:
    lanes = 32
    sizes = np.random.default_rng(hosts).integers(10, 60, 6000)
    order = listed_lane_order(sizes, lanes, 4, key(hosts))
    measured = block_hosts(order, np.repeat(np.arange(6000), sizes), hosts, lcm(lanes, hosts) * 2)
    formula = 1 + (hosts - gcd(hosts, lanes)) / lanes
    assert abs(measured / formula - 1) < 0.015, (measured, formula)


@pytest.mark.parametrize(("hosts", "batch"), [(8, 1000), (5, 40), (8, 64), (4, 24), (3, 51), (8, 8)])
def test_amplification_of_batches_that_lanes_do_not_divide(hosts: int, batch: int) -> None:
    lanes, block = 64, 32
    n = lanes * block * 100
    measured = block_hosts(lane_order(n, lanes, block, 4, 1), np.arange(n) // block, hosts, batch)
    assert abs(measured / fleet_amplification(hosts, lanes, batch, block) - 1) < 0.02
    assert measured < fleet_amplification(hosts, lanes, batch) * 1.01


def test_amplification_of_known_cases() -> None:
    assert fleet_amplification(64, 256, 1024) == 1
    assert fleet_amplification(8, 1024, 256) == 1  # the batch divides the lanes: each lane is always on one host
    assert round(fleet_amplification(8, 256, 1000), 2) == 1.19
    assert round(fleet_amplification(64, 256, 1000), 1) == 2.6
    assert fleet_amplification(8, 256, 1024, block=1) == pytest.approx(1)
    with pytest.raises(UsageError, match="hosts of at least 1"):
        fleet_amplification(0, 256, 1024)


def test_amplification_of_huge_fleets_is_bounded_quickly_and_closely() -> None:
    for hosts, lanes, batch in ((64, 1021, 9984), (8, 509, 4000), (48, 1000, 4848)):
        exact, bound = fleet_amplification(hosts, lanes, batch), lanes_module._most_hosts(hosts, lanes, batch)
        assert exact <= bound < 1.05 * exact
    assert 19 < fleet_amplification(12_500, 1021, 100_000) < 21  # each host has 8 rows, of lanes of 98


@pytest.mark.parametrize("n", [64 * 16 * 40, 64 * 16 * 40 + 777])
def test_a_block_is_read_within_few_windows(n: int) -> None:
    lanes, block, window = 64, 16, 4
    at = unpermute_lanes(np.arange(n), n, lanes, block, window, 9)
    edges = np.arange(0, n, block)
    span = np.maximum.reduceat(at, edges) - np.minimum.reduceat(at, edges)
    assert np.quantile(span, 0.95) < lanes * block * (window + 1)
    assert span.max() < 2 * lanes * block * (window + 1)  # blocks that neighbouring lanes share


def test_downloads_are_level_because_lanes_change_windows_at_different_times() -> None:
    lanes, block, window, hosts = 64, 16, 8, 8
    n = lanes * block * 80
    order = lane_order(n, lanes, block, window, 2)
    at = order.unpermute(np.arange(n))
    mine = at[at % lanes < lanes // hosts]
    first = np.full(n // block, n)
    np.minimum.at(first, order.permute(mine) // block, mine)
    began = first[first < n] // (lanes * block)  # in rounds of one block per lane; each lane reads one on average
    counts = np.bincount(began, minlength=80)[window:-window]
    mean = lanes / hosts
    assert counts.max() <= 2 * mean, counts  # all at once would be 8 times the mean, then nothing for 7 rounds
    assert (counts[1:] + counts[:-1]).min() >= mean


def test_pairs_from_one_block_are_as_few_as_the_pool_promises() -> None:
    lanes, block, window, batch = 128, 32, 16, 1024
    n = lanes * block * 96
    records = permute_lanes(np.arange(n), n, lanes, block, window, 4).reshape(-1, batch) // block
    pairs = np.array([(c * (c - 1) // 2).sum() for c in (np.unique(step, return_counts=True)[1] for step in records)])
    expected = batch**2 / 2 / (lanes * window)
    middle = pairs[len(pairs) // 3 : -len(pairs) // 3]
    assert 0.7 * expected < middle.mean() < 1.1 * expected
    assert pairs.mean() < 1.5 * expected  # first and last windows are shorter
    offsets = permute_lanes(np.arange(n), n, lanes, block, window, 4).reshape(-1, lanes) % block
    assert min(len(np.unique(step)) for step in offsets) > block // 2  # lanes and windows have orders of their own
    one_each = records.reshape(-1, lanes)
    assert all(len(np.unique(step)) == lanes for step in one_each[:50])  # a round has one row of each lane


@pytest.mark.parametrize("n", [50, 1000, 64 * 16 * 3 + 100])
def test_every_record_is_early_and_late_equally_often(n: int) -> None:
    keys = 300
    where = np.stack([unpermute_lanes(np.arange(n), n, 64, 16, 2, key(k)) for k in range(keys)]) / (n - 1)
    spread = np.sqrt(1 / 12 / keys)
    assert np.abs(where.mean(0) - 0.5).max() < 6 * spread
    assert (where < 0.1).mean(0).min() > 0.02
    assert (where > 0.9).mean(0).min() > 0.02


def test_less_data_than_one_block_per_lane_is_mixed_too() -> None:
    n = 1000
    records = permute_lanes(np.arange(n), n, 256, 2048, 64, 5)
    assert abs(np.corrcoef(np.arange(n), records)[0, 1]) < 0.15
    assert np.ptp(records[:8]) > 300
    listed = listed_lane_order(np.full(4, 250), 256, 4, 5).permute(np.arange(n))
    assert np.unique(listed[:8] // 250).size > 1


def test_large_sizes_cost_no_memory_and_other_keys_are_other_orders() -> None:
    n = 10**12
    at = np.arange(5 * 10**11, 5 * 10**11 + 4096)
    records = permute_lanes(at, n, 1024, 2048, 64, 1)
    assert np.array_equal(unpermute_lanes(records, n, 1024, 2048, 64, 1), at)
    assert not np.intersect1d(records, permute_lanes(at, n, 1024, 2048, 64, 2)).size


@pytest.mark.parametrize(("lanes", "block", "window"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1 << 17, 1, 1)])
def test_invalid_arguments_raise(lanes: int, block: int, window: int) -> None:
    with pytest.raises(UsageError, match="1 to 65536 lanes, a block of at least 1 record"):
        permute_lanes([0], 10, lanes, block, window, 1)
    with pytest.raises(UsageError, match="indices from 0 to 9"):
        permute_lanes([10], 10, 2, 2, 2, 1)
    with pytest.raises(UsageError, match="indices from 0 to 9"):
        unpermute_lanes([-1], 10, 2, 2, 2, 1)
