"""A small byte-level BPE with the special tokens of three chat formats, and chat templates written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
CORPUS = [
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.",
    "### Instruction: ### Response: ### Input: assistant user system answer question the of and to a in is it yes no",
    "  two spaces\n\nnew lines\n\n\nthree\tand a tab. What is the capital of France? The capital is Paris.",
] * 4

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
CHATML_TAGGED = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA3 = """
{%- for message in messages %}
    {%- if loop.first %}{{- bos_token }}{%- endif %}
    {%- set head = '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' %}
    {{- head + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA3_TAGGED = """
{%- for message in messages %}
    {%- if loop.first %}{{- bos_token }}{%- endif %}
    {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}
    {%- else %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
"""
TEMPLATES = {"chatml": (CHATML, CHATML_TAGGED), "llama3": (LLAMA3, LLAMA3_TAGGED)}


def make_backend() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.fixture(scope="session")
def backend() -> Tokenizer:
    return make_backend()


@pytest.fixture(scope="session")
def tokenizer(backend: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", bos_token="<|begin_of_text|>", pad_token="<|endoftext|>"
    )


@pytest.fixture(scope="session")
def chats() -> list[list[dict[str, str]]]:
    """Conversations of one to four turns, with blanks, line breaks and letters that want care at boundaries."""
    words = [
        "yes",
        "no, it is",
        "  Paris ",
        "two\n\nlines",
        "naïve café",
        "日本",
        "a",
        "### Response:",
        "tab\there",
        "🙂🙂 ok",
    ]
    out = []
    for i in range(30):
        chat = [{"role": "system", "content": words[i % 7] + "."}] if i % 3 == 0 else []
        for turn in range(1 + i % 4):
            chat.append({"role": "user", "content": words[(i + turn) % 10] + " what?"})
            chat.append({"role": "assistant", "content": words[(3 * i + 7 * turn) % 10]})
        out.append(chat)
    return out
