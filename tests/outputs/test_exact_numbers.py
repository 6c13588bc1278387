"""A column reaches a framework with the numbers that it has, or is refused: nothing wraps, overflows or fails bare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytest.importorskip("torch")
pytest.importorskip("jax")

OUTPUTS: dict[str, Callable[..., Any]] = {
    "numpy": lambda p: p.to_numpy(threads=0),
    "numpy, int16": lambda p: p.to_numpy(threads=0, ids="int16"),
    "torch": lambda p: p.to_torch(threads=0),
    "torch, int32": lambda p: p.to_torch(threads=0, ids="int32"),
    "torch, isolated": lambda p: p.to_torch(isolate=True),
    "jax": lambda p: p.to_jax(threads=0),
}
COLUMNS = {
    "uint64": np.array([2**63 + 5, 1], np.uint64),
    "small uint64": np.array([7, 1], np.uint64),
    "uint32": np.array([2**31 + 5, 1], np.uint32),
    "uint16": np.array([65_535, 1], np.uint16),
    "int64": np.array([-(2**40), 1]),
    "float64": np.array([1e300, 1.0]),
    "infinite": np.array([np.inf, 1.0]),
    "big-endian integers": np.array([3, 1], ">i8"),
    "big-endian floats": np.array([0.5, 1.0], ">f4"),
    "long double": np.array([0.5, 1.0], np.longdouble),
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", COLUMNS)
def test_values_are_kept_or_refused(output: str, name: str) -> None:
    column = COLUMNS[name]
    try:
        made = OUTPUTS[output](ps.from_arrays({"x": column}).batch(2)).batch_at(0)["x"]
    except ps.PenstockError as error:
        refused = error
    else:
        assert [float(v) if column.dtype.kind == "f" else int(v) for v in made] == column.tolist()
        return
    assert refused.fix and "'x'" in str(refused)


@pytest.mark.parametrize("name", ["small uint64", "uint16", "infinite", "big-endian integers", "big-endian floats"])
def test_values_that_fit_are_delivered(name: str) -> None:
    for output in ("numpy", "torch", "torch, isolated", "jax"):
        made = OUTPUTS[output](ps.from_arrays({"x": COLUMNS[name]}).batch(2)).batch_at(0)["x"]
        assert [float(v) for v in made] == COLUMNS[name].astype(float).tolist(), output


def test_ids_that_a_function_made_larger() -> None:
    tokens = ps.from_texts(["abcd"] * 4).tokenize("bytes")
    larger = tokens.map(lambda row: {"input_ids": row["input_ids"].astype(np.uint32) + 70_000})
    with pytest.raises(ps.UsageError, match="fit uint16"):
        larger.batch(2).to_numpy(ids="uint16", threads=0).batch_at(0)


@pytest.mark.parametrize("output", ["torch", "jax"])
def test_numbers_that_were_beside_none_until_it_was_filtered_out(output: str) -> None:
    """Some blocks had None and some had none: the batches are the same arrays."""
    numbers = ps.from_arrays({"i": range(12)}).map(lambda r: {"x": None if r["i"] % 3 == 0 else int(r["i"])})
    loader = OUTPUTS[output](numbers.filter(lambda r: r["x"] is not None).batch(2))
    assert {str(batch["x"].dtype) for batch in loader} <= {"torch.int64", "int32"}
    with pytest.raises(ps.UsageError, match="a number in every row of column 'x'"):
        list(OUTPUTS[output](numbers.batch(2)))
