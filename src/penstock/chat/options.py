"""Checks of `PromptEngine`'s arguments, each answered with what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.collate.schema import OutputSchema
from penstock.core.argument_kinds import is_integer
from penstock.core.errors import UsageError

CHOICES: dict[str, tuple[str, ...]] = {
    "mask": ("prompt", "assistant", "last", "none"),
    "truncation": ("error", "right", "left"),
    "on_error": ("raise", "skip"),
    "boundary": ("split", "error"),
    "specials": ("refuse", "allow"),
    "turn": ("answer", "tail", "whole"),
}


def check_choices(choices: Mapping[str, Any]) -> None:
    """Each value is one of its option's choices.

    >>> check_choices({"mask": "last", "turn": "answer"})
    """
    for name, value in choices.items():
        if value not in CHOICES[name]:
            raise UsageError(
                f"`{name}` to be one of {', '.join(CHOICES[name])}", got=repr(value)[:80], fix="use one of these"
            )


def check_types(template: Any, system: Any, schema: Any, max_length: Any) -> None:
    """The other arguments are of the kind they should be."""
    texts = template.values() if isinstance(template, Mapping) else [template]
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(
            "`template` as text, or as a dict of texts",
            got=repr(template)[:80],
            fix="use 'alpaca', 'chat', or a format string such as \"Q: {question}\\nA: {answer}\"",
        )
    if system is not None and not isinstance(system, str):
        raise UsageError("`system` as text", got=repr(system)[:80], fix="pass text, or leave it out")
    if schema is not None and not isinstance(schema, OutputSchema):
        raise UsageError(
            "`schema` to be an OutputSchema",
            got=f"a {type(schema).__name__}",
            fix='wrap the fields: OutputSchema({"input_ids": "int32"})',
        )
    if max_length is not None and not (is_integer(max_length) and max_length >= 1):
        raise UsageError(
            "`max_length` to be 1 or more, or None", got=repr(max_length)[:80], fix="use a positive whole number"
        )


def check_ends(eos: Any, bos: Any, chat: bool, vocab_size: int) -> None:
    """`eos` and `bos` fit the tokenizer, and are left alone where a chat template writes them."""
    if not (eos is None or isinstance(eos, bool) or (is_integer(eos) and 0 <= eos < vocab_size)):
        raise UsageError(
            f"`eos` to be True, False or a token id below {vocab_size}",
            got=repr(eos)[:80],
            fix="pass the id of the end token, or True for the tokenizer's own",
        )
    if bos not in (None, True, False):
        raise UsageError("`bos` to be True, False or None", got=repr(bos)[:80], fix="use one of these")
    for name, value in (("eos", eos), ("bos", bos)):
        if chat and value is not None and value is not False:
            raise UsageError(
                f"`{name}` with a text template",
                got=f"{name}={value!r} with a chat template, which writes its own",
                fix=f"leave `{name}` out, and change the chat template if its tokens are not the right ones",
            )
