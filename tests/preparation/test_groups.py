"""A preparation in several groups: the same documents, true provenance, summed budgets, the same bytes after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.preparation.run import prepare
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.tokens import TokenStore

N = 3000


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def documents(path: Path) -> list[list[int]]:
    store = TokenStore(path)
    return store.read(np.arange(len(store)))["input_ids"].tolist()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One large file between small ones, with blank lines; some lines bad."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, count in (("a", 30), ("b", N), ("c", 40), ("d", 50)):
        lines = []
        for i in range(count):
            lines.append("broken" if i % 97 == 50 else json.dumps({"text": f"{name} {i} " + "word " * (i % 23)}))
            lines += [""] * (i % 3)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return sorted(map(str, folder.iterdir()))


SETTINGS: dict[str, Any] = {"on_error": "skip", "group_bytes": 20_000, "show_progress": False}


@pytest.fixture(scope="module")
def made(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "store"
    prepare(JsonlFiles(corpus), "bytes", out, **SETTINGS)
    return out


def test_the_documents_are_those_of_one_group(corpus: list[str], made: Path, tmp_path: Path) -> None:
    one = prepare(JsonlFiles(corpus), "bytes", tmp_path, on_error="skip")
    assert one.shards == 1 and (tmp_path / "00000.tokens").exists()
    assert documents(made) == documents(tmp_path)
    names = sorted(path.name for path in made.glob("*.tokens"))
    assert len(names) > 5
    assert {path.name for path in made.iterdir()} == {*names, "manifest.json", "skipped.jsonl"}
    assert all(shard.root in shard.name for shard in TokenStore(made).manifest.shards)


def test_provenance_is_the_line_in_the_file(corpus: list[str], made: Path) -> None:
    store = TokenStore(made)
    lines = {os.path.basename(path): Path(path).read_text().split("\n") for path in corpus}
    for number, document in enumerate(documents(made)):
        where = store.locate(number)
        text = json.loads(lines[where["file"]][where["line"] - 1])["text"]
        assert bytes(document[:-1]).decode() == text


def test_skipped_records_are_summed_and_named_by_their_line(corpus: list[str], made: Path) -> None:
    summary, *listed = [json.loads(line) for line in (made / "skipped.jsonl").read_text().splitlines()]
    want = [
        (path, number)
        for path in corpus
        for number, line in enumerate(Path(path).read_text().split("\n"), 1)
        if line == "broken"
    ]
    assert summary["skipped"] == len(want) == TokenStore(made).manifest.metadata["skipped"]
    assert summary["seen"] == N + 120
    assert [(entry["file"], entry["record"]) for entry in listed] == want


def test_a_budget_is_one_for_all_groups(corpus: list[str], tmp_path: Path) -> None:
    bad = sum(Path(path).read_text().split("\n").count("broken") for path in corpus)
    settings = SETTINGS | {"budget": bad}
    assert prepare(JsonlFiles(corpus), "bytes", tmp_path / "enough", **settings).skipped == bad
    with pytest.raises(ps.DataError, match=f"at most {bad - 1} skipped records"):
        prepare(JsonlFiles(corpus), "bytes", tmp_path / "short", **settings | {"budget": bad - 1})
    prepare(JsonlFiles(corpus), "bytes", tmp_path / "share", **settings | {"budget": 0.02})
    with pytest.raises(ps.DataError, match="of records skipped"):
        prepare(JsonlFiles(corpus), "bytes", tmp_path / "small", **settings | {"budget": 0.001})


def test_an_error_names_the_line_of_the_file(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"record {i}"}) for i in range(2000)]
    lines[1717] = "broken"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ps.RecordError, match="line 1718, byte"):
        prepare(JsonlFiles(tmp_path / "a.jsonl"), "bytes", tmp_path / "out", group_bytes=5000)


def test_pipelines_parquet_datasets_and_prompts_in_groups(tmp_path: Path) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"text": f"{i} " + "word " * (i % 40), "n": i, "q": f"{i}?", "a": str(i)} for i in range(N)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=100)
    engine = ps.PromptEngine("bytes", "Q: {q} A: {a}", eos=0)

    def odd(record: dict[str, Any]) -> bool:
        return bool(record["n"] % 2)

    def noted(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"text": f"{record['text']} {rng.integers(10**9)}"}

    dataset = datasets.Dataset.from_list(rows)
    sources: dict[str, Any] = {
        "jsonl": lambda: ps.read_jsonl(tmp_path / "a.jsonl"),
        "pipeline": lambda: ps.read_jsonl(tmp_path / "a.jsonl", fields=["text", "n"]).filter(odd).map(noted),
        "shuffled": lambda: ps.read_jsonl(tmp_path / "a.jsonl", fields=["text", "n"]).shuffle(seed=3).filter(odd),
        "parquet": lambda: ps.read_parquet(tmp_path / "a.parquet", columns=["text"]),
        "dataset": lambda: ps.from_hf(dataset),
    }
    for name, source in sources.items():
        one = ps.prepare(source(), "bytes", tmp_path / name / "one", show_progress=False)
        many = ps.prepare(source(), "bytes", tmp_path / name / "many", group_bytes=20_000, show_progress=False)
        assert many.shards > 2 and one.shards == 1, name
        assert documents(tmp_path / name / "one") == documents(tmp_path / name / "many"), name
        for number in (0, one.documents // 2, one.documents - 1):
            first, second = (TokenStore(tmp_path / name / kind).locate(number) for kind in ("one", "many"))
            for fact in ("file", "line", "pipeline_row"):
                assert first.get(fact) == second.get(fact), name
    for name, records in {"lines": tmp_path / "a.jsonl", "records": dataset}.items():
        ps.prepare_prompts(records, engine, tmp_path / name / "one", show_progress=False)
        ps.prepare_prompts(records, engine, tmp_path / name / "many", group_bytes=20_000, show_progress=False)
        assert len(TokenStore(tmp_path / name / "many").manifest.shards) > 2
        one, many = (ps.open_store(tmp_path / name / kind) for kind in ("one", "many"))
        for number in (0, 1500, N - 1):
            assert (one.rows().read([number])["labels"][0] == many.rows().read([number])["labels"][0]).all()


def test_group_bytes_is_part_of_the_job(corpus: list[str], made: Path) -> None:
    before = contents(made)
    assert prepare(JsonlFiles(corpus), "bytes", made, **SETTINGS).already
    with pytest.raises(ps.UsageError, match="the store of the same job"):
        prepare(JsonlFiles(corpus), "bytes", made, **SETTINGS | {"group_bytes": 30_000})
    with pytest.raises(ps.UsageError, match="group_bytes of at least 1"):
        prepare(JsonlFiles(corpus), "bytes", made, group_bytes=0)
    assert contents(made) == before


SCRIPT = """
import sys, json
from penstock.preparation.run import prepare
from penstock.sources.jsonl import JsonlFiles
prepare(JsonlFiles(json.loads(sys.argv[1])), "bytes", sys.argv[2], on_error="skip", group_bytes=20_000, threads=1)
"""


def test_killed_in_any_group_and_begun_again_gives_the_same_bytes(
    corpus: list[str], made: Path, tmp_path: Path
) -> None:
    out, kills = tmp_path / "out", 0
    for records in (1, 3, 4):
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, json.dumps(corpus), str(out)])
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if len(list(out.glob("done/*/*.json"))) >= records:
                os.kill(child.pid, signal.SIGKILL)
                break
            time.sleep(0.001)
        kills += child.wait() == -signal.SIGKILL
    assert kills
    left = sorted(out.glob("done/*/*.json"))
    left[0].write_bytes(left[0].read_bytes()[:40])  # a record that was cut, and a shard that is gone
    next(iter(out.glob("g000001-*.tokens"))).unlink(missing_ok=True)
    report = prepare(JsonlFiles(corpus), "bytes", out, **SETTINGS)
    assert report.resumed
    assert contents(out) == contents(made)


def test_a_shard_that_is_gone_is_made_again_with_those_after_it_in_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.preparation.journal import Journal

    def run(out: Path) -> Any:
        rows = ps.from_arrays({"n": np.arange(9000), "text": [f"row {i}" for i in range(9000)]})
        kept = rows.filter(lambda c: c["n"] % 5 > 0, batched=True)
        size = int(rows.definition.origin.describe()["bytes"])
        return ps.prepare(kept, "bytes", out, shard_tokens=6000, group_bytes=size // 2, show_progress=False)

    assert run(tmp_path / "clean").shards == 11
    real, count = Journal.add, []

    def dies(self: Journal, *record: Any) -> None:
        real(self, *record)
        count.append(record)
        if len(count) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out")
    monkeypatch.setattr(Journal, "add", real)
    assert len(list((tmp_path / "out" / "done" / "000000").iterdir())) == 5
    next((tmp_path / "out").glob("g000000-001-*.tokens")).unlink()
    assert run(tmp_path / "out").resumed
    assert contents(tmp_path / "out") == contents(tmp_path / "clean")
