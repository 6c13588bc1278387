"""A column has one type in every batch, whichever rows are in it: a mixture of types is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps

VALUES: dict[str, Callable[[int], Any]] = {
    "int and float": lambda i: i if i % 4 else i / 2,
    "bool and int": lambda i: i > 4 if i % 4 else i,
    "float32 and float": lambda i: np.float32(i) if i % 4 else float(i),
    "lists of them": lambda i: [i, i] if i % 4 else [i / 2, 0.5],
    "lists of different lengths": lambda i: [i] * (i % 3 + 1) if i % 4 else [0.5],
    "arrays": lambda i: np.zeros((2, 2), np.int32 if i % 4 else np.float32),
    "late": lambda i: i if i < 30 else float(i),
}
NUMBERS = ps.from_arrays({"i": range(32)})


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("verb", ["map", "flat_map", "map_batches"])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("size", [1, 4])
def test_a_function_that_returns_different_types(case: str, verb: str, threads: int, size: int) -> None:
    value = VALUES[case]
    made = {
        "map": lambda: NUMBERS.map(lambda r: {"x": value(int(r["i"]))}),
        "flat_map": lambda: NUMBERS.flat_map(lambda r: [{"x": value(int(r["i"]))}]),
        "map_batches": lambda: NUMBERS.map_batches(lambda c: {"x": [value(int(i)) for i in c["i"]]}),
    }[verb]()
    with pytest.raises(ps.PenstockError, match="of one type in column 'x'"):
        list(made.batch(size).to_numpy(threads=threads))


def test_functions_of_batches() -> None:
    flips = NUMBERS.batch(4).map_batches(lambda c: {"x": c["i"] if c["i"][0] % 8 else c["i"] / 2})
    with pytest.raises(ps.UsageError, match=r"'x' after \.map_batches\(\)"):
        list(flips.to_numpy(threads=0))


def test_empty_lists_and_equal_types_pass() -> None:
    lists = NUMBERS.map(lambda r: {"x": [0.5] * int(r["i"] % 3), "y": float(r["i"])})
    assert {(batch["x"].dtype.name, batch["y"].dtype.name) for batch in lists.batch(2).to_numpy()} == {
        ("float64", "float64")
    }


@pytest.mark.parametrize("combine", [lambda p: ps.mix(p, stop="all"), ps.concat, ps.interleave])
@pytest.mark.parametrize("other", [np.arange(8) / 2, np.arange(8, dtype=np.int32), [f"{i}" for i in range(8)]])
def test_sources_with_columns_of_different_types(combine: Any, other: Any) -> None:
    with pytest.raises(ps.UsageError, match="column 'x' of one type from every source"):
        list(combine([ps.from_arrays({"x": range(8)}), ps.from_arrays({"x": other})]).batch(2).to_numpy(threads=0))


def test_token_ids_of_different_widths_are_mixed() -> None:
    """They all become the type of `ids=`."""
    narrow, wide = (ps.from_arrays({"input_ids": np.ones((4, 2), dtype)}) for dtype in (np.uint16, np.uint32))
    batches = list(ps.concat([narrow, wide]).batch(3, remainder="short").to_numpy(ids="int32"))
    assert {batch["input_ids"].dtype.name for batch in batches} == {"int32"}


def test_a_simple_loader_of_the_guide() -> None:
    pytest.importorskip("jax")
    with pytest.raises(ps.UsageError, match="of one type in column 'x'"):
        list(ps.create_simple_data_loader([{"x": 1}, {"x": 0.5}], 2))
    same = ps.create_simple_data_loader([{"x": 1.0}, {"x": np.float32(0.5)}], 2, shuffle=False)
    assert [batch["x"].tolist() for batch in same] == [[1.0, 0.5]]  # JAX has one type of floats


ODD: dict[str, Callable[[int], Any]] = {
    "text": lambda i: "a" if i == 29 else i,
    "a list": lambda i: [i] if i == 29 else i,
    "text in a list": lambda i: ["a"] if i == 29 else [i],
    "a dict": lambda i: {"a": i} if i == 29 else i,
    "another number of dimensions": lambda i: np.zeros((2, 2) if i == 29 else 2),
    "a wider type": lambda i: np.float32(i) if i == 29 else float(i),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("verb", ["map", "flat_map", "map_batches"])
@pytest.mark.parametrize("size", [1, 8])
def test_one_row_with_a_value_of_another_kind_is_named(case: str, verb: str, size: int) -> None:
    """The type of a batch depended on whether that row was in it."""
    value = ODD[case]
    made = {
        "map": lambda: NUMBERS.map(lambda r: {"x": value(int(r["i"]))}),
        "flat_map": lambda: NUMBERS.flat_map(lambda r: [{"x": value(int(r["i"]))}]),
        "map_batches": lambda: NUMBERS.map_batches(lambda c: {"x": [value(int(i)) for i in c["i"]]}),
    }[verb]()
    with pytest.raises(ps.UsageError, match="(?s)of one type in column 'x'.*where:.*row 29"):
        list(made.batch(size).to_numpy(threads=0))


def test_batches_of_empty_lists_have_the_type_of_the_others() -> None:
    for values, expected in (([1, 2], "int64"), (["a"], "object")):
        lists = NUMBERS.map(lambda r, values=values: {"x": values if r["i"] < 8 or r["i"] > 24 else []})
        assert {b["x"].dtype.name for b in lists.batch(4).to_numpy(threads=0)} == {expected}


@pytest.mark.parametrize("value", [[[1], [2, 3]], [np.zeros(2), np.zeros(3)], {"lists": [[1], [2, 3]]}])
def test_lists_of_unequal_lists_are_objects_or_refused(value: Any) -> None:
    """They ended in a ValueError of NumPy."""
    made = NUMBERS.map(lambda r: {"x": value})
    assert next(iter(made.batch(2).to_numpy()))["x"].dtype == object
    if isinstance(value, dict):
        for output in (made.batch(2).to_torch(), made.batch(2).to_jax()):
            with pytest.raises(ps.UsageError, match="(?s)rows of one shape in column 'x.lists'.*unequal lengths"):
                next(iter(output))
    mixed = NUMBERS.map(lambda r: {"x": value if r["i"] % 2 else [[1, 2], [3, 4]]})
    with pytest.raises(ps.UsageError, match="(?s)of one type in column 'x'.*in a dict"):
        next(iter(mixed.batch(2).to_numpy()))


def test_text_beside_none_and_arrays_of_several_shapes_pass() -> None:
    pictures = NUMBERS.map(lambda r: {"x": np.zeros((1 + r["i"] % 3, 2), np.uint8), "t": None if r["i"] % 3 else "a"})
    assert len(list(pictures.batch(4).to_numpy(threads=0))) == 8


@pytest.mark.parametrize("combine", [lambda p: ps.mix(p, stop="all"), ps.concat, ps.interleave])
def test_sources_of_different_types_are_refused_where_they_are_combined(combine: Any) -> None:
    """They were refused when both had been read, which a run that resumes after the first never does."""
    with pytest.raises(ps.UsageError, match="column 'x' of one type from every source"):
        combine([ps.from_arrays({"x": range(800)}), ps.from_arrays({"x": np.arange(8) / 2}).shuffle(seed=1)])


@pytest.mark.parametrize("later", [0, 300])
@pytest.mark.parametrize("value", [0.5, "a"])
def test_functions_of_different_types_are_refused_at_the_first_read(later: int, value: Any) -> None:
    whole, other = NUMBERS.map(lambda r: {"x": int(r["i"])}), NUMBERS.map(lambda r: {"x": value})
    loader = ps.concat([whole.repeat(10), other.repeat(9)]).batch(2).to_numpy(threads=0)
    with pytest.raises(ps.UsageError, match="column 'x' of one type from every source"):
        loader.batch_at(later)


def test_pictures_of_several_shapes_are_one_type() -> None:
    pictures = NUMBERS.map(lambda r: {"x": np.zeros((1 + r["i"] % 3, 2), np.uint8)})
    same = NUMBERS.map(lambda r: {"x": np.zeros((3, 2), np.uint8)})
    assert len(list(ps.interleave([pictures, same]).batch(4).to_numpy(threads=0))) == 16
