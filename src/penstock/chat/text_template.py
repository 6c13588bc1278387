"""Text templates: a record's fields put into a prompt and a response.

A template is a format string with plain `{field}` places (`{{` and `}}` for braces), or one for each of prompt and
response. Nothing else of Python's format language is understood, so a template cannot reach into objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from penstock.core.errors import RecordError, UsageError

Parts = tuple[tuple[str, str | None], ...]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "instruction": ("prompt", "question", "query"),
    "input": ("context",),
    "output": ("response", "completion", "answer"),
    "response": ("output", "completion", "answer"),
}

_ASK = "Below is an instruction that describes a task"
_END = "Write a response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n"
ALPACA_INPUT = (
    f"{_ASK}, paired with an input that provides further context. {_END}### Input:\n{{input}}\n\n### Response:\n"
)
ALPACA = f"{_ASK}. {_END}### Response:\n"


def parse(text: str) -> Parts:
    """A format string as pairs of literal text and the field that follows it.

    >>> parse("Q: {question} {{ok}}")
    (('Q: ', 'question'), (' {', None), ('ok}', None))
    """
    try:
        found = list(Formatter().parse(text))
    except ValueError as error:
        raise UsageError(
            "a format string with {field} places", got=f"{text[:80]!r}: {error}", fix="write {{ and }} for plain braces"
        ) from error
    parts: list[tuple[str, str | None]] = []
    for literal, name, spec, conversion in found:
        if name is not None and (not name.isidentifier() or spec or conversion):
            raise UsageError(
                "plain field names in braces, such as {question}",
                got="{" + name + ("!" + conversion if conversion else "") + (":" + spec if spec else "") + "}",
                fix="name a field of the record; prepare values before they reach the template",
            )
        parts.append((literal, name))
    return tuple(parts)


def field_key(record: Mapping[str, Any], name: str) -> str | None:
    """The key under which a record has a field: its name, or one people use for the same thing.

    >>> field_key({"completion": "x", "output": None}, "output")
    'completion'
    """
    return next((key for key in (name, *ALIASES.get(name, ())) if record.get(key) is not None), None)


def field_text(record: Mapping[str, Any], name: str) -> str:
    """A record's field as text, under its name or one people use for the same thing."""
    key = field_key(record, name)
    if key is None:
        if name in record:
            raise RecordError(
                f"text in the field {name!r}", got="null", fix="repair the record, or leave such ones out"
            )
        raise RecordError(
            f"a record with the field {name!r}",
            got=f"fields {', '.join(map(str, record)) or 'none'}",
            fix="name the record's own fields in the template, or rename them in the data",
        )
    value = record[key]
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise RecordError(
        f"text in the field {key!r}", got=type(value).__name__, fix="turn the field into text before the prompt"
    )


def fill(parts: Parts, record: Mapping[str, Any]) -> str:
    """The text of a parsed format string for a record.

    >>> fill(parse("Q: {question}"), {"question": "why?"})
    'Q: why?'
    """
    return "".join(literal + (field_text(record, name) if name is not None else "") for literal, name in parts)


@dataclass(frozen=True)
class TextTemplate:
    """What comes before the response, and the response. `prompt_empty` is used where the field `input` is empty."""

    prompt: Parts
    response: Parts
    prompt_empty: Parts | None = None

    def render(self, record: Mapping[str, Any]) -> tuple[str, str]:
        """Prompt and response of a record.

        >>> make_template("{question} => {answer}").render({"question": "1+1", "answer": 2})
        ('1+1 => ', '2')
        """
        return fill(self._prompt(record), record), fill(self.response, record)

    def frame(self, record: Mapping[str, Any]) -> str:
        """The template's own text, with a null character where each field goes.

        >>> make_template("{question} => {answer}").frame({})
        '\\x00 => \\x00'
        """
        parts = (*self._prompt(record), *self.response)
        return "".join(literal + ("" if name is None else "\0") for literal, name in parts)

    def keys(self, record: Mapping[str, Any]) -> dict[str, str]:
        """The record's keys the template reads, and the names it has for them."""
        every = (*self.prompt, *self.response, *(self.prompt_empty or ()))
        names = sorted({name for _, name in every if name is not None})
        return {field_key(record, name) or name: name for name in names}

    def _prompt(self, record: Mapping[str, Any]) -> Parts:
        key = field_key(record, "input")
        if self.prompt_empty is not None and not (key and str(record[key]).strip()):
            return self.prompt_empty
        return self.prompt


def make_template(template: str | Mapping[str, str]) -> TextTemplate:
    """A template from `"alpaca"`, from one format string or from `{"prompt": ..., "response": ...}`.

    In one format string the last field, and what follows it, is the response; everything before it is the prompt.
    """
    if template == "alpaca":
        return TextTemplate(parse(ALPACA_INPUT), parse("{output}"), parse(ALPACA))
    if isinstance(template, Mapping):
        if set(template) != {"prompt", "response"}:
            raise UsageError(
                "a template with the keys 'prompt' and 'response'",
                got=", ".join(map(repr, template)) or "none",
                fix='{"prompt": "Q: {question}\\nA: ", "response": "{answer}"}',
            )
        made = TextTemplate(parse(template["prompt"]), parse(template["response"]))
    else:
        parts = parse(template)
        places = [i for i, (_, name) in enumerate(parts) if name is not None]
        if not places:
            raise UsageError(
                "'alpaca', 'chat', or a format string with a {field} for the response",
                got=repr(template[:80]),
                fix='for example "Q: {question}\\nA: {answer}"',
            )
        last = places[-1]
        literal, name = parts[last]
        made = TextTemplate((*parts[:last], (literal, None)), (("", name), *parts[last + 1 :]))
    if all(name is None for _, name in made.response):
        raise UsageError("a response with a {field}", got="constant text", fix="name the field that holds the answer")
    return made
