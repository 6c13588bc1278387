"""Values that JSON writes alike are not taken for one another where they are compared or identified."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.plain_json import identity_json, nulls

ODD = [None, float("nan"), float("inf"), float("-inf")]
leaves = st.one_of(st.sampled_from(ODD), st.integers(0, 9), st.text(max_size=3))
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner))


def _named(value: Any) -> str:
    """The value with NaN and infinities as Python's json writes them."""
    return json.dumps(value, sort_keys=True)


@given(values, values)
def test_equal_identities_are_equal_values(a: Any, b: Any) -> None:
    same = identity_json(a, orjson.OPT_SORT_KEYS) == identity_json(b, orjson.OPT_SORT_KEYS)
    assert same == (_named(a) == _named(b))


@given(values)
def test_every_null_is_counted_in_its_order(value: Any) -> None:
    data = identity_json(value, orjson.OPT_SORT_KEYS)
    if '"' not in _named(value):  # without texts, in which "null" may stand
        assert len([*nulls(value)]) == data.count(b"null")


@pytest.mark.parametrize("odd", ODD[1:])
def test_a_number_is_no_duplicate_of_none(odd: float) -> None:
    rows = ps.from_records([{"x": {"a": None}}, {"x": {"a": odd}}, {"x": {"a": odd}}])
    kept = rows.dedup("x", show_progress=False).rows()  # a loader fills the place of a duplicate with another row
    assert {repr(row["x"]["a"]) for row in kept} == {"None", repr(odd)}


def test_data_with_other_values_is_other_data() -> None:
    records = {ps.from_records([{"x": {"a": value}}]).fingerprint() for value in ODD}
    arrays = {ps.from_arrays({"x": np.array([{"a": value}], object)}).fingerprint() for value in ODD}
    assert len(records) == len(arrays) == len(ODD)
