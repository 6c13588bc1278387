"""`.tokenize()`: once, in a cache keyed by content."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.limits import Limits


def records(folder: Path, count: int = 50) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"record {i}", "n": i}) + "\n" for i in range(count)))
    return path


def texts(pipeline: ps.Pipeline, count: int) -> list[str]:
    return [bytes(row["input_ids"][:-1].tolist()).decode() for row in pipeline.peek(count)]


def stores(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "tokens").iterdir() if path.is_dir())


def test_it_is_made_once_and_found_by_content(tmp_path: Path) -> None:
    path, cache = records(tmp_path), tmp_path / "cache"
    first = ps.read_jsonl(path).tokenize("bytes", cache_dir=cache)
    stamp = (stores(cache)[0] / "manifest.json").stat().st_mtime_ns
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes(path.read_bytes())
    second = ps.read_jsonl(copy).tokenize("bytes", cache_dir=cache)
    assert len(stores(cache)) == 1
    assert (stores(cache)[0] / "manifest.json").stat().st_mtime_ns == stamp
    assert first == second
    ps.read_jsonl(records(tmp_path, 51)).tokenize("bytes", cache_dir=cache)
    assert len(stores(cache)) == 2
    assert texts(first, 3) == ["record 0", "record 1", "record 2"]


def test_map_and_filter_before_it_really_leave_records_out(tmp_path: Path) -> None:
    pipeline = (
        ps.read_jsonl(records(tmp_path), fields=["text", "n"])
        .filter(lambda r: r["n"] % 2 == 0)
        .map(lambda r: {"text": r["text"].upper(), "n": r["n"]})
        .filter(lambda c: c["n"] > 10, batched=True)
        .tokenize("bytes", cache_dir=tmp_path / "cache")
    )
    assert texts(pipeline, 100) == [f"RECORD {i}" for i in range(12, 50, 2)]


def test_skip_errors_becomes_a_setting_of_the_preparation(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\nnot json\n{"text": "two"}\n')
    with pytest.raises(ps.RecordError, match="line 2"):
        ps.read_jsonl(path).tokenize("bytes", cache_dir=tmp_path / "cache")
    pipeline = ps.read_jsonl(path, on_error="skip", budget=1).tokenize("bytes", cache_dir=tmp_path / "cache")
    assert texts(pipeline, 5) == ["one", "two"]


def test_another_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "one"}\n')
    pipeline = ps.read_jsonl(path, field="body").tokenize("bytes", field="body", cache_dir=tmp_path)
    assert texts(pipeline, 1) == ["one"]
    with pytest.raises(ps.UsageError, match="a column 'title' to tokenize"):
        ps.read_jsonl(path, field="body").tokenize("bytes", field="title", cache_dir=tmp_path)


def test_wrong_places(tmp_path: Path) -> None:
    tokens = ps.from_texts(["a"]).tokenize("bytes", cache_dir=tmp_path)
    with pytest.raises(ps.UsageError, match=r"text before \.tokenize\(\)"):
        tokens.tokenize("bytes")
    with pytest.raises(ps.UsageError, match=r"single records before \.tokenize\(\)"):
        ps.from_texts(["a"]).batch(1).tokenize("bytes")


def test_the_cache_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "named"))
    ps.from_texts(["a"]).tokenize("bytes")
    assert len(stores(tmp_path / "named")) == 1


ASK = """
import sys, penstock as ps
p = ps.read_jsonl(sys.argv[1]).tokenize("bytes", cache_dir=sys.argv[2])
print(p.fingerprint())
"""


def test_two_processes_at_once_share_one_store(tmp_path: Path) -> None:
    path, cache = records(tmp_path, 20_000), tmp_path / "cache"
    command = [sys.executable, "-c", ASK, str(path), str(cache)]
    asked = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=60)[0] for process in asked}
    assert all(process.returncode == 0 for process in asked)
    assert len(said) == 1
    assert len(stores(cache)) == 1


@pytest.mark.parametrize("verb", ["take", "skip", "repeat", "shuffle"])
def test_places_after_a_filter_are_refused(tmp_path: Path, verb: str) -> None:
    texts = ps.from_texts([f"text {i}" for i in range(10)])
    kept = texts.filter(lambda r: r["text"] != "text 3")
    with pytest.raises(ps.UsageError, match=rf"put \.{verb}\(\) after \.tokenize\(\)"):
        getattr(kept, verb)(4).tokenize("bytes", cache_dir=tmp_path)
    assert len(getattr(texts, verb)(4).filter(lambda r: True).tokenize("bytes", cache_dir=tmp_path).rows()) > 0
    assert len(kept.tokenize("bytes", cache_dir=tmp_path).take(4).rows()) == 4


def test_a_stricter_budget_is_checked_on_a_cached_or_finished_store(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(["oops\n" if i in (3, 7) else f'{{"text": "{i}"}}\n' for i in range(20)]))
    source = ps.read_jsonl(path)
    settings = {"on_error": "skip", "show_progress": False}
    for call in (
        lambda budget: source.tokenize("bytes", cache_dir=tmp_path / "cache", budget=budget, **settings),
        lambda budget: ps.prepare(source, "bytes", tmp_path / "store", budget=budget, **settings),
    ):
        call(5)
        call(2)
        call(0.1)
        for strict in (0, 1, 0.09):
            with pytest.raises(ps.DataError, match=r"skipped(.|\n)*2 skipped of 20 seen"):
                call(strict)


def test_every_setting_that_changes_the_documents_is_in_the_cache_key(tmp_path):
    records = [
        {"text": "aa", "other": "b" * 300, "third": "ccc"},
        {"text": "dd" * 300, "other": "e", "third": "f\n\ng"},
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\nthree " + b"x" * 500 + b"\xff\n")
    small = Limits(line_bytes=200, record_bytes=200)
    sources = {}
    for column in ("text", "other", "third"):
        sources[f"parquet {column}"] = lambda c=column: (ps.read_parquet(tmp_path / "a.parquet", text=c), c)
        sources[f"jsonl {column}"] = lambda c=column: (ps.read_jsonl(tmp_path / "a.jsonl", field=c), c)
    sources["jsonl limit"] = lambda: (ps.read_jsonl(tmp_path / "a.jsonl", limits=Limits(line_bytes=400)), "text")
    for by in ("file", "line", "paragraph"):
        for limits in (None, small):
            for errors in ("strict", "replace"):
                sources[f"{by} {limits is None} {errors}"] = lambda b=by, m=limits, e=errors: (
                    ps.read_text(tmp_path / "a.txt", by=b, errors=e, limits=m), "text"
                )  # fmt: skip

    def documents(name, cache):
        pipeline, field = sources[name]()
        try:
            store = pipeline.tokenize("bytes", field=field, on_error="skip", cache_dir=cache, show_progress=False)
        except ps.DataError as error:
            return error.expected
        return [row["input_ids"].tolist() for row in store.peek(9)]

    alone = {name: documents(name, tmp_path / f"cache of {name}") for name in sources}
    together = {name: documents(name, tmp_path / "cache") for name in sources}
    assert together == alone
    again = {name: documents(name, tmp_path / "cache") for name in reversed(sources)}
    assert again == alone


def test_a_path_is_no_pipeline(tmp_path):
    with pytest.raises(ps.UsageError, match=r"a pipeline of texts to prepare\n  got:   'a.txt'(.|\n)*read_text"):
        ps.prepare("a.txt", "bytes", tmp_path / "out")
