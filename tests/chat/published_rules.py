"""Which tokens two published trainers learn, each rule said once, in our own words and code, and without our mask code.

TRL up to 0.19 finds a marker of the answer among the ids (and one of the question); TRL 1.x learns what comes behind
the tokens of the prompt, or what stands between generation tags. torchtune encodes message by message, and a message
is learnt or not as a whole: with its header and its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

Ids = list[int]
Learnt = list[bool]
Marked = tuple[Ids, Learnt]
Encode = Callable[[str], Ids]
Messages = Sequence[dict[str, str]]
Strategy = Literal["all", "assistant", "last"]


def _starts(ids: Ids, marker: Ids) -> list[int]:
    return [i for i in range(len(ids)) if ids[i : i + len(marker)] == marker]


def behind_last_marker(ids: Ids, answer: Ids) -> Learnt:
    """TRL's completion-only collator with a response template: what follows its last occurrence; nothing if none."""
    found = _starts(ids, answer)
    first = found[-1] + len(answer) if found else len(ids)
    return [i >= first for i in range(len(ids))]


def between_markers(ids: Ids, answer: Ids, question: Ids) -> Learnt:
    """The same collator with an instruction template too: from behind each answer's marker to the next question's."""
    begins = {at + len(answer) for at in _starts(ids, answer)}
    ends = set(_starts(ids, question))
    learnt, on = [], False
    for i in range(len(ids)):
        on = (on or i in begins) and i not in ends
        learnt.append(on)
    return learnt


def behind_prompt(prompt: Ids, whole: Ids) -> Learnt:
    """TRL's completion-only loss: as many tokens as the prompt alone has are not learnt, all others are."""
    return [i >= len(prompt) for i in range(len(whole))]


def cut(marked: Marked, length: int, keep: Literal["start", "end"]) -> Marked | None:
    """TRL's truncation: ids and labels cut alike; a record with nothing left to learn is dropped."""
    part = slice(length) if keep == "start" else slice(-length, None)
    ids, learnt = marked[0][part], marked[1][part]
    return (ids, learnt) if any(learnt) else None


def learnt_messages(messages: Messages, strategy: Strategy) -> Learnt:
    """torchtune's masking strategies: a system message never; then all, the assistant's, or the assistant's last."""
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    chosen = {
        "all": {i for i, message in enumerate(messages) if message["role"] != "system"},
        "assistant": set(answers),
        "last": set(answers[-1:]),
    }[strategy]
    return [i in chosen for i in range(len(messages))]


def llama3_messages(encode: Encode, messages: Messages, strategy: Strategy) -> Marked:
    """torchtune's Llama-3 tokenizer: header, stripped body and end marker share a flag; bos and eos are not learnt."""
    ids, learnt = encode("<|begin_of_text|>"), [False]
    for message, flag in zip(messages, learnt_messages(messages, strategy), strict=True):
        head = [*encode("<|start_header_id|>"), *encode(message["role"]), *encode("<|end_header_id|>"), *encode("\n\n")]
        made = [*head, *encode(message["content"].strip()), *encode("<|eot_id|>")]
        ids, learnt = ids + made, learnt + [flag] * len(made)
    return [*ids, *encode("<|endoftext|>")], [*learnt, False]


def chatml_messages(encode: Encode, messages: Messages, strategy: Strategy) -> Marked:
    """torchtune's ChatML template with a plain tokenizer: bos and eos around each turn, learnt as the message beside.

    Header, content and end are encoded apart, each without spaces at its end.
    """
    ids: Ids = []
    learnt: Learnt = []
    opens = True
    for message, flag in zip(messages, learnt_messages(messages, strategy), strict=True):
        made = encode("<|begin_of_text|>") if opens else []
        for piece in (f"<|im_start|>{message['role']}\n", message["content"], "<|im_end|>\n"):
            made = made + encode(piece.rstrip(" "))
        opens = message["role"] == "assistant"
        made = made + (encode("<|endoftext|>") if opens else [])
        ids, learnt = ids + made, learnt + [flag] * len(made)
    return ids, learnt


def qwen2_messages(encode: Encode, messages: Messages, strategy: Strategy) -> Marked:
    """torchtune's Qwen-2 tokenizer: an answer that ends the conversation has eos in the place of its end marker."""
    ids: Ids = []
    learnt: Learnt = []
    for i, (message, flag) in enumerate(zip(messages, learnt_messages(messages, strategy), strict=True)):
        made = [*encode("<|im_start|>"), *encode(f"{message['role']}\n"), *encode(message["content"])]
        if message["role"] != "assistant" or i < len(messages) - 1:
            made += [*encode("<|im_end|>"), *encode("\n")]
        ids, learnt = ids + made, learnt + [flag] * len(made)
    return [*ids, *encode("<|endoftext|>")], [*learnt, learnt[-1]]


def rendered_messages(
    encode: Encode, render: Callable[[Messages], str], messages: Messages, strategy: Strategy
) -> Marked:
    """torchtune's tokenizer for any chat template: a message is the tokens it adds to the rendering before it."""
    ids: Ids = []
    learnt: Learnt = []
    for i, flag in enumerate(learnt_messages(messages, strategy)):
        made = encode(render(messages[: i + 1]))[len(ids) :]
        ids, learnt = ids + made, learnt + [flag] * len(made)
    return ids, learnt


def alpaca_messages(encode: Encode, prompt: str, output: str, strategy: Strategy) -> Marked:
    """torchtune's Alpaca messages with a plain tokenizer: bos has the prompt's flag, eos the answer's."""
    asked = [*encode("<|begin_of_text|>"), *encode(prompt.rstrip(" "))]
    answered = [*encode(output.rstrip(" ")), *encode("<|endoftext|>")]
    return asked + answered, [strategy == "all"] * len(asked) + [True] * len(answered)
