"""Added tokens with `special: false` are ordinary text: runs of blanks, `<think>`. Special ones are still refused."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.core.errors import RecordError


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import AddedToken

    made = ps.MicroTransformerTokenizer()._backend
    made.add_tokens([AddedToken(" " * n, normalized=False) for n in range(2, 9)])
    made.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    made.add_special_tokens(["<|im_end|>"])
    return made


@pytest.mark.parametrize("answer", ["def f():\n    return  1", "<think>hm</think>yes", "a  b"])
def test_they_are_text_that_a_record_may_hold(answer: str, tokenizer: Any) -> None:
    engine = ps.PromptEngine(tokenizer, "alpaca")
    row = engine({"instruction": "write  it", "output": answer})
    assert row is not None
    trained = row["input_ids"][row["labels"] != -100]
    assert tokenizer.decode(trained[:-1].tolist()) == answer
    chat = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}" + (
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    row = ps.PromptEngine(tokenizer, chat_template=chat)({"instruction": "write  it", "output": answer})
    assert row is not None
    decoded = tokenizer.decode(row["input_ids"][row["labels"] != -100].tolist(), skip_special_tokens=False)
    assert decoded == f"{answer}<|im_end|>"


def test_special_ones_are_refused_still(tokenizer: Any) -> None:
    with pytest.raises(RecordError, match=r"'<\|im_end\|>' spelled out"):
        ps.PromptEngine(tokenizer, "alpaca")({"instruction": "x", "output": "a<|im_end|>"})
