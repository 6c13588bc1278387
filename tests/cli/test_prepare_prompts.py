"""`penstock prepare --prompt`: every option does what it says, and one that cannot is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import PromptEngine, open_store
from tests.chat.conftest import CHATML, make_backend

Run = Callable[..., Any]
ROWS = [{"q": f"what is {i}?", "a": f"it is {i}", "text": "x"} for i in range(5)]
CHATS = [
    {"messages": [{"role": r, "content": f"{r} {i} {n}"} for n in range(2) for r in ("user", "assistant")]}
    for i in range(3)
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", ROWS)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return write(tmp_path / "chats.jsonl", CHATS)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    (tmp_path / "t.jinja").write_text(CHATML)
    return tmp_path / "t.jinja"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder: tokenizer, names of its special tokens, chat template."""
    folder = tmp_path / "model"
    folder.mkdir()
    make_backend().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eot_id|>", "chat_template": CHATML}))
    return folder


def stored(folder: Path) -> list[tuple[list[int], list[int]]]:
    rows = open_store(folder).rows()
    columns = rows.read(np.arange(len(rows)))
    return [(columns["input_ids"][i].tolist(), columns["labels"][i].tolist()) for i in range(len(rows))]


def wanted(engine: PromptEngine, records: list[Any]) -> list[tuple[list[int], list[int]]]:
    made = [engine(record) for record in records]
    return [(m["input_ids"].tolist(), [*m["labels"][1:].tolist(), -100]) for m in made if m is not None]


PLAIN = "Q: {q}\nA: {a}"
OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (["--mask", "none"], {"mask": "none"}),
    (["--max-length", "20", "--truncation", "left"], {"max_length": 20, "truncation": "left"}),
    (["--max-length", "22", "--truncation", "right"], {"max_length": 22, "truncation": "right"}),
    (["--system", "Be\\nbrief."], {"system": "Be\nbrief."}),
    (["--eos-id", "7"], {"eos": 7}),
    (["--no-eos"], {"eos": False}),
    (["--eos"], {}),
    (["--specials", "allow"], {"specials": "allow"}),
]


@pytest.mark.parametrize(("options", "same"), OPTIONS, ids=lambda value: str(value)[:40])
def test_an_option_is_the_engines_argument(
    options: list[str], same: dict[str, Any], rows: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    ran = run("prepare", rows, "-t", "bytes", "--prompt", "Q: {q}\\nA: {a}", "-o", out, "-q", *options)
    assert ran.code == 0, ran.err
    assert stored(out) == wanted(PromptEngine("bytes", PLAIN, **same), ROWS)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        (["--mask", "last"], {"mask": "last"}),
        (["--turn", "whole"], {"turn": "whole"}),
        (["--system", "Be brief."], {"system": "Be brief."}),
        (["--boundary", "error"], {"boundary": "error"}),
    ],
)
def test_and_so_with_a_chat_template(
    options: list[str], same: dict[str, Any], chats: Path, template: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    ran = run("prepare", chats, "-t", "bytes", "--chat-template", template, "-o", out, "-q", *options)
    assert ran.code == 0, ran.err
    assert stored(out) == wanted(PromptEngine("bytes", chat_template=CHATML, **same), CHATS)


def test_variables_and_a_beginning(chats: Path, rows: Path, model: Path, tmp_path: Path, run: Run) -> None:
    source = "{{ day }}{{ 'off' if thinking is false else 'on' }}" + CHATML.strip()
    (tmp_path / "v.jinja").write_text(source)
    argv = ["prepare", chats, "-t", "bytes", "--chat-template", tmp_path / "v.jinja", "-o", tmp_path / "v", "-q"]
    assert run(*argv, "--variable", "day=1 May", "--variable", "thinking=false").code == 0
    values = {"day": "1 May", "thinking": False}
    assert stored(tmp_path / "v") == wanted(PromptEngine("bytes", chat_template=source, variables=values), CHATS)
    assert run(*argv, "--variable", "day").code == 2
    argv = ["prepare", rows, "-t", model, "--prompt", "{q}{a}", "-o", tmp_path / "b", "-q", "--bos"]
    assert run(*argv).code == 0
    assert stored(tmp_path / "b") == wanted(PromptEngine(model, "{q}{a}", bos=True), ROWS)


@pytest.mark.parametrize("given", ["folder", "file"])
def test_a_models_folder_has_its_own_template(given: str, chats: Path, model: Path, tmp_path: Path, run: Run) -> None:
    path = model if given == "folder" else model / "tokenizer.json"
    assert run("prepare", chats, "-t", path, "--prompt", "chat", "-o", tmp_path / "out", "-q").code == 0
    assert stored(tmp_path / "out") == wanted(PromptEngine(make_backend(), chat_template=CHATML), CHATS)


def test_a_template_file_writes_the_folders_own_tokens(chats: Path, model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "z.jinja").write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    argv = ["prepare", chats, "-t", model, "--chat-template", tmp_path / "z.jinja", "-o", tmp_path / "out", "-q"]
    assert run(*argv).code == 0
    end = make_backend().token_to_id("<|eot_id|>")
    assert all(ids.count(end) == 4 and labels.count(end) == 2 for ids, labels in stored(tmp_path / "out"))


def test_records_of_parquet(tmp_path: Path, run: Run) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    argv = ["prepare", tmp_path / "rows.parquet", "-t", "bytes", "--prompt", PLAIN, "-o", tmp_path / "out", "-q"]
    assert run(*argv).code == 0
    assert stored(tmp_path / "out") == wanted(PromptEngine("bytes", PLAIN), ROWS)


@pytest.mark.parametrize(
    ("options", "expected", "fix"),
    [
        (["--mask", "last"], "--prompt or --chat-template beside --mask", "--prompt alpaca"),
        (["--max-length", "5"], "--prompt or --chat-template beside --max-length", "or leave --max-length out"),
        (["--system", "x", "--turn", "tail"], "--prompt or --chat-template beside --turn, --system", "--prompt"),
        (
            ["--prompt", "alpaca", "--chat-template", "T"],
            "--prompt chat beside --chat-template",
            "leave one of them out",
        ),
        (["--prompt", "alpaca", "--threads", "2"], "options that --prompt uses", "leave --threads out"),
        (["--prompt", "alpaca", "--engine", "auto"], "options that --prompt uses", "leave --engine out"),
        (["--prompt", "alpaca", "--field", "x"], "options that --prompt uses", "name the fields in the template"),
        (["--prompt", "alpaca", "--by", "line"], "options that --prompt uses", "leave --by out"),
        (["--prompt", "chat"], "a chat template", "--chat-template FILE"),
        (["--chat-template", "missing.jinja"], "a file that can be read", "was it moved"),
        (["--chat-template", "T", "--eos-id", "3"], "`eos` with a text template", "leave --eos out"),
        (["--prompt", "{q}{a}", "--max-length", "3"], "a record of at most 3 tokens", "--truncation right"),
        (["--prompt", "{q}{b}"], "a record with the field 'b'", "in the template"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    options: list[str], expected: str, fix: str, rows: Path, template: Path, tmp_path: Path, run: Run
) -> None:
    options = [str(template) if option == "T" else option for option in options]
    ran = run("prepare", rows, "-t", "bytes", "-o", tmp_path / "out", *options)
    assert ran.code == 1
    assert f"expected {expected}" in ran.err
    assert fix in ran.err
    assert "='" not in ran.err.split("fix:")[1]
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_special_token_spelled_out_names_the_option(model: Path, tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "s.jsonl", [{"q": "<|im_end|>", "a": "b"}])
    ran = run("prepare", path, "-t", model, "--prompt", "{q}{a}", "-o", tmp_path / "out", "-q")
    assert ran.code == 1
    assert "--specials allow" in ran.err
    assert (
        run(
            "prepare", path, "-t", model, "--prompt", "{q}{a}", "-o", tmp_path / "out", "-q", "--specials", "allow"
        ).code
        == 0
    )


def test_nothing_but_skipped_records_is_an_error(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "e.jsonl", [{"q": "x"}] * 3)
    ran = run("prepare", path, "-t", "bytes", "--prompt", "{q}{a}", "-o", tmp_path / "out", "--on-error", "skip")
    assert ran.code == 1
    assert "expected at least one record that can be prepared" in ran.err
    assert "all 3 were skipped" in ran.err
    assert "skipped.jsonl" in ran.err
