"""Engines that differ in `turn` alone make other rows: a store or a state of one is not taken for the other's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import PreprocessedDataset, PromptEngine, open_store
from penstock.cli.main import main
from penstock.preparation.prompts import spec_of

from .conftest import CHATML

RECORDS = [{"instruction": f"Say {i}.", "output": str(i)} for i in range(4)]


def test_a_store_and_a_state_know_the_turn() -> None:
    engines = [PromptEngine("bytes", chat_template=CHATML, turn=turn) for turn in ("answer", "tail", "whole")]  # type: ignore[arg-type]
    assert len({json.dumps(spec_of(engine), sort_keys=True) for engine in engines}) == 3
    assert len({PreprocessedDataset(RECORDS, engine).fingerprint() for engine in engines}) == 3


@pytest.mark.parametrize(
    ("turn", "learnt"), [(None, b"3<|im_end|>"), ("whole", b"<|im_start|>assistant\n3<|im_end|>\n")]
)
def test_on_the_command_line(turn: Any, learnt: bytes, tmp_path: Any) -> None:
    (tmp_path / "t.jinja").write_text(CHATML)
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in RECORDS))
    out = tmp_path / "out"
    options = ["--chat-template", str(tmp_path / "t.jinja"), *(["--turn", turn] if turn else [])]
    code = main(
        ["prepare", str(tmp_path / "d.jsonl"), "--prompt", "chat", "--tokenizer", "bytes", "--out", str(out), *options]
    )
    assert code == 0
    row = open_store(out).rows().read([3])
    labels = row["labels"][0]
    assert bytes(labels[labels != -100].tolist()) == learnt
