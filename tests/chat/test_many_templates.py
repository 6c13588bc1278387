"""Templates as model families publish them, on drawn conversations: the text, ids and masks of transformers."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from penstock.chat.chat_template import conversation_of, record_variables
from penstock.chat.engine import PromptEngine
from penstock.core.errors import PenstockError

from .conftest import make_backend
from .conversations import conversation
from .families import MARKS

TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
SEEDS = range(25)
TODAY = datetime.date.today()


@pytest.fixture(scope="module")
def words() -> Any:
    backend = make_backend()
    backend.add_special_tokens(MARKS)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


def theirs(words: Any, record: dict[str, Any], **options: Any) -> Any:
    """What transformers makes of a record; None where it or the template refuses it."""
    record = json.loads(json.dumps(record))
    more = record.get("chat_template_kwargs", {}) | {k: record[k] for k in ("tools", "documents") if k in record}
    try:
        return words.apply_chat_template(record["messages"], **more, **options)
    except Exception:
        return None


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_text_is_that_of_transformers(path: Path, words: Any) -> None:
    source = path.read_text(encoding="utf-8")
    template = PromptEngine(words, chat_template=source, mask="none", date=TODAY).template
    read = 0
    for seed in SEEDS:
        record = conversation(seed)
        messages = conversation_of(record).messages
        for prompt in (False, True):
            expected = theirs(words, record, chat_template=source, tokenize=False, add_generation_prompt=prompt)
            try:
                text = template.render(messages, prompt=prompt, extra=record_variables(record))
            except PenstockError:
                text = None
            assert text == expected, seed
            read += text is not None
    assert read >= 3


@pytest.mark.parametrize("path", [p for p in TEMPLATES if "generation %}" in p.read_text()], ids=lambda path: path.stem)
def test_ids_and_masks_are_those_of_transformers(path: Path, words: Any) -> None:
    source = path.read_text(encoding="utf-8")
    engine = PromptEngine(words, chat_template=source, mask="assistant", date=TODAY)
    options = {"chat_template": source, "return_dict": True, "return_assistant_tokens_mask": True}
    read = 0
    for seed in SEEDS:
        record = conversation(seed)
        expected = theirs(words, record, **options)
        if any(isinstance(message.get("content"), list) for message in record["messages"]):
            continue  # passed in the shape that the template shows
        try:
            row = engine(record)
        except PenstockError:
            continue
        assert row is not None
        assert row["input_ids"].tolist() == expected["input_ids"], seed
        assert (row["labels"] != -100).astype(int).tolist() == expected["assistant_masks"], seed
        read += 1
    assert read >= 3
