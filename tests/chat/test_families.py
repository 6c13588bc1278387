"""Templates of the common families: the ids and masks of transformers, or a refusal; and what templates are passed."""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

import penstock as ps
from penstock.chat.engine import PromptEngine
from penstock.core.errors import RecordError, UsageError
from penstock.preparation.prompts import spec_of

from .conftest import make_backend
from .families import GPT_OSS, LLAMA3, MARKS, QWEN3, TAGGED, VISION

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "what is it?"}, {"role": "assistant", "content": "The capital is Paris."}],
    "many": [
        {"role": "user", "content": "a?"}, {"role": "assistant", "content": "one"}, {"role": "user", "content": "b?"},
        {"role": "assistant", "content": "two\n\nlines"}, {"role": "user", "content": "c"},
        {"role": "assistant", "content": "日本 🙂"},
    ],
    "system": [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "x"},
        {"role": "assistant", "content": "yes"},
    ],
    "thoughts": [
        {"role": "user", "content": "a?"}, {"role": "assistant", "content": "one", "reasoning_content": "because"},
        {"role": "user", "content": "b?"}, {"role": "assistant", "content": "two", "thinking": "hm"},
    ],
    "thoughts inside": [
        {"role": "user", "content": "a?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"},
    ],
    "blanks": [{"role": "user", "content": " a "}, {"role": "assistant", "content": "\nyes  "}],
}  # fmt: skip
TODAY = datetime.date.today()


@pytest.fixture(scope="module")
def words() -> Any:
    backend = make_backend()
    backend.add_special_tokens(MARKS)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>")


def masked(engine: PromptEngine, record: dict[str, Any]) -> tuple[list[int], list[int]]:
    row = engine(record)
    assert row is not None
    return row["input_ids"].tolist(), (row["labels"] != -100).astype(int).tolist()


def trained(engine: PromptEngine, record: dict[str, Any], words: Any) -> str:
    ids, mask = masked(engine, record)
    return str(words.decode([i for i, on in zip(ids, mask, strict=True) if on]))


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("family", TAGGED)
def test_ids_and_masks_are_those_of_transformers(family: str, chat: str, words: Any) -> None:
    engine = PromptEngine(words, chat_template=TAGGED[family], mask="assistant", date=TODAY)
    try:
        theirs = words.apply_chat_template(
            CHATS[chat], chat_template=TAGGED[family], return_dict=True, return_assistant_tokens_mask=True
        )
    except Exception as error:
        with pytest.raises(RecordError, match=re.escape(str(error)[:30])):
            engine({"messages": CHATS[chat]})
        return
    assert masked(engine, {"messages": CHATS[chat]}) == (theirs["input_ids"], theirs["assistant_masks"])


@pytest.mark.parametrize("family", TAGGED)
def test_the_last_answer_and_a_completion_alone(family: str, words: Any) -> None:
    template, chat = TAGGED[family], CHATS["many"]
    last = trained(PromptEngine(words, chat_template=template, mask="last", date=TODAY), {"messages": chat}, words)
    record = {"prompt": chat[:5], "completion": chat[5:]}
    assert trained(PromptEngine(words, chat_template=template, date=TODAY), record, words) == last
    assert "日本 🙂" in last
    assert "two" not in last


def test_tags_are_followed_by_default_and_not_with_another_turn(words: Any) -> None:
    record = {"messages": CHATS["one"]}
    tagged, tail = (PromptEngine(words, chat_template=TAGGED["chatml"], turn=turn) for turn in ("answer", "tail"))
    assert trained(tagged, record, words) == "The capital is Paris.<|im_end|>\n" == trained(tail, record, words)
    assert spec_of(tagged)["template"]["generation"] is True
    assert "generation" not in spec_of(tail)["template"]
    short = TAGGED["chatml"].replace("m.content + '<|im_end|>\n' }}{% endgen", "m.content }}{% endgen")
    assert trained(PromptEngine(words, chat_template=short), record, words) == "The capital is Paris."


def test_a_block_whose_place_is_unknown_is_refused(words: Any) -> None:
    """Inside a macro the place that transformers notes is wrong."""
    macro = "{% macro f(m) %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
    for source in (
        macro + "{% for m in messages %}[{{ f(m) }}]{% endfor %}",
        macro + "{% for m in messages %}{% set x %}{{ f(m) }}{% endset %}{% endfor %}{{ messages }}",
    ):
        with pytest.raises(UsageError, match="straight into the text"):
            PromptEngine(words, chat_template=source, mask="assistant")({"messages": CHATS["one"]})
        assert PromptEngine(words, chat_template=source, mask="none")({"messages": CHATS["one"]})


def test_a_conversation_without_a_block_is_refused(words: Any) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]
    with pytest.raises(RecordError, match="generation block of the chat template"):
        PromptEngine(words, chat_template=TAGGED["chatml"], mask="assistant")({"messages": chat})


def test_a_token_across_the_edge_of_a_block(words: Any) -> None:
    template = "{% for m in messages %}{{ m.role }} {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    chat = [{"role": "assistant", "content": "answer question"}]
    theirs = words.apply_chat_template(
        chat, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    assert (
        masked(PromptEngine(words, chat_template=template, mask="assistant"), {"messages": chat})[0]
        == (theirs["input_ids"])
    )
    with pytest.raises(RecordError, match="across the edge of a generation block"):
        PromptEngine(words, chat_template=template, mask="assistant", boundary="error")({"messages": chat})


@pytest.mark.parametrize("shape", ["text", "parts"])
@pytest.mark.parametrize("template", [VISION, QWEN3], ids=["parts only", "text only"])
def test_an_answer_is_not_dropped_for_the_shape_of_its_content(template: str, shape: str, words: Any) -> None:
    chat: list[dict[str, Any]] = CHATS["one"]
    if shape == "parts":
        chat = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in chat]
    engine = PromptEngine(words, chat_template=template, mask="assistant")
    assert "The capital is Paris." in trained(engine, {"messages": chat}, words)
    ids, _ = masked(engine, {"messages": chat})
    assert "what is it?" in words.decode(ids)


def test_an_answer_that_no_shape_shows_is_refused(words: Any) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{% endfor %}{% if add_generation_prompt %}[assistant{% endif %}"
    for mask in ("assistant", "last", "none"):
        with pytest.raises(RecordError, match="a chat template that shows the answer") as caught:
            PromptEngine(words, chat_template=template, mask=mask)({"messages": CHATS["one"]})  # type: ignore[arg-type]
        assert "The capital is Paris." in str(caught.value)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts}]
    with pytest.raises(RecordError, match="a chat template that shows the answer"):
        PromptEngine(words, chat_template=QWEN3, mask="assistant")({"messages": chat})


def test_templates_are_passed_what_transformers_passes(words: Any) -> None:
    template = "{% if tools is not none %}TOOLS{% endif %}{% if documents is none %}NO DOCUMENTS{% endif %}" + LLAMA3
    chat = CHATS["one"]
    theirs = words.apply_chat_template(chat, chat_template=template, return_dict=True)["input_ids"]
    engine = PromptEngine(words, chat_template=template, mask="assistant")
    assert masked(engine, {"messages": chat})[0] == theirs
    assert "TOOLS" not in words.decode(theirs)
    tools = [{"type": "function", "function": {"name": "f"}}]
    theirs = words.apply_chat_template(chat, chat_template=template, tools=tools, return_dict=True)["input_ids"]
    assert masked(engine, {"messages": chat, "tools": tools})[0] == theirs
    named = PreTrainedTokenizerFast(
        tokenizer_object=make_backend(), eos_token="<|endoftext|>", extra_special_tokens={"image_token": "<|im_start|>"}
    )
    template = "{{ image_token }}{% for m in messages %}[{{ m.content }}{% endfor %}{{ extra }}"
    record = {"messages": chat, "chat_template_kwargs": {"extra": "yes"}}
    ids, _ = masked(PromptEngine(named, chat_template=template, mask="none"), record)
    assert named.decode(ids) == "<|im_start|>[what is it?[The capital is Paris.yes"
    with pytest.raises(RecordError, match="chat_template_kwargs"):
        engine({"messages": chat, "chat_template_kwargs": {"messages": []}})


def test_a_date_is_an_argument(words: Any) -> None:
    with pytest.raises(UsageError, match="a date for the chat template") as caught:
        PromptEngine(words, chat_template=GPT_OSS)
    assert 'date="2024-07-26"' in str(caught.value)
    made = [PromptEngine(words, chat_template=GPT_OSS, date=day) for day in ("2024-07-26", datetime.date(2025, 1, 2))]
    rows = [masked(engine, {"messages": CHATS["one"]})[0] for engine in made]
    assert "Current date: 2024-07-26" in words.decode(rows[0])
    assert "Current date: 2025-01-02" in words.decode(rows[1])
    assert spec_of(made[0]) != spec_of(made[1])
    guarded = (
        "{% if date_string is not defined %}{% set date_string = strftime_now('%d') %}{% endif %}{{ date_string }}"
    )
    with pytest.raises(UsageError, match="a date for the chat template"):
        PromptEngine(words, chat_template=guarded + LLAMA3)
    PromptEngine(words, chat_template=guarded + LLAMA3, variables={"date_string": "26 Jul 2024"})
    with pytest.raises(UsageError, match="`date` as a date"):
        PromptEngine(words, chat_template=LLAMA3, date="yesterday")
    with pytest.raises(UsageError, match="`date` with a chat template"):
        PromptEngine(words, "alpaca", date="2024-07-26")


def test_the_date_on_the_command_line(words: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from penstock.cli.main import main

    words.save_pretrained(tmp_path / "model")
    (tmp_path / "t.jinja").write_text(GPT_OSS)
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": CHATS["one"]}) + "\n")
    options = ["prepare", str(tmp_path / "a.jsonl"), "-t", str(tmp_path / "model"), "-q", "-o", str(tmp_path / "out")]
    options += ["--chat-template", str(tmp_path / "t.jinja")]
    assert main(options) != 0
    assert "--date 2024-07-26" in capsys.readouterr().err
    assert main([*options, "--date", "2025-03-04"]) == 0
    ids = ps.open_store(tmp_path / "out").peek(1)[0]["input_ids"]
    assert "2025-03-04" in words.decode(np.asarray(ids).tolist())
