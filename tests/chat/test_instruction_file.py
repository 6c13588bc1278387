"""A file of instructions, as people keep them: each record encodes, decodes back, and is learnt from answer to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import PreprocessedDataset, RecordError
from penstock.chat import PromptEngine

from .conftest import CHATML, LLAMA3

EOS = "<|endoftext|>"
PIECES = [
    "The cat sat on the mat.",
    "naïve café, Ærøskøbing, żółć",
    "日本語の文章です。改行なし",
    "שלום עולם and مرحبا in one line",
    "👩‍👩‍👧‍👦 🙂 e\u0301 (combining) \u200b zero width",
    "def f(x):\n    return {\n        'a': [x, -1],  # {not} a {field}\n    }",
    "line one\nline two\r\nline three\n\n\nafter three breaks",
    "  blanks around  ",
    "\n\tbegins with a line break and a tab\t",
    "### Response:\nquoted from the format",
    "### Instruction:\nDo it.\n\n### Input:\nx\n\n### Response:\n",
    "Below is an instruction that describes a task. {instruction} {{input}} %s $x \\n",
    "<|im_start| >assistant <im_end> |im_end|> <|eot",
    "assistant\n\nuser: system:\n",
    "\x00 \x1b[0m \x7f control characters",
    "7",
    "<p>5 &lt; 6 &amp; 7</p>",
    "ends in a space ",
]
SPELLED = ["<|im_end|>", "<|im_start|>assistant\n", EOS, "a<|eot_id|>b"]


def make_records() -> list[dict[str, str]]:
    """Every piece as each of the three fields, with every other beside it."""
    count = len(PIECES)
    return [
        {
            "instruction": f"({i}) {PIECES[i % count]}" if i % 5 else PIECES[i % count],
            "input": "" if i % 3 == 0 else PIECES[(i // 3 + 5) % count],
            "output": "" if i % 61 == 60 else PIECES[(i * 7 + i // count) % count] + str(i) * (i % 4),
        }
        for i in range(13 * count)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "instructions.json"
    out.write_text(json.dumps(make_records(), ensure_ascii=False, indent=1), encoding="utf-8")
    return out


def asked(record: dict[str, str]) -> str:
    """The Alpaca prompt of a record, up to the answer."""
    more = ", paired with an input that provides further context" if record["input"].strip() else ""
    text = f"Below is an instruction that describes a task{more}. "
    text += "Write a response that appropriately completes the request.\n\n"
    text += f"### Instruction:\n{record['instruction']}\n\n"
    if more:
        text += f"### Input:\n{record['input']}\n\n"
    return text + "### Response:\n"


def alpaca(record: dict[str, str]) -> tuple[str, str]:
    return asked(record), record["output"] + EOS


def chatml(record: dict[str, str]) -> tuple[str, str]:
    user = record["instruction"] + (f"\n\n{record['input']}" if record["input"] else "")
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n", record["output"] + "<|im_end|>"


def llama3(record: dict[str, str]) -> tuple[str, str]:
    user = (record["instruction"] + (f"\n\n{record['input']}" if record["input"] else "")).strip()
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    return (
        f"<|begin_of_text|>{head.format('user')}{user}<|eot_id|>{head.format('assistant')}",
        record["output"].strip() + "<|eot_id|>",
    )


@pytest.mark.parametrize(
    ("options", "parts", "end"),
    [({}, alpaca, ""), ({"chat_template": CHATML}, chatml, "\n"), ({"chat_template": LLAMA3}, llama3, "")],
    ids=["alpaca", "chatml", "llama3"],
)
def test_every_record_is_encoded_and_decodes_back(
    options: Any, parts: Any, end: str, path: Path, tokenizer: Any
) -> None:
    written = make_records()
    dataset = PreprocessedDataset(str(path), PromptEngine(tokenizer, **options))
    assert len(dataset) == len(written) >= 200
    for number, record in enumerate(written):
        row = dataset[number]
        ids, labels = row["input_ids"], row["labels"]
        learnt = labels != -100
        prompt, answer = parts(record)
        assert tokenizer.decode(ids) == prompt + answer + end, number
        assert tokenizer.decode(labels[learnt]) == answer, number
        assert (labels[learnt] == ids[learnt]).all()
        # One run, and the prompt's tokens are those before it.
        first = int(learnt.argmax())
        assert learnt[first : first + int(learnt.sum())].all()
        assert tokenizer.decode(ids[:first]) == prompt, number


@pytest.mark.parametrize("field", ["instruction", "input", "output"])
@pytest.mark.parametrize("text", SPELLED)
def test_special_tokens_spelled_in_a_record(text: str, field: str, tokenizer: Any) -> None:
    """Refused with the record's place; where they are wanted, they decode back like any other text."""
    record = {**make_records()[1], field: f"before {text} after"}
    with pytest.raises(RecordError, match=rf"spelled out\n  where: record 4, {field}"):
        PromptEngine(tokenizer)(record, where="record 4")
    row = PromptEngine(tokenizer, specials="allow")(record)
    assert row is not None
    prompt, answer = alpaca(record)
    assert tokenizer.decode(row["input_ids"]) == prompt + answer
    assert tokenizer.decode(row["labels"][row["labels"] != -100]) == answer
