"""Rows of tokens from resolved data: finds the text column, normalises, tokenises and caches it.

Empty and blank texts are left out, so that no row is empty. Data with a column `input_ids` is used as it is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import UsageError
from penstock.facades.capibara.config import DataLoaderConfig, Form
from penstock.pipeline import Pipeline
from penstock.plan.branches import Combined
from penstock.plan.row_source import KeptRows
from penstock.preparation.cache import cached_store
from penstock.preparation.tokenize import text_source
from penstock.sources.base import ColumnSource, FileSource, Source, TextSource, TokenSource
from penstock.sources.hf import HFDataset
from penstock.sources.lines import Chunk

_ROWS = 4096


class Cleaned:
    """A `TextSource` with normalised texts, without blank ones. `field` is the column they come from."""

    def __init__(self, source: TextSource, form: Form | None, field: str) -> None:
        self.source, self.form, self.field = source, form, field
        self.paths = list(source.paths) if isinstance(source, FileSource) else []

    def iterate(self, start: Any = None) -> Iterator[Chunk]:
        found, bad = start is not None, None
        for chunk in self.source.iterate(start):
            bad = bad or next(iter(chunk.errors), None)
            kept = [i for i, text in enumerate(chunk.texts) if text.strip()]
            texts = [chunk.texts[i] for i in kept]
            if self.form is not None:
                texts = [unicodedata.normalize(self.form, text) for text in texts]
            found = found or bool(texts)
            yield replace(chunk, texts=texts, positions=[chunk.positions[i] for i in kept])
        if not found:
            raise bad or UsageError(
                "a text that is not blank",
                got=f"only blank ones in {self.field!r}",
                where=", ".join(self.paths[:3]) or str(self.describe()),
                fix="text_field= names the field or column that holds the text",
            )

    def describe(self) -> dict[str, Any]:
        return self.source.describe()

    def fingerprint(self) -> str:
        """Includes the version of the Unicode tables if texts are normalised."""
        version = unicodedata.unidata_version if self.form else None
        return hashing.content_id(["not blank", self.form, version, self.source.fingerprint()])


def tokens_of(pipeline: Pipeline, tokenizer: Any, settings: DataLoaderConfig) -> Pipeline:
    """Returns a pipeline of tokenised documents, prepared once and cached."""
    if _has_tokens(pipeline):
        return pipeline
    field = text_field_of(pipeline, settings.text_field)
    if tokenizer is None:
        raise UsageError(
            "a tokenizer for text", got="none", fix='tokenizer=AutoTokenizer.from_pretrained(...), "bytes"'
        )
    made: dict[str, Any] = {"eos": settings.eos}
    source = Cleaned(text_source(pipeline.definition, field, made), settings.normalize, field)
    cache = {"cache_dir": settings.cache_dir, "limit": settings.cache_limit}
    store = cached_store(source, tokenizer, settings=made, **cache)  # type: ignore[arg-type]
    return Pipeline(replace(pipeline.definition, origin=store, steps=()))


def text_field_of(pipeline: Pipeline, asked: str | None) -> str:
    """Returns the column that is text: `asked`, else "text", else the only column of strings."""
    names = column_names(pipeline)
    if (asked or "text") in names:
        return asked or "text"
    texts = [] if asked else [name for name, value in pipeline.peek(1)[0].items() if isinstance(value, str)]
    if len(texts) == 1:
        return texts[0]
    raise UsageError(
        f"a column {asked!r}" if asked is not None else 'a column "text", or only one column of strings',
        got=f"columns {sorted(names)}",
        fix=f"text_field={(texts or sorted(names))[0]!r}",
    )


def column_names(pipeline: Pipeline) -> set[str]:
    """Returns the columns of a pipeline's rows. Reads one row, unless the source names them and no steps follow."""
    origin = pipeline.definition.origin
    if pipeline.definition.steps or isinstance(origin, Combined):
        return set(pipeline.peek(1)[0])
    if isinstance(origin, ColumnSource) and not isinstance(origin, TokenSource):
        return set(origin.columns)
    return set(origin.read(np.arange(1)))


def _has_tokens(pipeline: Pipeline) -> bool:
    origin = pipeline.definition.origin
    return isinstance(origin, TokenSource) or (isinstance(origin, ColumnSource) and "input_ids" in origin.columns)


def is_rows(pipeline: Pipeline) -> bool:
    """Whether the pipeline makes rows of tokens itself, for example with `.windows()`."""
    return bool(pipeline.definition.steps) and isinstance(pipeline.definition.origin, TokenSource)


def row_lengths(pipeline: Pipeline) -> NDArray[np.int64]:
    """Returns the tokens of every document. Reads every row once, unless the source is a token store."""
    origin = pipeline.definition.origin
    if isinstance(origin, TokenSource):
        return np.concatenate([origin.lengths(part) for part in _parts(len(origin), _ROWS * 64)])
    rows = pipeline.rows()
    parts = (only_tokens(rows.read(part))["input_ids"] for part in _parts(len(rows)))
    return np.concatenate([part.lengths for part in parts if isinstance(part, Ragged)])


def _parts(size: int, step: int = _ROWS) -> Iterator[NDArray[np.int64]]:
    return (np.arange(lo, min(size, lo + step)) for lo in range(0, size, step))


def only_tokens(columns: Columns) -> Columns:
    """The columns a language model is trained on, as ragged rows."""
    kept = {name: columns[name] for name in ("input_ids", "labels") if name in columns}
    return {name: c if isinstance(c, Ragged) else Ragged.of(list(c)) for name, c in kept.items()}


def full_mask(columns: Columns) -> Columns:
    """An attention mask for rows that are full."""
    return {**columns, "attention_mask": np.broadcast_to(np.int32(1), np.asarray(columns["input_ids"]).shape)}


# One dataset with a language column.


class Part:
    """A subset of a source's records, as a source."""

    def __init__(self, source: Source, records: NDArray[np.int64], name: str) -> None:
        self.source, self.records, self.name = source, records, name
        self.columns = list(source.columns if isinstance(source, ColumnSource) else source.read(records[:1]))

    def __len__(self) -> int:
        return len(self.records)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        return self.source.read(self.records[np.asarray(indices, np.int64)])

    def fingerprint(self) -> str:
        return hashing.content_id(["part", self.source.fingerprint(), self.records])

    def describe(self) -> dict[str, Any]:
        return {"kind": f"{self.source.describe().get('kind', 'records')}, {self.name!r}", "records": len(self)}

    def locate(self, index: int) -> dict[str, Any]:
        return self.source.locate(int(self.records[index]))


def by_language(pipeline: Pipeline, field: str) -> dict[str, Pipeline]:
    """Returns one pipeline for each value of a column, by name. Reads every kept record once, of HF only that column.

    Records that `filter` or `skip_errors` rejects are in none of them.
    """
    definition = pipeline.definition
    origin = definition.origin
    plain = not definition.steps and not isinstance(origin, Combined)
    rows: Any = origin if plain else pipeline.rows()
    if plain and isinstance(origin, HFDataset) and field in origin.columns:
        definition = replace(definition, origin=HFDataset(origin.dataset.select_columns([field])))
    found: dict[str, list[int]] = {}
    for block in KeptRows(definition, "language_field=").blocks():
        if field not in block.columns:
            raise UsageError(
                f"a column {field!r} that says the language",
                got=f"columns {sorted(block.columns)}",
                fix="language_field= one of them",
            )
        for position, value in zip(block.positions.tolist(), block.columns[field], strict=True):
            found.setdefault(str(value), []).append(position)
    if not found:
        raise UsageError("at least one record", got="none left by .filter() or .skip_errors()", where="language_field=")
    return {
        name: Pipeline(replace(pipeline.definition, origin=Part(rows, np.array(found[name]), name), steps=()))
        for name in sorted(found)
    }
