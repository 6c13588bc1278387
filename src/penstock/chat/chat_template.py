"""Chat records and chat templates: messages read from the usual shapes, rendered in the sandbox.

Costs one render of the template per assistant turn and one more, since spans are found from prefixes.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.chat.jinja import sandbox
from penstock.chat.jinja.sandbox import Blocks
from penstock.chat.text_template import field_key, field_text
from penstock.chat.tokenizer_template import own_templates, special_names
from penstock.core.errors import LimitError, RecordError, UsageError
from penstock.tokenizers import Tokenizer

Message = dict[str, Any]
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",  # the model writes it
    "observation": "tool",
}
_DEPTH = 32
# What a record brings itself, or the mask compiler sets.
_RECORDS_OWN = {"messages", "add_generation_prompt", "tools", "documents"}
# What transformers always passes, so that a template can ask `tools is none`.
_ALWAYS = {"tools": None, "documents": None}
_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
# Other names of what a model thought before it answered; transformers passes it under the first and the last.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain(value: Any, depth: int = 0) -> Any:
    """Plain JSON data, copied; anything else, or too deep a nest, is refused before a template sees it."""
    if value is None or type(value) in (str, bool, int, float):
        return value
    if depth < _DEPTH:
        if isinstance(value, Mapping) and all(type(key) is str for key in value):
            return {key: plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item, depth + 1) for item in value]
    raise RecordError(
        f"messages made of text, numbers, lists and dicts, at most {_DEPTH} deep",
        got=f"a {type(value).__name__}",
        fix="turn the message into plain JSON data",
    )


class Conversation(NamedTuple):
    """A record's messages, how many of them are a prompt of their own, and the record's keys they come from."""

    messages: list[Message]
    prompt_turns: int
    keys: set[str]


def conversation_of(record: Mapping[str, Any], system: str | None = None) -> Conversation:
    """What a record says: `messages`, `conversations`, a `prompt` and `completion` of messages, or fields of text.

    >>> conversation_of({"conversations": [{"from": "human", "value": "hi"}]}).messages
    [{'role': 'user', 'content': 'hi'}]
    >>> conversation_of({"prompt": [{"role": "user", "content": "hi"}], "completion": "yes?"}).prompt_turns
    1
    """
    keys = {"messages", "conversations", "tools", "documents", "chat_template_kwargs"}
    turns = next((record[key] for key in ("messages", "conversations") if record.get(key) is not None), None)
    asked: list[Any] = []
    if turns is None and isinstance(record.get("prompt"), list | tuple):
        asked, turns = list(record["prompt"]), record.get("completion")
        turns = [{"role": "assistant", "content": turns}] if isinstance(turns, str) else turns
        keys |= {"prompt", "completion"}
    elif turns is None:
        text, more = field_text(record, "instruction"), record.get("input") or record.get("context")
        turns = [
            {"role": "user", "content": f"{text}\n\n{more}" if more else text},
            {"role": "assistant", "content": field_text(record, "output")},
        ]
        keys |= {"input", "context", *(field_key(record, name) or name for name in ("instruction", "output"))}
    if not isinstance(turns, list | tuple) or not turns:
        raise RecordError("a list of messages, at least one", got=repr(turns)[:80], fix="repair the record")
    out = [_message(plain(message), number) for number, message in enumerate([*asked, *turns])]
    if system is not None and out[0]["role"] != "system":
        out.insert(0, {"role": "system", "content": system})
    return Conversation(out, len(out) - len(turns) if asked else 0, keys)


def record_variables(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record brings beside its messages: `tools`, `documents`, and `chat_template_kwargs` as TRL reads them.

    Tools may be a list of dicts or that list as JSON text.

    >>> record_variables({"tools": [], "chat_template_kwargs": {"enable_thinking": False}})
    {'enable_thinking': False, 'tools': []}
    """
    more = record.get("chat_template_kwargs")
    if more is not None and (not isinstance(more, Mapping) or _RECORDS_OWN & more.keys()):
        raise RecordError(
            f"`chat_template_kwargs` to be variables other than {', '.join(sorted(_RECORDS_OWN))}",
            got=repr(more)[:80],
            fix="repair the record",
        )
    extra = {name: plain(record[name]) for name in ("tools", "documents") if record.get(name) is not None}
    if isinstance(extra.get("tools"), str):
        with suppress(ValueError, RecursionError):
            extra["tools"] = plain(json.loads(extra["tools"]))
        if extra["tools"] is None:
            del extra["tools"]
    for name, value in extra.items():
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise RecordError(f"`{name}` as a list of dicts", got=repr(value)[:80], fix="repair the record")
    return {**plain(more or {}), **extra}


def _message(message: Any, number: int) -> Message:
    if isinstance(message, dict):
        out: Message = message
        if "role" not in out and "from" in out:
            rest = {key: value for key, value in out.items() if key not in ("from", "value")}
            out = {"role": _ROLES.get(str(out["from"]).lower(), out["from"]), "content": out.get("value"), **rest}
        if isinstance(out.get("role"), str):
            reasoning = next((out[name] for name in _REASONING if out.get(name) is not None), None)
            if reasoning is not None:
                out = {"thinking": reasoning, **out, "reasoning_content": reasoning}
            return out
    raise RecordError(
        "messages with 'role' and 'content' (or 'from' and 'value')",
        got=repr(message)[:120],
        where=f"message {number}",
        fix="repair the record",
    )


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template with what it finds beside a record: special tokens by name, and the user's variables.

    `date` is what `strftime_now` writes; without it a template that calls it is an error. `for_tools` is the template
    of records with tools, where a tokenizer has one of its own for them. Plain data: it can be pickled.
    """

    source: str
    special_names: Mapping[str, Any] = field(default_factory=dict)
    date: datetime.date | None = None
    for_tools: ChatTemplate | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, str):
            raise UsageError("a chat template as text", got=type(self.source).__name__, fix="pass Jinja source")
        sandbox.compile_template(self.source, self.date)

    def render(
        self, messages: Sequence[Message], *, prompt: bool = False, extra: Mapping[str, Any] | None = None
    ) -> str:
        """The conversation as text; with `prompt`, also the beginning of the assistant's next turn.

        >>> template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
        >>> template.render([{"role": "user", "content": "a"}])
        '[a]'
        """
        return self.marked(messages, prompt=prompt, extra=extra)[0]

    def marked(
        self, messages: Sequence[Message], *, prompt: bool = False, extra: Mapping[str, Any] | None = None
    ) -> tuple[str, Blocks]:
        """The conversation as text, and where the template's `{% generation %}` blocks are in it."""
        own = {"messages": list(messages), "add_generation_prompt": prompt}
        return sandbox.render_marked(self.source, {**_ALWAYS, **self.special_names, **(extra or {}), **own}, self.date)

    def of(self, extra: Mapping[str, Any]) -> ChatTemplate:
        """The template of a record with these values."""
        return self if self.for_tools is None or extra.get("tools") is None else self.for_tools

    @property
    def tagged(self) -> bool:
        """Whether the template marks with `{% generation %}` what a model is trained on."""
        return _TAG.search(self.source) is not None


class Rendered:
    """A template with a record's own values (tools, documents) bound; the last conversation is rendered once."""

    def __init__(self, template: ChatTemplate, extra: Mapping[str, Any]) -> None:
        self.template, self.extra = template, extra
        self._messages: Sequence[Message] | None = None
        self._last: tuple[str, Blocks] = "", []

    def marked(self, messages: Sequence[Message]) -> tuple[str, Blocks]:
        """The text of a conversation and where its generation blocks are."""
        if messages is not self._messages:
            self._last = self.template.marked(messages, extra=self.extra)
            self._messages = messages
        return self._last

    def text(self, messages: Sequence[Message]) -> str:
        """The text of a conversation."""
        return self.marked(messages)[0]

    def prompted(self, messages: Sequence[Message], prompt: bool) -> str:
        """The text of a conversation, with `prompt` also the beginning of the assistant's next turn."""
        return self.template.render(messages, prompt=True, extra=self.extra) if prompt else self.text(messages)


def chat_template_of(
    original: Any, tokenizer: Tokenizer, source: str | None = None, variables: Mapping[str, Any] | None = None,
    date: Any = None,
) -> ChatTemplate:  # fmt: skip
    """The template in `source`, else the tokenizer's own, with the tokenizer's special tokens and the user's variables.

    `original` is the tokenizer as the user passed it, `tokenizer` what it became.
    """
    sources = own_templates(original) if source is None else {"default": source}
    if sources.get("default") is None:
        raise UsageError(
            "a chat template",
            got=f"{original!r} without one"
            if isinstance(original, str)
            else f"a {type(original).__name__} without one",
            fix="pass chat_template=... with the Jinja source the model was trained with",
        )
    bound: dict[str, Any] = {
        "special_names": {**special_names(original, tokenizer), **_checked(variables)},
        "date": date_of(date),
    }
    other = sources.get("tool_use")
    for_tools = None if other is None else ChatTemplate(other, **bound)
    template = ChatTemplate(sources["default"], for_tools=for_tools, **bound)
    with suppress(RecordError, LimitError):  # a template may refuse this conversation; it may not lack a token
        template.render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    return template


def date_of(value: Any) -> datetime.date | None:
    """A date from a date, or from text such as "2024-07-26".

    >>> date_of("2024-07-26")
    datetime.date(2024, 7, 26)
    """
    if value is None or isinstance(value, datetime.date):
        return value
    with suppress(ValueError, TypeError):
        return datetime.date.fromisoformat(value)
    raise UsageError("`date` as a date", got=repr(value)[:80], fix='date="2024-07-26", or a datetime.date')


def _checked(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    if variables is None:
        return {}
    fix = 'for example variables={"enable_thinking": False}'
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise UsageError("`variables` to be a dict of names and values", got=repr(variables)[:80], fix=fix)
    taken = sorted(_RECORDS_OWN & variables.keys())
    if taken:
        raise UsageError(
            f"variables with names other than {', '.join(sorted(_RECORDS_OWN))}", got=", ".join(taken), fix=fix
        )
    try:
        out: dict[str, Any] = plain(variables)
    except RecordError as error:
        raise UsageError("variables of plain JSON data", got=error.got, fix=fix) from error
    return out
