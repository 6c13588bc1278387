"""Children share the memory of many texts instead of holding a copy each."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pytest

import penstock as ps
from penstock.core import shared_memory
from penstock.core.columns import Ragged
from penstock.core.packed_texts import PackedColumn, PackedTexts
from penstock.core.pickling import dump
from penstock.sources.arrays import Arrays, Texts

ODD = ["", "a", "\ud800", "Zürich", "\U0001f1e8\U0001f1ed", "\0", "x" * 1000]


def test_packed_texts_are_the_texts() -> None:
    packed = PackedTexts.of(ODD)
    assert list(packed) == ODD
    assert packed[2:5] == ODD[2:5]
    assert packed[-1] == ODD[-1]
    assert list(pickle.loads(pickle.dumps(packed))) == ODD


def test_a_large_source_equals_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ODD * 300
    small = Texts(texts)
    monkeypatch.setattr("penstock.sources.arrays.PACKED_CHARACTERS", 10)
    large = Texts(texts)
    assert isinstance(large._texts, PackedTexts)
    rows = np.array([5, 0, 6, 2099, 5])
    assert large.read(rows)["text"].tolist() == small.read(rows)["text"].tolist()
    assert (large.fingerprint(), large.describe()) == (small.fingerprint(), small.describe())
    assert [(c.texts, c.positions, c.cursor) for c in large.iterate({"offset": 3})] == [
        (c.texts, c.positions, c.cursor) for c in small.iterate({"offset": 3})
    ]
    for source in (large, pickle.loads(pickle.dumps(large))):
        batches = list(ps.Pipeline(source).batch(100).to_numpy(workers=2))
        assert [t for batch in batches for t in batch["text"].tolist()] == texts


def test_a_packed_column_equals_one_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "s": ODD * 300, "b": [text.encode("utf-8", "replace") for text in ODD] * 300, "none": [*ODD[:-1], None] * 300,
        "u": np.array(["p", "qq"] * 1050), "mixed": [*ODD[:-1], 1.5] * 300, "n": range(2100),
    }  # fmt: skip
    small = Arrays(columns)
    monkeypatch.setattr("penstock.sources.arrays.PACKED_CHARACTERS", 10)
    large = Arrays(columns)
    assert [n for n, c in large._columns.items() if isinstance(c, PackedColumn)] == ["s", "b", "none", "u"]
    assert large.fingerprint() == small.fingerprint()
    rows = np.array([6, 0, 2099, 6, 13])
    expected = {name: column.tolist() for name, column in small.read(rows).items()}
    for source in (large, pickle.loads(pickle.dumps(large))):
        assert {name: column.tolist() for name, column in source.read(rows).items()} == expected
    batches = list(ps.Pipeline(large).batch(300).to_numpy(workers=2))
    assert [t for batch in batches for t in batch["none"].tolist()] == columns["none"]


def test_data_in_memory_is_moved_once_and_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.processes.payload._LEAST_MOVED", 1)
    before = dict(shared_memory._regions)
    texts, numbers = ODD[3:] * 300, np.arange(1200)[::-1]
    columns = {"x": numbers, "ids": Ragged.of([numbers[: i % 5] for i in range(1200)]), "o": [*texts[1:], 1.5]}
    table = pyarrow.table({"s": texts, "n": numbers})
    rows = ps.concat([ps.from_records(table.slice(0, 700)), ps.from_records(table.slice(700))])
    both = ps.zip([rows, ps.from_arrays(columns), ps.from_hf(datasets.Dataset.from_dict({"d": texts}))])
    fingerprint = both.fingerprint()
    for _ in range(2):
        batches = list(both.batch(100).to_numpy(workers=2))
        assert len(shared_memory._regions) == len(before) + 1
        assert [n for batch in batches for n in batch["n"].tolist()] == numbers.tolist()
        for name in ("s", "d"):
            assert [text for batch in batches for text in batch[name].tolist()] == texts
        assert [n for batch in batches for n in batch["x"].tolist()] == numbers.tolist()
        assert [n for batch in batches for n in batch["o"].tolist()] == columns["o"]
        assert [len(ids) for batch in batches for ids in batch["ids"].tolist()] == [i % 5 for i in range(1200)]
    again = pickle.loads(pickle.dumps(both))
    assert again.fingerprint() == both.fingerprint() == fingerprint
    assert again.peek(3)[2]["s"] == texts[2]
    del both, rows, again
    gc.collect()
    assert shared_memory._regions == before, "its descriptor is closed with the last source"


def test_arrays_that_were_sent_are_free_without_the_garbage_collector() -> None:
    class Watched(np.ndarray):
        pass

    array = np.zeros(100_000).view(Watched)
    gone, was = weakref.ref(array), gc.isenabled()
    gc.disable()
    try:
        body, buffers = dump([array])
        del array, body, buffers
        assert gone() is None
    finally:
        if was:
            gc.enable()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory of a tree is read there")
@pytest.mark.parametrize("kind", ["texts", "column", "records", "unicode", "table", "frame", "dataset", "ids"])
def test_four_children_hold_many_texts_once(kind: str) -> None:
    _compare(kind, 300_000, 80)


@pytest.mark.soak
def test_four_children_hold_five_million_texts_once() -> None:
    _compare("texts", 5_000_000, 50)


def _compare(kind: str, count: int, repeats: int) -> None:
    script = """
        import os, sys
        import numpy as np
        import penstock as ps

        def used():
            me, total = os.getpid(), 0
            for pid in (me, *open(f"/proc/{me}/task/{me}/children").read().split()):
                lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            return total / 1024

        def tree(**options):
            loader = source.shuffle(seed=1).batch(64).to_numpy(**options)
            run = iter(loader)
            for _ in range(200):
                next(run)
            return used()

        def table(texts):
            import pyarrow
            return ps.from_records(pyarrow.table({"s": texts}))

        def frame(texts):
            import pandas
            return ps.from_records(pandas.DataFrame({"s": texts}))

        def dataset(texts):
            import datasets
            return ps.from_hf(datasets.Dataset.from_dict({"s": texts}))

        make = {
            "texts": ps.from_texts,
            "column": lambda texts: ps.from_arrays({"s": texts, "n": range(len(texts))}),
            "unicode": lambda texts: ps.from_arrays({"s": np.array(texts)}),
            "records": lambda texts: ps.from_records([{"s": text} for text in texts]),
            "ids": lambda texts: ps.from_arrays({"s": [np.frombuffer(t.encode(), np.uint8) for t in texts]}),
            "table": table, "frame": frame, "dataset": dataset,
        }
        source = make[sys.argv[1]](["tiny"] * 20_000)
        bare = [tree(threads=0), tree(workers=4)]
        source = make[sys.argv[1]]([(f"{i} " * int(sys.argv[3]))[: int(sys.argv[3])] for i in range(int(sys.argv[2]))])
        print(*bare, tree(threads=0), tree(workers=4))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), kind, str(count), str(repeats)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bare_one, bare_tree, one, tree = map(float, done.stdout.split())
    assert tree - bare_tree < 1.5 * (one - bare_one) + 10, "what the texts take, without interpreters"
    assert tree - bare_tree - (one - bare_one) < 0.5 * count * repeats / (1 << 20), "no second copy in shared memory"
