"""`prepare_prompts`: records through a `PromptEngine` to a token store, with the loss mask as a column of runs.

Training then reads no JSON and renders no template: `.pack()`, `.pad()`, `.windows()`, `.bucket()` and
`.batch_tokens()` over the store return labels that are -100 wherever the engine masked. The mask takes a few numbers a
record. The output depends on the records and the engine alone; a run that was killed can be resumed.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import orjson

from penstock.chat.chat_template import ChatTemplate
from penstock.chat.engine import PromptEngine
from penstock.collate.tokens import IGNORE
from penstock.core.arguments import explained
from penstock.core.columns import Ragged
from penstock.core.errors import LimitError, RecordError, UsageError
from penstock.core.function_id import code_id
from penstock.plan.definition import Definition
from penstock.preparation.encode import in_order
from penstock.preparation.maker import Made
from penstock.preparation.output import checked_place
from penstock.preparation.pipeline_texts import PipelineTexts, TextOfRecord
from penstock.preparation.run import GROUP_BYTES, SHARD_TOKENS, Prepared, make_store
from penstock.preparation.tokenize import skip_policy
from penstock.sources import json_fields
from penstock.sources.base import FileSource, TextSource
from penstock.sources.line_errors import bare, place
from penstock.sources.lines import Chunk
from penstock.sources.record_texts import record_texts
from penstock.sources.records import data_kind
from penstock.steps.loss_runs import RUNS, encode_runs
from penstock.storage.filesystem import Options
from penstock.tokenizers.known import remember

_DECIDES = ("mask", "max_length", "truncation", "system", "boundary", "specials", "turn")


@explained
def prepare_prompts(
    source: Any,
    engine: PromptEngine,
    out: str | os.PathLike[str],
    *,
    shard_tokens: int = SHARD_TOKENS,
    group_bytes: int = GROUP_BYTES,
    on_error: Literal["raise", "skip"] | None = None,
    budget: int | float | None = None,
    show_progress: bool | None = None,
    restart: bool = False,
    storage_options: Options = None,
    single_writer: bool = False,
    cluster: Literal["ray"] | None = None,
    address: str | None = None,
) -> Prepared:
    """Writes the rows that `engine` makes from `source` into the folder or URL `out`. Run it again to resume.

    `source`: paths of JSON lines (plain, .gz, .zst) or of one JSON array, a pipeline, an HF dataset, or any sequence
    of dicts. A record the engine refuses stops the run with its place, or with `on_error="skip"` (the engine's own
    setting by default) is left out and listed in `skipped.jsonl`, at most `budget` of them.

    >>> import tempfile, penstock as ps
    >>> engine = PromptEngine("bytes", "Q: {q} A: {a}", eos=0)
    >>> made = prepare_prompts([{"q": "1+1?", "a": "2"}, {"q": "why?", "a": "so"}], engine, tempfile.mkdtemp())
    >>> made.documents, ps.open_store(made.path).peek(1)[0]["labels"][-4:].tolist()
    (2, [-100, 50, 0, -100])
    """
    out = checked_place(out)
    if not isinstance(engine, PromptEngine):
        raise UsageError(
            "a PromptEngine",
            got=type(engine).__name__,
            fix='PromptEngine(tokenizer, "alpaca"), or another template',
        )
    missing = [name for name in ("input_ids", "labels") if name not in engine.schema]
    if missing:
        raise UsageError(f"a schema with {' and '.join(missing)}", got=", ".join(engine.schema), fix="leave schema out")
    policy = on_error or engine.on_error
    records = (
        _pipeline_records(source.definition, policy, budget)
        if data_kind(source) == "pipeline"
        else record_texts(source)
    )
    if isinstance(records, PipelineTexts) and budget is None:
        budget = records.budget
    maker = _Prompts(engine, list(records.paths) if isinstance(records, FileSource) else [])
    return make_store(
        records, maker, out, shard_tokens=shard_tokens, group_bytes=group_bytes, on_error=policy, budget=budget,
        show_progress=show_progress, restart=restart, storage_options=storage_options, single_writer=single_writer,
        cluster=cluster, address=address,
    )  # fmt: skip


def _pipeline_records(definition: Definition, on_error: str, budget: int | float | None) -> PipelineTexts:
    """The records of a pipeline as JSON, without those it rejects. Its `.skip_errors()` keeps its meaning here."""
    definition.refuse_shard("prepare_prompts()")
    policy = skip_policy(definition, "skip" if on_error == "skip" else None, budget)
    return PipelineTexts(definition, TextOfRecord(policy.skips), policy.last, "prepare_prompts()")


class _Prompts:
    """Documents and masks of records."""

    def __init__(self, engine: PromptEngine, paths: list[str]) -> None:
        self.prompt = copy.copy(engine)
        self.prompt.on_error = "raise"  # the preparation handles bad records, and names them
        self.paths = paths
        self.tokenizer = engine.encoder.tokenizer
        remember(self.tokenizer)
        self.vocab_size = self.tokenizer.vocab_size
        self.eos = None if len(engine._after) == 0 else int(engine._after[-1])

    @property
    def engine(self) -> str:
        return f"prompts, {self.tokenizer.kind}"

    def job(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.identity(), "eos": self.eos, "prompt": spec_of(self.prompt)}

    def check(self, source: TextSource, *, wait: bool = True) -> None:
        """Every record is checked as it is made."""

    def documents(self, chunks: Iterable[Chunk]) -> Iterator[Made]:
        for _, made in in_order(chunks, self._make):
            yield made

    def close(self) -> None:
        """Holds nothing."""

    def _make(self, chunk: Chunk) -> Made:
        ids, runs, kept = [], [], []
        errors, places = list(chunk.errors), list(chunk.error_positions)
        for i, (text, position) in enumerate(zip(chunk.texts, chunk.positions, strict=True)):
            file, line, offset = position
            where = place(self.paths[file] if file < len(self.paths) else "records", line, offset)
            try:
                row = self.prompt(json_fields.load(text.encode(), where), where=where)
            except (RecordError, LimitError) as error:
                errors.append(_record_error(error))
                places.append(position)
                continue
            if row is not None:
                ids.append(row["input_ids"])
                runs.append(encode_runs(row["labels"] != IGNORE))
                kept.append(i)
        order = sorted(range(len(errors)), key=lambda i: places[i])
        left = replace(
            chunk, texts=[chunk.texts[i] for i in kept], positions=[chunk.positions[i] for i in kept],
            errors=[errors[i] for i in order], error_positions=[places[i] for i in order],
        )  # fmt: skip
        documents = Ragged.of(ids, np.int64)
        return Made(left, documents, {RUNS: Ragged.of(runs, np.uint32)})


def _record_error(error: RecordError | LimitError) -> RecordError:
    if isinstance(error, RecordError):
        return bare(error)
    return RecordError(error.expected, got=error.got, where=error.where, fix=error.fix)


def spec_of(engine: PromptEngine) -> dict[str, Any]:
    """All settings of an engine that affect its rows, without the tokenizer, in plain JSON."""
    template = engine.template
    if isinstance(template, ChatTemplate):
        shown: dict[str, Any] = {
            "chat": template.source,
            "special_names": dict(sorted(template.special_names.items())),
            # Without a date no template writes one; the text of earlier versions keeps their jobs and states.
            "date": "2024-07-26" if template.date is None else template.date.isoformat(),
        }
        if engine.by_tags(template):
            shown["generation"] = True
        if template.for_tools is not None:
            shown["chat_for_tools"] = template.for_tools.source
    else:
        shown = asdict(template)
    plain = {name: getattr(engine, name) for name in _DECIDES}
    if type(engine) is not PromptEngine:
        plain["own"] = _own_methods(type(engine))
    plain |= {"template": shown, "before": engine._before.tolist(), "after": engine._after.tolist()}
    again: dict[str, Any] = orjson.loads(orjson.dumps(plain))  # as JSON returns it: lists, no tuples
    return again


def _own_methods(cls: type) -> list[str]:
    """Ids of the methods that a subclass defines."""
    classes = cls.__mro__[: cls.__mro__.index(PromptEngine)]
    return [code_id(value) for one in classes for _, value in sorted(vars(one).items()) if inspect.isfunction(value)]
