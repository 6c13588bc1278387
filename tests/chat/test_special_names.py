"""A template finds the tokenizer's special tokens and its own text, whatever the tokenizer came as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import PromptEngine, UsageError

from .conftest import CHATML, LLAMA3

CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(path)
    return path


def learnt(tokenizer: Any, row: Any) -> str:
    return str(tokenizer.decode(row["labels"][row["labels"] != -100]))


@pytest.mark.parametrize("kind", ["transformers", "tokenizers", "folder", "file"])
def test_end_and_beginning_are_written_for_every_kind_of_tokenizer(kind: str, tokenizer: Any, folder: Path) -> None:
    given = {
        "transformers": tokenizer,
        "tokenizers": tokenizer.backend_tokenizer,
        "folder": str(folder),
        "file": folder / "tokenizer.json",
    }[kind]
    row = PromptEngine(given, chat_template=ZEPHYR)(CHAT)
    assert learnt(tokenizer, row) == "b<|endoftext|>"
    begun = PromptEngine(given, chat_template=LLAMA3)(CHAT)
    assert begun is not None
    assert tokenizer.decode(begun["input_ids"]).startswith("<|begin_of_text|><|start_header_id|>user")


def test_a_folder_says_which_token_ends_a_text(tokenizer: Any, folder: Path, tmp_path: Path) -> None:
    """Not the name everybody uses, but the one in the folder's own configuration."""
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|eot_id|>"}, "unk_token": "<|im_end|>"})
    )
    assert learnt(tokenizer, PromptEngine(tmp_path, chat_template=ZEPHYR)(CHAT)) == "b<|eot_id|>"
    unknown = ZEPHYR.replace("eos_token", "unk_token")
    assert learnt(tokenizer, PromptEngine(str(tmp_path), chat_template=unknown)(CHAT)) == "b<|im_end|>"


@pytest.mark.parametrize(
    "written", ["{{ eos_token }}", "{{ '!' ~ eos_token }}", "{{ '!' + eos_token }}", "{{ eos_token | trim }}"]
)
def test_a_token_without_a_value_is_not_written_as_nothing(written: str) -> None:
    with pytest.raises(UsageError, match="a value for `eos_token`") as caught:
        PromptEngine("bytes", chat_template=ZEPHYR.replace("{{ eos_token }}", written))
    assert "variables={'eos_token': ...}" in caught.value.fix


def test_a_token_behind_a_condition_is_found_when_it_is_met() -> None:
    source = ZEPHYR.replace("{{ eos_token }}", "{{ eos_token if m.content == 'odd' else '.' }}")
    engine = PromptEngine("bytes", chat_template=source, on_error="skip")
    assert engine(CHAT) is not None
    with pytest.raises(UsageError, match="a value for `eos_token`"):  # the template's fault, so not skipped
        engine({"messages": [*CHAT["messages"][:1], {"role": "assistant", "content": "odd"}]})
    asked = ZEPHYR.replace("{{ eos_token }}", "{% if eos_token is defined and eos_token %}{{ eos_token }}{% endif %}")
    assert PromptEngine("bytes", chat_template=asked)(CHAT) is not None


def test_variables_reach_the_template(tokenizer: Any) -> None:
    source = "{{ date_string }}{% if enable_thinking is false %}/no{% endif %}" + ZEPHYR
    engine = PromptEngine(tokenizer, chat_template=source, variables={"date_string": "1 May", "enable_thinking": False})
    row = engine(CHAT)
    assert row is not None
    assert tokenizer.decode(row["input_ids"]).startswith("1 May/no<|user|>")
    ends = PromptEngine("bytes", chat_template=ZEPHYR, variables={"eos_token": "</s>"})(CHAT)
    assert ends is not None
    assert bytes(ends["labels"][ends["labels"] != -100].tolist()) == b"b</s>"
    for wrong, text in (
        ({"messages": []}, "names other than add_gen"),
        ({"x": object()}, "plain JSON"),
        ([1], "a dict of names"),
    ):
        with pytest.raises(UsageError, match=text):
            PromptEngine(tokenizer, chat_template=source, variables=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a chat template"):
        PromptEngine(tokenizer, "alpaca", variables={"x": 1})


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "list", "none"])
@pytest.mark.parametrize("given", ["folder", "file"])
def test_a_folders_own_template(place: str, given: str, folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    if place == "chat_template.jinja":
        (tmp_path / place).write_text(CHATML)
    elif place != "none":
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
        config = {"chat_template": named if place == "list" else CHATML}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    path = tmp_path if given == "folder" else tmp_path / "tokenizer.json"
    if place == "none":
        with pytest.raises(UsageError, match="a chat template\n  got:   .* without one"):
            PromptEngine(path, "chat")
        return
    row, want = PromptEngine(path, "chat")(CHAT), PromptEngine(tokenizer, chat_template=CHATML)(CHAT)
    assert row is not None
    assert want is not None
    assert row["input_ids"].tolist() == want["input_ids"].tolist()


def test_the_default_among_several_templates(tokenizer: Any) -> None:
    try:
        tokenizer.chat_template = {"tool_use": "x", "default": CHATML}
        row = PromptEngine(tokenizer, "chat")(CHAT)
    finally:
        tokenizer.chat_template = None
    assert learnt(tokenizer, row) == "b<|im_end|>"
