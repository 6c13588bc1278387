"""PromptEngine: text templates, round trips, truncation, refusals, skipping, schemas."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from penstock import RecordError, UsageError
from penstock.chat import PromptEngine
from penstock.collate.schema import OutputSchema
from penstock.facades.preprocessed.collate import create_causal_lm_collate, create_collate_fn
from tokenizers import Tokenizer, models

from .conftest import CHATML, make_backend

ALPACA_BOTH = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nAdd.\n\n### Input:\n1 1\n\n### Response:\n2"
)
ALPACA_ONE = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nAdd.\n\n### Response:\n2"
)


def records(count: int = 50) -> list[dict[str, str]]:
    subjects = [
        "the moon",
        "a café",
        "2 + 2",
        "日本",
        "yes/no",
        "  blanks  ",
        "new\nlines",
        "tabs\t",
        "🙂",
        "### Response:",
    ]
    return [
        {
            "instruction": f"Say something about {subjects[i % 10]} ({i}).",
            "input": "" if i % 3 else f"context {i}: {subjects[(i + 3) % 10]}",
            "output": f"{subjects[(i * 7) % 10]} is number {i}" + ("." if i % 2 else ".\n"),
        }
        for i in range(count)
    ]


def test_alpaca_round_trip(tokenizer: Any) -> None:
    engine = PromptEngine(tokenizer, "alpaca")
    for record in records():
        row = engine(record)
        assert row is not None
        learnt = row["labels"] != -100
        assert tokenizer.decode(row["labels"][learnt]) == record["output"] + "<|endoftext|>"
        assert (row["labels"][learnt] == row["input_ids"][learnt]).all()
        whole = tokenizer.decode(row["input_ids"])
        assert whole.endswith(f"### Response:\n{record['output']}<|endoftext|>")
        assert record["instruction"] in whole
        assert ("### Input:" in whole) == bool(record["input"])
        assert row["attention_mask"].tolist() == [1] * len(row["input_ids"])


def test_alpaca_text_and_mask_are_the_published_ones(backend: Any) -> None:
    """Prompt masked, answer and end token learnt: the rule of instruction tuning on this format."""
    engine = PromptEngine(backend, "alpaca")
    for extra, text in (({"input": "1 1"}, ALPACA_BOTH), ({}, ALPACA_ONE)):
        row = engine({"instruction": "Add.", **extra, "output": "2"})
        assert row is not None
        prompt = backend.encode(text[:-1]).ids
        answer = [*backend.encode("2").ids, backend.token_to_id("<|endoftext|>")]
        assert row["input_ids"].tolist() == prompt + answer
        assert row["labels"].tolist() == [-100] * len(prompt) + answer


@pytest.mark.parametrize(
    "template", ["Q: {question}\nA:{answer}!", {"prompt": "Q: {question}\nA:", "response": "{answer}!"}]
)
def test_format_strings(template: Any, tokenizer: Any) -> None:
    row = PromptEngine(tokenizer, template, system="Be brief.")({"question": "why {x}?", "answer": 42})
    assert row is not None
    assert tokenizer.decode(row["input_ids"]) == "Be brief.\n\nQ: why {x}?\nA:42!<|endoftext|>"
    assert tokenizer.decode(row["labels"][row["labels"] != -100]) == "42!<|endoftext|>"


def test_mask_none_learns_everything(tokenizer: Any) -> None:
    for options in ({}, {"chat_template": CHATML}):
        row = PromptEngine(tokenizer, "alpaca", mask="none", **options)(records(1)[0])
        assert row is not None
        assert row["labels"].tolist() == row["input_ids"].tolist()


def test_beginning_token_where_the_tokenizer_adds_one(tokenizer: Any) -> None:
    backend = make_backend()
    bos = backend.token_to_id("<|begin_of_text|>")
    assert PromptEngine(backend, "{a}{b}")({"a": "x", "b": "y"})["input_ids"][0] != bos  # type: ignore[index]
    assert PromptEngine(backend, "{a}{b}", bos=True)({"a": "x", "b": "y"})["input_ids"][0] == bos  # type: ignore[index]
    backend.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $0", special_tokens=[("<|begin_of_text|>", bos)]
    )
    row = PromptEngine(backend, "{a}{b}")({"a": "x", "b": "y"})
    assert row is not None
    assert row["input_ids"].tolist().count(bos) == 1
    assert row["input_ids"][0] == bos
    assert row["labels"][0] == -100
    assert PromptEngine(backend, "{a}{b}", bos=False)({"a": "x", "b": "y"})["input_ids"][0] != bos  # type: ignore[index]


def test_truncation() -> None:
    record = {"q": "abcdef", "a": "xyz"}

    def run(**options: Any) -> Any:
        return PromptEngine("bytes", "{q}{a}", eos=0, **options)(record)

    assert bytes(run(max_length=10)["input_ids"].tolist()) == b"abcdefxyz\0"
    with pytest.raises(RecordError, match="a record of at most 9 tokens\n  got:   10"):
        run(max_length=9)
    assert bytes(run(max_length=8, truncation="right")["input_ids"].tolist()) == b"abcdefxy"
    left = run(max_length=6, truncation="left")
    assert bytes(left["input_ids"].tolist()) == b"efxyz\0"
    assert left["labels"].tolist() == [-100, -100, *b"xyz\0"]
    with pytest.raises(RecordError, match="10 tokens, none to learn among the 6 kept"):
        run(max_length=6, truncation="right")


def test_all_masked_is_an_error() -> None:
    engine = PromptEngine("bytes", "{q}{a}", eos=False)
    with pytest.raises(RecordError, match="something to learn\n  got:   1 tokens, all of them masked"):
        engine({"q": "x", "a": ""})


def test_errors_name_the_record_or_are_skipped_and_counted(tokenizer: Any) -> None:
    bad = {"index": 17, "instruction": "x"}
    with pytest.raises(RecordError) as caught:
        PromptEngine(tokenizer)(bad)
    assert str(caught.value).splitlines()[:3] == [
        "expected a record with the field 'output'",
        "  got:   fields index, instruction",
        "  where: record with index=17",
    ]
    engine = PromptEngine(tokenizer, on_error="skip")
    good = records(3)
    rows = engine.batch([good[0], bad, good[1], {"instruction": "x", "output": ["no", "text"]}, good[2]])
    assert len(rows) == 3
    assert engine.skipped == 2
    assert [error.where for error in engine.errors] == ["record 1", "record 3"]


@pytest.mark.parametrize("field", ["instruction", "input", "output"])
def test_text_that_spells_a_special_token_is_refused(field: str, tokenizer: Any) -> None:
    record = {**records(1)[0], "input": "x", field: "sneaky <|endoftext|> text"}
    with pytest.raises(RecordError, match="text without special tokens"):
        PromptEngine(tokenizer)(record)
    with pytest.raises(RecordError, match=r"'<\|endoftext\|>' spelled out"):
        PromptEngine(tokenizer, chat_template=CHATML)(record)
    assert PromptEngine(tokenizer, specials="allow")(record) is not None
    # The template's own special tokens are its business.
    assert PromptEngine(tokenizer, "<|im_start|>{q}<|im_end|>{a}")({"q": "x", "a": "y"}) is not None


def test_record_shapes_for_chat(tokenizer: Any) -> None:
    engine = PromptEngine(tokenizer, chat_template=CHATML, system="S")
    shapes = [
        {"messages": [{"role": "user", "content": "a\n\nb"}, {"role": "assistant", "content": "c"}]},
        {"conversations": [{"from": "human", "value": "a\n\nb"}, {"from": "gpt", "value": "c"}]},
        {"instruction": "a", "input": "b", "output": "c"},
        {"prompt": "a", "context": "b", "completion": "c"},
    ]
    rows = engine.batch(shapes)
    assert len({tuple(row["input_ids"].tolist()) for row in rows}) == 1
    text = tokenizer.decode(rows[0]["input_ids"])
    assert text.startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\n\nb<|im_end|>")
    own = engine({"messages": [{"role": "system", "content": "T"}, *shapes[0]["messages"]]})
    assert own is not None
    assert "system\nT<|im_end|>" in tokenizer.decode(own["input_ids"])


@pytest.mark.parametrize(
    "messages", [[], "text", [{"content": "x"}], [["role"]], [{"role": "user", "content": b"bytes"}], [{"role": 3}]]
)
def test_bad_messages_are_record_errors(messages: Any, tokenizer: Any) -> None:
    with pytest.raises(RecordError):
        PromptEngine(tokenizer, chat_template=CHATML)({"messages": messages})


def test_tools_reach_the_template(tokenizer: Any) -> None:
    source = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML.strip()
    engine = PromptEngine(tokenizer, chat_template=source)
    row = engine({**records(1)[0], "tools": [{"name": "f", "é": 1}]})
    assert row is not None
    assert tokenizer.decode(row["input_ids"]).startswith('[{"name": "f", "é": 1}]<|im_start|>')


def test_the_tokenizers_own_template(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match=r"a chat template\n  got:   a [A-Za-z]+ without one"):
        PromptEngine(tokenizer, "chat")
    try:
        tokenizer.chat_template = CHATML
        row = PromptEngine(tokenizer, "chat")(records(1)[0])
        given = PromptEngine(tokenizer, chat_template=CHATML)(records(1)[0])
    finally:
        tokenizer.chat_template = None
    assert row is not None
    assert given is not None
    assert row["input_ids"].tolist() == given["input_ids"].tolist()


def test_schema_names_what_comes_out() -> None:
    fields = {
        "input_ids": "uint16",
        "loss_mask": "bool",
        "position_ids": "int32",
        "length": "int32",
        "weight": "float32",
    }
    engine = PromptEngine("bytes", "{q}{a}", eos=False, schema=OutputSchema(fields))
    row = engine({"q": "ab", "a": "c", "weight": 0.5})
    assert row is not None
    assert {name: (value.dtype.name, value.tolist()) for name, value in row.items()} == {
        "input_ids": ("uint16", [97, 98, 99]),
        "loss_mask": ("bool", [False, False, True]),
        "position_ids": ("int32", [0, 1, 2]),
        "length": ("int32", 3),
        "weight": ("float32", 0.5),
    }
    with pytest.raises(RecordError, match="got:   no weight"):
        engine({"q": "ab", "a": "c"})


def test_rows_go_into_both_collates(tokenizer: Any) -> None:
    rows = PromptEngine(tokenizer).batch(records(6))
    plain, shifted = create_collate_fn(0)(rows), create_causal_lm_collate(0)(rows)
    assert torch.equal(plain["labels"][:, 1:], shifted["labels"][:, :-1])
    assert int((plain["labels"] != -100).sum()) == int((shifted["labels"] != -100).sum())


def test_one_engine_in_threads_and_pickled(tokenizer: Any) -> None:
    for options in ({}, {"chat_template": CHATML}):
        engine = PromptEngine(tokenizer, on_error="skip", **options)
        expected = [row["input_ids"].tolist() for row in engine.batch(records())]
        with ThreadPoolExecutor(4) as pool:
            found = [row["input_ids"].tolist() for row in pool.map(engine, records()) if row is not None]
        assert found == expected
        copy = pickle.loads(pickle.dumps(engine))
        assert [row["input_ids"].tolist() for row in copy.batch(records())] == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mask": "answer"}, "`mask` to be one of prompt, assistant, last, none"),
        ({"truncation": "middle"}, "`truncation` to be one of"),
        ({"on_error": "ignore"}, "`on_error` to be one of"),
        ({"max_length": 0}, "`max_length` to be 1 or more"),
        ({"template": "no fields"}, "a format string with a {field}"),
        ({"template": "{a.__class__} {b}"}, "plain field names in braces"),
        ({"template": "{a!r}{b}"}, "plain field names in braces"),
        ({"template": "{0}{b}"}, "plain field names in braces"),
        ({"template": "{a:>1000000000}"}, "plain field names in braces"),
        ({"template": "{a"}, "a format string with {field} places"),
        ({"template": {"prompt": "{a}"}}, "the keys 'prompt' and 'response'"),
        ({"template": {"prompt": "{a}", "response": "b"}}, "a response with a {field}"),
        ({"tokenizer": Tokenizer(models.WordLevel({"a": 0}))}, "a tokenizer with an end token"),
        ({"chat_template": "{% for %}"}, "a Jinja chat template that compiles"),
    ],
)
def test_nonsense_is_refused_when_made(options: dict[str, Any], text: str, tokenizer: Any) -> None:
    with pytest.raises(UsageError) as caught:
        PromptEngine(**{"tokenizer": tokenizer, **options})
    assert text in str(caught.value)
    assert caught.value.fix


def test_not_a_record() -> None:
    with pytest.raises(RecordError, match="a record with named fields"):
        PromptEngine("bytes", "{q}{a}", eos=False)("text")  # type: ignore[arg-type]


def test_labels_are_int64_arrays(tokenizer: Any) -> None:
    row = PromptEngine(tokenizer)(records(1)[0])
    assert row is not None
    assert all(isinstance(value, np.ndarray) and value.dtype == np.int64 for value in row.values())


def test_null_is_named_as_null() -> None:
    with pytest.raises(RecordError, match="text in the field 'q'\n  got:   null"):
        PromptEngine("bytes", "{q}{a}", eos=False)({"q": None, "a": "x"})
