"""Padding against the plain definition, for every kind of row."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import RecordError, UsageError
from penstock.collate.layout import check_padding, lay_out, valid_mask
from penstock.collate.pad import as_row, counts_of, place
from penstock.core.columns import Ragged
from penstock.steps.pad import Pad
from penstock.steps.picks import Picks

KINDS = {
    "lists": lambda rows: rows,
    "tuples": lambda rows: [tuple(r) for r in rows],
    "numpy": lambda rows: [np.array(r, np.int64) for r in rows],
    "uint16": lambda rows: [np.array(r, np.int64).astype(np.uint16) for r in rows],
    "torch": lambda rows: [torch.tensor(r, dtype=torch.int64) for r in rows],
    "jax": lambda rows: [jnp.array(r, dtype=jnp.int32) for r in rows],
    "ragged": lambda rows: Ragged.of(rows, np.int64),
    "mixed": lambda rows: [np.array(r, np.int32) if i % 2 else list(r) for i, r in enumerate(rows)],
}


def pad_rows(
    rows: Any, value: Any, *, dtype: Any = None, length: int | None = None, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Rows padded, and the number of values kept of each."""
    check_padding(**options)
    layout = lay_out(counts_of(rows), length=length, **options)
    return place(rows, layout, value, dtype), layout.lengths()


def by_definition(
    rows: list[list[int]], value: int, side: str, length: int | None, multiple: int | None, cap: int | None, cut: str
) -> list[list[int]]:
    if cap is not None:
        rows = [r[:cap] if cut == "right" else r[max(0, len(r) - cap) :] for r in rows]
    width = length if length is not None else max((len(r) for r in rows), default=0)
    while multiple is not None and width % multiple:
        width += 1
    fill = [[value] * (width - len(r)) for r in rows]
    return [r + f if side == "right" else f + r for r, f in zip(rows, fill, strict=True)]


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(st.lists(st.integers(0, 60_000), max_size=12), min_size=1, max_size=6),
    kind=st.sampled_from([k for k in KINDS if k not in ("torch", "jax")]),
    side=st.sampled_from(["right", "left"]),
    cut=st.sampled_from(["right", "left"]),
    multiple=st.one_of(st.none(), st.integers(1, 9)),
    cap=st.one_of(st.none(), st.integers(1, 14)),
    fixed=st.booleans(),
)
def test_equals_the_definition(
    rows: list[list[int]], kind: str, side: Any, cut: Any, multiple: int | None, cap: int | None, fixed: bool
) -> None:
    length = cap if fixed else None
    out, lengths = pad_rows(
        KINDS[kind](rows),
        -100,
        side=side,
        truncate=cut,
        multiple=multiple,
        max_length=cap,
        length=length,
        dtype=np.int64,
    )
    assert out.tolist() == by_definition(rows, -100, side, length, multiple, cap, cut)
    assert lengths.tolist() == [len(r) if cap is None else min(len(r), cap) for r in rows]
    assert out.dtype == np.int64
    assert out.flags.c_contiguous
    assert out.flags.writeable
    mask = valid_mask(lay_out(lengths.tolist(), length=out.shape[1] or None, side=side))
    assert mask.flags.c_contiguous
    assert mask.flags.writeable
    assert mask.tolist() == by_definition([[1] * n for n in lengths.tolist()], 0, side, out.shape[1], None, None, cut)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("side", ["right", "left"])
def test_every_kind_of_row(kind: str, side: Any) -> None:
    rows = [[1, 2, 3], [4], [5, 60_000]]
    out, _ = pad_rows(KINDS[kind](rows), 0, side=side, dtype=np.int64)
    assert out.tolist() == by_definition(rows, 0, side, None, None, None, "right")


def test_dtype_is_found_where_none_is_asked() -> None:
    assert pad_rows([np.array([1], np.uint8), np.array([2], np.int32)], 0)[0].dtype == np.int32
    assert pad_rows([[1.5], [2.0, 3.0]], 0)[0].tolist() == [[1.5, 0.0], [2.0, 3.0]]
    assert pad_rows([[], []], 0)[0].dtype == np.int64
    assert pad_rows([[True], [False, True]], 0, dtype=np.int64)[0].tolist() == [[1, 0], [0, 1]]


def test_a_slice_of_a_ragged_column() -> None:
    whole = Ragged.of([[9], [1, 2, 3], [4], []], np.uint16)
    out, _ = pad_rows(whole.slice(1, 4), 7, side="left", dtype=np.int64)
    assert out.tolist() == [[1, 2, 3], [7, 7, 4], [7, 7, 7]]


@pytest.mark.parametrize(
    ("rows", "got"),
    [
        ([[1], [0.5]], "float64 of shape (1,)"),
        ([[1], [[1, 2]]], "int64 of shape (1, 2)"),
        ([np.array([1]), np.array([0.5])], "float64 of shape (1,)"),
        ([[1], ["a"]], "shape (1,)"),
        ([[1], [2**63]], "uint64 of shape (1,)"),
        ([[1], [2**63, -100]], "object of shape (2,)"),
        ([np.array([1], np.uint64), np.array([2**63], np.uint64)], "with values outside int64"),
        ([[1], [torch.tensor(0.5)]], "float32 of shape (1,)"),
    ],
)
def test_rows_that_are_not_integers_are_named(rows: Any, got: str) -> None:
    with pytest.raises(RecordError) as caught:
        pad_rows(rows, 0, dtype=np.int64)
    assert got in str(caught.value)
    assert "row 1 of the batch" in str(caught.value)
    assert "rows of integers" in str(caught.value)


def test_a_nest_of_different_lengths_is_named() -> None:
    with pytest.raises(RecordError, match="rows that make a NumPy array") as caught:
        pad_rows([[1], [[1], [2, 3]]], 0, dtype=np.int64)
    assert "inhomogeneous" in caught.value.got
    assert caught.value.where == "row 1 of the batch"


@pytest.mark.parametrize(
    ("rows", "row", "got"),
    [
        (Ragged.of([np.array([1.0]), np.array([1.5])]), 0, "float64 of shape (1,)"),
        (Ragged.of([[], np.array([1.5])]), 1, "float64 of shape (1,)"),
        (Ragged.of([[1], [2**63 + 1]], np.uint64), 1, "with values outside int64"),
        (Ragged(np.array([[1, 2], [3, 4]]), np.array([0, 1, 2])), 0, "int64 of shape (1, 2)"),
        (Ragged(np.array(["a", "b"]), np.array([0, 0, 2])), 1, "<U1 of shape (2,)"),
    ],
)
@pytest.mark.parametrize("cut", [None, 1])
def test_ragged_rows_that_are_not_integers_are_named(rows: Ragged, row: int, got: str, cut: int | None) -> None:
    with pytest.raises(RecordError) as caught:
        pad_rows(rows, 0, dtype=np.int64, max_length=cut)
    assert got in str(caught.value)
    assert "rows of integers" in str(caught.value)
    assert caught.value.row == row


def test_ragged_rows_are_judged_by_what_they_hold() -> None:
    whole = Ragged(np.array([2**63, 5], np.uint64), np.array([1, 2]))
    assert pad_rows(whole, 0, dtype=np.int64)[0].tolist() == [[5]]
    assert pad_rows(Ragged.of([[], []], np.float64), 0, dtype=np.int64, length=1)[0].tolist() == [[0], [0]]
    assert pad_rows(Ragged.of([[0.5]]), 0)[0].tolist() == [[0.5]]


def test_the_pad_step_refuses_tokens_that_are_not_integers() -> None:
    column, picks = Ragged.of([[1.5, 2.0], [3.0]]), Picks(np.array([7, 4]), 0)
    with pytest.raises(RecordError, match=r"rows of integers(.|\n)*where: record 7, row 0 of the batch"):
        Pad().padded({"input_ids": column}, picks)
    assert Pad().padded({"x": column}, picks)["x"].tolist() == [[1.5, 2.0], [3.0, 0.0]]


def test_a_row_longer_than_the_length() -> None:
    with pytest.raises(RecordError, match=r"rows of at most 2 values\n  got:   3\n  where: row 1 of the batch"):
        lay_out([1, 3], length=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"side": "up"}, "padding side of 'right' or 'left'"),
        ({"truncate": "mid"}, "truncation side"),
        ({"multiple": 0}, "`multiple` to be a positive integer"),
        ({"max_length": -1}, "`max_length` to be a positive integer"),
        ({"multiple": True}, "`multiple` to be a positive integer"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        pad_rows([[1]], 0, **options)


def test_as_row_takes_exact_integers() -> None:
    big = [2**62, -(2**62)]
    assert as_row(big).tolist() == big
    assert as_row([2**63]).dtype == np.uint64
    assert as_row([2**63, 1]).tolist() == [2**63, 1]
    assert as_row([2**63, -100]).tolist() == [2**63, -100]
    assert as_row([2**63, 0.5]).dtype == np.float64
    assert as_row((1, 2)).tolist() == [1, 2]
