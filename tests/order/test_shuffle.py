"""The shuffle is a bijection of every size, has an inverse and takes one key or many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.core.randomness import key, keys
from penstock.order.shuffle import permute, unpermute

AROUND_POWERS = sorted({2**k + d for k in range(1, 21) for d in (-1, 0, 1)})
LARGE = sorted({2**k + d for k in range(21, 62) for d in (-1, 0, 1)} | {10**12, 10**12 - 11, 2**62 - 1, 2**62})


def is_bijective(n: int, k: int) -> bool:
    positions = np.arange(n)
    shuffled = permute(positions, n, k)
    seen = np.zeros(n, bool)
    seen[shuffled] = True
    return bool(seen.all() and (unpermute(shuffled, n, k) == positions).all())


def test_bijective_with_inverse_for_every_size_up_to_5000() -> None:
    assert [n for n in range(1, 5001) if not is_bijective(n, key(n))] == []


def test_bijective_with_inverse_around_powers_of_two() -> None:
    assert [n for n in AROUND_POWERS if not is_bijective(n, key(7, n))] == []


@pytest.mark.parametrize("n", LARGE)
def test_large_sizes_stay_inside_and_come_back(n: int) -> None:
    positions = np.unique(np.concatenate([[0, 1, n - 2, n - 1], np.random.default_rng(n).integers(0, n, 500)]))
    shuffled = permute(positions, n, key("large", n))
    assert shuffled.dtype == np.int64
    assert shuffled.min() >= 0
    assert shuffled.max() < n
    assert np.unique(shuffled).size == positions.size
    np.testing.assert_array_equal(unpermute(shuffled, n, key("large", n)), positions)


@given(st.integers(1, 2**62), st.integers(-(2**70), 2**70), st.data())
@settings(max_examples=150, deadline=None)
def test_any_size_and_key_round_trip(n: int, k: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True)), np.int64)
    shuffled = permute(positions, n, k)
    assert len(set(shuffled.tolist())) == len(positions)
    assert shuffled.min() >= 0
    assert shuffled.max() < n
    np.testing.assert_array_equal(unpermute(shuffled, n, k), positions)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 65, 100, 4097, 10**6 + 3, 10**12])
@pytest.mark.parametrize("distinct", [1, 2, 300])
def test_a_key_per_element_is_the_same_as_one_call_per_key(n: int, distinct: int) -> None:
    positions = np.random.default_rng(n).integers(0, n, 1000)
    per_element = keys(key(3), np.arange(1000) % distinct)
    together = permute(positions, n, per_element)
    for k in np.unique(per_element):
        here = per_element == k
        np.testing.assert_array_equal(together[here], permute(positions[here], n, int(k)))
    np.testing.assert_array_equal(unpermute(together, n, per_element), positions)


def test_many_keys_of_a_small_size_are_computed_in_bounded_pieces() -> None:
    positions = np.arange(40_000) % 64
    per_element = keys(key(1), np.arange(40_000))
    shuffled = permute(positions, 64, per_element)
    np.testing.assert_array_equal(unpermute(shuffled, 64, per_element), positions)
    np.testing.assert_array_equal(shuffled[30_000:], permute(positions[30_000:], 64, per_element[30_000:]))


def test_a_slice_of_positions_gives_the_slice_of_the_shuffle() -> None:
    whole = permute(np.arange(10_007), 10_007, 5)
    for start in range(0, 10_007, 1001):
        part = permute(np.arange(start, min(start + 32, 10_007)), 10_007, 5)
        np.testing.assert_array_equal(part, whole[start : start + 32])
    assert permute(np.int64(17), 10_007, 5) == whole[17]
    np.testing.assert_array_equal(permute(np.arange(6).reshape(2, 3), 10_007, 5), whole[:6].reshape(2, 3))


def test_the_given_array_is_left_alone() -> None:
    positions = np.arange(100)
    permute(positions, 1000, 1)
    np.testing.assert_array_equal(positions, np.arange(100))


def test_a_numpy_scalar_is_one_key() -> None:
    from_numpy = permute([1, 2], 999, np.uint64(2**63))  # type: ignore[arg-type]
    np.testing.assert_array_equal(from_numpy, permute([1, 2], 999, 2**63))


def test_an_empty_permutation() -> None:
    assert permute([], 0, 1).shape == (0,)
    assert permute([], 1000, np.zeros(0, np.uint64)).dtype == np.int64


@pytest.mark.parametrize("n", [10, 1000])
@pytest.mark.parametrize("function", [permute, unpermute])
@pytest.mark.parametrize("bad", [-1, "n", 2**62])
def test_an_index_out_of_range_raises(n: int, function: object, bad: int | str) -> None:
    index = n if bad == "n" else int(bad)
    with pytest.raises(UsageError) as caught:
        function([0, index], n, 1)  # type: ignore[operator]
    assert str(caught.value) == (
        f"expected indices from 0 to {n - 1}\n  got:   {index}\n  where: shuffle\n"
        "  fix:   use positions modulo the size, and put the quotient (the epoch) into the key"
    )


@pytest.mark.parametrize("n", [-1, 2**62 + 1])
def test_a_size_out_of_range_raises(n: int) -> None:
    with pytest.raises(UsageError, match=r"expected a size between 0 and 2\*\*62\n  got:   " + str(n)):
        permute([0], n, 1)
