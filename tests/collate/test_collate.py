"""The collate functions on their own: meanings, kinds of rows, kinds of tensors, and what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import RecordError, UsageError
from penstock.collate.schema import OutputSchema
from penstock.core.columns import Ragged
from penstock.facades.preprocessed.collate import create_causal_lm_collate, create_collate_fn, create_seq2seq_collate

MAKERS = {
    "list": list,
    "numpy": np.array,
    "torch": torch.tensor,
    "jax": jnp.array,
}


def random_rows(lengths: list[int], seed: int = 0, masked: bool = False) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    rows = []
    for n in lengths:
        ids = rng.integers(1, 1000, n)
        labels = np.where(rng.random(n) < 0.4, -100, ids)
        attention = (rng.random(n) < 0.7).astype(int) if masked else np.ones(n, int)
        rows.append({"input_ids": ids.tolist(), "attention_mask": attention.tolist(), "labels": labels.tolist()})
    return rows


@pytest.mark.parametrize("kind", sorted(MAKERS))
@pytest.mark.parametrize("tensors", [True, "pt", "np", False, "jax"])
def test_any_rows_to_any_tensors(kind: str, tensors: Any) -> None:
    make = MAKERS[kind]
    rows = [{name: make(value) for name, value in row.items()} for row in random_rows([3, 5, 1])]
    batch = create_collate_fn(0, return_tensors=tensors)(rows)
    expected = create_collate_fn(0, return_tensors="np")(random_rows([3, 5, 1]))
    wanted = {True: torch.Tensor, "pt": torch.Tensor, "np": np.ndarray, False: np.ndarray, "jax": jax.Array}[tensors]
    for name, value in expected.items():
        assert isinstance(batch[name], wanted)
        assert np.asarray(batch[name]).tolist() == value.tolist()
    assert str(batch["input_ids"].dtype).endswith("int32" if tensors == "jax" else "int64")


@settings(deadline=None, max_examples=120)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    side=st.sampled_from(["right", "left"]),
    cut=st.sampled_from(["right", "left"]),
    cap=st.one_of(st.none(), st.integers(1, 12)),
    multiple=st.one_of(st.none(), st.integers(1, 8)),
    masked=st.booleans(),
    given_mask=st.booleans(),
    shift=st.sampled_from([None, True, False]),
)
def test_labels_are_hidden_wherever_attention_is_0(
    lengths: list[int], side: Any, cut: Any, cap: Any, multiple: Any, masked: bool, given_mask: bool, shift: bool | None
) -> None:
    rows = random_rows(lengths, masked=masked and given_mask)
    if not given_mask:
        for row in rows:
            del row["attention_mask"]
    options = {"padding_side": side, "max_length": cap, "pad_to_multiple_of": multiple, "truncation_side": cut}
    make = create_collate_fn if shift is None else create_causal_lm_collate
    more = {} if shift is None else {"shift": shift}
    batch = make(0, return_tensors="np", **options, **more)(rows)
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    assert ids.shape == mask.shape == labels.shape
    assert (labels[mask == 0] == -100).all()
    for i, row in enumerate(rows):
        kept = slice(None)
        if cap is not None and len(row["input_ids"]) > cap:
            kept = slice(cap) if cut == "right" else slice(-cap, None)
        tokens, wanted = np.array(row["input_ids"], int)[kept], np.array(row["labels"], int)[kept]
        attends = np.array(row.get("attention_mask", [1] * len(row["input_ids"])), int)[kept]
        n = len(tokens)
        place = slice(0, n) if side == "right" else slice(ids.shape[1] - n, None)
        assert ids[i, place].tolist() == tokens.tolist()
        assert mask[i, place].tolist() == attends.tolist()
        assert mask[i].sum() == attends.sum()
        wanted = np.where(attends == 0, -100, wanted)
        if shift:
            wanted = np.where(attends == 0, -100, np.append(wanted[1:], -100)) if n else wanted
        assert labels[i, place].tolist() == wanted.tolist()


def test_causal_labels_are_the_token_after() -> None:
    rows = [{"input_ids": [5, 6, 7, 8]}, {"input_ids": [9, 10]}]
    right = create_causal_lm_collate(0, return_tensors="np")(rows)
    assert right["labels"].tolist() == [[6, 7, 8, -100], [10, -100, -100, -100]]
    left = create_causal_lm_collate(0, padding_side="left", return_tensors="np")(rows)
    assert left["labels"].tolist() == [[6, 7, 8, -100], [-100, -100, 10, -100]]
    same = create_causal_lm_collate(0, shift=False, return_tensors="np")(rows)
    assert same["labels"].tolist() == [[5, 6, 7, 8], [9, 10, -100, -100]]


def test_a_pad_token_inside_a_row_keeps_its_label() -> None:
    """Padding is known from lengths, not from the id: an end token that doubles as padding is still learnt."""
    batch = create_causal_lm_collate(0, return_tensors="np")([{"input_ids": [5, 6, 0]}, {"input_ids": [7]}])
    assert batch["labels"].tolist() == [[6, 0, -100], [-100, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_rows_without_labels_get_none_unless_asked() -> None:
    rows = [{"input_ids": [1, 2]}, {"input_ids": [3]}]
    assert "labels" not in create_collate_fn(0)(rows)
    assert "labels" not in create_collate_fn(0)([{**row, "labels": None} for row in rows])
    made = create_collate_fn(0, make_labels=True, return_tensors="np")(rows)
    assert made["labels"].tolist() == [[1, 2], [3, -100]]


def test_other_columns_pass_through() -> None:
    rows = [
        {
            "input_ids": [1, 2, 3],
            "token_type_ids": [0, 1, 1],
            "index": 4,
            "text": "a",
            "score": 0.5,
            "box": [1, 2],
            "odd": [1],
        },
        {"input_ids": [4], "token_type_ids": [1], "index": 9, "text": "b", "score": 1.5, "box": [3, 4], "odd": [1, 2]},
    ]
    batch = create_collate_fn(0)(rows)
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [1, 0, 0]]
    assert batch["index"].tolist() == [4, 9]
    assert batch["text"] == ["a", "b"]
    assert batch["score"].dtype == torch.float64
    assert batch["box"].tolist() == [[1, 2], [3, 4]]
    assert [t.tolist() for t in batch["odd"]] == [[1], [1, 2]]
    padded = create_collate_fn(0, pad_values={"odd": -1})(rows)
    assert padded["odd"].tolist() == [[1, -1], [1, 2]]
    classes = create_collate_fn(0)([{"input_ids": [1], "labels": 2}, {"input_ids": [1, 2], "labels": 0}])
    assert classes["labels"].tolist() == [2, 0]


def test_columns_instead_of_rows() -> None:
    rows = random_rows([4, 0, 7])
    columns = {name: Ragged.of([row[name] for row in rows], np.int32) for name in rows[0]}
    expected, found = create_collate_fn(3)(rows), create_collate_fn(3)({**columns, "index": np.arange(3)})
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["index"].tolist() == [0, 1, 2]


def test_schema_gives_dtypes_and_refuses_what_does_not_fit() -> None:
    schema = OutputSchema({"input_ids": "int32", "attention_mask": "bool", "labels": "int64"}, extra="drop")
    batch = create_collate_fn(0, schema=schema)([{**row, "text": "x"} for row in random_rows([2, 3])])
    assert {name: value.dtype for name, value in batch.items()} == {
        "input_ids": torch.int32,
        "attention_mask": torch.bool,
        "labels": torch.int64,
    }
    narrow = create_collate_fn(0, schema=OutputSchema({"input_ids": "uint8"}))
    with pytest.raises(RecordError, match="values of 'input_ids' that fit uint8\n  got:   values from 0 to 300"):
        narrow([{"input_ids": [300]}, {"input_ids": [1, 2]}])


def test_jax_refuses_what_32_bits_cannot_hold() -> None:
    with pytest.raises(UsageError, match="64-bit types switched off"):
        create_collate_fn(0, return_tensors="jax")([{"input_ids": [2**40]}])


def test_seq2seq_meanings() -> None:
    rows = [{"input_ids": [5, 6], "labels": [7, 8, 1]}, {"input_ids": [9, 9, 9], "labels": [4, 1]}]
    batch = create_seq2seq_collate(0, decoder_start_token_id=2, return_tensors="np")(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 0], [9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[7, 8, 1], [4, 1, -100]]
    assert batch["decoder_input_ids"].tolist() == [[2, 7, 8], [2, 4, 1]]
    assert batch["decoder_attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    left = create_seq2seq_collate(0, decoder_start_token_id=2, target_padding_side="left", return_tensors="np")(rows)
    assert left["labels"].tolist() == [[7, 8, 1], [-100, 4, 1]]
    assert left["decoder_input_ids"].tolist() == [[2, 7, 8], [0, 2, 4]]
    assert left["decoder_attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]
    fixed = create_seq2seq_collate(0, max_length=4, max_target_length=2, return_tensors="np")(rows)
    assert fixed["input_ids"].shape == (2, 4)
    assert fixed["labels"].tolist() == [[7, 8], [4, 1]]
    own = create_seq2seq_collate(0, return_tensors="np")(
        [{"input_ids": [1], "labels": [3, 4], "decoder_input_ids": [8, 3]}]
    )
    assert own["decoder_input_ids"].tolist() == [[8, 3]]


@pytest.mark.parametrize(
    ("rows", "text", "where"),
    [
        ([{"x": [1]}], "rows with a column 'input_ids'", "row 0"),
        ([{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1], "labels": [1, 2]}], "got:   2 and 1", "row 1"),
        ([{"input_ids": [1], "attention_mask": [1, 1]}], "'attention_mask' to be as long as 'input_ids'", "row 0"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], "every row to have the column 'labels'", "row 1"),
        ([{"input_ids": [1]}, {"input_ids": [1], "labels": [1]}], "every row to have the column 'labels'", "row 0"),
        ([{"input_ids": 3}], "flat sequence of integers", "batch"),
        ([{"input_ids": [1]}, {"input_ids": [0.5]}], "rows of integers", "row 1"),
    ],
)
def test_bad_rows_are_named(rows: Any, text: str, where: str) -> None:
    with pytest.raises(RecordError) as caught:
        create_collate_fn(0)(rows)
    assert text in str(caught.value)
    assert where in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pad_token_id": None}, "`pad_token_id` to be an integer"),
        ({"pad_token_id": 0, "padding_side": "middle"}, "padding side"),
        ({"pad_token_id": 0, "max_length": 0}, "`max_length`"),
        ({"pad_token_id": 0, "return_tensors": "tf"}, "`return_tensors` to be True or 'pt'"),
    ],
)
def test_nonsense_is_refused_when_made(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        create_collate_fn(**options)


def test_some_rows_without_attention_mask() -> None:
    rows = [{"input_ids": [1, 2], "attention_mask": [0, 1]}, {"input_ids": [3]}]
    assert create_collate_fn(0, return_tensors="np")(rows)["attention_mask"].tolist() == [[0, 1], [1, 0]]


def test_an_empty_batch() -> None:
    with pytest.raises(UsageError, match="at least one row"):
        create_collate_fn(0)([])


def test_they_can_be_pickled_and_used_by_a_data_loader() -> None:
    collate = pickle.loads(pickle.dumps(create_causal_lm_collate(0, schema=OutputSchema())))
    loader = torch.utils.data.DataLoader(random_rows([1, 2, 3, 4, 5]), batch_size=2, collate_fn=collate)
    assert [tuple(batch["labels"].shape) for batch in loader] == [(2, 2), (2, 4), (1, 5)]


def test_tensors_are_writeable_and_own_nothing_of_the_rows() -> None:
    row = np.arange(4)
    batch = create_collate_fn(0)([{"input_ids": row}])
    batch["input_ids"] += 1
    assert row.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["decoder_input_ids", "decoder_attention_mask"])
def test_a_decoder_column_as_long_as_the_labels(name: str) -> None:
    rows = [{"input_ids": [1], "labels": [2, 3], name: [1, 1]}, {"input_ids": [1], "labels": [2, 3], name: [1]}]
    with pytest.raises(RecordError) as caught:
        create_seq2seq_collate(0)(rows)
    assert f"{name!r} to be as long as 'labels' in every row" in str(caught.value)
    assert "1 and 2" in str(caught.value)
    assert "row 1 of the batch" in str(caught.value)
    assert f"leave {name!r} out" in str(caught.value)


def test_a_decoder_mask_hides_labels() -> None:
    rows = [
        {"input_ids": [1], "labels": [2, 3, 4], "decoder_attention_mask": [1, 0, 1]},
        {"input_ids": [1], "labels": [5], "decoder_attention_mask": [1]},
    ]
    batch = create_seq2seq_collate(0, return_tensors="np")(rows)
    assert batch["decoder_attention_mask"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[2, -100, 4], [5, -100, -100]]


@pytest.mark.parametrize("kind", ["list", "numpy", "torch", "jax"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_one_zero_in_one_mask_hides_its_label(kind: str, side: Any) -> None:
    rows = random_rows([3, 5, 1])
    rows[1]["attention_mask"][2] = 0
    given = [{name: MAKERS[kind](value) for name, value in row.items()} for row in rows]
    batch = create_collate_fn(0, return_tensors="np", padding_side=side)(given)
    assert batch["attention_mask"].sum(axis=1).tolist() == [3, 4, 1]
    assert batch["attention_mask"][1, 2] == 0
    assert batch["labels"][1, 2] == -100
