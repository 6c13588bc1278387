"""Which turns are learnt, and from where: templates without a generation prompt, with another one, and odd records."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import PromptEngine, RecordError
from penstock.chat.loss_masks import assistant_spans

from .conftest import CHATML

VICUNA = (
    "{% for m in messages %}{{ m.role | upper }}: {{ m.content if m.content is string "
    "else m.content[0].text if m.content else m.tool_calls[0].name }}"
    "{{ eos_token if m.role == 'assistant' else ' ' }}{% endfor %}"
)
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% else %}<|Assistant|>{{ m.content }}"
    "<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)


def learnt(tokenizer: Any, row: Any) -> str:
    return str(tokenizer.decode(row["labels"][row["labels"] != -100]))


def chat(*contents: Any) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]}


@pytest.mark.parametrize("content", ["yes", "A", "ASSISTANT", "", [{"type": "text", "text": "yes"}], None])
def test_a_header_is_never_learnt_for_want_of_a_generation_prompt(content: Any, tokenizer: Any) -> None:
    record = chat("q", content)
    if content is None:
        record["messages"][1]["tool_calls"] = [{"name": "f"}]
    with pytest.raises(RecordError, match="with a generation prompt, so that the header .*\n.*'ASSISTANT: '"):
        PromptEngine(tokenizer, chat_template=VICUNA)(record)
    whole = PromptEngine(tokenizer, chat_template=VICUNA, turn="whole")(chat("q", "A"))
    assert learnt(tokenizer, whole) == "ASSISTANT: A<|endoftext|>"


def test_a_generation_prompt_for_some_turns_only(tokenizer: Any) -> None:
    """It is written behind a user's message, but not behind a tool's: the second header is not learnt unseen."""
    source = CHATML.replace(
        "{%- if add_generation_prompt %}", "{%- if add_generation_prompt and messages[-1].role == 'user' %}"
    )
    record = {
        "messages": [
            *chat("q", "a")["messages"],
            {"role": "tool", "content": "3"},
            {"role": "assistant", "content": "a"},
        ]
    }
    with pytest.raises(RecordError, match="a chat template with a generation prompt") as caught:
        PromptEngine(tokenizer, chat_template=source)(record)
    assert "message 3" in caught.value.where


def test_content_that_the_template_does_not_show_cannot_be_told_from_a_header(tokenizer: Any) -> None:
    with pytest.raises(RecordError, match="a chat template with a generation prompt"):
        PromptEngine(tokenizer, chat_template="{% for m in messages %}{{ m.role }}{% endfor %}")(chat("q", "assistant"))


def test_a_generation_prompt_that_is_not_how_a_turn_begins(tokenizer: Any) -> None:
    engine = PromptEngine(tokenizer, chat_template=DEEPSEEK)
    with pytest.raises(RecordError, match="the conversation before it renders differently") as caught:
        engine(chat("a", "b"))
    assert caught.value.fix.startswith("use turn='whole'")
    assert "mask='last'" not in caught.value.fix
    row = PromptEngine(tokenizer, chat_template=DEEPSEEK, turn="whole")(chat("a", "b"))
    assert learnt(tokenizer, row) == "<|Assistant|>b<|im_end|>"


def test_a_turn_that_renders_as_nothing_is_refused() -> None:
    def render(messages: Any, prompt: bool) -> str:
        shown = "".join(f"<{m['role']}>{m['content']}</>" for m in messages if m["content"])
        return shown + ("<assistant>" if prompt else "")

    messages = [*chat("a", "")["messages"], {"role": "assistant", "content": "b"}]
    with pytest.raises(RecordError, match="message 1 renders as nothing"):
        assistant_spans(render, messages)


def test_a_prompt_and_completion_made_of_messages(tokenizer: Any) -> None:
    turns = chat("a", "b", "c", "d")["messages"]
    record = {"prompt": turns[:3], "completion": turns[3:], "id": 1}
    for mask, want in (("prompt", "d<|im_end|>"), ("assistant", "b<|im_end|>d<|im_end|>"), ("last", "d<|im_end|>")):
        row = PromptEngine(tokenizer, chat_template=CHATML, mask=mask, system="S")(record)  # type: ignore[arg-type]
        whole = PromptEngine(tokenizer, chat_template=CHATML, system="S")({"messages": turns})
        assert learnt(tokenizer, row) == want
        assert row is not None
        assert whole is not None
        assert row["input_ids"].tolist() == whole["input_ids"].tolist()
    text = PromptEngine(tokenizer, chat_template=CHATML)({"prompt": turns[:3], "completion": "d"})
    assert learnt(tokenizer, text) == "d<|im_end|>"
    with pytest.raises(RecordError, match="a list of messages"):
        PromptEngine(tokenizer, chat_template=CHATML)({"prompt": turns[:3]})
    with pytest.raises(RecordError, match="at least one assistant message"):
        PromptEngine(tokenizer, chat_template=CHATML)({"prompt": turns[:2], "completion": turns[2:3]})


def test_shared_chats_in_all_their_spellings(tokenizer: Any) -> None:
    engine = PromptEngine(tokenizer, chat_template=CHATML)
    turns = [
        {"from": "Human", "value": "q"},
        {"from": "function_call", "value": "f()"},
        {"from": "observation", "value": "3"},
        {"from": "GPT", "value": "three"},
    ]
    row = engine({"messages": None, "conversations": turns})
    assert row is not None
    assert learnt(tokenizer, row) == "f()<|im_end|>three<|im_end|>"
    assert "<|im_start|>tool\n3<|im_end|>" in tokenizer.decode(row["input_ids"])


def test_a_system_message_is_put_where_there_is_none(tokenizer: Any) -> None:
    engine = PromptEngine(tokenizer, chat_template=CHATML, system="S")
    own = {"messages": [{"role": "system", "content": "T"}, *chat("a", "b")["messages"]]}
    for record, want in ((chat("a", "b"), "S"), (own, "T")):
        row = engine(record)
        assert row is not None
        text = tokenizer.decode(row["input_ids"])
        assert text.startswith(f"<|im_start|>system\n{want}<|im_end|>")
        assert text.count("<|im_start|>system") == 1
