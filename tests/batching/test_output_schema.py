"""OutputSchema: names, dtypes, and the refusal of values that would wrap."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from penstock import RecordError, UsageError
from penstock.batching.schema import OutputSchema


def test_default_is_the_three_usual_fields() -> None:
    assert {name: str(OutputSchema().dtype(name)) for name in OutputSchema()} == {
        "input_ids": "int64",
        "attention_mask": "int64",
        "labels": "int64",
    }


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("uint8", [0, 255], [256]),
        ("uint16", [0, 65535], [-1]),
        ("int8", [-128, 127], [128]),
        ("int32", [-(2**31)], [2**31]),
        ("bool", [0, 1], [2]),
        ("int64", [1.0, 2.0], [1.5]),
        ("int64", [3.0], [float("nan")]),
    ],
)
def test_casts_are_exact_or_refused(dtype: str, good: list[Any], bad: list[Any]) -> None:
    schema = OutputSchema({"x": dtype})
    cast = schema.cast("x", np.array(good))
    assert cast.dtype == np.dtype(dtype)
    assert cast.tolist() == good
    with pytest.raises(RecordError, match=f"values of 'x' that fit {dtype}"):
        schema.cast("x", np.array(bad), where="here")


def test_extra_fields() -> None:
    row = {"x": [1], "y": "text"}
    assert OutputSchema({"x": "int64"}).check_row(row)["y"] == "text"
    assert set(OutputSchema({"x": "int64"}, extra="drop").check_row(row)) == {"x"}
    with pytest.raises(RecordError, match="only the fields x\n  got:   also y\n  where: record 3"):
        OutputSchema({"x": "int64"}, extra="error").check_row(row, where="record 3")


def test_missing_fields() -> None:
    with pytest.raises(RecordError, match="the fields x, z\n  got:   no z; there are x"):
        OutputSchema({"x": "int64", "z": "int64"}).check_row({"x": [1]})
    assert set(OutputSchema({"x": "int64", "z": "int64"}, optional=frozenset({"z"})).check_row({"x": [1]})) == {"x"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fields": {"x": "int65"}}, "a NumPy dtype for field 'x'"),
        ({"fields": {"x": "U3"}}, "a numeric dtype for field 'x'"),
        ({"fields": {}}, "at least one field"),
        ({"extra": "maybe"}, "`extra` to be"),
        ({"optional": {"nothing"}}, "`optional` to name fields"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        OutputSchema(**options)


def test_equal_hashable_and_pickled() -> None:
    one, two = OutputSchema({"x": "int32"}), OutputSchema({"x": np.int32})
    assert one == two == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(two)


def test_a_ragged_field_cannot_be_typed() -> None:
    with pytest.raises(RecordError, match="numbers of one shape in every row"):
        OutputSchema({"x": "int32"}).check_batch({"x": [np.array([1]), np.array([1, 2])]})
