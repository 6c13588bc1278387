"""Snapshots of a running loader: true figures, the same batches, a file that stays readable and small."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.engine import run_file
from penstock.engine.advice import verdict
from penstock.engine.run_file import RunFile


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return row


def plus_one(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: column + 1 for name, column in batch.items()}


def documents() -> ps.Pipeline:
    return ps.from_texts([f"text number {n} " * (1 + n % 7) for n in range(120)]).tokenize("bytes")


PIPELINES: dict[str, Callable[[], ps.Pipeline]] = {
    "windows": lambda: ps.open_tokens(np.arange(5000)).windows(16).shuffle(seed=3).batch(12),
    "pack": lambda: documents().pack(64).shuffle(seed=3).batch(6),
    "bucket": lambda: documents().bucket([40, 80, 120], sizes=[6, 6, 6], remainder="short"),
    "pad": lambda: documents().shuffle(seed=1).batch(6).pad(32, truncate=True),
    "mix": lambda: ps.mix([ps.from_arrays({"x": range(50)}), ps.from_arrays({"x": range(90, 150)})], [1, 2]).take(60)
    .batch(6).map_batches(plus_one).map_batches(plus_one),
    "zip": lambda: ps.zip([ps.from_arrays({"x": range(40)}), ps.from_arrays({"y": range(40)})]).map(slow).batch(4),
    "filter": lambda: ps.from_arrays({"x": range(90)}).filter(lambda row: row["x"] % 3 != 0).shuffle(seed=2).batch(6),
}  # fmt: skip


def same(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(np.asarray(left[name]), np.asarray(right[name]))


@pytest.mark.parametrize("name", PIPELINES)
def test_batches_and_states_are_those_of_a_loader_that_is_not_recorded(name: str, tmp_path: Path) -> None:
    for world in (1, 2):
        pipeline = PIPELINES[name]()
        for rank in range(world):
            mine = pipeline.shard(rank, world)
            plain = mine.to_numpy(threads=0)
            expected = list(plain)
            for threads in (0, 2):
                path = tmp_path / f"{world}-{threads}.jsonl"
                loader = mine.to_numpy(threads=threads).write_snapshots(path)
                found, states = [], []
                for batch in loader:
                    found.append({column: np.array(value) for column, value in batch.items()})
                    states.append(loader.state_dict())
                assert len(found) == len(expected)
                for left, right in zip(found, expected, strict=True):
                    same(left, right)
                again = mine.to_numpy(threads=0)
                again.load_state_dict(states[len(states) // 2])
                same(next(iter(again)), expected[len(states) // 2 + 1])
                written = lines_of(Path(run_file.rank_path(str(path), rank, world)))
                last = written[-1]
                assert last["batches"] == len(expected) and not last["running"]
                assert last["rows"] == sum(len(next(iter(batch.values()))) for batch in expected)
                assert (last["rank"], last["world"], last["step"]) == (rank, world, loader.step)
                assert min(last["verbs"].values()) >= 0 and set(last["verbs"]) >= {"batch", "deliver"}


def test_seconds_belong_to_the_verb_that_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    pipeline = ps.from_arrays({"x": range(60)}).map(dict).map(slow).filter(bool).shuffle(seed=1).batch(6)
    for options in ({"threads": 0}, {"threads": 2}, {"workers": 2}):
        path.unlink(missing_ok=True)
        for _ in (loader := pipeline.to_numpy(**options).write_snapshots(path)):  # type: ignore[arg-type]
            pass
        first, *_, last = lines_of(path)
        assert list(last["verbs"])[:5] == ["arrays", "map", "map 2", "filter", "shuffle"]
        assert last["verbs"]["map 2"] >= 60 * 0.002
        assert all(seconds < last["verbs"]["map 2"] for verb, seconds in last["verbs"].items() if verb != "map 2")
        assert first["pipeline"][0] == "arrays" and first["pipeline"][-1].startswith(".batch(")
        assert last["memory"]["process"] > 1 << 20
        assert loader.stats()["verb_seconds"].keys() == last["verbs"].keys()
        assert last["id"] == first["id"]


def test_lines_are_written_while_the_loop_runs(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = ps.from_arrays({"x": range(100)}).repeat().batch(2).to_numpy(workers=1).write_snapshots(path, seconds=0.1)
    run = iter(loader)
    next(run)
    for wanted in (1, 3):
        while not path.exists() or len(lines_of(path)) < wanted:
            next(run)
            time.sleep(0.01)
    assert lines_of(path)[-1]["running"] and lines_of(path)[-1]["memory"]["children"] > 1 << 20
    run.close()
    assert not lines_of(path)[-1]["running"]


def test_nothing_is_measured_or_written_without_being_asked(tmp_path: Path) -> None:
    loader = PIPELINES["windows"]().to_numpy(threads=0)
    next(iter(loader))
    assert "verb_seconds" not in loader.stats()
    assert not any("pick" in vars(node) for node in (loader._plan.root, *loader._plan.root.leaves()))
    assert not any(thread.name == "penstock-snapshots" for thread in threading.enumerate())


def test_the_environment_names_the_file_and_each_loader_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RUN", str(tmp_path / "run.jsonl"))
    train, valid = (ps.from_arrays({"x": range(8)}).batch(2).to_numpy() for _ in range(2))
    for _ in train:
        list(valid)
    assert lines_of(tmp_path / "run.jsonl")[-1]["batches"] == 4
    assert lines_of(tmp_path / "run.2.jsonl")[-1]["batches"] == 16


def test_a_copy_writes_a_run_of_its_own(tmp_path: Path) -> None:
    loader = ps.from_arrays({"x": range(8)}).batch(2).to_numpy().write_snapshots(tmp_path / "run.jsonl")
    list(loader)
    list(loader.as_tuples("x"))
    list(pickle.loads(pickle.dumps(loader)))
    assert len({line["id"] for path in tmp_path.iterdir() for line in lines_of(path)}) == 3


@pytest.mark.parametrize("bad", ["no/such/folder/run.jsonl", "full"])
def test_trouble_with_the_file_is_one_warning_and_all_batches(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / bad
    if bad == "full":  # a folder in the place of the file
        path.mkdir()
    loader = ps.from_arrays({"x": range(40)}).batch(2).to_numpy(threads=0).write_snapshots(path, seconds=0.1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            assert len([time.sleep(0.01) for _ in loader]) == 20
    assert [str(each.message) for each in seen if "no snapshots in" in str(each.message)] == [
        str(each.message) for each in seen
    ]
    assert len(seen) == 1 and "training goes on" in str(seen[0].message)


def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "mine"}\n')
    loader = ps.from_arrays({"x": range(4)}).batch(2).to_numpy()
    with pytest.raises(UsageError, match="snapshots were written to before"):
        loader.write_snapshots(path)
    with pytest.raises(ValueError, match="a local path"):
        loader.write_snapshots("s3://bucket/run.jsonl")
    with pytest.raises(ValueError, match="at least 0.1 seconds"):
        loader.write_snapshots(tmp_path / "run.jsonl", seconds=0)
    assert path.read_text() == '{"text": "mine"}\n'


def test_a_full_file_is_thinned_out_and_never_broken(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"penstock_run":1,"time":0,"pipeline":["old"]}\n{"penstock_run":1,"ti')  # a writer was killed
    file = RunFile(str(path))
    most = 0
    for second in range(1, 12_000):
        file.append({"time": second, "padding": "x" * (second % 50)})
        if not second % 997:
            read = [run_file.parse(line) for line in path.read_bytes().splitlines()]
            found = [each for each in read if each is not None]
            most = max(most, len(read))
            assert len(read) - len(found) <= 1  # the line that was cut off, until the first thinning
            times = [each["time"] for each in found]
            assert times == sorted(times) and times[0] == 0 and found[0]["pipeline"] == ["old"]
            assert times[-500:] == list(range(second - 499, second + 1)) and times[-1] == second
    assert most <= run_file.MOST_LINES + 1
    gaps = np.diff([each["time"] for each in lines_of(path)])
    assert gaps.max() <= 2 * 12_000 / (run_file.MOST_LINES // 4) + 2
    file.close()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_two_writers_never_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "run.jsonl")
    one, two = RunFile(path), RunFile(path)
    assert (one.path, two.path) == (path, str(tmp_path / "run.2.jsonl"))
    one.close()
    three = RunFile(path)
    assert three.path == path
    for each in (two, three):
        each.close()


def test_the_verdict_waits_for_twenty_batches_and_names_what_to_change() -> None:
    facts = {"batches_taken": 5, "waited_share": 0.9, "waited_seconds": 9.0, "verb_seconds": {"jsonl": 8.0, "map": 1.0}}
    assert verdict(facts, 4) == ("too early to say: 5 of the first 20 batches", "")
    facts["batches_taken"] = 100
    assert "89% of the loader's work is in jsonl" in verdict(facts, 4).text
    assert "penstock prepare" in verdict(facts, 4).change
    assert "workers=4" in verdict({**facts, "verb_seconds": {"jsonl": 1.0, "map 2": 8.0}}, 4).change
    assert "cache_bytes" in verdict({**facts, "storage": {"read_waits_seconds": 8.0}}, 4).change


def test_recording_takes_a_few_timed_calls_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor time of a run with and without snapshots; `bench/snapshots.py` has the exact share."""

    def seconds(recorded: bool) -> float:
        loader = ps.open_tokens(np.arange(400_000)).windows(64).shuffle(seed=3).batch(32).to_numpy(threads=0)
        if recorded:
            loader.write_snapshots(tmp_path / "run.jsonl")
        weights = np.ones((64, 256), np.float32)
        began = time.thread_time()
        for batch in loader:
            for _ in range(8):  # a short step of a trainer
                batch["input_ids"].astype(np.float32) @ weights
        return time.thread_time() - began

    ratios = sorted(seconds(True) / seconds(False) for _ in range(5))
    assert ratios[0] < 1.1, ratios
