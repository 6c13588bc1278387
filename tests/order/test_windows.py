"""Windows against a plain loop over the tokens."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.errors import UsageError
from penstock.order.windows import count, starts


def by_loop(n_tokens: int, length: int, stride: int) -> list[int]:
    found, start = [], 0
    while start + length + 1 <= n_tokens:
        found.append(start)
        start += stride
    return found


def test_counts_and_starts_are_those_of_a_loop() -> None:
    for n_tokens in range(30):
        for length in range(1, 8):
            for stride in range(1, 10):
                expected = by_loop(n_tokens, length, stride)
                assert count(n_tokens, length, stride) == len(expected)
                assert starts(np.arange(len(expected)), stride).tolist() == expected


def test_starts_are_64_bit() -> None:
    assert starts(np.array([3_000_000], np.int32), 1024).tolist() == [3_072_000_000]
    assert count(10**15, 1024, 1024) == 976_562_499_999


@pytest.mark.parametrize(("length", "stride"), [(0, 1), (1, 0), (4, -1)])
def test_invalid_arguments_raise(length: int, stride: int) -> None:
    with pytest.raises(UsageError) as caught:
        count(10, length, stride)
    assert str(caught.value) == (
        f"expected a length and a stride of at least 1 token\n  got:   length={length}, stride={stride}\n"
        "  where: windows\n  fix:   use windows(length, stride=length) for windows that do not overlap"
    )
