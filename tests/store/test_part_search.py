"""The table of guesses finds the same parts as a binary search, for even, uneven and empty parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.part_search import PartSearch


@given(st.lists(st.integers(0, 300) | st.sampled_from([0, 128, 129, 100_000]), min_size=1, max_size=200))
def test_same_as_searching(sizes: list[int]) -> None:
    edges = np.cumsum([0, *sizes])
    positions = np.random.default_rng(0).permutation(np.unique(np.concatenate((edges, edges + 1, edges - 1))))
    positions = positions[(positions >= 0) & (positions < edges[-1])]
    search = PartSearch(edges)
    expected = np.searchsorted(edges, positions, "right") - 1
    for _ in range(4):  # first searched, then from the table
        assert search(positions).tolist() == expected.tolist()
        search(np.repeat(positions[:1], len(sizes)))


@pytest.mark.parametrize("size", [1, 2, 1 << 20, (1 << 40) + 7])
def test_every_edge_of_many_even_parts(size: int) -> None:
    edges = np.arange(5_001) * size
    search = PartSearch(edges)
    positions = np.concatenate((edges[:-1], edges[1:] - 1))
    expected = np.searchsorted(edges, positions, "right") - 1
    assert search(positions).tolist() == expected.tolist()
    assert search(positions).tolist() == expected.tolist()
    assert search._cells is not None
    first, _bits, inside = search._cells
    assert first.nbytes <= 8 * 5_000 and inside <= 2
