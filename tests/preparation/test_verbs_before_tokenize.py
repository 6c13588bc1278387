"""A verb means the same in `prepare`, `.tokenize()` and `prepare_prompts` as in a loader; rejected records are dropped.

Each test failed on the code that had a second implementation of the verbs for preparations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps


def texts(pipeline: ps.Pipeline) -> list[str]:
    rows = pipeline.rows()
    return [bytes(ids[:-1].tolist()).decode() for ids in rows.read(np.arange(len(rows)))["input_ids"]]


def stored(folder: Path) -> list[str]:
    return texts(ps.open_store(folder))


def ledger(folder: Path) -> list[tuple[Any, ...]]:
    """The entries of a store's `skipped.jsonl`."""
    path = folder / "skipped.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [{}]
    return [(e["file"], e["record"], e["reason"], e["detail"]) for e in lines[1:]]


def loader_ledger(pipeline: ps.Pipeline) -> list[tuple[Any, ...]]:
    """The entries of a loader over the pipeline, without those of spares that were bad as well."""
    loader = pipeline.batch(1).to_numpy(threads=0)
    list(loader)
    return list(dict.fromkeys((e.file, e.record, e.reason, e.detail) for e in loader.ledger.entries))


def jsonl(folder: Path, count: int = 40, bad: tuple[int, ...] = (3, 17)) -> Path:
    path = folder / "a.jsonl"
    lines = ("broken" if i in bad else json.dumps({"text": f"t{i}", "n": i}) for i in range(count))
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def numbers(count: int) -> ps.Pipeline:
    return ps.from_arrays({"n": np.arange(count), "text": [f"t{i}" for i in range(count)]})


def draw(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"text": f"{record['text']} {rng.integers(2**62)}"}


def upper(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"].upper()}


@pytest.mark.parametrize("verb", ["map", "map_batches", "take", "shuffle", "repeat"])
def test_any_verb_after_on_error_skip_leaves_bad_records_out_and_lists_them(tmp_path: Path, verb: str) -> None:
    pipeline = ps.read_jsonl(jsonl(tmp_path), on_error="skip")
    steps = {
        "map": lambda p: p.map(upper),
        "map_batches": lambda p: p.map_batches(lambda c: {"text": [t.upper() for t in c["text"]]}),
        "take": lambda p: p.take(30),
        "shuffle": lambda p: p.shuffle(seed=3),
        "repeat": lambda p: p.repeat(2),
    }
    pipeline = steps[verb](pipeline)
    made = ps.prepare(pipeline, "bytes", tmp_path / "out", show_progress=False)
    found = stored(tmp_path / "out")
    count = {"take": 30, "repeat": 80}.get(verb, 40)
    good = [f"t{i % 40}" for i in range(count) if i % 40 not in (3, 17)]
    assert sorted(t.lower() for t in found) == sorted(good)
    assert made.documents == len(good)
    assert made.skipped == count - len(good)
    assert set(ledger(tmp_path / "out")) == set(loader_ledger(pipeline))
    assert {record for _, record, *_ in ledger(tmp_path / "out")} == {4, 18}


def test_prompts_of_a_filtered_pipeline_are_only_those_it_keeps(tmp_path: Path) -> None:
    pipeline = numbers(20).filter(lambda r: r["n"] in (2, 5, 11))
    engine = ps.PromptEngine("bytes", "N: {n} A: {text}", eos=0)
    made = ps.prepare_prompts(pipeline, engine, tmp_path / "out")
    assert made.documents == 3
    rows = ps.open_store(tmp_path / "out").rows().read(np.arange(3))
    assert [bytes(r[:-1].tolist()).decode() for r in rows["input_ids"]] == [f"N: {n} A: t{n}" for n in (2, 5, 11)]
    assert ps.open_store(tmp_path / "out").definition.origin.locate(1)["pipeline_row"] == 5


def test_prompts_of_a_pipeline_that_skips_errors_list_them(tmp_path: Path) -> None:
    pipeline = ps.read_jsonl(jsonl(tmp_path, bad=(3,)), on_error="skip", fields=["text", "n"])
    engine = ps.PromptEngine("bytes", "N: {n} A: {text}", eos=0)
    made = ps.prepare_prompts(pipeline, engine, tmp_path / "out")
    assert (made.documents, made.skipped) == (39, 1)
    assert ledger(tmp_path / "out") == loader_ledger(pipeline)


def test_a_filter_inside_a_mixture_drops(tmp_path: Path) -> None:
    even = numbers(20).filter(lambda r: r["n"] % 2 == 0)
    other = ps.from_arrays({"n": np.arange(5), "text": [f"u{i}" for i in range(5)]})
    mixed = [ps.mix([one, other], weights=[0.8, 0.2], stop="all") for one in (even, numbers(20))]
    found = texts(mixed[0].tokenize("bytes", cache_dir=tmp_path))
    everything = [row["text"] for row in mixed[1].peek(1000)]
    assert found == [t for t in everything if t[0] == "u" or int(t[1:]) % 2 == 0]


def test_random_maps_after_a_filter_draw_as_in_a_loader(tmp_path: Path) -> None:
    def pipeline(seed: int) -> ps.Pipeline:
        return numbers(3000).shuffle(seed=seed).filter(lambda r: r["n"] % 5 > 0).map(draw)

    found = texts(pipeline(1).tokenize("bytes", cache_dir=tmp_path))
    draws = [t.split()[1] for t in found]
    assert len(set(draws)) == len(found) == 2400
    delivered = [b["text"][0] for b in pipeline(1).batch(1).to_numpy(threads=0)]
    assert set(found) <= set(delivered)
    assert set(found).isdisjoint(texts(pipeline(2).tokenize("bytes", cache_dir=tmp_path)))


def test_the_shard_survives_tokenize(tmp_path: Path) -> None:
    def first(rank: int) -> list[int]:
        pipeline = numbers(40).shard(rank, 2).tokenize("bytes", cache_dir=tmp_path)
        assert (pipeline.definition.rank, pipeline.definition.world) == (rank, 2)
        return next(iter(pipeline.windows(3).batch(8).to_numpy(threads=0)))["input_ids"].tolist()

    assert len(first(0)) == 4
    assert first(0) != first(1)
    assert len(list((tmp_path / "tokens").glob("*/manifest.json"))) == 1, "all ranks share one store"


def test_the_shard_survives_a_mixture() -> None:
    parts = [numbers(10), numbers(10)]
    mixed = ps.mix([p.shard(1, 2) for p in parts], stop="all")
    assert (mixed.definition.rank, mixed.definition.world) == (1, 2)
    with pytest.raises(ps.UsageError, match=r"the same \.shard\(\)"):
        ps.mix([parts[0].shard(0, 2), parts[1].shard(1, 2)])
    with pytest.raises(ps.UsageError, match=r"the same \.shard\(\)"):
        ps.mix([parts[0].shard(0, 2), parts[1]])


@pytest.mark.parametrize("wrong", [lambda c: np.array([True]), lambda c: [1] * len(c["n"]), lambda c: True])
def test_a_mask_of_the_wrong_shape_or_type_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(
        ps.UserCodeError, match=r"a bool array of 20 rows from the function in \.filter\(batched=True\)"
    ):
        numbers(20).filter(wrong, batched=True).tokenize("bytes", cache_dir=tmp_path)


@pytest.mark.parametrize("batched", [False, True])
def test_a_filter_that_raises_names_itself_and_the_record(tmp_path: Path, batched: bool) -> None:
    def fails(value: Any) -> Any:
        if batched or value["n"] == 7:
            raise ValueError("no seven")
        return True

    with pytest.raises(ps.UserCodeError, match="no seven") as caught:
        numbers(20).filter(fails, batched=batched).tokenize("bytes", cache_dir=tmp_path)
    assert "fails raised ValueError in .filter()" in str(caught.value)
    assert ("row 7" in str(caught.value)) or batched
    assert isinstance(caught.value.__cause__, ValueError)


def test_skip_errors_works_before_tokenize(tmp_path: Path) -> None:
    def fails(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] % 7 == 3:
            raise ValueError("bad luck")
        return upper(record)

    pipeline = numbers(20).filter(lambda r: r["n"] > 1).map(fails).skip_errors()
    made = ps.prepare(pipeline, "bytes", tmp_path / "out", show_progress=False)
    assert stored(tmp_path / "out") == [f"T{i}" for i in range(2, 20) if i % 7 != 3]
    assert made.skipped == 3
    assert [record for _, record, *_ in ledger(tmp_path / "out")] == [3, 10, 17]
    assert set(ledger(tmp_path / "out")) == set(loader_ledger(pipeline))


NULLS = {"text": ["a", None, "b", 7, "c"]}


@pytest.mark.parametrize("how", ["skip_errors", "on_error", "after a map"])
def test_null_text_can_be_skipped(tmp_path: Path, how: str) -> None:
    pipeline, options, other = ps.from_arrays(NULLS), {}, "int"
    if how == "after a map":  # a function may return text and None, but not text and numbers
        with pytest.raises(ps.UsageError, match="one type in column 'text'"):
            ps.prepare(pipeline.map(lambda r: r).skip_errors(), "bytes", tmp_path / "mixed", show_progress=False)
        pipeline = ps.from_arrays({"text": ["a", None, "b", None, "c"]}).map(lambda r: r)
        other = "NoneType"
    with pytest.raises(ps.DataError, match="a string in column 'text'") as caught:
        ps.prepare(pipeline, "bytes", tmp_path / "raise", show_progress=False)
    assert "row 1" in str(caught.value) and "NoneType" in str(caught.value)
    if how == "on_error":
        options = {"on_error": "skip"}
    else:
        pipeline = pipeline.skip_errors()
    made = ps.prepare(pipeline, "bytes", tmp_path / "out", show_progress=False, **options)
    assert stored(tmp_path / "out") == ["a", "b", "c"]
    assert made.skipped == 2
    assert ledger(tmp_path / "out") == [
        ("arrays", 1, "a string in column 'text'", "NoneType"),
        ("arrays", 3, "a string in column 'text'", other),
    ]


def test_null_text_of_a_dataset_or_parquet_can_be_skipped(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a", None, "b"]})
    pipeline = ps.from_hf(data).skip_errors().tokenize("bytes", cache_dir=tmp_path)
    assert texts(pipeline) == ["a", "b"]
    data.to_parquet(str(tmp_path / "a.parquet"))
    read = ps.read_parquet(tmp_path / "a.parquet", on_error="skip")
    assert texts(read.tokenize("bytes", cache_dir=tmp_path)) == ["a", "b"]
    assert texts(read.map(upper).skip_errors().tokenize("bytes", cache_dir=tmp_path)) == ["A", "B"]


@pytest.mark.parametrize("kind", ["tokens", "prompts"])
def test_a_filter_that_keeps_nothing_is_an_error(tmp_path: Path, kind: str) -> None:
    pipeline = numbers(20).filter(lambda r: False)
    with pytest.raises(ps.DataError, match="at least one record that can be prepared") as caught:
        if kind == "tokens":
            ps.prepare(pipeline, "bytes", tmp_path / "out", show_progress=False)
        else:
            ps.prepare_prompts(pipeline, ps.PromptEngine("bytes", "{n} {text}"), tmp_path / "out")
    assert "20 records were rejected by .filter()" in str(caught.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("place", ["after a filter", "after a filter of a concat", "in a concat"])
def test_an_exact_filter_makes_positions_count_what_is_kept(tmp_path: Path, place: str) -> None:
    """Where a filter only rejects rows, an exact filter or a split after it leaves them out."""
    kept = numbers(20).filter(lambda r: r["n"] > 3)
    if place == "after a filter of a concat":
        kept = ps.concat([numbers(20)]).skip(4).filter(lambda r: True)
    if place == "in a concat":
        kept = ps.concat([kept, numbers(2)])
    exact = kept.filter(lambda r: r["n"] % 2 == 0, exact=True, cache_dir=tmp_path / "cache")
    prepared = texts(exact.skip(1).take(3).tokenize("bytes", cache_dir=tmp_path / "cache"))
    assert prepared == ["t6", "t8", "t10"]
    parts = kept.split({"a": 0.5, "b": None}, key="n", cache_dir=tmp_path / "cache")
    both = [texts(part.tokenize("bytes", cache_dir=tmp_path / "cache")) for part in parts.values()]
    assert len(both[0]) + len(both[1]) == (18 if place == "in a concat" else 16)
    with pytest.raises(ps.UsageError, match=r"(?s)no \.take\(\) between \.filter\(\) and .*exact=True"):
        kept.take(3).tokenize("bytes", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("inside", ["mixture", "branch"])
def test_positions_after_a_filter_in_a_mixture_are_refused(tmp_path: Path, inside: str) -> None:
    kept = numbers(20).filter(lambda r: r["n"] > 3)
    pipeline = ps.mix([kept, numbers(5)], stop="all").take(4)
    if inside == "branch":
        pipeline = ps.mix([kept.take(4), numbers(5)], stop="all")
    with pytest.raises(ps.UsageError, match=r"put \.take\(\) after \.tokenize\(\)"):
        pipeline.tokenize("bytes", cache_dir=tmp_path)
    with pytest.raises(ps.UsageError, match=r"no \.take\(\) between \.filter\(\)"):
        ps.prepare_prompts(pipeline, ps.PromptEngine("bytes", "{n} {text}"), tmp_path / "out")


@pytest.mark.parametrize("how", ["repeat", "mix"])
def test_an_endless_pipeline_is_refused_and_says_what_ends_it(tmp_path: Path, how: str) -> None:
    pipeline = numbers(5).repeat() if how == "repeat" else ps.mix([numbers(5), numbers(6)])
    with pytest.raises(ps.UsageError, match=r"a pipeline with an end") as caught:
        pipeline.tokenize("bytes", cache_dir=tmp_path)
    assert ".take(n)" in caught.value.fix
    with pytest.raises(ps.UsageError, match=r"a pipeline with an end"):
        ps.prepare_prompts(pipeline, ps.PromptEngine("bytes", "{n} {text}"), tmp_path / "out")
    assert len(pipeline.take(7).tokenize("bytes", cache_dir=tmp_path).rows()) == 7


@pytest.mark.parametrize(("budget", "bad", "fine"), [(2, 3, 2), (0.1, 5, 4), (0, 1, 0), (0.29, 12, 11)])
@pytest.mark.parametrize("steps", ["none", "map"])
def test_a_budget_is_that_of_a_loader(tmp_path: Path, budget: Any, bad: int, fine: int, steps: str) -> None:
    for count, good in ((fine, True), (bad, False)):
        path = jsonl(tmp_path, 40, tuple(range(1, 1 + count)))
        pipeline = ps.read_jsonl(path, on_error="skip", budget=budget)
        if steps == "map":
            pipeline = pipeline.map(upper)
        out = tmp_path / f"{count}"
        if good:
            assert ps.prepare(pipeline, "bytes", out, show_progress=False).skipped == count
        else:
            with pytest.raises(ps.DataError, match="at most"):
                ps.prepare(pipeline, "bytes", out, show_progress=False)


def test_with_several_skip_errors_the_smallest_budget_holds(tmp_path: Path) -> None:
    def fails(record: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    pipeline = ps.read_jsonl(jsonl(tmp_path, 40, (1, 2, 3)), on_error="skip", budget=2).map(upper).skip_errors()
    with pytest.raises(ps.DataError, match="at most 2 skipped"):
        ps.prepare(pipeline, "bytes", tmp_path / "out", show_progress=False)
    with pytest.raises(ps.DataError, match="at most 2 skipped"):
        list(pipeline.batch(1).to_numpy(threads=0))
    one = numbers(20).map(fails).skip_errors(2)
    both = ps.mix([one, numbers(20).skip_errors()], stop="all")
    with pytest.raises(ps.DataError, match="at most 2 skipped"):
        both.tokenize("bytes", cache_dir=tmp_path)


def test_a_contradicting_on_error_is_refused(tmp_path: Path) -> None:
    pipeline = ps.read_jsonl(jsonl(tmp_path), on_error="skip")
    for one in (pipeline, pipeline.map(upper)):
        with pytest.raises(ps.UsageError, match='on_error="skip"'):
            ps.prepare(one, "bytes", tmp_path / "out", on_error="raise")


def test_the_ledger_of_files_read_directly_is_that_of_a_loader(tmp_path: Path) -> None:
    pipeline = ps.read_jsonl(jsonl(tmp_path), on_error="skip")
    ps.prepare(pipeline, "bytes", tmp_path / "plain", show_progress=False)
    ps.prepare(pipeline.map(lambda r: r), "bytes", tmp_path / "nodes", show_progress=False)
    assert ledger(tmp_path / "plain") == ledger(tmp_path / "nodes") == loader_ledger(pipeline)


def test_another_filter_is_another_store(tmp_path: Path) -> None:
    for least in (3, 5):
        kept = numbers(9).filter(lambda r, least=least: r["n"] >= least).tokenize("bytes", cache_dir=tmp_path)
        assert texts(kept) == [f"t{i}" for i in range(least, 9)]


def test_blocks_without_a_kept_record_call_no_function(tmp_path: Path) -> None:
    def batch(columns: Any) -> Any:
        assert len(columns["n"])
        return {"text": [t + "!" for t in columns["text"]], "n": columns["n"]}

    pipeline = (
        numbers(5000)
        .filter(lambda c: c["n"] > 4990, batched=True)
        .map_batches(batch)
        .map(lambda r: {"text": r["text"] + "?", "n": r["n"]})
        .filter(lambda c: c["n"] % 2 == 0, batched=True)
    )
    assert texts(pipeline.tokenize("bytes", cache_dir=tmp_path)) == [f"t{i}!?" for i in range(4992, 5000, 2)]


def test_pad_before_tokenize_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ps.UsageError, match=r"single records before \.tokenize\(\)"):
        numbers(4).pad(4).tokenize("bytes", cache_dir=tmp_path)


def test_skip_errors_is_only_for_what_comes_before_it(tmp_path: Path) -> None:
    def fails(record: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("after it")

    pipeline = ps.read_jsonl(jsonl(tmp_path), on_error="skip").map(fails)
    with pytest.raises(ps.UserCodeError, match="after it"):
        list(pipeline.batch(1).to_numpy(threads=0))
    with pytest.raises(ps.UserCodeError, match="after it"):
        pipeline.tokenize("bytes", cache_dir=tmp_path)
    with pytest.raises(ps.UserCodeError, match="after it"):
        ps.prepare_prompts(pipeline, ps.PromptEngine("bytes", "{text}"), tmp_path / "out")


def test_the_shard_survives_pair() -> None:
    media = ps.from_arrays({"key": ["a", "b"], "bytes": [b"1", b"2"]}).shard(1, 2)
    paired = ps.pair(media, {"a": "one", "b": "two"})
    assert (paired.definition.rank, paired.definition.world) == (1, 2)


def test_skipping_many_bad_rows_calls_a_function_twice_at_most(tmp_path: Path) -> None:
    calls: list[int] = []

    def fails(record: dict[str, Any]) -> dict[str, Any]:
        calls.append(int(record["n"]))
        if record["n"] % 2:
            raise ValueError("odd")
        return record

    node = numbers(300).map(fails).skip_errors().rows()
    from penstock.plan.row_source import KeptRows

    (block,) = KeptRows(node.definition, "a test").blocks()
    assert len(block.positions) == len(block.skipped) == 150
    assert len(calls) == 300 + 150, "every row once, and the good ones again"


USES_ALL_ROWS = {
    "prepare": lambda p, out: ps.prepare(p, "bytes", out),
    "prepare_prompts": lambda p, out: ps.prepare_prompts(p, ps.PromptEngine("bytes", "{text}"), out),
    "convert": lambda p, out: ps.convert(p, out, tokenizer="bytes"),
    "write": lambda p, out: p.write(out, "jsonl"),
    "to_hf": lambda p, _: p.to_hf(),
    "records": lambda p, _: ps.PreprocessedDataset(p, ps.PromptEngine("bytes", "{text}")),
}


@pytest.mark.parametrize("name", USES_ALL_ROWS)
def test_what_uses_all_rows_refuses_a_shard(tmp_path: Path, name: str) -> None:
    with pytest.raises(ps.UsageError, match=r"not sharded .*all rows|not sharded .*records"):
        USES_ALL_ROWS[name](numbers(10).shard(1, 2), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows", [100, 3000])
def test_the_steps_before_run_once_for_each_record(rows: int, tmp_path: Path) -> None:
    """They ran twice for the first 1,024 records, to find the types of the columns that stay."""
    calls: list[int] = []

    def noted(record: dict) -> dict:
        calls.append(record["n"])
        return {**record, "length": len(record["text"])}

    records = ps.from_records([{"text": f"text {i}", "n": i} for i in range(rows)])
    after = {
        "tokenize": lambda p: p.tokenize("bytes", cache_dir=tmp_path, show_progress=False),
        "filter, tokenize": lambda p: p.filter(lambda r: r["n"] % 3 == 1).tokenize("bytes", cache_dir=tmp_path),
        "cache": lambda p: p.cache(cache_dir=tmp_path, show_progress=False),
        "exact filter": lambda p: p.filter(lambda r: r["n"] % 2 == 0, exact=True, cache_dir=tmp_path),
    }
    for name, verb in after.items():
        calls.clear()
        made = verb(records.map(noted, version=name))
        assert sorted(calls) == list(range(rows)), name
        assert made.peek(1)[0]["length"] == len("text 0")
