"""Rows that are chosen once: exact filters, splits, samples, and the numbers of rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.order.row_set import RowSet


def numbers(n: int, first: int = 0) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(first, first + n), "label": np.arange(n) % 10 // 7})


def values(pipeline: ps.Pipeline, epochs: int = 1) -> list[list[int]]:
    loader = pipeline.batch(7, remainder="short").to_numpy(threads=0)
    return [[int(v) for batch in loader for v in batch["x"]] for _ in range(epochs)]


seen: Counter[int] = Counter()  # not in the closure of the function: what that holds is part of its code


def third(record: dict[str, Any]) -> bool:
    seen[int(record["x"])] += 1
    return bool(record["x"] % 3 == 0)


def test_row_sets_against_numpy() -> None:
    random = np.random.default_rng(1)
    for size, share in ((1, 1.0), (511, 0.5), (512, 0.01), (513, 0.99), (20_000, 0.3)):
        flags = random.random(size) < share
        want = np.flatnonzero(flags)
        kept = RowSet.of(flags)
        order = random.permutation(len(want))
        assert len(kept) == len(want) and kept.rows(order).tolist() == want[order].tolist()


def test_an_exact_filter_has_each_kept_record_once_and_calls_the_function_once(tmp_path: Path) -> None:
    make = lambda: numbers(5000).filter(third, exact=True, version="1", cache_dir=tmp_path)  # noqa: E731
    want = list(range(0, 5000, 3))
    assert values(make()) == [want]
    one, two = values(make().shuffle(seed=1), epochs=2)
    assert sorted(one) == sorted(two) == want and one != two
    assert set(seen.values()) == {1} and len(seen) == 5000
    assert values(make().take(3)) == [[0, 3, 6]] and make().batch(1).to_numpy().why(1)["from"]["row"] == 3
    (file,) = (tmp_path / "filter").glob("*.rows")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")  # damaged: found out again
    assert values(make()) == [want] and set(seen.values()) == {2}
    numbers(5000).filter(third, exact=True, version="2", cache_dir=tmp_path)
    numbers(5001).filter(third, exact=True, version="1", cache_dir=tmp_path)
    assert len(list((tmp_path / "filter").glob("*.rows"))) == 3


def test_an_exact_filter_leaves_out_what_steps_before_it_reject(tmp_path: Path) -> None:
    def bad(record: dict[str, Any]) -> dict[str, Any]:
        if record["x"] % 5 == 0:
            raise ValueError("bad")
        return record

    rows = numbers(100).map(bad).skip_errors(budget=20)
    kept = rows.filter(lambda r: r["x"] % 2 == 0, exact=True, cache_dir=tmp_path)
    want = [x for x in range(100) if x % 5 and x % 2 == 0]
    assert values(kept) == [want]
    loader = kept.batch(8).to_numpy(threads=0)
    list(loader)
    assert loader.ledger.total == 0
    texts = kept.map(lambda r: {"text": str(r["x"])}).take(5).tokenize("bytes", eos=False, cache_dir=tmp_path)
    assert [bytes(row["input_ids"].tolist()) for row in texts.peek()] == [b"%d" % x for x in want[:5]]
    with pytest.raises(ps.DataError, match="20|19"):
        numbers(100).map(bad).skip_errors(budget=19).filter(lambda r: True, exact=True, cache_dir=tmp_path)
    with pytest.raises(ps.UserCodeError, match="row 0"):
        numbers(100).filter(lambda r: 1 / r["x"] > 0, exact=True, cache_dir=tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_parts_are_disjoint_complete_and_the_same_in_every_epoch(seed: int, tmp_path: Path) -> None:
    for arguments in ({}, {"shuffle": False}, {"key": "x"}, {"stratify": "label"}):
        parts = numbers(1000).split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=seed, cache_dir=tmp_path, **arguments)  # type: ignore[arg-type]
        found = {name: values(part.shuffle(seed=seed), epochs=2) for name, part in parts.items()}
        assert all(sorted(one) == sorted(two) for one, two in found.values())
        assert sorted(x for one, _ in found.values() for x in one) == list(range(1000))
        sizes = {name: len(part.rows()) for name, part in parts.items()}
        if "key" in arguments:
            assert abs(sizes["train"] - 700) < 60 and abs(sizes["test"] - 100) < 40
        else:
            assert sizes == {"train": 700, "val": 200, "test": 100}
        if "stratify" in arguments:
            for name, part in parts.items():
                assert sum(int(row["label"]) for row in part.peek(1000)) == 0.3 * sizes[name]
    other = numbers(1000).split({"train": 0.7, "val": None}, seed=seed + 1)["val"]
    assert set(values(other)[0]) != set(values(numbers(1000).split({"train": 0.7, "val": None}, seed=seed)["val"])[0])


def test_small_classes_are_not_all_rounded_the_same_way(tmp_path: Path) -> None:
    rows = ps.from_arrays({"x": np.arange(98), "y": np.arange(98) % 7})
    parts = rows.split({"train": 0.8, "val": 0.1, "test": None}, stratify="y", cache_dir=tmp_path)
    assert [len(part.rows()) for part in parts.values()] == [78, 10, 10]  # 77, 14 and 7 with each class on its own
    for name, share in (("train", 11.2), ("val", 1.4), ("test", 1.4)):
        counts = np.bincount([int(row["y"]) for row in parts[name].rows()], minlength=7)
        assert (abs(counts - share) <= 1.4).all()


def test_a_split_by_key_keeps_records_where_they_are_and_equal_keys_together(tmp_path: Path) -> None:
    def part_of(n: int) -> dict[int, str]:
        rows = ps.from_arrays({"x": np.arange(n), "user": [f"user {i // 3}" for i in range(n)]})
        parts = rows.split({"train": 0.8, "val": 0.2}, key="user", cache_dir=tmp_path)
        return {x: name for name, part in parts.items() for x in values(part)[0]}

    small, large = part_of(600), part_of(3000)
    assert {x: large[x] for x in small} == small
    assert all(large[x] == large[x - x % 3] for x in large) and set(large.values()) == {"train", "val"}


def test_a_sample_is_the_same_in_every_epoch_and_no_row_comes_twice() -> None:
    one, two = values(numbers(200).sample(50, seed=3), epochs=2)
    assert one == two and len(set(one)) == 50
    assert set(values(numbers(200).sample(50, seed=4))[0]) != set(one)


def test_numbers_of_rows() -> None:
    loader = numbers(20, 100).shuffle(seed=1).enumerate().batch(5).to_numpy(threads=0)
    first = [int(v) for batch in loader for v in batch["index"]]
    assert first == [int(v) for batch in loader for v in batch["index"]] == list(range(20))
    shuffled = numbers(20, 100).enumerate("number").filter(lambda r: r["x"] % 3 > 0).shuffle(seed=1).batch(5)
    assert all((b["x"] - b["number"] == 100).all() for b in shuffled.to_numpy(threads=0))
    why = numbers(20, 100).shuffle(seed=1).enumerate().batch(5).to_numpy(threads=0)
    assert why.why(1, 2)["from"]["row"] == why.batch_at(1)["x"][2] - 100


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: numbers(9).shuffle().filter(lambda r: True, exact=True), ["same order of rows", "after .filter("]),
        (lambda: ps.mix([numbers(9)]).filter(lambda r: True, exact=True), ["concat()"]),
        (lambda: numbers(9).repeat().filter(lambda r: True, exact=True), ["a pipeline with an end"]),
        (lambda: numbers(9).filter(lambda r: False, exact=True).peek(), ["at least one row that is kept"]),
        (lambda: numbers(9).shuffle().split({"a": 0.5}), ["same order of rows", "after .split()"]),
        (lambda: numbers(9).filter(lambda r: True).split({"a": 0.5}), ["no step that rejects rows", "another part"]),
        (lambda: numbers(9).split({"a": 0.5, "b": 0.6}), ["at most 1 together", "1.1"]),
        (lambda: numbers(9).split({"a": 5, "b": 5}), ["at most 9 rows", "10"]),
        (lambda: numbers(9).split({"a": 5, "b": 0.5}), ["sizes of one kind"]),
        (lambda: numbers(9).split([0.5, 0.5]), ["a dict of names and sizes"]),
        (lambda: numbers(9).split({"a": None, "b": None}), ["at most one None"]),
        (lambda: numbers(9).split({"a": 0.99, "b": 0.01}), ["at least one row", "'b'"]),
        (lambda: numbers(9).split({"a": 4}, key="x"), ["fractions in .split() by a column"]),
        (lambda: numbers(9).split({"a": 0.5}, key="z"), ["a column 'z'", "columns label, x"]),
        (lambda: numbers(9).split({"a": 0.5}, key="x", stratify="x"), ["one column for key= or stratify="]),
        (lambda: numbers(9).sample(10).peek(), ["at most 9 rows", "each row once"]),
        (lambda: numbers(9).repeat().sample(3).peek(), ["with an end before .sample()"]),
        (lambda: numbers(9).enumerate("x").peek(), ["a new column", "'x_number'".replace("'", '"')]),
        (
            lambda: numbers(9).skip(1).skip_errors().enumerate().peek(),
            ["no step that rejects rows before .enumerate()"],
        ),
    ],
)
def test_what_is_refused(make: Any, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    with pytest.raises(ps.UsageError) as caught:
        make()
    assert all(text in str(caught.value) for text in says), str(caught.value)
