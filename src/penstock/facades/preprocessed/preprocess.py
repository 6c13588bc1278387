"""Runs a prompt engine, or any function, on a record: the result is a row, the reason for a skip, or an error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from penstock.chat.engine import PromptEngine
from penstock.core import hashing
from penstock.core.errors import PenstockError, UsageError, UserCodeError
from penstock.core.function_id import code_id
from penstock.core.functions import function_name
from penstock.core.pickling import Portable
from penstock.preparation.prompts import spec_of


class Skip(NamedTuple):
    """Why a record has no row."""

    reason: str
    detail: str


class Preprocess(Portable):
    """A prompt engine or function with its skip policy. Called with a record, it returns a row or a `Skip`, or raises
    an error that names the record."""

    def __init__(self, engine: Callable[..., Any], skip_errors: bool) -> None:
        if not callable(engine):
            raise UsageError(
                "prompt_engine= a PromptEngine or a function from a record to a dict",
                got=repr(engine)[:80],
                fix="PromptEngine(tokenizer, template), or lambda record: {...}",
            )
        self.engine, self.skip_errors = engine, skip_errors
        # Computed now: the variables that a function closes over may change when it is called.
        self.identity = hashing.content_id([_identity(engine), str(bool(skip_errors))])

    @property
    def may_skip(self) -> bool:
        """Whether records may be skipped, as far as is known before they are read."""
        return self.skip_errors or not isinstance(self.engine, PromptEngine) or self.engine.on_error == "skip"

    def __call__(self, record: Any, name: Callable[[], str]) -> dict[str, Any] | Skip:
        try:
            made = self._made(record, name)
        except PenstockError as error:
            if not error.where:
                error.where = name()
            if not self.skip_errors:
                raise
            return Skip(error.expected, error.got)
        return self._reason(record) if made is None else made

    def _made(self, record: Any, name: Callable[[], str]) -> dict[str, Any] | None:
        if isinstance(record, PenstockError):
            raise record
        try:
            made = self.engine(record, where=name()) if isinstance(self.engine, PromptEngine) else self.engine(record)
        except PenstockError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"{function_name(self.engine)} to make a row of the record",
                got=f"{type(error).__name__}: {str(error)[:300]}",
                fix="fix the function or the record; skip_errors=True leaves such records out and counts them",
            ) from error
        if made is None or isinstance(made, Mapping):
            return None if made is None else dict(made)
        raise UserCodeError(
            f"a dict, or None to skip the record, from {function_name(self.engine)}",
            got=f"{type(made).__name__}: {str(made)[:80]}",
            fix="return {'input_ids': ..., 'labels': ...}",
        )

    def _reason(self, record: Any) -> Skip:
        """Why the engine returned None. A `PromptEngine` is called again, to raise the error."""
        if isinstance(self.engine, PromptEngine):
            strict = copy.copy(self.engine)
            strict.on_error = "raise"
            try:
                strict(record)
            except PenstockError as error:
                return Skip(error.expected, error.got)
        return Skip("a record that the prompt engine keeps", "None")

    def pad_token_id(self) -> int:
        """The tokenizer's pad token, else its end token, else 0. Attention mask and labels exclude padding anyway."""
        tokenizer = self.engine.encoder.tokenizer if isinstance(self.engine, PromptEngine) else None
        found = [] if tokenizer is None else [tokenizer.pad_id, tokenizer.eos_id]
        return next((number for number in found if number is not None), 0)


def _identity(engine: Any) -> str:
    """Identity of all settings of an engine that affect its rows."""
    if isinstance(engine, PromptEngine):
        schema = engine.schema
        facts = {
            "prompt": spec_of(engine),
            "tokenizer": engine.encoder.tokenizer.identity(),
            "schema": [[[n, str(d)] for n, d in schema.fields.items()], schema.extra, sorted(schema.optional)],
            "on_error": engine.on_error,
        }
        return orjson.dumps(facts, option=orjson.OPT_SORT_KEYS).decode()
    if not (hasattr(engine, "__code__") or hasattr(engine, "func")):
        return f"{type(engine).__module__}.{type(engine).__qualname__}"
    try:
        return code_id(engine)
    except (ValueError, RecursionError):  # it closes over objects that have no identity
        return function_name(engine)


class RowCollate:
    """The default collate function: pads token rows, and leaves others to torch's default_collate."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        from penstock.facades.preprocessed.collate import create_collate_fn
        from penstock.torch_data.framework import data

        if rows and "input_ids" in rows[0]:
            return create_collate_fn(self.pad_token_id)(rows)
        return data.default_collate([dict(row) for row in rows])
