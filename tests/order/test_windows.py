"""Windows against a plain loop over the tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.order.windows import count, inside_documents, starts


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


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 8), st.integers(1, 10))
@settings(max_examples=200, deadline=None)
def test_windows_inside_documents_are_those_of_a_loop(lengths: list[int], length: int, stride: int) -> None:
    windows = inside_documents(lengths, length, stride)
    expected = [(d, s) for d, n in enumerate(lengths) for s in by_loop(n, length, stride)]
    assert windows.total == len(expected)
    assert windows.counts.tolist() == [len(by_loop(n, length, stride)) for n in lengths]
    document, offset = windows.locate(np.arange(windows.total))
    assert list(zip(document.tolist(), offset.tolist(), strict=True)) == expected
    assert windows.dropped == sum(n < length + 1 for n in lengths)
    covered = {(d, t) for d, s in expected for t in range(s, s + length + 1)}
    assert windows.unused_tokens == sum(lengths) - len(covered)


def test_windows_can_be_located_in_any_order_and_shape() -> None:
    windows = inside_documents([100, 0, 3, 50], 9, 10)
    assert windows.total == 15
    document, offset = windows.locate([[14, 0], [9, 10]])
    assert document.tolist() == [[3, 0], [0, 3]]
    assert offset.tolist() == [[40, 0], [90, 0]]


def test_a_window_number_outside_is_refused() -> None:
    windows = inside_documents([10, 10], 4, 4)
    for bad in (-1, windows.total):
        with pytest.raises(UsageError) as caught:
            windows.locate([bad])
        assert str(caught.value) == (
            f"expected window numbers from 0 to 3\n  got:   {bad} to {bad}\n"
            "  where: windows inside documents\n  fix:   ask for windows below `total`"
        )


@pytest.mark.parametrize(("length", "stride"), [(0, 1), (1, 0), (4, -1)])
def test_nonsense_is_refused(length: int, stride: int) -> None:
    for function in (lambda: count(10, length, stride), lambda: inside_documents([10], length, stride)):
        with pytest.raises(UsageError) as caught:
            function()
        assert str(caught.value) == (
            f"expected a length and a stride of at least 1 token\n  got:   length={length}, stride={stride}\n"
            "  where: windows\n  fix:   windows(length, stride=length) gives windows that do not overlap"
        )


def test_a_negative_document_length_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got:   -3 for document 1\n  where: windows inside documents"):
        inside_documents([4, -3], 2, 2)
