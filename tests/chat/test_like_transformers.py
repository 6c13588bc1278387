"""What transformers decides beside the template's text: which template, which names, which thoughts, which tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from penstock import PromptEngine, UsageError
from penstock.chat.jinja.sandbox import render
from penstock.core.errors import RecordError
from penstock.preparation.prompts import spec_of

from .conftest import CHATML, make_backend

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
WITH_TOOLS = "{% for t in tools %}[{{ t.function.name }}]{% endfor %}" + CHATML
BEGUN = "{{ bos_token }}" + CHATML


def words(**options: Any) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=make_backend(), eos_token="<|endoftext|>", **options)


def ids(engine: PromptEngine, record: dict[str, Any]) -> list[int]:
    row = engine(record)
    assert row is not None
    return [int(i) for i in row["input_ids"]]


@pytest.mark.parametrize("kind", ["object", "folder"])
def test_records_with_tools_have_the_template_for_tools(kind: str, tmp_path: Path) -> None:
    tokenizer = words()
    tokenizer.chat_template = {"default": CHATML, "tool_use": WITH_TOOLS}
    tokenizer.save_pretrained(tmp_path)
    engine = PromptEngine(tokenizer if kind == "object" else tmp_path, "chat", mask="assistant")
    for tools in (None, [], TOOLS):
        theirs = tokenizer.apply_chat_template(CHAT, tools=tools, return_dict=True)["input_ids"]
        assert ids(engine, {"messages": CHAT, "tools": tools}) == theirs
    assert "[f]" in tokenizer.decode(ids(engine, {"messages": CHAT, "tools": TOOLS}))
    tokenizer.chat_template = CHATML
    assert spec_of(engine) != spec_of(PromptEngine(tokenizer, "chat", mask="assistant"))


def test_the_template_for_tools_may_mark_answers_and_the_other_not() -> None:
    tokenizer = words()
    tagged = WITH_TOOLS.replace(
        "message.content + '<|im_end|>'", "message.content }}{% generation %}!{% endgeneration %}{{ ''"
    )
    tokenizer.chat_template = {"default": CHATML, "tool_use": tagged}
    engine = PromptEngine(tokenizer, "chat", mask="assistant")
    plain, marked = engine({"messages": CHAT}), engine({"messages": CHAT, "tools": TOOLS})
    assert plain is not None
    assert marked is not None
    assert tokenizer.decode(plain["labels"][plain["labels"] != -100]) == "b<|im_end|>"
    assert tokenizer.decode(marked["labels"][marked["labels"] != -100]) == "!!"


@pytest.mark.parametrize("kind", ["object", "folder"])
def test_a_token_that_the_tokenizer_does_not_name_is_not_guessed(kind: str, tmp_path: Path) -> None:
    """Its vocabulary has a token with the usual name; transformers writes nothing all the same."""
    tokenizer = words()
    assert tokenizer.bos_token is None
    assert "<|begin_of_text|>" in tokenizer.get_vocab()
    tokenizer.save_pretrained(tmp_path)
    given = tokenizer if kind == "object" else tmp_path
    with pytest.raises(UsageError, match="a value for `bos_token`"):
        PromptEngine(given, chat_template=BEGUN)
    asked = BEGUN.replace("{{ bos_token }}", "{% if bos_token is defined %}{{ bos_token }}{% endif %}")
    theirs = tokenizer.apply_chat_template(CHAT, chat_template=asked, return_dict=True)["input_ids"]
    assert ids(PromptEngine(given, chat_template=asked), {"messages": CHAT}) == theirs
    named = ids(PromptEngine(given, chat_template=BEGUN, variables={"bos_token": ""}), {"messages": CHAT})
    assert named == theirs


def test_of_several_thoughts_the_one_that_transformers_takes() -> None:
    tokenizer = words()
    template = "{% for m in messages %}({{ m.reasoning_content }})({{ m.thinking }}){{ m.content }}{% endfor %}"
    thoughts = {"reasoning_content": "one", "thinking": "two", "reasoning": "three"}
    for left_out in ((), ("reasoning_content",), ("reasoning_content", "thinking"), ("thinking",)):
        kept = {name: text for name, text in thoughts.items() if name not in left_out}
        chat: list[dict[str, Any]] = [CHAT[0], {**CHAT[1], **kept}]
        theirs = tokenizer.apply_chat_template(chat, chat_template=template, return_dict=True)["input_ids"]
        assert ids(PromptEngine(tokenizer, chat_template=template, mask="none"), {"messages": chat}) == theirs


def test_tools_as_json_text_are_read_and_anything_else_is_refused() -> None:
    engine = PromptEngine(words(), chat_template=WITH_TOOLS.replace("in tools", "in tools or []"))
    expected = ids(engine, {"messages": CHAT, "tools": TOOLS})
    assert ids(engine, {"messages": CHAT, "tools": json.dumps(TOOLS)}) == expected
    assert ids(engine, {"messages": CHAT, "tools": "null"}) == ids(engine, {"messages": CHAT})
    for wrong in ("search", "{", {"name": "f"}, ["f"], 3, "[" * 100_000):
        with pytest.raises(RecordError, match="`tools` as a list of dicts"):
            engine({"messages": CHAT, "tools": wrong})
    for wrong in ("text", ["text"]):
        with pytest.raises(RecordError, match="`documents` as a list of dicts"):
            engine({"messages": CHAT, "documents": wrong})


@pytest.mark.parametrize(
    "source",
    [
        "{{ x | indent }}", "{{ x | indent(2, true) }}", "{{ x | indent(2, false, true) }}",
        "{{ x | indent('> ', true, true) }}", "{{ y | join(',', attribute='a') }}", "{{ y[:2] | join(',', 'b.0') }}",
        "{{ y | join(attribute='c') }}", "{{ ['a', 1] | join }}", "{{ ','.join(['a', 'b']) }}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", ["", "\n", "\na\n\nb", "a\r\n b\r\n\r\nc", "a\u2028b\x0bc\x1cd\u0085e", "a"])
def test_filters_write_what_jinja_writes(source: str, text: str) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    values = {"x": text, "y": [{"a": text, "b": [1, 2]}, {"b": text + "z"}, "word"]}
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    assert render(source, values) == plain.render(**values)


def test_text_joined_by_a_method_is_text_only() -> None:
    with pytest.raises(RecordError, match="something else than text"):
        render("{{ ','.join([1]) }}", {})
