"""The two-level shuffle is a bijection for ragged sizes too, reads block after block, and mixes inside windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.core.randomness import key
from penstock.order.blocks import permute_blocks


@pytest.mark.parametrize("block", [1, 2, 3, 7, 16, 200])
@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_bijective_for_every_small_size(block: int, window: int) -> None:
    for n in range(1, 121):
        positions = np.arange(n)
        items = permute_blocks(positions, n, block, window, key(n))
        assert np.array_equal(np.sort(items), positions), n


@given(st.integers(1, 2**62), st.integers(1, 2**62), st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
@settings(max_examples=100, deadline=None)
def test_any_size_is_injective(n: int, block: int, window: int, k: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=10, unique=True)), np.int64)
    items = permute_blocks(positions, n, block, window, k)
    assert len(set(items.tolist())) == positions.size
    assert items.min() >= 0
    assert items.max() < n


@pytest.mark.parametrize("n", [1000, 1003, 10_007])
def test_each_block_is_read_in_one_window_only(n: int) -> None:
    block, window = 10, 8
    for seed in range(5):
        items = permute_blocks(np.arange(n), n, block, window, seed)
        at = np.argsort(items)
        for b in range(-(-n // block)):
            places = at[b * block : (b + 1) * block]
            assert places.max() - places.min() < block * window
        # A stretch as long as a window spans at most two windows, so at most twice as many blocks are open.
        for start in range(0, n - block * window, 37):
            assert np.unique(items[start : start + block * window] // block).size <= 2 * window


def test_items_are_mixed_inside_windows_and_blocks_over_the_full_range() -> None:
    n, block, window = 64_000, 100, 16
    items = permute_blocks(np.arange(n), n, block, window, 3)
    first = items[: block * window]
    assert np.unique(first // block).size == window
    assert (np.diff(first) == 1).mean() < 0.01
    assert np.abs(np.corrcoef(np.arange(n), items)[0, 1]) < 0.15
    assert (first // block).max() - (first // block).min() > 300


def test_different_keys_have_different_orders() -> None:
    a, b = (permute_blocks(np.arange(1000), 1000, 10, 4, k) for k in (1, 2))
    assert (a == b).sum() < 20


def test_a_window_as_large_as_the_data_is_a_full_shuffle() -> None:
    items = permute_blocks(np.arange(5000), 5000, 10, 500, 1)
    assert abs(np.corrcoef(items[:-1], items[1:])[0, 1]) < 5 / np.sqrt(5000)
    assert np.unique(items[:100] // 10).size > 80


@pytest.mark.parametrize(("block", "window"), [(0, 1), (1, 0), (-4, 2)])
def test_invalid_arguments_raise(block: int, window: int) -> None:
    with pytest.raises(UsageError) as caught:
        permute_blocks([0], 10, block, window, 1)
    assert str(caught.value) == (
        "expected a block of at least 1 item and a window of at least 1 block\n"
        f"  got:   block={block}, window={window}\n  where: shuffle by blocks\n"
        "  fix:   use block=1024, window=64, or leave both out for a full shuffle"
    )


def test_an_index_out_of_range_raises() -> None:
    with pytest.raises(UsageError, match=r"expected indices from 0 to 9\n  got:   0 to 10\n  where: shuffle by blocks"):
        permute_blocks([0, 10], 10, 3, 2, 1)
    with pytest.raises(UsageError, match=r"expected at most 2\*\*62 items"):
        permute_blocks([0], 2**62 + 1, 3, 2, 1)
