"""`.dedup()`: the first of equal or almost equal records stays, whatever computes the batches."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.core.errors import UsageError
from penstock.order.row_set import RowSet
from penstock.preparation.dedup import _shingles
from penstock.steps.dedup import Dedup
from penstock.testing import assert_elastic, assert_exact_resume

TEXTS = ["a", "b", "a", "c", "b", "d", "a", "e", "f", "f"]
FIRST = ["a", "b", "c", "d", "e", "f"]


def kept(pipeline: ps.Pipeline, tmp_path: Path) -> list[str]:
    """What a preparation keeps, in order."""
    tokens = pipeline.tokenize("bytes", eos=False, cache_dir=tmp_path / "tokens", show_progress=False)
    return [bytes(row["input_ids"].astype(np.uint8).tolist()).decode() for row in tokens.peek(10_000)]


def dropped(pipeline: ps.Pipeline) -> RowSet:
    step = pipeline.definition.steps[-1]
    assert isinstance(step, Dedup)
    return step.duplicates


def test_a_preparation_keeps_the_first_in_order(tmp_path: Path) -> None:
    assert kept(ps.from_texts(TEXTS).dedup(cache_dir=tmp_path), tmp_path) == FIRST


def test_a_loader_refills_the_places(tmp_path: Path) -> None:
    pipeline = ps.from_arrays({"text": TEXTS, "n": range(10)}).dedup(cache_dir=tmp_path)
    rows = pipeline.peek(10)
    assert len(rows) == 10
    for place, row in enumerate(rows):
        assert row["n"] in (0, 1, 3, 5, 7, 8)
        assert place not in (0, 1, 3, 5, 7, 8) or row["n"] == place
    loader = pipeline.shuffle(seed=3).batch(5).to_numpy()
    for _ in range(3):
        assert {int(n) for batch in loader for n in batch["n"]} <= {0, 1, 3, 5, 7, 8}


@pytest.mark.parametrize("method", ["exact", "minhash"])
def test_the_invariant(tmp_path: Path, method: Any) -> None:
    rng = random.Random(5)
    texts = [" ".join(rng.choices("abcdefgh", k=12)) for _ in range(30)]
    texts = [rng.choice(texts) for _ in range(40)]

    def build(batch: int = 4) -> Any:
        source = ps.from_arrays({"text": texts, "n": range(40)}).filter(lambda row: row["n"] % 7 != 3)
        return source.dedup(method=method, cache_dir=tmp_path).shuffle(seed=7).batch(batch)

    assert_exact_resume(build)
    assert_elastic(build, batch=8, worlds=(1, 4), threads=(0, 2))
    expected = [batch["n"].tolist() for batch in build().to_numpy(threads=0)]
    assert [batch["n"].tolist() for batch in build().to_numpy(workers=1)] == expected


def test_in_mixtures_and_lanes(tmp_path: Path) -> None:
    one = ps.from_arrays({"text": TEXTS * 2, "n": range(20)}).dedup(cache_dir=tmp_path)
    two = ps.from_arrays({"text": ["x", "y", "x"], "n": [50, 51, 52]}).dedup(cache_dir=tmp_path)
    pipelines = (
        lambda: ps.mix([one, two], [1, 1], stop="all").shuffle(seed=1),
        lambda: one.shuffle(seed=1, lanes=4, block=4),
        lambda: (
            ps.from_arrays({"text": TEXTS * 2, "n": range(20)})
            .shuffle(seed=1, lanes=4, block=4)
            .dedup(cache_dir=tmp_path)
        ),
        lambda: one.dedup(method="minhash", cache_dir=tmp_path).shuffle(seed=1),
    )
    for build in pipelines:
        assert_exact_resume(lambda build=build: build().batch(5))  # type: ignore[misc]
        assert_elastic(
            lambda batch, build=build: build().batch(batch), batch=8, worlds=(1, 2), threads=(0,), other_batch=4
        )  # type: ignore[misc]
        texts = {row for batch in build().batch(4).to_numpy() for row in batch["text"]}
        assert texts <= {*FIRST, "x", "y"}


def test_only_what_is_left_by_earlier_steps_counts(tmp_path: Path) -> None:
    rows = ps.from_arrays({"text": ["x", "x", "y"], "n": range(3)})
    assert kept(rows.filter(lambda row: row["n"] > 0).dedup(cache_dir=tmp_path), tmp_path) == ["x", "y"]
    lower = ps.from_texts(["A", "a", "b"]).map(lambda row: {"text": row["text"].lower()})
    assert kept(lower.dedup(cache_dir=tmp_path), tmp_path) == ["a", "b"]
    assert kept(ps.from_texts(["b", "a", "a"]).skip(1).dedup(cache_dir=tmp_path), tmp_path) == ["a"]


def test_a_refilled_place_is_never_a_duplicate(tmp_path: Path) -> None:
    """A filter before it refills with any record, also with one that is dropped here."""
    rows = ps.from_arrays({"text": ["x"] * 20 + ["y"], "n": range(21)}).filter(lambda row: row["n"] != 1)
    found = {int(row["n"]) for row in rows.dedup(cache_dir=tmp_path).peek(21)}
    assert found == {0, 20}


def test_values_of_any_kind(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "bytes": [b"x", b"y", b"x"], "number": np.array([1.5, 2.5, 1.5]), "ids": Ragged.of([[1, 2], [1], [1, 2]]),
        "rows": np.array([[1, 2], [2, 1], [1, 2]]), "json": [{"a": 1, "b": 2}, {"a": 1}, {"b": 2, "a": 1}],
        "mixed": ["1", b"1", "1"],
    }  # fmt: skip
    for name, column in values.items():
        found = dropped(ps.from_arrays({name: column}).dedup(name, cache_dir=tmp_path))
        assert found.mask(np.arange(3)).tolist() == [False, False, True], name


def documents(seed: int = 1) -> tuple[list[str], list[int]]:
    """Texts and the number of the text that each was made from, by changing a few words."""
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(3000)]
    texts, origin = [], []
    for i in range(60):
        text = rng.choices(words, k=200)
        texts.append(" ".join(text))
        origin.append(i)
        for changes in rng.sample([0, 1, 2, 80, 120], 2):
            other = list(text)
            for place in rng.sample(range(200), changes):
                other[place] = rng.choice(words)
            texts.append(" ".join(other).replace(" ", ",  ").upper())  # neither case nor punctuation counts
            origin.append(i)
    order = rng.sample(range(len(texts)), len(texts))
    return [texts[i] for i in order], [origin[i] for i in order]


def test_near_duplicates_against_exact_similarities(tmp_path: Path) -> None:
    texts, _ = documents()
    sets = [set(_shingles(text, 5)) for text in texts]
    again = dropped(ps.from_texts(texts).dedup(method="minhash", threshold=0.7, cache_dir=tmp_path)).mask(
        np.arange(len(texts))
    )
    similar = {(i, j): len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i, j in combinations(range(len(texts)), 2)}
    missed = [pair for pair, value in similar.items() if value >= 0.85 and not again[pair[1]]]
    assert missed == []
    wrong = [j for j in np.flatnonzero(again).tolist() if not any(similar[i, j] >= 0.5 for i in range(j))]
    assert wrong == []
    assert again.sum() > 20
    assert not again[0]


def test_the_first_stays_whatever_the_order(tmp_path: Path) -> None:
    texts, origin = documents(2)
    for order in (texts, texts[::-1]):
        again = dropped(ps.from_texts(order).dedup(method="minhash", cache_dir=tmp_path)).mask(np.arange(len(order)))
        exact = dropped(ps.from_texts(order).dedup(cache_dir=tmp_path)).mask(np.arange(len(order)))
        assert not (exact & ~again).any()  # equal texts are near duplicates too
    assert len(set(origin)) == 60


def test_texts_without_spaces_and_without_words(tmp_path: Path) -> None:
    long = "今日は天気がいいので川のそばを散歩しました。水車はまだ回っています。" * 4
    texts = [
        long,
        long.replace("散歩", "旅行", 1),
        "別の文章です。これは似ていません。" * 4,
        "!!!",
        "???",
        "",
        "!!!",
        "",
    ]
    again = dropped(ps.from_texts(texts).dedup(method="minhash", threshold=0.7, cache_dir=tmp_path))
    assert again.mask(np.arange(8)).tolist() == [False, True, False, False, False, False, True, True]


class Counted:
    """A dataset that counts how often it is read."""

    fingerprint = "counted 1"

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, number: int) -> dict[str, str]:
        self.reads += 1
        return {"text": TEXTS[number]}


def test_found_once_and_again_if_the_cache_is_damaged(tmp_path: Path) -> None:
    data = Counted()
    first = dropped(ps.Pipeline(data).dedup(cache_dir=tmp_path))  # type: ignore[arg-type]
    reads = data.reads
    assert dropped(ps.Pipeline(data).dedup(cache_dir=tmp_path)) == first  # type: ignore[arg-type]
    assert data.reads <= reads + 2  # a look at the first record for its columns
    (path,) = (tmp_path / "dedup").glob("*.bits")
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[:-1] + bytes([good[-1] ^ 128]), b"x" + good):
        path.write_bytes(bad)
        assert dropped(ps.Pipeline(data).dedup(cache_dir=tmp_path)) == first  # type: ignore[arg-type]
        assert path.read_bytes() == good


def test_fingerprints_tell_data_and_arguments_apart(tmp_path: Path) -> None:
    def of(texts: list[str], **options: Any) -> str:
        return ps.from_texts(texts).dedup(cache_dir=tmp_path, **options).fingerprint()

    assert of(TEXTS) == of(TEXTS)
    assert len({of(TEXTS), of(TEXTS[:-1]), of(TEXTS, method="minhash"), of(TEXTS, method="minhash", ngram=3)}) == 4


def test_two_processes_find_the_same(tmp_path: Path) -> None:
    script = """
import sys, penstock as ps
texts = ["river " * (i % 9) + "mill %d" % (i % 50) for i in range(500)]
print(ps.from_texts(texts).dedup(method="minhash", cache_dir=sys.argv[1]).fingerprint())
"""
    runs = [
        subprocess.Popen([sys.executable, "-P", "-c", script, str(tmp_path / name)], stdout=subprocess.PIPE)
        for name in ("one", "one")
    ]
    answers = {run.communicate(timeout=120)[0] for run in runs}
    assert len(answers) == 1
    assert all(run.returncode == 0 for run in runs)


def test_left_out_records_are_counted(tmp_path: Path) -> None:
    made = ps.prepare(ps.from_texts(TEXTS).dedup(cache_dir=tmp_path), "bytes", tmp_path / "store")
    assert (made.documents, made.skipped) == (6, 0)


def test_usage_errors(tmp_path: Path) -> None:
    texts = ps.from_texts(TEXTS)
    with pytest.raises(UsageError, match='method="exact" or "minhash"'):
        texts.dedup(method="fuzzy")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a threshold above 0 and at most 1"):
        texts.dedup(method="minhash", threshold=80)
    with pytest.raises(UsageError, match=r"ngram in \[1, 1000\]"):
        texts.dedup(method="minhash", ngram=0)
    with pytest.raises(UsageError, match="a column 'body' for .dedup"):
        texts.dedup("body", cache_dir=tmp_path)
    with pytest.raises(UsageError, match="(?s)every record once.*repeat"):
        texts.repeat(2).dedup(cache_dir=tmp_path)
    with pytest.raises(UsageError, match=r"(?s)one source before .dedup.*penstock.mix\(\)"):
        ps.mix([texts, texts], stop="all").dedup(cache_dir=tmp_path)
    with pytest.raises(UsageError, match=r"(?s)text in the column of .dedup.*int64"):
        ps.from_arrays({"n": [1, 2]}).dedup("n", method="minhash", cache_dir=tmp_path)
    with pytest.raises(UsageError, match="no .take.. between .dedup.. and"):
        texts.dedup(cache_dir=tmp_path).take(3).tokenize("bytes", cache_dir=tmp_path)
