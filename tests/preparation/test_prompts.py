"""Records to a masked store: what the engine says is what training gets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import PromptEngine
from penstock.preparation.journal import Journal
from penstock.preparation.prompts import prepare_prompts, spec_of
from tests.chat.conftest import make_backend

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def records(count: int = 40) -> list[dict[str, str]]:
    return [
        {"instruction": f"Add {i} and {i}.", "input": "x" * (i % 3), "output": f"It is {2 * i}." + " ok" * (i % 7)}
        for i in range(count)
    ]


def alpaca(**options: Any) -> PromptEngine:
    return PromptEngine("bytes", "alpaca", **{"eos": 0, **options})


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def stored(folder: Any) -> list[dict[str, list[int]]]:
    rows = ps.open_store(folder).rows()
    columns = rows.read(np.arange(len(rows)))
    assert sorted(columns) == ["input_ids", "labels"]
    return [{k: columns[k][i].tolist() for k in columns} for i in range(len(rows))]


def wanted(engine: PromptEngine, rows: list[Any]) -> list[dict[str, list[int]]]:
    """The engine's rows with labels moved to the place before their token."""
    made = [engine(r) for r in rows]
    return [
        {"input_ids": m["input_ids"].tolist(), "labels": [*m["labels"][1:].tolist(), -100]}
        for m in made
        if m is not None
    ]


@pytest.mark.parametrize("kind", ["lines", "gzip", "array", "list", "pipeline", "dataset"])
def test_the_store_says_what_the_engine_said(tmp_path: Path, kind: str) -> None:
    rows = records()
    source: Any = rows
    if kind == "lines":
        source = [jsonl(tmp_path / "a.jsonl", rows[:25]), jsonl(tmp_path / "b.jsonl", rows[25:])]
    elif kind == "gzip":
        source = tmp_path / "a.jsonl.gz"
        source.write_bytes(gzip.compress(jsonl(tmp_path / "x", rows).read_bytes()))
    elif kind == "array":
        source = tmp_path / "all.json"
        source.write_text(json.dumps(rows, indent=1))
    elif kind == "pipeline":
        source = ps.read_jsonl(jsonl(tmp_path / "a.jsonl", rows), fields=["instruction", "input", "output"])
    elif kind == "dataset":
        datasets = pytest.importorskip("datasets")
        source = datasets.Dataset.from_list(rows)
    made = prepare_prompts(source, alpaca(), tmp_path / "out", shard_tokens=1000)
    assert (made.documents, made.skipped, made.shards >= 1) == (40, 0, True)
    assert stored(tmp_path / "out") == wanted(alpaca(), rows)
    again = prepare_prompts(source, alpaca(), tmp_path / "out", shard_tokens=1000)
    assert again.already and again.id == made.id
    where = ps.open_store(tmp_path / "out").definition.origin.locate(39)
    assert where.get("line", where.get("pipeline_row", 0) + 1) == (15 if kind == "lines" else 40)


@pytest.mark.parametrize("mask", ["prompt", "last", "none"])
def test_chats_keep_the_mask_they_were_given(tmp_path: Path, mask: Any) -> None:
    engine = PromptEngine("bytes", chat_template=CHAT, mask=mask)
    rows = [
        {"messages": [{"role": r, "content": f"{r} says {i}"} for r in ("user", "assistant", "user", "assistant")]}
        for i in range(5)
    ]
    prepare_prompts(rows, engine, tmp_path / "out")
    assert stored(tmp_path / "out") == wanted(engine, rows)


def test_training_reads_masked_labels_from_the_store(tmp_path: Path) -> None:
    rows = records(600)
    made = prepare_prompts(rows, alpaca(), tmp_path / "out", shard_tokens=2000)
    assert made.shards > 1
    learnt = sum(sum(t != -100 for t in r["labels"]) for r in wanted(alpaca(), rows))
    store = ps.open_store(tmp_path / "out")
    for pipeline in (
        store.pack(512).batch(1),
        store.pack(4096).shuffle(seed=1).batch(1),
        store.batch(5).pad(),
        store.shuffle(seed=1).batch_tokens(2000, multiple=8),
        store.shuffle(seed=1).bucket([300], 4, remainder="short"),
    ):
        count = 0
        for batch in pipeline.to_numpy(threads=0):
            seen = batch["segment_ids"] if "segment_ids" in batch else batch["attention_mask"]
            assert (batch["labels"][seen == 0] == -100).all()
            count += int((batch["labels"] != -100).sum())
        assert count == learnt
    windows = sum(int((b["labels"] != -100).sum()) for b in store.windows(64, stride=64).batch(1).to_numpy(threads=0))
    assert learnt - 64 < windows <= learnt


def test_a_run_that_was_cut_off_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = records(2000)  # several chunks
    whole = prepare_prompts(source, alpaca(), tmp_path / "whole", shard_tokens=20_000)
    real, done = Journal.add, []

    def dies(self: Journal, *record: Any) -> None:
        real(self, *record)
        done.append(record)
        if len(done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", dies)
    with pytest.raises(KeyboardInterrupt):
        prepare_prompts(source, alpaca(), tmp_path / "cut", shard_tokens=20_000)
    monkeypatch.setattr(Journal, "add", real)
    assert not (tmp_path / "cut" / "manifest.json").exists()
    after = prepare_prompts(source, alpaca(), tmp_path / "cut", shard_tokens=20_000)
    assert after.resumed and after.id == whole.id and after.shards > 2
    for path in sorted((tmp_path / "whole").glob("*.tokens")):
        assert path.read_bytes() == (tmp_path / "cut" / path.name).read_bytes()


def test_bad_records_stop_the_run_or_are_listed(tmp_path: Path) -> None:
    rows: list[Any] = records(10)
    rows[3] = {"instruction": "no answer"}
    rows[7] = {**rows[7], "output": ""}
    path = jsonl(tmp_path / "a.jsonl", rows)
    with path.open("a") as file:
        file.write("[1, 2]\nnot json\n")
    with pytest.raises(ps.RecordError, match="field 'output'") as caught:
        prepare_prompts(path, alpaca(eos=False), tmp_path / "raise")
    assert "a.jsonl, line 4" in str(caught.value)
    made = prepare_prompts(path, alpaca(eos=False, on_error="skip"), tmp_path / "skip")
    assert (made.documents, made.skipped) == (8, 4)
    entries = [json.loads(line) for line in (tmp_path / "skip" / "skipped.jsonl").read_text().splitlines()[1:]]
    assert [e["record"] for e in entries] == [4, 8, 11, 12] and entries[0]["file"].endswith("a.jsonl")
    good = [r for i, r in enumerate(rows) if i not in (3, 7)]
    assert stored(tmp_path / "skip") == wanted(alpaca(eos=False), good)
    with pytest.raises(ps.DataError, match="at most 3 skipped"):
        prepare_prompts(path, alpaca(eos=False), tmp_path / "few", on_error="skip", budget=3)


@pytest.mark.parametrize("other", [{"mask": "none"}, {"system": "Be brief."}, {"eos": 1}, {"max_length": 5000}])
def test_another_engine_is_another_store(tmp_path: Path, other: dict[str, Any]) -> None:
    prepare_prompts(records(), alpaca(), tmp_path / "out")
    with pytest.raises(ps.UsageError, match="a store of other data or settings"):
        prepare_prompts(records(), alpaca(**other), tmp_path / "out")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"eos": 0}, {"eos": 1}),
        ({"bos": False}, {"bos": True}),
        ({"boundary": "split"}, {"boundary": "error"}),
        ({"specials": "refuse"}, {"specials": "allow"}),
        ({"truncation": "left"}, {"truncation": "right"}),
        ({"chat_template": CHAT}, {"chat_template": CHAT, "turn": "whole"}),
        ({"chat_template": CHAT}, {"chat_template": CHAT, "variables": {"x": 1}}),
        ({"chat_template": CHAT}, {"chat_template": CHAT + " "}),
    ],
)
def test_whatever_decides_a_row_is_in_the_job(one: dict[str, Any], two: dict[str, Any]) -> None:
    backend = make_backend()
    assert spec_of(PromptEngine(backend, **one)) != spec_of(PromptEngine(backend, **two))
    assert spec_of(PromptEngine(backend, **one)) == spec_of(PromptEngine(backend, **one))


def test_names_of_special_tokens_are_in_the_job() -> None:
    """The same ids, another token named as the end: the template writes another text."""
    from transformers import PreTrainedTokenizerFast

    engines = [
        PromptEngine(PreTrainedTokenizerFast(tokenizer_object=make_backend(), eos_token=end), chat_template=CHAT)
        for end in ("<|endoftext|>", "<|eot_id|>")
    ]
    assert spec_of(engines[0]) != spec_of(engines[1])


def test_a_record_beyond_the_limits_is_skipped_too(tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    large = {"messages": [{"role": "user", "content": "a" * 5_000_000}, good["messages"][1]]}
    engine = PromptEngine("bytes", chat_template=CHAT)
    with pytest.raises(ps.RecordError, match="a record of at most 4194304 characters"):
        prepare_prompts([good, large], engine, tmp_path / "raise")
    made = prepare_prompts([good, large, good], engine, tmp_path / "skip", on_error="skip")
    assert (made.documents, made.skipped) == (2, 1)


def test_a_schema_without_ids_or_labels_is_refused(tmp_path: Path) -> None:
    engine = alpaca(schema=ps.OutputSchema({"input_ids": "int32"}))
    with pytest.raises(ps.UsageError, match="a schema with labels"):
        prepare_prompts(records(), engine, tmp_path / "out")
    made = prepare_prompts(records(3), alpaca(schema=ps.OutputSchema(extra="keep")), tmp_path / "kept")
    assert made.documents == 3


def test_the_command_writes_the_same_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.main import main

    path = jsonl(tmp_path / "a.jsonl", records())
    want = prepare_prompts(path, alpaca(), tmp_path / "want")
    argv = ["prepare", str(path), "-t", "bytes", "--eos-id", "0", "--out", str(tmp_path / "got"), "--json", "-q"]
    assert main([*argv, "--prompt", "alpaca"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == want.id
    template = tmp_path / "chat.jinja"
    template.write_text(CHAT)
    chats = jsonl(
        tmp_path / "c.jsonl", [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    )
    out = str(tmp_path / "chat")
    assert main(["prepare", str(chats), "-t", "bytes", "--chat-template", str(template), "-o", out, "-q"]) == 0
    assert stored(out) == wanted(PromptEngine("bytes", chat_template=CHAT), [json.loads(chats.read_text())])
    (tmp_path / "a.txt").write_text("text")
    assert main(["prepare", str(tmp_path / "a.txt"), "-t", "bytes", "--prompt", "alpaca", "-o", out]) == 1
    assert "records with named fields for --prompt" in capsys.readouterr().err


def test_wrong_use_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ps.UsageError, match="a PromptEngine"):
        prepare_prompts(records(), lambda r: r, tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(ps.UsageError, match="a list of dicts"):
        prepare_prompts(iter(records()), alpaca(), tmp_path / "out")
    (tmp_path / "a.json").write_text("[")
    with pytest.raises(ps.DataError, match="a JSON array of records"):
        prepare_prompts(tmp_path / "a.json", alpaca(), tmp_path / "out")
    with pytest.raises(ps.RecordError, match="plain JSON values"):
        prepare_prompts([{"instruction": object()}], alpaca(), tmp_path / "out")


def test_a_subclass_of_the_engine_is_called_and_a_changed_one_is_noticed(tmp_path):
    class Own(ps.PromptEngine):
        def __call__(self, record, **options):
            return super().__call__({**record, "a": "x"}, **options)

    first = Own

    class Own(ps.PromptEngine):  # type: ignore[no-redef]
        def __call__(self, record, **options):
            return super().__call__({**record, "a": "y"}, **options)

    records = [{"q": "1+1?", "a": "2"}]
    made = ps.prepare_prompts(records, first("bytes", "Q: {q} A: {a}", eos=0), tmp_path / "store")
    assert bytes(ps.open_store(made.path).peek(1)[0]["input_ids"].tolist()) == b"Q: 1+1? A: x\0"
    with pytest.raises(ps.PenstockError):
        ps.prepare_prompts(records, Own("bytes", "Q: {q} A: {a}", eos=0), tmp_path / "store")
