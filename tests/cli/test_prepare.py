"""`penstock prepare`: what it writes, says and counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.sources.tokens import TokenStore


def documents(folder: Path) -> list[list[int]]:
    store = TokenStore(folder)
    found = store.read(np.arange(len(store)))["input_ids"].tolist()
    assert isinstance(found, list)
    return found


def test_summary_and_store(run: Any, corpus: Path, texts: list[str], tmp_path: Path) -> None:
    out = tmp_path / "store"
    ran = run("prepare", corpus, "--tokenizer", "bytes", "--out", out)
    assert ran.code == 0, ran.err
    assert documents(out) == [[*text.encode(), 256] for text in texts]
    facts = dict(line.split("  ", 1) for line in ran.out.splitlines())
    tokens = sum(len(t.encode()) + 1 for t in texts)
    assert facts["documents"].strip() == "60"
    assert facts["tokens"].strip() == f"{tokens:,}"
    assert facts["engine"].strip() == "bytes"
    assert "MB/s" in facts["work"]
    assert facts["verified"].strip() == "every byte"
    files = sum(p.stat().st_size for p in corpus.iterdir())
    assert float(facts["file bytes per token"]) == pytest.approx(files / tokens, abs=1e-3)
    assert "3 files of jsonl" in ran.err
    assert "preparing" not in ran.err, "no bar without a terminal"


def test_json_quiet_and_again(run: Any, corpus: Path, tmp_path: Path) -> None:
    argv = ["prepare", corpus, "--tokenizer", "bytes", "--out", tmp_path / "s", "--json", "--quiet"]
    first = run(*argv)
    assert first.err == ""
    facts = first.json()
    assert facts["documents"] == 60
    assert facts["verified"] is True
    assert facts["already"] is facts["resumed"] is False
    assert run(*argv).json()["already"] is True
    assert "already exists" in run(*argv[:-2]).out


def test_progress_is_forced_and_goes_to_stderr(run: Any, corpus: Path, tmp_path: Path) -> None:
    ran = run("prepare", corpus, "--tokenizer", "bytes", "--out", tmp_path / "s", "--progress", "--json")
    assert "preparing: 100%" in ran.err
    assert "verifying: 100%" in ran.err
    assert "\r" not in ran.err and all(line.count("%") <= 1 for line in ran.err.splitlines())
    assert ran.json()["documents"] == 60


def test_other_settings_are_refused_and_restart_replaces(run: Any, corpus: Path, tmp_path: Path) -> None:
    base = ["prepare", corpus, "--tokenizer", "bytes", "--out", tmp_path / "s", "-q"]
    assert run(*base).code == 0
    refused = run(*base, "--no-eos")
    assert refused.code == 1
    assert "--restart" in refused.err
    assert run(*base, "--no-eos", "--restart").code == 0
    assert documents(tmp_path / "s")[0][-1] != 256
    assert run(*base, "--eos-id", 7, "--restart").code == 0
    assert documents(tmp_path / "s")[0][-1] == 7
    beyond = run(*base, "--eos-id", 300, "--restart")
    assert beyond.code == 1
    assert "vocabulary size 257" in beyond.err


def write_bad(folder: Path) -> Path:
    path = folder / "bad.jsonl"
    path.write_text('{"text": "one"}\n{"text": 5}\nnot json\n{"text": "two"}\n')
    return path


def test_a_bad_record_stops_with_its_place(run: Any, tmp_path: Path) -> None:
    path = write_bad(tmp_path)
    ran = run("prepare", path, "--tokenizer", "bytes", "--out", tmp_path / "s")
    assert ran.code == 1
    assert f"where: {path}, line 2" in ran.err


def test_skipped_records_are_counted_listed_and_held_to_a_budget(run: Any, tmp_path: Path) -> None:
    path, out = write_bad(tmp_path), tmp_path / "s"
    base = ["prepare", path, "--tokenizer", "bytes", "--out", out, "--on-error", "skip", "-q"]
    over = run(*base, "--budget", 1)
    assert over.code == 1
    assert "expected at most 1 skipped" in over.err
    ran = run(*base, "--budget", 2, "--restart")
    assert ran.code == 0, ran.err
    assert f"2 records, listed in {out / 'skipped.jsonl'}" in ran.out
    assert "expected valid JSON" in ran.out
    listed = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert [entry["record"] for entry in listed[1:]] == [2, 3]
    again = run(*base, "--json").json()  # nothing to do, yet the reasons are known
    assert again["already"] is True
    assert sum(again["reasons"].values()) == again["skipped"] == 2
    assert run("verify", out).err == "", "the list beside the store is no stranger"


def test_a_budget_can_be_a_share(run: Any, tmp_path: Path) -> None:
    lines = ["broken"] * 5 + ['{"text": "fine"}'] * 995
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    base = ["prepare", tmp_path / "a.jsonl", "-t", "bytes", "-o", tmp_path / "s", "--on-error", "skip", "-q"]
    over = run(*base, "--budget", 0.004)
    assert over.code == 1
    assert "expected at most 0.004 of records skipped\n  got:   5 skipped of 1000 seen" in over.err
    assert run(*base, "--budget", 0.005).code == 0


def test_formats_by_name_by_option_and_mixed(run: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"body": ["one", "two"]}), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("first line\nsecond line\n\nthird\n")
    parquet = run(
        "prepare", tmp_path / "a.parquet", "--field", "body", "--tokenizer", "bytes", "--out", tmp_path / "p", "-q"
    )
    assert parquet.code == 0, parquet.err
    assert documents(tmp_path / "p") == [[*b"one", 256], [*b"two", 256]]
    counts = {}
    for by in ("file", "line", "paragraph"):
        assert run("prepare", tmp_path / "a.txt", "--by", by, "-t", "bytes", "-o", tmp_path / by, "-q").code == 0
        counts[by] = len(documents(tmp_path / by))
    assert counts == {"file": 1, "line": 3, "paragraph": 2}
    mixed = run("prepare", tmp_path / "a.txt", tmp_path / "a.parquet", "-t", "bytes", "-o", tmp_path / "m", "-q")
    assert mixed.code == 1
    assert "expected files of one format\n  got:   1 text, 1 parquet" in mixed.err
    assert not (tmp_path / "m").exists()


def test_resumes_after_an_interruption_and_says_so(run: Any, tmp_path: Path) -> None:
    """Ctrl-C at a moment that is sure to be in the middle: right after the second shard."""
    (tmp_path / "a.txt").write_text(("b" * 9999 + "\n") * 1300)
    argv = ["prepare", tmp_path / "a.txt", "--by", "line", "-t", "bytes", "-o", tmp_path / "s", "--shard-tokens", 1]
    import penstock.preparation.journal as module

    real, seen = module.Journal.add, []

    def stop_at_second(self: Any, *record: Any) -> None:
        real(self, *record)
        seen.append(record)
        if len(seen) == 2:
            raise KeyboardInterrupt

    module.Journal.add = stop_at_second  # type: ignore[method-assign]
    try:
        stopped = run(*argv)
    finally:
        module.Journal.add = real  # type: ignore[method-assign]
    assert stopped.code == 130
    assert "run the same command again to resume" in stopped.err
    half = run("info", tmp_path / "s")
    assert half.code == 1
    assert "expected a finished token store" in half.err
    assert "penstock prepare" in half.err
    ran = run(*argv)
    assert ran.code == 0
    assert "2 shards already written" in ran.err
    assert "resumed after an interruption" in ran.out
    assert len(TokenStore(tmp_path / "s")) == 1300


def test_the_fast_engine_falls_back_out_loud(run: Any, corpus: Path, tmp_path: Path) -> None:
    """A tokenizer that the fast engine does not take: the reference works, and stderr says why."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(["the water runs down"], trainers.WordLevelTrainer(special_tokens=["[UNK]"]))
    made.save(str(tmp_path / "tokenizer.json"))
    ran = run("prepare", corpus, "-t", tmp_path / "tokenizer.json", "-o", tmp_path / "s", "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["engine"] == "tokenizers"
    assert "penstock: gigatoken" in ran.err


def test_same_bytes_as_the_library(run: Any, corpus: Path, store: Path, tmp_path: Path) -> None:
    from penstock.preparation.run import prepare
    from penstock.sources.jsonl import JsonlFiles

    prepare(JsonlFiles(corpus), "bytes", tmp_path / "s")
    names = sorted(p.name for p in store.iterdir())
    assert names == sorted(p.name for p in (tmp_path / "s").iterdir())
    assert all((store / n).read_bytes() == (tmp_path / "s" / n).read_bytes() for n in names)


def test_keep_columns_and_functions_of_a_configuration(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"text": f"line {i}", "label": i, "tag": f"t{i}"}) for i in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    base = ["--tokenizer", "bytes", "--quiet", "--json", "--out"]
    assert run("prepare", tmp_path / "a.jsonl", *base, tmp_path / "one", "--keep", "label").json()["documents"] == 9
    store = TokenStore(tmp_path / "one")
    assert store.read(np.arange(9))["label"].tolist() == list(range(9))
    assert run("prepare", tmp_path / "a.jsonl", *base, tmp_path / "two", "--keep", "all").code == 0
    assert TokenStore(tmp_path / "two").read(np.array([3]))["tag"].tolist() == ["t3"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([*lines, "{", lines[0]]) + "\n")
    ran = run("prepare", bad, *base, tmp_path / "three", "--keep", "label", "--on-error", "skip")
    assert (ran.json()["documents"], ran.json()["skipped"]) == (10, 1)

    (tmp_path / "own_steps_of_cli.py").write_text("def shout(record):\n    return {'text': record['text'].upper()}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = {"read_jsonl": {"paths": str(tmp_path / "a.jsonl")}}
    steps = [{"map": {"function": {"function": "own_steps_of_cli:shout"}}}]
    (tmp_path / "run.json").write_text(json.dumps({"source": source, "steps": steps}))
    for command, *options in (["peek"], ["plan", "--batch", 2], ["prepare", *base, tmp_path / "four"]):
        refused = run(command, tmp_path / "run.json", *options)
        assert refused.code == 1 and "--allow own_steps_of_cli" in refused.err, command
    assert "LINE 0" in run("peek", tmp_path / "run.json", "--allow", "own_steps_of_cli").out
    assert run("plan", tmp_path / "run.json", "--batch", 2, "--allow", "own_steps_of_cli").code == 0
    made = run("prepare", tmp_path / "run.json", *base, tmp_path / "four", "--allow", "own_steps_of_cli")
    assert made.code == 0 and documents(tmp_path / "four")[0] == [*b"LINE 0", 256]
