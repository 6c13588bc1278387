"""Which columns a batch has, which rows lack what, what is padded and what is stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock import RecordError, UsageError
from penstock.collate.columns import columns_of
from penstock.core.columns import Ragged
from penstock.facades.preprocessed.collate import (
    create_causal_lm_collate,
    create_collate_fn,
    create_fim_collate,
    create_mlm_collate,
    create_preference_collate,
    create_seq2seq_collate,
)

MAKERS: dict[str, Any] = {
    "collate": lambda **o: create_collate_fn(**{"pad_token_id": 0, **o}),
    "causal": lambda **o: create_causal_lm_collate(**{"pad_token_id": 0, **o}),
    "seq2seq": lambda **o: create_seq2seq_collate(**{"pad_token_id": 0, **o}),
    "mlm": lambda **o: create_mlm_collate(**{"pad_token_id": 0, "mask_token_id": 1, "vocab_size": 9, **o}),
    "fim": lambda **o: create_fim_collate(
        **{"pad_token_id": 0, "prefix_token_id": 1, "middle_token_id": 2, "suffix_token_id": 3, **o}
    ),
    "preference": lambda **o: create_preference_collate(**{"pad_token_id": 0, **o}),
}


def plain(**options: Any) -> Any:
    return create_collate_fn(0, return_tensors="np", **options)


def refused(rows: Any, collate: Any = None) -> RecordError:
    with pytest.raises(RecordError) as caught:
        (collate or plain())(rows)
    assert caught.value.fix
    return caught.value


# Missing columns: labels in all rows or in none, the attention mask in any.


@pytest.mark.parametrize("collate", [plain(), create_causal_lm_collate(0), create_seq2seq_collate(0)])
@pytest.mark.parametrize("missing", [{}, {"labels": None}, {"attention_mask": [1, 1]}, {"note": 1}])
@pytest.mark.parametrize("turned", [False, True])
def test_labels_are_in_all_rows_or_in_none(collate: Any, missing: dict[str, Any], turned: bool) -> None:
    """Rows with as many columns, but not the same, count as rows that differ."""
    rows = [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1, 2], **missing}]
    if "note" in missing:
        rows[0]["note"] = 1
    error = refused(rows[::-1] if turned else rows, collate)
    assert "every row to have the column 'labels'" in str(error)
    assert error.where == f"row {0 if turned else 1} of the batch"


def test_a_column_none_of_the_first_row_has_is_not_lost() -> None:
    batch = plain()([{"input_ids": [1], "attention_mask": [1]}, {"input_ids": [1, 2]}])
    assert batch["attention_mask"].tolist() == [[1, 0], [1, 1]]
    error = refused([{"input_ids": [1], "a": 1}, {"input_ids": [1], "b": 1}])
    assert "every row to have the column 'a'" in str(error)
    assert error.row == 1


def test_none_is_missing_for_labels_and_masks_only() -> None:
    rows = [{"input_ids": [1, 2], "labels": None, "note": None}, {"input_ids": [1], "note": "x"}]
    batch = plain()(rows)
    assert "labels" not in batch
    assert batch["note"] == [None, "x"]
    assert columns_of([{"attention_mask": None}]) == {}


@pytest.mark.parametrize(
    "columns",
    [
        {"input_ids": [[1, 2], [3]], "labels": [[1, 2], None]},
        {"input_ids": [[1, 2], [3]], "labels": ([1, 2], None)},
        {"input_ids": [[1, 2], [3]], "labels": np.array([[1, 2], None], object)},
    ],
)
def test_columns_follow_the_same_rule(columns: Any) -> None:
    assert "every row to have the column 'labels'" in str(refused(columns))
    assert "labels" not in plain()({**columns, "labels": None})
    assert "labels" not in plain()({**columns, "labels": [None, None]})


def test_columns_of_unequal_counts() -> None:
    error = refused({"input_ids": [[1], [2]], "labels": [[1]]})
    assert "columns with the same number of rows" in str(error)
    assert "2 of 'input_ids', 1 of 'labels'" in str(error)
    assert error.row == 1
    for column in (3, "text", np.array(3), torch.tensor(3)):
        assert "the column 'x' to hold one value per row" in str(refused({"input_ids": [[1]], "x": column}))


# What is padded, what is stacked.


def test_a_stacked_column_keeps_its_shape_whatever_the_tokens() -> None:
    rows = [{"input_ids": [1] * n, "box": [1, 2, 3, 4]} for n in (4, 4)]
    other = [{"input_ids": [1] * n, "box": [1, 2, 3, 4]} for n in (4, 5)]
    assert plain(max_length=8)(rows)["box"].shape == (2, 8)  # by chance as long as the tokens
    assert plain(max_length=8)(other)["box"].shape == (2, 4)
    for collate in (
        plain(max_length=8, stack_columns=["box"]),
        create_causal_lm_collate(0, max_length=8, stack_columns=["box"], return_tensors="np"),
        create_mlm_collate(0, 1, 9, max_length=8, stack_columns=["box"], return_tensors="np"),
        create_fim_collate(0, 1, 2, 3, max_length=8, stack_columns=["box"], return_tensors="np"),
    ):
        assert collate(rows)["box"].shape == collate(other)["box"].shape == (2, 4)
    pairs = [{**row, "labels": [1]} for row in rows]
    assert create_seq2seq_collate(0, max_length=8, stack_columns=["box"])(pairs)["box"].shape == (2, 4)


@pytest.mark.parametrize("kind", ["collate", "causal", "seq2seq", "mlm", "fim"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pad_values": {"x": None}}, "a number in `pad_values` for 'x'"),
        ({"pad_values": {"x": "0"}}, "a number in `pad_values` for 'x'"),
        ({"pad_values": ["x"]}, "`pad_values` to be a mapping"),
        ({"pad_values": {"labels": 0}}, "`pad_values` to name columns other than"),
        ({"pad_values": {"input_ids": 0}}, "`pad_values` to name columns other than"),
        ({"pad_values": {"attention_mask": 0}}, "`pad_values` to name columns other than"),
        ({"stack_columns": "box"}, "`stack_columns` to be a list of names"),
        ({"stack_columns": ["input_ids"]}, "`stack_columns` to name columns that are not one value per token"),
        ({"stack_columns": ["x"], "pad_values": {"x": 0}}, "x in both"),
    ],
)
def test_padding_that_cannot_be_is_refused_when_made(kind: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        MAKERS[kind](**options)
    assert text in str(caught.value)
    assert caught.value.fix


def test_names_a_function_pads_by_itself() -> None:
    for make, name in (("seq2seq", "decoder_input_ids"), ("mlm", "special_tokens_mask")):
        with pytest.raises(UsageError, match="`pad_values` to name columns other than"):
            MAKERS[make](pad_values={name: 0})
        plain(pad_values={name: 0})
    for make in ("causal", "seq2seq", "mlm", "fim"):
        with pytest.raises(UsageError, match="labels of one vector per row use create_collate_fn"):
            MAKERS[make](stack_columns=["labels"])


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (0.5, [[1, 2], [3]]),
        (float("-inf"), [[1, 2], [3]]),
        (float("nan"), [[1, 2], [3]]),
        (-1, [np.array([1, 2], np.uint8), np.array([3], np.uint8)]),
        (256, Ragged.of([[1, 2], [3]], np.uint8)),
        (2, [np.array([True, False]), np.array([True])]),
        (1e6, [np.array([1, 2], np.float16), np.array([3], np.float16)]),
    ],
)
@pytest.mark.parametrize("aligned", [True, False])
def test_a_pad_value_its_column_cannot_hold(value: Any, values: Any, aligned: bool) -> None:
    columns = {"input_ids": [[1, 2], [3]] if aligned else [[1], [2]], "x": values}
    with pytest.raises(UsageError) as caught:
        plain(pad_values={"x": value})(columns)
    assert "a value in `pad_values` for 'x' that fits its dtype" in str(caught.value)
    assert caught.value.got == repr(value)


def test_pad_values_that_fit() -> None:
    rows = [{"input_ids": [1, 2], "x": [0.5, 1.5], "y": [1]}, {"input_ids": [3], "x": [2.5], "y": [1, 2]}]
    batch = plain(pad_values={"x": float("-inf"), "y": -1.0})(rows)
    assert batch["x"].tolist() == [[0.5, 1.5], [2.5, float("-inf")]]
    assert batch["y"].tolist() == [[1, -1], [1, 2]]
    error = refused([{"input_ids": [1], "z": 3}], plain(pad_values={"z": 0}))
    assert "'z' to be a flat sequence of numbers" in str(error)


# Arguments and rows that raise something of their own.


@pytest.mark.parametrize("kind", sorted(MAKERS))
@pytest.mark.parametrize("name", ["pad_token_id", "label_pad_token_id"])
@pytest.mark.parametrize("value", [None, 1.5, "x", "0", True, 2**63])
def test_ids_to_pad_with_are_integers(kind: str, name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        MAKERS[kind](**{name: value})
    assert f"`{name}` to be an integer" in str(caught.value)
    assert caught.value.got == repr(value)
    assert MAKERS[kind](**{name: np.int32(7)})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("seq2seq", "decoder_start_token_id"),
        ("mlm", "mask_token_id"),
        ("mlm", "vocab_size"),
        ("fim", "prefix_token_id"),
        ("fim", "middle_token_id"),
        ("fim", "suffix_token_id"),
        ("fim", "eos_token_id"),
    ],
)
def test_ids_of_other_tokens_are_integers(kind: str, name: str) -> None:
    for value in ("x", 1.5):
        with pytest.raises(UsageError, match=f"`{name}` to be an integer"):
            MAKERS[kind](**{name: value})
    with pytest.raises(UsageError, match="`special_token_ids` to be an integer"):
        MAKERS["mlm"](special_token_ids=["[CLS]"])


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_rows_that_are_not_rows(kind: str) -> None:
    collate = MAKERS[kind]()
    row = {"input_ids": [1], "labels": [1], "chosen": [1], "rejected": [1]}
    for bad in ([1, 2], 3, "text", None, (1, 2)):
        error = refused([row, bad], collate)
        assert "rows that are mappings" in str(error)
        assert error.where == "row 1 of the batch"


def test_rows_that_are_no_list() -> None:
    for bad in (None, 3, iter([{"input_ids": [1]}])):
        with pytest.raises(UsageError, match="a list of rows, or a dict of columns"):
            plain()(bad)


@pytest.mark.parametrize("name", ["input_ids", "labels", "x"])
def test_a_tensor_numpy_cannot_read(name: str) -> None:
    good = {"input_ids": torch.ones(2, dtype=torch.int64), "labels": [1, 2], "x": torch.ones(2)}
    for tensor in (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, requires_grad=True)):
        error = refused([good, {**good, name: tensor}])
        assert f"values of {name!r} that make a NumPy array" in str(error)
        assert error.where == "row 1 of the batch"
        assert "Tensor" in error.got


@pytest.mark.parametrize("kind", ["collate", "causal", "mlm", "fim"])
@pytest.mark.parametrize("bad", [None, 3, "text", [[1, 2]], [[1], [2, 3]], [1.5, 2], ["a"], [None], np.array([[1]])])
def test_ids_that_are_no_row_of_integers(kind: str, bad: Any) -> None:
    error = refused([{"input_ids": [1, 2]}, {"input_ids": bad}], MAKERS[kind]())
    assert "'input_ids'" in error.expected
    assert error.where == "row 1 of the batch"
    assert error.row == 1


@pytest.mark.parametrize("name", ["labels", "decoder_input_ids", "decoder_attention_mask"])
@pytest.mark.parametrize("bad", [3, [[1]], [0.5], "a"])
def test_targets_that_are_no_row_of_integers(name: str, bad: Any) -> None:
    rows = [{"input_ids": [1], "labels": [2], name: [1]}, {"input_ids": [1], "labels": [2], name: bad}]
    error = refused(rows, create_seq2seq_collate(0))
    assert repr(name) in error.expected
    assert error.where == "row 1 of the batch"


def test_seq2seq_rows_without_labels() -> None:
    """As a batch to generate from: what transformers' collator makes of them."""
    rows: list[dict[str, Any]] = [{"input_ids": [1], "labels": None}, {"input_ids": [2, 3], "labels": None}]
    batch = create_seq2seq_collate(0, return_tensors="np")(rows)
    assert {name: column.tolist() for name, column in batch.items()} == {
        "input_ids": [[1, 0], [2, 3]],
        "attention_mask": [[1, 0], [1, 1]],
    }
    rows[0]["labels"] = [4]
    assert "'labels'" in str(refused(rows, create_seq2seq_collate(0)))
    masked = [{"input_ids": [1], "decoder_attention_mask": [1]}]
    assert "the target's tokens in 'labels'" in str(refused(masked, create_seq2seq_collate(0)))


@pytest.mark.parametrize("kind", ["mlm", "fim"])
@pytest.mark.parametrize("name", ["index", "record", "epoch"])
@pytest.mark.parametrize("bad", [None, 1.5, float("nan"), [1]])
def test_a_row_known_by_no_number(kind: str, name: str, bad: Any) -> None:
    error = refused([{"input_ids": [1], name: 3}, {"input_ids": [1], name: bad}], MAKERS[kind]())
    assert f"{name!r} to be an integer" in str(error)
    assert error.where == "row 1 of the batch"
