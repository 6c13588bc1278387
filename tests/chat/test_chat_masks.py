"""The mask compiler on chat templates written by hand, against transformers' own masks from tagged templates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import RecordError
from penstock.chat import PromptEngine
from penstock.chat.chat_template import Rendered
from penstock.chat.loss_masks import Encoder, assistant_spans, encode_spans

from .conftest import CHATML, LLAMA3, TEMPLATES


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_masks_equal_those_of_a_tagged_template(name: str, tokenizer: Any, chats: Any) -> None:
    """transformers marks what stands between generation tags; we find the same in the template without them."""
    plain, tagged = TEMPLATES[name]
    engine = PromptEngine(tokenizer, chat_template=plain, mask="assistant")
    compared = 0
    for chat in chats:
        theirs = tokenizer.apply_chat_template(
            chat, chat_template=tagged, return_assistant_tokens_mask=True, return_dict=True, tokenize=True
        )
        row = engine({"messages": chat})
        assert row is not None
        if row["input_ids"].tolist() != theirs["input_ids"]:
            assert chat[-1]["content"][:1].isspace() or any(m["content"][:1].isspace() for m in chat)
            continue
        assert (row["labels"] != -100).astype(int).tolist() == theirs["assistant_masks"]
        compared += 1
    assert compared >= 20


@pytest.mark.parametrize(("name", "end"), [("chatml", "<|im_end|>"), ("llama3", "<|eot_id|>")])
@pytest.mark.parametrize("mask", ["assistant", "prompt", "last"])
def test_labels_are_content_and_end_token(name: str, end: str, mask: Any, tokenizer: Any, chats: Any) -> None:
    engine = PromptEngine(tokenizer, "chat", chat_template=TEMPLATES[name][0], mask=mask)
    for chat in chats:
        row = engine({"messages": chat})
        assert row is not None
        answers = [m["content"].strip() if name == "llama3" else m["content"] for m in chat if m["role"] == "assistant"]
        wanted = answers[-1:] if mask == "last" else answers
        learnt = row["labels"][row["labels"] != -100]
        assert tokenizer.decode(learnt) == "".join(answer + end for answer in wanted)
        assert tokenizer.decode(row["input_ids"]) == engine.template.render(chat)  # type: ignore[union-attr]


def test_the_same_without_offsets(tokenizer: Any, chats: Any) -> None:
    """A tokenizer that gives ids only: boundaries are proved by encoding pieces or prefixes."""

    class IdsOnly:
        vocab_size = len(tokenizer)

        def encode(self, text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        def decode(self, ids: Any) -> str:
            return str(tokenizer.decode(ids))

    fast, plain = Encoder(tokenizer), Encoder(IdsOnly())
    for template in (CHATML, LLAMA3):
        engine = PromptEngine(tokenizer, chat_template=template)
        for chat in chats:
            text, spans = assistant_spans(Rendered(engine.template, {}).prompted, chat)  # type: ignore[arg-type]
            (a, b), (c, d) = encode_spans(fast, text, spans), encode_spans(plain, text, spans)
            assert a.tolist() == c.tolist()
            assert b.tolist() == d.tolist()


def test_a_token_across_the_boundary_is_split_or_refused(tokenizer: Any) -> None:
    template = {"prompt": "What is the capital: ", "response": "{a}"}  # ends in a blank that wants to join the answer
    whole = tokenizer.encode("What is the capital: Paris", add_special_tokens=False)
    row = PromptEngine(tokenizer, template, eos=False)({"a": "Paris"})
    assert row is not None
    assert tokenizer.decode(row["labels"][row["labels"] != -100]) == "Paris"
    prompt = tokenizer.encode("What is the capital: ", add_special_tokens=False)
    assert row["input_ids"].tolist()[: len(prompt)] == prompt  # what the model is given before it answers
    assert row["input_ids"].tolist() != whole
    with pytest.raises(RecordError, match="a token boundary where the trained text begins"):
        PromptEngine(tokenizer, template, eos=False, boundary="error")({"a": "Paris"})


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer: Any) -> None:
    """Earlier answers lose their first letter once there is a later turn: prefixes are not prefixes any more."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content[1:] if m.role == 'assistant' and not loop.last else m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = [
        {"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "bb"), ("user", "c"), ("assistant", "dd"))
    ]
    engine = PromptEngine(tokenizer, chat_template=source)
    with pytest.raises(RecordError) as caught:
        engine({"id": "x7", "messages": chat})
    assert "renders the beginning of a conversation as the beginning of the full text" in str(caught.value)
    assert "record with id='x7', message 1" in str(caught.value)
    assert "mask='last'" in str(caught.value)
    last = PromptEngine(tokenizer, chat_template=source, mask="last")({"messages": chat})
    assert last is not None
    assert tokenizer.decode(last["labels"][last["labels"] != -100]) == "dd<|im_end|>"


def test_a_header_without_a_generation_prompt_is_refused(tokenizer: Any) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    with pytest.raises(RecordError, match="a chat template with a generation prompt"):
        PromptEngine(tokenizer, chat_template=source)({"messages": [{"role": "assistant", "content": "b"}]})
    # No header at all is fine: there is nothing to tell apart.
    bare = (
        "{% for m in messages %}{{ '[' + m.content + ']' if m.role == 'user' else m.content + eos_token }}{% endfor %}"
    )
    row = PromptEngine(tokenizer, chat_template=bare)(
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    )
    assert row is not None
    assert tokenizer.decode(row["labels"][row["labels"] != -100]) == "b<|endoftext|>"


def test_blank_space_is_kept_where_there_is_no_end_marker() -> None:
    def render(messages: Any, prompt: bool) -> str:
        return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + ("assistant: " if prompt else "")

    text, spans = assistant_spans(render, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert [text[a:b] for a, b in spans] == ["b\n"]


def test_special_tokens_of_a_library_that_reads_them_as_text() -> None:
    import tiktoken

    encoding = tiktoken.Encoding(
        "tiny",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|im_start|>": 256, "<|im_end|>": 257},
    )
    row = PromptEngine(encoding, chat_template=CHATML)(
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    )
    assert row is not None
    assert row["labels"][row["labels"] != -100].tolist() == [ord("b"), 257]
    assert np.count_nonzero(row["input_ids"] == 256) == 2


def test_no_assistant_turn_is_an_error(tokenizer: Any) -> None:
    with pytest.raises(RecordError, match="at least one assistant message"):
        PromptEngine(tokenizer, chat_template=CHATML)({"messages": [{"role": "user", "content": "a"}]})
