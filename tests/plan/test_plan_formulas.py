"""The formulas of a plan against brute force: caches, blocks, lanes, mixing, byte addresses, what rows read."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.core.columns import Ragged
from penstock.order.blocks import permute_blocks
from penstock.order.lanes import lane_cut, permute_lanes
from penstock.order.shuffle import permute
from penstock.plan.assumptions import Assumptions
from penstock.plan.build import build
from penstock.plan.byte_layout import ByteLayout, even_layout
from penstock.plan.cache_model import pages_fetched
from penstock.plan.order_choices import Order, block_amplification, block_choice, lane_choice, lanes_for
from penstock.plan.shuffle_quality import (
    Quality,
    block_quality,
    file_order_quality,
    global_quality,
    lane_quality,
)


def fetched_by_furthest_use(accesses: list[int], kept: int, warm: int = 0) -> int:
    """Pages fetched by a cache of `kept` pages that evicts the page used furthest in the future; not counted: the
    first `warm` accesses."""
    following: dict[int, int] = {}
    next_use = [0] * len(accesses)
    for i in range(len(accesses) - 1, -1, -1):
        next_use[i] = following.get(accesses[i], len(accesses) * 2)
        following[accesses[i]] = i
    inside: dict[int, int] = {}
    furthest: list[tuple[int, int]] = []
    count = 0
    for i, page in enumerate(accesses):
        count += page not in inside and i >= warm
        inside[page] = next_use[i]
        heapq.heappush(furthest, (-next_use[i], page))
        while len(inside) > kept:
            use, old = heapq.heappop(furthest)
            if inside.get(old) == -use:
                del inside[old]
    return count


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("times", [0.5, 2, 12])
def test_the_cache_model_is_that_of_evicting_the_furthest_use(share: float, times: float) -> None:
    pages = 4000
    first, second = (np.random.default_rng(i).integers(0, pages, int(pages * times)).tolist() for i in (1, 2))
    kept = int(share * pages)
    cold = fetched_by_furthest_use(first, kept)
    assert pages_fetched(len(first), pages, kept) == pytest.approx(cold, rel=0.06)
    if times >= 2:
        warm = fetched_by_furthest_use(first + second, kept, warm=len(first))
        assert pages_fetched(len(second), pages, kept, warm=True) == pytest.approx(warm, rel=0.08, abs=pages * 0.05)


def test_no_cache_fetches_everything_and_a_full_one_nothing_twice() -> None:
    assert pages_fetched(1000, 50, 0) == pytest.approx(1000)
    assert pages_fetched(0, 50, 10) == 0
    assert pages_fetched(10**9, 50, 50) == 50
    assert pages_fetched(10, 1e12, 1e10) == pytest.approx(10)


def pairs_from_one_block(order: np.ndarray, step: int, block: int) -> float:
    """Pairs of rows of a step from one block, on average over the steps."""
    steps = order[: len(order) // step * step].reshape(-1, step) // block
    return float(np.mean([sum(c * (c - 1) // 2 for c in np.unique(row, return_counts=True)[1]) for row in steps]))


def average(order: Callable[[int], np.ndarray], step: int, block: int) -> float:
    return float(np.mean([pairs_from_one_block(order(key), step, block) for key in range(12)]))


ROWS = 4096
INDEX = np.arange(ROWS)


@pytest.mark.parametrize(("step", "block"), [(64, 16), (128, 8), (32, 64)])
def test_pairs_of_a_global_shuffle(step: int, block: int) -> None:
    found = average(lambda key: permute(INDEX, ROWS, key), step, block)
    assert global_quality(ROWS, step, block).pairs == pytest.approx(found, rel=0.08, abs=0.15)


@pytest.mark.parametrize(("step", "block", "window"), [(64, 16, 8), (128, 16, 4), (128, 8, 4), (32, 64, 2)])
def test_pairs_of_a_shuffle_of_blocks(step: int, block: int, window: int) -> None:
    found = average(lambda key: permute_blocks(INDEX, ROWS, block, window, key), step, block)
    assert block_quality(ROWS, step, block, window).pairs == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize(
    ("step", "block", "window", "lanes"), [(64, 16, 8, 16), (128, 16, 4, 16), (32, 16, 4, 32), (128, 32, 4, 8)]
)
def test_pairs_of_lanes(step: int, block: int, window: int, lanes: int) -> None:
    found = average(lambda key: permute_lanes(INDEX, ROWS, lanes, block, window, key), step, block)
    assert lane_quality(ROWS, step, block, window, lanes).pairs == pytest.approx(found, rel=0.1, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40))
def test_pairs_of_file_order(step: int, block: int) -> None:
    offsets = [sum(a // block == b // block for a, b in combinations(range(o, o + step), 2)) for o in range(block)]
    assert file_order_quality(10**6, step, block).pairs == pytest.approx(np.mean(offsets), abs=1e-6)


def blocks_read(order: np.ndarray, hosts: int, step: int, block: int, by_lane: int = 0) -> int:
    """Blocks that hosts read, each counted once on each host."""
    steps = order[: len(order) // step * step].reshape(-1, step)
    count = 0
    for host in range(hosts):
        mine = np.arange(step * host // hosts, step * (host + 1) // hosts)
        if by_lane:
            mine = lane_cut(np.arange(step) % by_lane, host, hosts)
        count += len(np.unique(steps[:, mine] // block))
    return count


@pytest.mark.parametrize("step", [64, 48, 256])
@pytest.mark.parametrize(("hosts", "block"), [(1, 16), (3, 4), (8, 16), (16, 8)])
def test_what_the_fleet_reads_with_blocks(hosts: int, block: int, step: int) -> None:
    rows = ROWS // step * step
    found = blocks_read(permute_blocks(np.arange(rows), rows, block, 8, key=5), hosts, step, block) / (rows / block)
    assert block_amplification(hosts, block, 8, step) == pytest.approx(found, rel=0.05)
    made = block_choice(rows, 100.0, step, hosts, 1, Order("blocks", block, 8), Assumptions())
    assert made.requests == pytest.approx(found * rows / block, rel=0.05)
    assert made.bytes == pytest.approx(found * rows * 100, rel=0.05)


@pytest.mark.parametrize("hosts", [1, 3, 8, 6])
def test_what_the_fleet_reads_with_lanes(hosts: int) -> None:
    rows, lanes, block = 1 << 14, 16, 16
    order = permute_lanes(np.arange(rows), rows, lanes, block, 4, key=5)
    found = blocks_read(order, hosts, 64, block, by_lane=lanes)
    made = lane_choice(rows, 100.0, 64, hosts, 1, Order("lanes", block, 4, lanes), Assumptions())
    assert made.requests == pytest.approx(found, rel=0.02)
    assert made.amplification == pytest.approx(found / (rows / block), rel=0.02)


def test_blocks_of_many_requests_and_of_many_objects() -> None:
    assumed = Assumptions(get_bytes=1000)
    assert block_choice(1000, 50.0, 10, 1, 1, Order("blocks", 100, 2), assumed).requests == 10 * 5
    single = block_choice(1000, 50.0, 10, 1, 1000, Order("blocks", 100, 2), Assumptions())
    assert single.requests == 1000  # every record is an object


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 300))
def test_advised_lanes_divide_the_batch_and_are_the_best_divisor(batch: int, hosts: int) -> None:
    lanes = lanes_for(batch, hosts)
    assert batch % lanes == 0
    waste = {d: (hosts - np.gcd(hosts, d)) / d for d in range(1, 1025) if batch % d == 0}
    assert waste[lanes] <= min(waste.values()) + 0.021


LAYOUTS = st.tuples(
    st.lists(st.integers(0, 60), min_size=1, max_size=6), st.sampled_from([1, 2, 3, 2.5]), st.integers(0, 9)
)


@settings(max_examples=200, deadline=None)
@given(LAYOUTS, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 80)), max_size=12))
def test_addresses_are_those_of_the_objects_bytes(
    sizes: tuple[list[int], float, int], reads: list[tuple[int, int]]
) -> None:
    counts, item, header = sizes
    bounds = np.cumsum([0, *counts])
    total = int(bounds[-1])
    layout = ByteLayout(total, item, 16, 64, bounds=bounds, header=header)
    inside = [(a, min(n, total - a)) for a, n in reads if a < total]
    starts, lengths = (np.array([r[i] for r in inside], np.int64) for i in (0, 1))
    addresses, nbytes = layout.addresses(starts, lengths)
    expected = set()
    for start, length in inside:
        for number in range(start, start + length):
            part = int(np.searchsorted(bounds, number, "right")) - 1
            first = int((number - bounds[part]) * item)
            base = sum(((int(np.ceil(c * item)) + header) // 16 + 1) * 16 + 64 for c in counts[:part])
            last = max(first + 1, int((number - bounds[part] + 1) * item))
            expected |= {base + header + byte for byte in range(first, last)}
    assert {
        byte for a, n in zip(addresses.tolist(), nbytes.tolist(), strict=True) for byte in range(a, a + n)
    } == expected
    assert all(byte // 16 <= layout.last_page for byte in expected)


def test_an_even_layout_never_joins_two_objects() -> None:
    layout = even_layout(1000, 7, Assumptions(shard_bytes=70, page_bytes=16, gap_bytes=32))
    assert (layout.per_object, layout.objects, layout.bytes, layout.pages) == (10, 100, 7000, 500)
    addresses, nbytes = layout.addresses(np.array([8]), np.array([4]))
    assert nbytes.tolist() == [14, 14]
    assert addresses[1] - (addresses[0] + nbytes[0]) > 32


TOKENS = np.arange(1, 2001)
EDGES = [0, 5, 5, 300, 420, 421, 900, 1500, 2000]


@pytest.mark.parametrize("name", ["windows", "best_fit", "concat", "documents", "mix", "shuffled"])
def test_rows_read_the_tokens_that_they_hold(name: str) -> None:
    documents = ps.open_tokens(TOKENS, EDGES)
    pipeline = {
        "windows": documents.windows(37, 20),
        "best_fit": documents.pack(64, labels=None),
        "concat": documents.pack(64, strategy="concat", labels=None),
        "documents": documents,
        "mix": ps.mix([documents.windows(37), documents.windows(37, 11)], [1, 2], seed=1, stop="first"),
        "shuffled": documents.windows(37).filter(lambda row: True).shuffle(seed=3).take(20),
    }[name]
    plan = build(pipeline.definition)
    assert plan.root.size is not None
    picks = plan.root.pick(np.arange(plan.root.size), 0)
    read = [
        TOKENS[start : start + length]
        for reads in plan.root.reads(picks)
        for start, length in zip(reads.starts.tolist(), reads.lengths.tolist(), strict=True)
    ]
    columns = plan.root.fetch(picks).columns
    ids = columns["input_ids"]
    held = ids.values if isinstance(ids, Ragged) else ids.ravel()
    if name in ("windows", "mix", "shuffled"):  # and the label of the last token
        held = np.concatenate([held, np.asarray(columns["labels"])[:, -1]])
    assert np.sort(np.concatenate(read)).tolist() == np.sort(held[held > 0]).tolist()


def test_the_label_of_a_split_document_is_read_too() -> None:
    plan = build(ps.open_tokens(TOKENS, [0, 2000]).pack(64).definition)
    reads = list(plan.root.reads(plan.root.pick(np.arange(plan.root.size or 0), 0)))
    assert int(sum(read.lengths.sum() for read in reads)) == 2000 + (plan.root.size or 0) - 1


def test_a_place_is_never_drawn_from_more_than_all() -> None:
    assert global_quality(10, 5, 100) == Quality(1, 10.0)
    assert block_quality(100, 10, 10, 64).pool == 10
    assert lane_quality(100, 10, 10, 64, 4).pool <= 10
