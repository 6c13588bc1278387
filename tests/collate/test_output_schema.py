"""OutputSchema: names, dtypes, and the refusal of values that would wrap."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from penstock import RecordError, UsageError
from penstock.collate.schema import OutputSchema


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


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("float16", [65504, -65504], [70000]),
        ("float16", [0.5, float("inf"), float("nan")], [0.5, -1e5, float("nan")]),
        ("float32", [1e38], [1e39]),
    ],
)
def test_floats_are_rounded_and_never_made_infinite(dtype: str, good: list[Any], bad: list[Any]) -> None:
    schema = OutputSchema({"x": dtype})
    cast = schema.cast("x", np.array(good))
    assert cast.dtype == np.dtype(dtype)
    assert np.allclose(cast, good, equal_nan=True)
    with pytest.raises(RecordError, match=f"values of 'x' that fit {dtype}") as caught:
        schema.cast("x", np.array(bad), where="here")
    assert caught.value.fix
    assert OutputSchema({"x": "float32"}).cast("x", np.array([2**24 + 1])).tolist() == [2**24]


@pytest.mark.parametrize("value", [None, "text", [None], [1, "a"], [1j]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(RecordError, match="numbers in field 'x'") as caught:
        OutputSchema({"x": "int64"}).check_row({"x": value}, where="record 3")
    assert caught.value.where == "record 3"


@pytest.mark.parametrize("dtype", ["bfloat16", ml_dtypes.bfloat16, torch.bfloat16])
def test_bfloat16_is_no_text(dtype: Any) -> None:
    with pytest.raises(UsageError, match="dtype for field 'x'") as caught:
        OutputSchema({"x": dtype})
    assert "text" not in str(caught.value)
    assert "'float32' or 'float16', and cast on the device" in caught.value.fix
    for text in ("U3", str, object, np.dtype("S2")):
        with pytest.raises(UsageError, match="leave text fields out"):
            OutputSchema({"x": text})


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


def test_dtypes_of_torch() -> None:
    schema = OutputSchema({"input_ids": torch.int32, "score": torch.float16, "flag": torch.bool, "n": torch.long})
    assert {name: str(dtype) for name, dtype in schema.fields.items()} == {
        "input_ids": "int32", "score": "float16", "flag": "bool", "n": "int64",
    }  # fmt: skip
    assert schema == OutputSchema({"input_ids": "int32", "score": "float16", "flag": "bool", "n": "int64"})
    with pytest.raises(UsageError, match="cast on the device"):
        OutputSchema({"x": torch.bfloat16})
