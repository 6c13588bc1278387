"""Messages as a template shows them: some templates only show text, some only lists of parts, and drop the other.

A template that drops an answer would train on its end marker alone. Costs a search in the rendered text; only where a
text is not found is the conversation rendered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.chat.chat_template import Message
from penstock.core.errors import LimitError, RecordError

Show = Callable[[Sequence[Message]], str]
_MARK = " penstock7f3a"  # text that no record has, to see whether a change shows


def shown(show: Show, messages: list[Message], trained: Sequence[int]) -> list[Message]:
    """The messages, in the other shape of content if the template drops text in this one.

    Raises `RecordError` if an answer among the messages `trained` is not shown in either.

    >>> def show(messages):
    ...     return "".join(part["text"] for m in messages if isinstance(m["content"], list) for part in m["content"])
    >>> shown(show, [{"role": "assistant", "content": "hi"}], [0])
    [{'role': 'assistant', 'content': [{'type': 'text', 'text': 'hi'}]}]
    """
    lost = dropped(show, messages)
    if not lost:
        return messages
    other = [{**message, "content": _reshaped(message.get("content"))} for message in messages]
    with suppress(RecordError, LimitError):
        if not dropped(show, other):
            return other
    answers = [at for at in lost if at in trained]
    if answers:
        content = messages[answers[0]].get("content")
        raise RecordError(
            "a chat template that shows the answer",
            got=f"one that renders the conversation without {str(content)[:60]!r}",
            where=f"message {answers[0]}",
            fix="use a template for text, or write the content as the template reads it: text, or a list of parts",
        )
    return messages


def dropped(show: Show, messages: Sequence[Message]) -> list[int]:
    """Questions and answers whose text has no effect on the rendered conversation."""
    text = show(messages)
    lost = []
    for at, message in enumerate(messages):
        if message["role"] in ("user", "assistant"):
            for part, with_mark in _texts(message.get("content")):
                if part.strip() and part.strip() not in text:
                    changed = [*messages[:at], {**message, "content": with_mark}, *messages[at + 1 :]]
                    if show(changed) == text:
                        lost.append(at)
                        break
    return lost


def _texts(content: Any) -> list[tuple[str, Any]]:
    """Each text of a content, and the content with that text changed."""
    if isinstance(content, str):
        return [(content, content + _MARK)]
    found = []
    for at, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            changed = {**part, "text": part["text"] + _MARK}
            found.append((part["text"], [*content[:at], changed, *content[at + 1 :]]))
    return found


def _reshaped(content: Any) -> Any:
    """Text as a list of one part, and such a list as text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict) and "text" in content[0]:
        return content[0]["text"]
    return content
