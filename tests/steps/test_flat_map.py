"""`flat_map`, `unbatch`, `rebatch`: which rows come, what is counted, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

seen: Counter[int] = Counter()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))


def numbers(n: int) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n)})


def parts(record: dict[str, Any]) -> list[dict[str, Any]]:
    seen[int(record["x"])] += 1
    return [{"x": record["x"], "part": i} for i in range(record["x"] % 4)]


def rows_of(pipeline: ps.Pipeline, epochs: int = 1) -> list[list[tuple[int, int]]]:
    loader = pipeline.batch(7, remainder="short").to_numpy(threads=0)
    return [[(int(x), int(p)) for b in loader for x, p in zip(b["x"], b["part"], strict=True)] for _ in range(epochs)]


def test_rows_in_order_shuffled_and_one_by_one() -> None:
    seen.clear()
    want = [(x, p) for x in range(3000) for p in range(x % 4)]
    flat = numbers(3000).flat_map(parts, version="1")
    assert set(seen.values()) == {1} and len(seen) == 3000
    assert numbers(3000).flat_map(parts, version="1") == flat and set(seen.values()) == {1}
    assert len(flat.rows()) == len(want) and rows_of(flat) == [want]
    one, two = rows_of(flat.shuffle(seed=1), epochs=2)
    assert sorted(one) == sorted(two) == want and one != two
    loader = flat.shuffle(seed=1).batch(7).to_numpy(threads=0)
    why = loader.why(3, 2)["from"]
    assert (why["row"], why["row_of_record"]) == one[3 * 7 + 2]
    assert rows_of(numbers(3000).flat_map(parts, lambda r: int(r["x"]) % 4, version="1")) == [want]


def test_a_declared_number_needs_no_pass_and_follows_a_shuffle() -> None:
    twice = lambda r: [{"x": r["x"], "part": 0}, {"x": r["x"], "part": 1}]  # noqa: E731
    one, two = rows_of(numbers(20).shuffle(seed=1).flat_map(twice, 2), epochs=2)
    assert one != two and sorted(one) == sorted(two) == [(x, p) for x in range(20) for p in range(2)]
    assert all(one[i][0] == one[i + 1][0] for i in range(0, 40, 2))
    with pytest.raises(ps.UserCodeError, match="(?s)2 records.*as counted or declared.*got: +1.*row 0"):
        rows_of(numbers(20).flat_map(lambda r: [{"x": 1, "part": 0}], 2))


def test_bad_records_take_all_of_their_rows() -> None:
    def three(record: dict[str, Any]) -> list[dict[str, Any]]:
        if record["x"] == 5:
            raise ValueError("bad")
        return [{"x": record["x"], "part": i} for i in range(3)]

    loader = numbers(10).flat_map(three, 3).skip_errors().batch(30).to_numpy(threads=0)
    batch = loader.batch_at(0)
    assert 5 not in batch["x"] and loader.ledger.total == 3 and all(e.record == 5 for e in loader.ledger.entries)
    with pytest.raises(ps.UserCodeError, match="three raised ValueError in .flat_map"):
        numbers(10).flat_map(three)
    bad = numbers(10).map(lambda r: {"x": 10 // (r["x"] - 5)}).skip_errors()
    assert len(bad.flat_map(lambda r: [r, r]).rows()) == 18
    texts = numbers(4).flat_map(lambda r: [{"text": str(r["x"])}] * (int(r["x"]) % 3)).tokenize("bytes", eos=False)
    assert [bytes(row["input_ids"].tolist()) for row in texts.peek()] == [b"1", b"2", b"2"]


def test_unbatch_and_rebatch() -> None:
    blocks = ps.from_arrays({"x": np.arange(12).reshape(3, 4), "y": np.arange(24).reshape(3, 4, 2)})
    assert [(int(r["x"]), r["y"].tolist()) for r in blocks.unbatch().peek(2)] == [(0, [0, 1]), (1, [2, 3])]
    ragged = ps.from_arrays({"x": ps.Ragged.of([[1, 2], [], [3]])})
    assert [int(r["x"]) for r in ragged.unbatch().peek()] == [1, 2, 3]
    rows = numbers(20).shuffle(seed=1).batch(6)
    first = [x for b in rows.to_numpy() for x in b["x"].tolist()]
    assert [x for b in rows.rebatch(5, remainder="short").to_numpy() for x in b["x"].tolist()] == first
    assert [len(b["x"]) for b in rows.rebatch(5, remainder="short").to_numpy()] == [5, 5, 5, 3]
    mapped = rows.map_batches(lambda c: {"x": c["x"] * 2}).unbatch().batch(9)
    assert [x for b in mapped.to_numpy() for x in b["x"].tolist()] == [2 * x for x in first]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: numbers(9).shuffle().flat_map(parts), ["same order of rows", "a number for count="]),
        (lambda: numbers(9).flat_map(lambda r: []), ["at least one row from .flat_map()"]),
        (lambda: numbers(9).flat_map(parts, 0), ["an integer of at least 1 for count="]),
        (lambda: numbers(9).flat_map(3), ["a function in .flat_map()"]),
        (lambda: numbers(9).filter(lambda r: True).flat_map(parts, 2).peek(), ["rejects rows before .flat_map()"]),
        (lambda: numbers(9).flat_map(parts, lambda r: -1), ["counts of at least 0"]),
        (lambda: numbers(9).batch(2, remainder="pad").unbatch(), ['remainder="pad"']),
        (lambda: numbers(9).batch(3).pad().unbatch(), ["no .pad() of a global batch"]),
        (lambda: numbers(9).flat_map(lambda r: [1]), ["a list of dicts", "int"]),
        (
            lambda: numbers(9).unbatch(),
            ["arrays or lists before .unbatch()", "one value, int64, in column 'x'", "row 0", ".drop('x') before it"],
        ),
        (
            lambda: ps.from_arrays({"a": np.ones((3, 2)), "b": np.ones((3, 4))}).unbatch(),
            ["columns of one length", "2 in 'a', 4 in 'b'"],
        ),
        (lambda: numbers(9).flat_map(lambda r: {"x": 1}), ["got:   dict", "in a list"]),
        (lambda: numbers(9).flat_map(lambda r: None), ["got:   NoneType", "[] if there are none"]),
    ],
)
def test_what_is_refused(make: Any, says: list[str]) -> None:
    with pytest.raises((ps.UsageError, ps.UserCodeError)) as caught:
        make()
    assert all(text in str(caught.value) for text in says), str(caught.value)
