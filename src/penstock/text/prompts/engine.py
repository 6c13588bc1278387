"""`PromptEngine`: a record to `input_ids`, `attention_mask` and `labels`.

Labels lie at the position of their own token, with -100 where nothing is learnt, as models of the transformers library
take them; `create_causal_lm_collate` shifts them by one where a loop wants that (`shift=True`) and leaves them alone
where the model does it (`shift=False`). Costs one rendering and one tokenization per record, and no state but counters,
so one engine serves any number of threads and can be pickled into workers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._errors import LimitError, RecordError, UsageError
from penstock.batching.schema import OutputSchema
from penstock.text.prompts.chat import ChatTemplate, chat_template_of, messages_of, plain
from penstock.text.prompts.masks import Boundary, Encoder, Turn, assistant_spans, encode_spans
from penstock.text.prompts.templates import TextTemplate, field_text, make_template

IGNORED = -100
Mask = Literal["prompt", "assistant", "last", "none"]
Truncation = Literal["error", "right", "left"]
Row = dict[str, NDArray[Any]]

_CHOICES: dict[str, tuple[str, ...]] = {
    "mask": ("prompt", "assistant", "last", "none"),
    "truncation": ("error", "right", "left"),
    "on_error": ("raise", "skip"),
    "boundary": ("split", "error"),
    "specials": ("refuse", "allow"),
    "turn": ("answer", "tail", "whole"),
}
_KEPT_ERRORS = 20


class PromptEngine:
    """Turns records into token rows with honest labels.

    `template`: `"alpaca"` (instruction, input, output); a format string, whose last field is the response;
    `{"prompt": ..., "response": ...}`; `"chat"`, with the tokenizer's chat template or `chat_template=` in Jinja.
    `mask`: `"prompt"` and `"assistant"` learn every answer and its end token, `"last"` only the last answer, `"none"`
    every token. `max_length` with `truncation` `"error"`, `"right"` (keep the beginning) or `"left"` (keep the end).
    `eos`: True appends the tokenizer's end token to a text template's response, an integer appends that id; chat
    templates write their own. `bos`: None puts a beginning token where the tokenizer itself would. `system`: text
    before every prompt, or a system message where a chat has none. `specials="refuse"`: a record whose own text spells
    a special token is an error, since it would become one. `boundary`: see `Encoder.encode_cut`. `turn`: what of a
    chat's answer is learnt: `"answer"` its content and end marker, `"tail"` also the blank space the template writes
    behind the marker (as TRL does), `"whole"` the header before it as well (as torchtune does). `variables`: what a
    chat template reads beside the record, such as `{"enable_thinking": False}`.

    A record nothing can be learnt from, before or after truncation, or that the template cannot render honestly, is a
    `RecordError` that names it. With `on_error="skip"` it gives None, and is counted in `skipped` and kept (the first
    few) in `errors`.

    >>> engine = PromptEngine("bytes", "Q: {question}\\nA: {answer}", eos=0)
    >>> row = engine({"question": "1+1?", "answer": "2"})
    >>> row["input_ids"].tolist() == [*b"Q: 1+1?\\nA: 2", 0], row["labels"][-3:].tolist()
    (True, [-100, 50, 0])
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | Mapping[str, str] = "alpaca",
        *,
        mask: Mask = "prompt",
        max_length: int | None = None,
        truncation: Truncation = "error",
        eos: bool | int = True,
        bos: bool | None = None,
        schema: OutputSchema | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        system: str | None = None,
        chat_template: str | None = None,
        boundary: Boundary = "split",
        specials: Literal["refuse", "allow"] = "refuse",
        turn: Turn = "answer",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        given = {
            "mask": mask,
            "truncation": truncation,
            "on_error": on_error,
            "boundary": boundary,
            "specials": specials,
            "turn": turn,
        }
        for name, value in given.items():
            if value not in _CHOICES[name]:
                raise UsageError(
                    f"`{name}` to be one of {', '.join(_CHOICES[name])}", got=repr(value), fix="use one of these"
                )
        if max_length is not None and (isinstance(max_length, bool) or max_length < 1):
            raise UsageError("`max_length` to be 1 or more, or None", got=repr(max_length), fix="use a positive number")
        self.encoder = Encoder(tokenizer)
        self.template: TextTemplate | ChatTemplate
        if template == "chat" or chat_template is not None:
            self.template = chat_template_of(tokenizer, self.encoder.tokenizer, chat_template, variables)
        else:
            self.template = make_template(template)
            if variables is not None:
                raise UsageError(
                    "`variables` with a chat template",
                    got="a text template, which reads the record's fields only",
                    fix="leave `variables` out, and write them into the template",
                )
            if turn != "answer":
                raise UsageError(
                    "`turn` with a chat template",
                    got=f"turn={turn!r} with a text template, which has no headers",
                    fix="leave `turn` out, and write what is learnt into the template's response",
                )
        self.mask, self.max_length, self.truncation = mask, max_length, truncation
        self.on_error, self.system, self.boundary, self.specials = on_error, system, boundary, specials
        self.turn = turn
        self.schema = OutputSchema() if schema is None else schema
        self._after = self._end_ids(eos)
        self._before = self._begin_ids(bos)
        self.skipped = 0
        self.errors: list[RecordError | LimitError] = []
        self._lock = threading.Lock()

    def __call__(self, record: Mapping[str, Any], where: str = "") -> Row | None:
        """The row of a record, or None where it is skipped. `where` names the record in errors."""
        try:
            return self._row(record)
        except (RecordError, LimitError) as error:
            place = where or _name(record)
            error.where = f"{place}, {error.where}" if error.where else place
            if self.on_error == "raise":
                raise
            with self._lock:
                self.skipped += 1
                if len(self.errors) < _KEPT_ERRORS:
                    self.errors.append(error)
            return None

    def batch(self, records: Iterable[Mapping[str, Any]]) -> list[Row]:
        """Rows of many records, skipped ones left out.

        >>> engine = PromptEngine("bytes", "{q}{a}", eos=False, on_error="skip")
        >>> len(engine.batch([{"q": "x", "a": "y"}, {"q": "x"}])), engine.skipped
        (1, 1)
        """
        rows = (self(record, where=f"record {number}") for number, record in enumerate(records))
        return [row for row in rows if row is not None]

    def _row(self, record: Mapping[str, Any]) -> Row:
        if not isinstance(record, Mapping):
            raise RecordError("a record with named fields", got=type(record).__name__, fix="give dicts to the engine")
        if isinstance(self.template, ChatTemplate):
            ids, learnt = self._chat(self.template, record)
        else:
            ids, learnt = self._text(self.template, record)
        if self.mask == "none":
            learnt = np.ones(len(ids), bool)
        if not learnt.any():
            raise RecordError(
                "a record with something to learn",
                got=f"{len(ids)} tokens, all of them masked",
                fix="drop records with empty answers, or use on_error='skip'",
            )
        ids, learnt = self._truncate(ids, learnt)
        row = {
            "input_ids": ids,
            "attention_mask": np.ones(len(ids), np.int64),
            "labels": np.where(learnt, ids, IGNORED),
        }
        return self._named(row, learnt, record)

    def _text(self, template: TextTemplate, record: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        prompt, response = template.render(record)
        if self.specials == "refuse" and self.encoder.special_in(prompt + response):
            # The template's own text may hold special tokens; only the fields may not.
            for name in sorted(template.fields()):
                if name in record:
                    self._check_specials(field_text(record, name), name)
        if self.system:
            prompt = f"{self.system}\n\n{prompt}"
        text = prompt + response
        ids, learnt = encode_spans(self.encoder, text, [(len(prompt), len(text))], self.boundary)
        ids = np.concatenate([self._before, ids, self._after])
        ends = np.ones(len(self._after), bool)
        return ids, np.concatenate([np.zeros(len(self._before), bool), learnt, ends])

    def _chat(self, template: ChatTemplate, record: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        messages = messages_of(record, self.system)
        extra = {name: plain(record[name]) for name in ("tools", "documents") if record.get(name) is not None}
        if self.specials == "refuse":
            for number, message in enumerate(messages):
                self._check_specials(message, f"message {number}")
        if self.mask == "none":
            ids = self.encoder.encode(template.render(messages, extra=extra))
            return ids, np.ones(len(ids), bool)
        text, spans = assistant_spans(template.renderer(extra), messages, self.mask == "last", self.turn)
        return encode_spans(self.encoder, text, spans, self.boundary)

    def _check_specials(self, value: Any, where: str) -> None:
        if isinstance(value, str):
            found = self.encoder.special_in(value)
            if found is not None:
                raise RecordError(
                    "text without special tokens of the tokenizer",
                    got=f"{found!r} spelled out",
                    where=where,
                    fix="clean the record, or use specials='allow' where such text is wanted",
                )
        elif isinstance(value, Mapping):
            for item in value.values():
                self._check_specials(item, where)
        elif isinstance(value, list):
            for item in value:
                self._check_specials(item, where)

    def _truncate(
        self, ids: NDArray[np.int64], learnt: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if self.max_length is None or len(ids) <= self.max_length:
            return ids, learnt
        if self.truncation == "error":
            raise RecordError(
                f"a record of at most {self.max_length} tokens",
                got=f"{len(ids)}",
                fix="raise max_length, or choose truncation='right' or 'left'",
            )
        kept = slice(self.max_length) if self.truncation == "right" else slice(-self.max_length, None)
        if not learnt[kept].any():
            raise RecordError(
                "a record with something to learn within max_length",
                got=f"{len(ids)} tokens, none to learn among the {self.max_length} kept",
                fix="raise max_length, use truncation='left', or on_error='skip'",
            )
        return ids[kept], learnt[kept]

    def _named(self, row: Row, learnt: NDArray[np.bool_], record: Mapping[str, Any]) -> Row:
        """The fields the schema names: what the engine makes, else the record's own."""
        length = len(learnt)
        made = {
            **row,
            "loss_mask": learnt,
            "position_ids": np.arange(length, dtype=np.int64),
            "token_type_ids": np.zeros(length, np.int64),
            "length": np.int64(length),
        }
        found = {name: made.get(name, record.get(name)) for name in self.schema}
        return self.schema.check_row({name: value for name, value in found.items() if value is not None})

    def _end_ids(self, eos: bool | int) -> NDArray[np.int64]:
        if eos is False or isinstance(self.template, ChatTemplate):
            return np.empty(0, np.int64)
        number = self.encoder.tokenizer.eos_id if eos is True else eos
        if number is None:
            raise UsageError(
                "a tokenizer with an end token, to teach the model where an answer ends",
                got="one without",
                fix="pass eos=<token id>, or eos=False to append none",
            )
        return np.array([number], np.int64)

    def _begin_ids(self, bos: bool | None) -> NDArray[np.int64]:
        number = self.encoder.tokenizer.bos_id
        if isinstance(self.template, ChatTemplate) or bos is False:
            return np.empty(0, np.int64)
        if bos is None and (number is None or not self.encoder.adds_bos(number)):
            return np.empty(0, np.int64)
        if number is None:
            raise UsageError("a tokenizer with a beginning token", got="one without", fix="use bos=False")
        return np.array([number], np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _name(record: Any) -> str:
    """A record's own id, else how it begins."""
    if isinstance(record, Mapping):
        for key in ("id", "index", "record"):
            if record.get(key) is not None:
                return f"record with {key}={record[key]!r}"
    return f"record {repr(record)[:80]}"
