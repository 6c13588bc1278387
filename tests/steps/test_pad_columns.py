"""`pad(columns=)`: columns of a user's function are padded also where all rows are equally long by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume


def features(record: dict[str, Any]) -> dict[str, Any]:
    length = 2 + int(record["x"]) // 12  # the rows of many batches are equally long
    return {"x": record["x"], "line": np.full(length, 1.5), "picture": np.ones((3, length), np.float32)}


def rows(batch: int = 4, **options: Any) -> ps.Pipeline:
    numbers = ps.from_arrays({"x": range(72)}).map(features)
    return numbers.pad(to=8, columns=["line", "picture"], **options).batch(batch)


def test_every_batch_has_the_same_shape_on_any_rank() -> None:
    for batch in rows().to_numpy():
        assert batch["line"].shape == (4, 8) and batch["picture"].shape == (4, 3, 8)
        assert (batch["line"] > 0).sum(1).tolist() == [2 + int(x) // 12 for x in batch["x"]]
    assert_elastic(rows, batch=12, other_batch=24, worlds=(1, 2, 3, 4))
    assert_exact_resume(rows)


def test_lengths_that_are_rounded_up() -> None:
    numbers = ps.from_arrays({"x": range(72)}).map(features)
    for batch in numbers.pad(multiple=8, columns=["line"]).batch(4).to_numpy():
        assert batch["line"].shape == (4, 8)


def test_tokens_are_padded_as_without_it() -> None:
    texts = ps.from_texts(["ab", "cd", "efg", "h"]).tokenize("bytes")
    plain = texts.pad(to=8).batch(2)
    assert plain.fingerprint() == texts.pad(to=8, columns=[]).batch(2).fingerprint()  # states of earlier versions load
    named = texts.pad(to=8, columns=["input_ids"]).batch(2)
    for a, b in zip(plain.to_numpy(), named.to_numpy(), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_what_is_refused() -> None:
    with pytest.raises(ps.UsageError, match="columns of the batch"):
        ps.from_arrays({"x": range(4)}).pad(columns=["y"]).batch(2).to_numpy().batch_at(0)
    with pytest.raises(ps.UsageError, match="arrays of numbers"):
        ps.from_arrays({"x": range(4)}).pad(columns=["x"]).batch(2).to_numpy().batch_at(0)
    with pytest.raises(ps.UsageError, match="names of columns"):
        ps.from_arrays({"x": range(4)}).pad(columns="x")


@pytest.mark.parametrize("options", [{"to": 8}, {"multiple": 8}, {"to": 8, "truncate": True}])
def test_a_column_that_is_not_named_is_the_same_in_every_batch_or_refused(options: dict[str, Any]) -> None:
    """Before, it was padded only in batches whose rows differ."""
    numbers = ps.from_arrays({"x": range(72)}).map(features).select("x", "line")
    for size in (1, 2, 3, 4, 5, 12, 24, 36, 72):
        for pipeline in (numbers.pad(**options).batch(size), numbers.batch(size).pad(**options)):
            for batch in _until_refused(pipeline, 'columns=["line"]'):
                assert batch["line"].shape[1] == 2 + int(batch["x"][0]) // 12  # as the function returned it


def _until_refused(pipeline: ps.Pipeline, said: str) -> Any:
    batches, refused = iter(pipeline.to_numpy(threads=0)), ""
    while not refused:
        try:
            yield next(batches)
        except StopIteration:
            return
        except ps.UsageError as error:
            refused = str(error)
    assert said in refused


def test_a_declared_column_is_padded_in_every_batch() -> None:
    """Lists of records are ragged however long they are, also after steps that only choose rows."""
    records = [{"x": i, "line": [1.5] * (2 + i // 12)} for i in range(72)]
    for size in (1, 4, 5):
        for batch in ps.from_records(records).filter(lambda r: True).pad(to=8).batch(size).to_numpy():
            assert batch["line"].shape[1] == 8


def test_the_longest_row_needs_no_names() -> None:
    numbers = ps.from_arrays({"x": range(72)}).map(features).select("x", "line")
    for batch in numbers.pad().batch(5).to_numpy():
        assert batch["line"].shape[1] == max(2 + int(x) // 12 for x in batch["x"])
