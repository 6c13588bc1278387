"""`concat`, `zip`, `interleave`: which rows come, and what is refused."""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import penstock as ps


def numbers(n: int, first: int = 0) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(first, first + n)})


def values(pipeline: ps.Pipeline, column: str = "x", epochs: int = 1) -> list[list[int]]:
    loader = pipeline.batch(3, remainder="short").to_numpy(threads=0)
    return [[int(v) for batch in loader for v in batch[column]] for _ in range(epochs)]


def test_concat_has_all_rows_in_order_and_a_shuffle_mixes_all() -> None:
    parts = [numbers(4), numbers(1, 100), numbers(5, 200)]
    assert values(ps.concat(parts)) == [[*range(4), 100, *range(200, 205)]]
    shuffled = values(ps.concat(parts).shuffle(seed=3), epochs=2)
    assert shuffled[0] != shuffled[1] and sorted(shuffled[0]) == sorted(shuffled[1]) == [
        *range(4),
        100,
        *range(200, 205),
    ]
    assert values(numbers(2).concat(numbers(1, 5), numbers(1, 7))) == [[0, 1, 5, 7]]
    why = ps.concat(parts).batch(1).to_numpy(threads=0).why(4)["from"]
    assert (why["concat_source"], why["row"]) == (1, 0)


def test_a_shuffle_inside_of_concat_is_another_one_each_epoch() -> None:
    one, two = values(ps.concat([numbers(20).shuffle(seed=1), numbers(2, 100)]), epochs=2)
    assert one != two and sorted(one) == sorted(two) and one[20:] == two[20:] == [100, 101]


def test_concat_follows_the_blocks_of_its_sources(tmp_path: Any) -> None:
    """A shuffle by lanes reads the row groups of all files in one piece, as of one source of all files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for k in range(2):
        pq.write_table(pa.table({"x": np.arange(k * 40, k * 40 + 40)}), tmp_path / f"{k}.parquet", row_group_size=8)
    each = [ps.read_parquet(tmp_path / f"{k}.parquet", columns=["x"]) for k in range(2)]
    every = ps.read_parquet([tmp_path / "0.parquet", tmp_path / "1.parquet"], columns=["x"])
    order = {"seed": 5, "lanes": 2, "window": 2}
    assert values(ps.concat(each).shuffle(**order)) == values(every.shuffle(**order))
    other = ps.read_parquet(tmp_path / "0.parquet", columns=["x"])
    pq.write_table(pa.table({"x": np.arange(40, 80)}), tmp_path / "1.parquet", row_group_size=4)
    regrouped = ps.concat([other, ps.read_parquet(tmp_path / "1.parquet", columns=["x"])])
    assert regrouped.shuffle(**order).fingerprint() != ps.concat(each).shuffle(**order).fingerprint()


@pytest.mark.parametrize("seed", range(6))
def test_interleave_against_plain_python(seed: int) -> None:
    random = Random(seed)
    sizes = [random.randint(1, 7) for _ in range(random.randint(1, 5))]
    parts = [list(range(100 * k, 100 * k + size)) for k, size in enumerate(sizes)]
    pipelines = [numbers(size, 100 * k) for k, size in enumerate(sizes)]
    rounds = list(zip_longest(*parts))
    every = [v for v in chain(*rounds) if v is not None]
    assert values(ps.interleave(pipelines)) == [every]
    endless = ps.interleave([pipelines[0].repeat(), *pipelines[1:]])
    longest = [parts[0] * 50, *parts[1:]]
    want = [v for v in chain(*zip_longest(*longest)) if v is not None]
    assert [int(row["x"]) for row in endless.peek(40)] == want[:40]
    flat = list(chain(*rounds))
    assert values(ps.interleave(pipelines, at_end="stop")) == [flat[: flat.index(None)] if None in flat else flat]
    again = [[part[i % len(part)] for part in parts] for i in range(max(sizes))]
    assert values(ps.interleave(pipelines, at_end="restart")) == [list(chain(*again))]


def test_a_restarted_source_is_shuffled_anew() -> None:
    pipeline = ps.interleave([numbers(4).shuffle(seed=1), numbers(12, 100)], at_end="restart")
    (one,) = values(pipeline)
    passes = [tuple(one[i : i + 8 : 2]) for i in (0, 8, 16)]
    assert len(set(passes)) > 1 and all(sorted(p) == [0, 1, 2, 3] for p in passes)


def test_zip_pairs_rows_by_number_also_after_a_shuffle() -> None:
    zipped = ps.zip([numbers(50), numbers(50, 100).rename({"x": "y"})]).shuffle(seed=4)
    loader = zipped.batch(5).to_numpy(threads=0)
    assert sorted(int(v) for batch in loader for v in batch["x"]) == list(range(50))
    assert all((batch["y"] - batch["x"] == 100).all() for batch in loader)
    why = loader.why(2, 1)
    row = loader.batch_at(2)["x"][1]
    assert why["from"]["row"] == row and [part["row"] for part in why["from"]["zipped"]] == [row, row]


def test_bad_records_of_a_zip_are_skipped_in_pairs_and_located_in_their_source(tmp_path: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 0}\n{"a": 1}\n{"a":\n{"a": 3}\n')
    zipped = ps.zip([numbers(4), ps.read_jsonl(path, fields=["a"])])
    loader = zipped.skip_errors().batch(1).to_numpy(threads=0)
    rows = [(int(batch["x"][0]), int(batch["a"][0])) for batch in loader]
    assert all(x == a for x, a in rows) and {x for x, _ in rows} == {0, 1, 3}
    (entry,) = loader.ledger.entries
    assert (entry.file, entry.record) == (str(path), 3)
    with pytest.raises(ps.BadRecords, match="line 3"):
        list(zipped.batch(1).to_numpy(threads=0))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ps.zip([numbers(3), numbers(4).rename({"x": "y"})]), ["one length", "3 and 4 rows", ".take(3)"]),
        (lambda: ps.zip([numbers(3), numbers(3)]).peek(), ["different columns", "'x'", ".rename("]),
        (
            lambda: numbers(3).zip(numbers(3).rename({"x": "y"}).filter(lambda r: True)),
            ["no step that rejects rows before penstock.zip()", "exact=True"],
        ),
        (lambda: numbers(3).zip(numbers(3).rename({"x": "y"}).skip_errors()), ["no step that rejects rows"]),
        (lambda: ps.concat([numbers(3), numbers(2).repeat()]), ["with an end", "number 1", ".take(n)"]),
        (lambda: ps.concat(numbers(3)), ["a list of pipelines in penstock.concat()", "one pipeline"]),
        (lambda: ps.mix([numbers(3), 3]), ["a list of pipelines in penstock.mix()", "3"]),
        (lambda: numbers(3).zip(3), ["a list of pipelines in penstock.zip()"]),
        (lambda: ps.concat([]), ["at least one pipeline in penstock.concat()"]),
        (lambda: list(numbers(3).concat(numbers(3).rename({"x": "y"})).batch(3).to_numpy()), ["the same columns"]),
        (lambda: ps.concat([numbers(3).batch(2)]), ["without .batch() in penstock.concat()", "batch after it"]),
        (lambda: ps.concat([numbers(3).shard(0, 2), numbers(3)]), ["the same .shard()", "concat([...]).shard()"]),
        (lambda: ps.interleave([numbers(3)], at_end="never"), ["at_end", "'continue', 'stop', 'restart'"]),
        (lambda: ps.interleave([numbers(3), numbers(2).repeat()], at_end="restart"), ["with an end"]),
        (lambda: numbers(3).select("z").peek(), ["a column 'z' for .select()", "columns x"]),
        (lambda: numbers(3).select("xs").peek(), ["'x', if that is meant"]),
        (lambda: numbers(3).select(), ["names of columns"]),
        (lambda: numbers(3).select("x", "x"), ["each once"]),
        (lambda: numbers(3).select(1), ["names of columns"]),
        (lambda: numbers(3).drop("x").peek(), ["left after .drop()"]),
        (lambda: numbers(3).rename("x"), ["a dict of old and new names"]),
        (lambda: ps.from_arrays({"x": [1], "y": [2]}).rename({"x": "y"}).peek(), ["two columns 'y'", ".drop('y')"]),
    ],
)
def test_what_is_refused(make: Any, says: list[str]) -> None:
    with pytest.raises(ps.UsageError) as caught:
        make()
    assert all(text in str(caught.value) for text in says), str(caught.value)


def test_columns_keep_the_dtype_and_the_memory_of_token_ids() -> None:
    tokens = ps.open_tokens(np.arange(100, dtype=np.uint16), [0, 40, 100], 100)
    for make in (
        lambda: tokens.windows(8).rename({"input_ids": "tokens"}).batch(4),
        lambda: tokens.windows(8).batch(4).rename({"input_ids": "tokens"}),
        lambda: tokens.windows(8).batch(4).map_batches(dict).rename({"input_ids": "tokens"}),
    ):
        for output, dtype in ((make().to_numpy(threads=0), np.int64), (make().to_numpy(ids="int32"), np.int32)):
            batch = output.batch_at(0)
            assert list(batch) == ["tokens", "labels"] and batch["tokens"].dtype == batch["labels"].dtype == dtype
            assert batch["tokens"][0].tolist() == list(range(8)) and batch["labels"][0].tolist() == list(range(1, 9))
    packed = tokens.pack(16).drop("segment_ids").batch(2).to_numpy().batch_at(0)
    assert "cu_seqlens" in packed and "segment_ids" not in packed
    bare = tokens.pack(16).select("input_ids").batch(2).to_numpy().batch_at(0)
    assert list(bare) == ["input_ids"]
    swapped = ps.from_arrays({"x": [1], "y": [2]}).rename({"x": "y", "y": "x"}).peek()
    assert {name: int(value) for name, value in swapped[0].items()} == {"y": 1, "x": 2}


def pictures(root: Path, *names: str) -> ps.Pipeline:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(b"...")
    return ps.read_images(root)


def test_numbers_of_different_classes_are_not_joined(tmp_path: Path) -> None:
    pets, birds = pictures(tmp_path / "pets", "cat", "dog"), pictures(tmp_path / "birds", "bird", "dog")
    for join in (ps.concat, ps.interleave, ps.mix):
        for one in (pets.take(1), pets.filter(lambda record: True), pets.rename({"label": "y"})):
            other = birds.rename({"label": "y"}) if "y" in one.class_names else birds
            with pytest.raises(ps.UsageError, match=r"(?s)the same classes.*0 is 'cat' in pipeline 0 and 'bird' in 1"):
                join([one, other])
        joined = join([pets, birds.map(lambda record: {**record, "label": record["label"] + 2})])
        assert joined.classes == ()
        assert join([pets, birds.drop("label")]).classes == join([pets.select("path"), birds]).classes == ()
    together = ps.read_images(f"{tmp_path}/{{pets,birds}}/*/*.png")
    assert together.classes == ("bird", "cat", "dog")
    more = pictures(tmp_path / "more", "cat", "dog", "fox")
    assert ps.concat([pets, more]).classes == ps.mix([more, pets]).classes == ("cat", "dog", "fox")


def test_classes_follow_their_column(tmp_path: Path) -> None:
    pets = pictures(tmp_path, "cat", "dog")
    assert pets.rename({"label": "y"}).class_names == {"y": ("cat", "dog")}
    assert pets.drop("label").classes == pets.select("path").classes == pets.drop("label", "path").classes == ()
    assert pets.select("label").zip(pets.rename({"label": "other"}).select("other")).class_names == {
        "label": ("cat", "dog"), "other": ("cat", "dog"),
    }  # fmt: skip


def test_different_columns_are_refused_with_what_to_write(tmp_path: Path) -> None:
    pets, plain = pictures(tmp_path, "cat"), ps.read_images(tmp_path, labels=None)
    with pytest.raises(ps.UsageError, match=r"\.select\('bytes', 'path'\) in each keeps what they share"):
        ps.concat([pets, plain]).peek(2)
