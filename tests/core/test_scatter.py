"""`scatter` puts rows of several parts into one order, whatever kind of column they are in."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.columns import Columns, Ragged, scatter


def columns_of(rows: np.ndarray, width: int) -> Columns:
    wide = rows[:, None] * width + np.arange(width)
    values = np.concatenate([[row] * (1 + row % 3) for row in rows]).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(1 + rows % 3)]).astype(np.int64)
    names = np.array([f"row {row}" for row in rows], object)
    return {"x": rows, "wide": wide, "some": Ragged(values, offsets), "name": names}


@pytest.mark.parametrize("width", [1, 127, 128, 4096])  # 1,024 bytes a row is where another way begins
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_each_row_is_in_its_place(width: int, parts: int) -> None:
    order = np.random.default_rng(width + parts).permutation(40)
    places = np.array_split(order, parts)
    merged = scatter([(where, columns_of(where, width)) for where in places], 40)
    expected = columns_of(np.arange(40), width)
    assert list(merged) == list(expected)
    for name in ("x", "wide", "name"):
        assert merged[name].dtype == expected[name].dtype
        assert np.array_equal(merged[name], expected[name])
    assert merged["some"].tolist() == expected["some"].tolist()


def test_wide_rows_of_different_dtypes_or_widths_are_not_forced_into_those_of_the_first() -> None:
    where = np.array([0]), np.array([1])
    mixed = scatter([(where[0], {"x": np.ones((1, 2048), np.int8)}), (where[1], {"x": np.full((1, 2048), 300)})], 2)
    assert mixed["x"][1, 0] == 300
    uneven = scatter([(where[1], {"x": np.ones((1, 300))}), (where[0], {"x": np.zeros((1, 400))})], 2)
    assert [len(row) for row in uneven["x"].tolist()] == [400, 300]
