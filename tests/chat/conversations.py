"""Conversations drawn from a seed: tool calls, thoughts, odd texts, content as parts, tools, documents, variables."""

from __future__ import annotations

import random
from typing import Any

TEXTS = (
    "yes", " no ", "two\n\nlines", "a\r\nb\r\n\r\nc", "日本 🙂", "", "  lead", "trail  \n", "a\u2028b\x0bc", "t\tu",
    "<think>\nhm\n</think>\n\nfine", '{"k": 1}', "{{ x }} {% y %}", "banana aaa", "\n", "ée\u0301", "<b>&amp;</b>",
    "ß İ ǆ", "[INST] x [/INST]", "a" * 50,
)  # fmt: skip
PROPERTIES = {
    "city": {"type": "string", "description": " the city "},
    "unit": {"type": "string", "enum": ["c", "f"], "description": "u", "default": "c"},
    "n": {"type": ["integer", "null"], "description": "n"},
    "l": {"type": "array", "items": {"type": "string"}, "description": "l"},
    "o": {"type": "object", "additionalProperties": {"type": "number"}, "description": "o"},
}
WEATHER = {
    "name": "get_weather", "description": 'Weather <now> & "then" é', "return": {"type": "string"},
    "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
}  # fmt: skip
SMALL = {"name": "f", "description": "d\nline", "parameters": {"type": "object", "properties": {}}}
TOOLS: tuple[list[Any], ...] = (
    [{"type": "function", "function": WEATHER}],
    [{"type": "function", "function": f} for f in (SMALL, WEATHER)],
    [],
)
DOCUMENTS: tuple[list[Any], ...] = ([{"title": "T", "text": "doc one"}, {"title": "U", "text": "two\nlines é"}], [])
VARIABLES = (
    {"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "low"}, {"custom_tools": None},
    {"controls": {"length": "short"}}, {"builtin_tools": ["code_interpreter", "b"]}, {"tools_in_user_message": False},
)  # fmt: skip
MORE: tuple[dict[str, Any], ...] = ({"name": "Bob"}, {"tool_calls": None}, {"tool_calls": []}, {"weight": 0}, {}, {})


def conversation(seed: int) -> dict[str, Any]:
    """A record with messages, and often tools, documents or variables."""
    draw = random.Random(seed)
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": draw.choice(TEXTS)})
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": draw.choice(TEXTS)})
        if draw.random() < 0.3:
            messages += _called(draw)
        answer = {"role": "assistant", "content": draw.choice(TEXTS), **draw.choice(MORE)}
        for name in ("reasoning_content", "thinking", "reasoning"):
            if draw.random() < 0.2:
                answer[name] = draw.choice(TEXTS)
        messages.append(answer)
    if draw.random() < 0.15:
        for message in messages:
            if isinstance(message.get("content"), str):
                message["content"] = [{"type": "text", "text": message["content"]}]
    record: dict[str, Any] = {"messages": messages}
    for name, values in (("tools", TOOLS), ("documents", DOCUMENTS), ("chat_template_kwargs", VARIABLES)):
        if draw.random() < 0.4:
            record[name] = draw.choice(values)
    return record


def _called(draw: random.Random) -> list[dict[str, Any]]:
    """A turn with tool calls, and what the tools answer."""
    arguments: tuple[Any, ...] = ({"city": "Zürich", "n": None, "f": 1.5, "t": True}, '{"city": "x"}', {})
    calls = [
        {"type": "function", "id": draw.choice(("abcdefghi", "x1")),
         "function": {"name": "get_weather", "arguments": draw.choice(arguments)}}
        for _ in range(draw.choice((1, 1, 2)))
    ]  # fmt: skip
    asked = {"role": "assistant", "content": draw.choice((None, "", "let me see")), "tool_calls": calls}
    answers = [{"role": "tool", "content": draw.choice(TEXTS), "tool_call_id": call["id"]} for call in calls]
    return [asked, *answers]
