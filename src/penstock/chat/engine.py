"""`PromptEngine`: a record to `input_ids`, `attention_mask` and `labels`.

Labels are at the position of their own token, as models of the transformers library expect, with -100 where the loss is
masked; `create_causal_lm_collate` shifts them by one where a loop wants that (`shift=True`) and leaves them alone
where the model does it (`shift=False`). Costs one rendering and one tokenization per record, and no state but counters,
so one engine serves any number of threads and can be pickled into workers.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.chat.chat_template import ChatTemplate, Rendered, chat_template_of, conversation_of, record_variables
from penstock.chat.content_shape import shown
from penstock.chat.generation import encode_marked, generation_spans
from penstock.chat.loss_masks import Boundary, Encoder, Turn, assistant_spans, encode_spans, generation_header
from penstock.chat.options import check_choices, check_ends, check_types
from penstock.chat.text_template import TextTemplate, field_text, make_template
from penstock.collate.schema import OutputSchema
from penstock.collate.tokens import IGNORE
from penstock.core.arguments import explained_class
from penstock.core.errors import LimitError, RecordError, UsageError

Mask = Literal["prompt", "assistant", "last", "none"]
Truncation = Literal["error", "right", "left"]
Row = dict[str, NDArray[Any]]
# Ids, which of them are trained on, and the record's keys that were read.
Encoded = tuple[NDArray[np.int64], NDArray[np.bool_], set[str]]

_KEPT_ERRORS = 20


@explained_class
class PromptEngine:
    """Turns records into token rows with honest labels.

    `template`: `"alpaca"` (instruction, input, output); a format string, whose last field is the response;
    `{"prompt": ..., "response": ...}`; `"chat"`, with the tokenizer's chat template or `chat_template=` in Jinja.
    `mask`: `"prompt"` and `"assistant"` learn every answer and its end token, `"last"` only the last answer, `"none"`
    every token; of a record with a `prompt` and a `completion` made of messages, `"prompt"` trains on the completion's
    answers only. `max_length` with `truncation` `"error"`, `"right"` (keep the beginning) or `"left"` (keep the end).
    `eos`: the tokenizer's end token is appended to a text template's response unless False; an integer appends that id;
    chat templates write their own. `bos`: None puts a beginning token where the tokenizer itself would. `system`: text
    before every prompt, or a system message where a chat has none. `specials="refuse"`: a record whose own text spells
    a special token is an error, since it would become one. `boundary`: see `Encoder.encode_cut`. `turn`: the part of
    a chat's answer to train on: `"answer"` its content and end marker, `"tail"` also the blank space that the template
    writes behind the marker (as TRL does), `"whole"` also the header (as torchtune does); with `"answer"`, a template
    with `{% generation %}` tags decides itself, as in transformers. `variables`: what a chat template reads beside the
    record, such as `{"enable_thinking": False}`. `date`: what it writes as today's (`strftime_now`).
    `schema`: what a row holds; with `extra="keep"` also the record's fields that the template does not read, such as an
    id.

    A record without trainable tokens, before or after truncation, or that the template cannot render faithfully, raises
    a `RecordError` that names it. With `on_error="skip"` it returns None, and is counted in `skipped` and kept (the
    first few) in `errors`.

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
        eos: bool | int | None = None,
        bos: bool | None = None,
        schema: OutputSchema | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        system: str | None = None,
        chat_template: str | None = None,
        boundary: Boundary = "split",
        specials: Literal["refuse", "allow"] = "refuse",
        turn: Turn = "answer",
        variables: Mapping[str, Any] | None = None,
        date: datetime.date | str | None = None,
    ) -> None:
        choices = {
            "mask": mask,
            "truncation": truncation,
            "on_error": on_error,
            "boundary": boundary,
            "specials": specials,
            "turn": turn,
        }
        check_choices(choices)
        check_types(template, system, schema, max_length)
        self.encoder = Encoder(tokenizer)
        self.template: TextTemplate | ChatTemplate
        chat = template == "chat" or chat_template is not None
        check_ends(eos, bos, chat, self.encoder.tokenizer.vocab_size)
        if chat:
            self.template = chat_template_of(tokenizer, self.encoder.tokenizer, chat_template, variables, date)
        else:
            self.template = make_template(template)
            for name, value in (("variables", variables), ("date", date)):
                if value is not None:
                    raise UsageError(
                        f"`{name}` with a chat template",
                        got="a text template, which reads the record's fields only",
                        fix=f"leave `{name}` out, and write what is meant into the template",
                    )
            if turn != "answer":
                raise UsageError(
                    "`turn` with a chat template",
                    got=f"turn={turn!r} with a text template, which has no headers",
                    fix="leave `turn` out, and write what is trained on into the template's response",
                )
        self.mask, self.max_length, self.truncation = mask, max_length, truncation
        self.on_error, self.system, self.boundary, self.specials = on_error, system, boundary, specials
        self.turn = turn
        self.schema = OutputSchema(extra="drop") if schema is None else schema
        made = (self.template, self.template.for_tools) if isinstance(self.template, ChatTemplate) else ()
        self._headers = {t.source: generation_header(Rendered(t, {}).prompted) for t in made if t is not None}
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
            raise RecordError("a record with named fields", got=type(record).__name__, fix="pass dicts to the engine")
        if isinstance(self.template, ChatTemplate):
            ids, trained, read = self._chat(self.template, record)
        else:
            ids, trained, read = self._text(self.template, record)
        if self.mask == "none":
            trained = np.ones(len(ids), bool)
        if not trained[1:].any():  # nothing predicts the first token
            raise RecordError(
                "a record with something to learn",
                got=f"{len(ids)} tokens, all of them masked or without one before them",
                fix="drop records with empty answers, or use on_error='skip'",
            )
        ids, trained = self._truncate(ids, trained)
        row = {
            "input_ids": ids,
            "attention_mask": np.ones(len(ids), np.int64),
            "labels": np.where(trained, ids, IGNORE),
        }
        return self._named(row, trained, record, read)

    def _text(self, template: TextTemplate, record: Mapping[str, Any]) -> Encoded:
        prompt, response = template.render(record)
        read = template.keys(record)
        if self.specials == "refuse":
            # The template's own text may hold special tokens; only the fields may not.
            found, own = self.encoder.specials_in(prompt + response), self.encoder.specials_in(template.frame(record))
            if found != own:
                for key, name in read.items():
                    if record.get(key) is not None:
                        self._check_specials(field_text(record, name), key)
                made = [token for token in found if token not in own] or found
                raise self._spelled(made[0], "where its fields meet")
        if self.system:
            prompt = f"{self.system}\n\n{prompt}"
        text = prompt + response
        ids, trained = encode_spans(self.encoder, text, [(len(prompt), len(text))], self.boundary)
        ids = np.concatenate([self._before, ids, self._after])
        ends = np.ones(len(self._after), bool)
        return ids, np.concatenate([np.zeros(len(self._before), bool), trained, ends]), set(read)

    def _chat(self, template: ChatTemplate, record: Mapping[str, Any]) -> Encoded:
        messages, prompt_turns, read = conversation_of(record, self.system)
        extra = record_variables(record)
        template = template.of(extra)
        if self.specials == "refuse":
            for number, message in enumerate(messages):
                self._check_specials(message, f"message {number}")
            for name, value in extra.items():
                self._check_specials(value, name)
        rendered = Rendered(template, extra)
        first = prompt_turns if self.mask == "prompt" else 0
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first]
        messages = shown(rendered.text, messages, answers[-1:] if self.mask == "last" else answers)
        if self.mask == "none":
            ids, trained = encode_spans(self.encoder, rendered.text(messages), [])
        elif self.by_tags(template):
            text, spans = generation_spans(rendered.marked, messages, self.mask == "last", first)
            ids, trained = encode_marked(self.encoder, text, spans, self.boundary)
        else:
            header = self._headers[template.source]
            text, spans = assistant_spans(
                rendered.prompted, messages, self.mask == "last", self.turn, first=first, header=header
            )
            ids, trained = encode_spans(self.encoder, text, spans, self.boundary)
        return ids, trained, read

    def by_tags(self, template: ChatTemplate) -> bool:
        """Whether the template's `{% generation %}` blocks say what is trained on."""
        return template.tagged and self.turn == "answer" and self.mask != "none"

    def _check_specials(self, value: Any, where: str) -> None:
        if isinstance(value, str):
            for found in self.encoder.specials_in(value):
                raise self._spelled(found, where)
        elif isinstance(value, Mapping):
            for pair in value.items():
                self._check_specials(list(pair), where)
        elif isinstance(value, list):
            for item in value:
                self._check_specials(item, where)

    def _spelled(self, token: str, where: str) -> RecordError:
        return RecordError(
            "text without special tokens of the tokenizer",
            got=f"{token!r} spelled out",
            where=where,
            fix="clean the record, or use specials='allow' where such text is wanted",
        )

    def _truncate(
        self, ids: NDArray[np.int64], trained: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if self.max_length is None or len(ids) <= self.max_length:
            return ids, trained
        if self.truncation == "error":
            raise RecordError(
                f"a record of at most {self.max_length} tokens",
                got=f"{len(ids)}",
                fix="raise max_length, or choose truncation='right' or truncation='left'",
            )
        kept = slice(self.max_length) if self.truncation == "right" else slice(-self.max_length, None)
        if not trained[kept][1:].any():
            raise RecordError(
                "a record with something to learn within max_length",
                got=f"{len(ids)} tokens, none to learn among the {self.max_length} kept",
                fix="raise max_length, use truncation='left', or on_error='skip'",
            )
        return ids[kept], trained[kept]

    def _named(self, row: Row, trained: NDArray[np.bool_], record: Mapping[str, Any], read: set[str]) -> Row:
        """The fields the schema names: what the engine makes, else the record's own. Others that the template did not
        read are kept or refused, as the schema says."""
        length = len(trained)
        made = {
            **row,
            "loss_mask": trained,
            "position_ids": np.arange(length, dtype=np.int64),
            "token_type_ids": np.zeros(length, np.int64),
            "length": np.int64(length),
        }
        found = {name: made.get(name, record.get(name)) for name in self.schema}
        named = {name: value for name, value in found.items() if value is not None}
        if self.schema.extra != "drop":
            named |= {name: value for name, value in record.items() if name not in found and name not in read}
        return self.schema.check_row(named)

    def _end_ids(self, eos: bool | int | None) -> NDArray[np.int64]:
        if eos is False or isinstance(self.template, ChatTemplate):
            return np.empty(0, np.int64)
        number = self.encoder.tokenizer.eos_id if eos is None or eos is True else eos
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
