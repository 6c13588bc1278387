"""Where pipelines begin: `read_*` for files, `from_*` for what is in memory, `open_*` for prepared tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock._errors import UsageError
from penstock.pipeline import Pipeline
from penstock.preparation.run import Prepared

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
OnError = Literal["raise", "skip"]


def _guarded(source: Any, on_error: OnError, budget: int | float | None) -> Pipeline:
    if on_error not in ("raise", "skip"):
        raise UsageError('on_error="raise" or "skip"', got=repr(on_error), fix='on_error="skip", budget=100')
    pipeline = Pipeline(source)
    return pipeline.skip_errors(budget) if on_error == "skip" else pipeline


def read_text(
    paths: Paths,
    *,
    by: Literal["file", "line", "paragraph"] = "file",
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """Plain text: each file, line or paragraph is a record `{"text": ...}`. Paths, folders, globs and URLs."""
    from penstock.sources.text import TextFiles

    return _guarded(TextFiles(paths, mode=by, **options), on_error, budget)


def read_jsonl(
    paths: Paths,
    *,
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """JSON lines, plain, .gz or .zst: each line is a record."""
    from penstock.sources.jsonl import JsonlFiles

    return _guarded(JsonlFiles(paths, **options), on_error, budget)


def read_parquet(
    paths: Paths, *, on_error: OnError = "raise", budget: int | float | None = None, **options: Any
) -> Pipeline:
    """Parquet files: each row is a record."""
    from penstock.sources.parquet import ParquetFiles

    return _guarded(ParquetFiles(paths, **options), on_error, budget)


def from_texts(texts: Sequence[str]) -> Pipeline:
    """Strings in memory: each is a record `{"text": ...}`.

    >>> from_texts(["one", "two"]).peek(1)
    [{'text': 'one'}]
    """
    from penstock.sources.arrays import Texts

    return Pipeline(Texts(texts))


def from_arrays(columns: Mapping[str, Any]) -> Pipeline:
    """Columns in memory, one row per record.

    >>> from_arrays({"x": [1, 2], "y": [[1, 2], [3, 4]]}).peek(1)
    [{'x': np.int64(1), 'y': array([1, 2])}]
    """
    from penstock.sources.arrays import Arrays

    return Pipeline(Arrays(columns))


def from_hf(dataset: Any) -> Pipeline:
    """A Hugging Face `datasets.Dataset`: each row is a record, read from its Arrow table many at a time."""
    from penstock.sources.hf import HFDataset

    return Pipeline(HFDataset(dataset))


def open_store(path: str | os.PathLike[str], *, verify: str = "first-touch") -> Pipeline:
    """A token store that `penstock prepare` wrote. One small file is read, whatever its size."""
    from penstock.sources.tokens import TokenStore

    return Pipeline(TokenStore(path, verify=verify))


def open_tokens(tokens: Any, documents: Any = None, vocab_size: int | None = None) -> Pipeline:
    """Tokens in memory or memory-mapped; `documents` are the offsets at which documents begin, and the end."""
    from penstock.sources.tokens import TokenArray

    return Pipeline(TokenArray(tokens, documents, vocab_size))


def open_megatron(prefix: str | os.PathLike[str], **options: Any) -> Pipeline:
    """Megatron's `.bin` and `.idx`, read as they are."""
    from penstock.sources import megatron

    return Pipeline(megatron.open_megatron(prefix, **options))


def open_nanogpt(path: str | os.PathLike[str], **options: Any) -> Pipeline:
    """nanoGPT's `.bin`, read as it is."""
    from penstock.sources import nanogpt

    return Pipeline(nanogpt.open_nanogpt(path, **options))


def open_dolma(paths: Any, **options: Any) -> Pipeline:
    """Arrays of tokens as Dolma and OLMo write them, read as they are."""
    from penstock.sources import dolma

    return Pipeline(dolma.open_dolma(paths, **options))


def from_tfds(folder: Any, split: str = "train") -> Pipeline:
    """A TensorFlow dataset that is on this machine, read by number and without TensorFlow where its files allow."""
    from penstock.sources.tfds import TFDSource

    return Pipeline(TFDSource.open(folder, split))


def prepare(
    source: Any, tokenizer: Any, out: str | os.PathLike[str], *, field: str = "text", **settings: Any
) -> Prepared:
    """Tokenises texts into a token store in the folder `out`. Run it again after an interruption and it goes on.

    `source` is a pipeline of texts or a source of them. `settings` are those of `preparation.run.prepare`: `eos`,
    `engine`, `shard_tokens`, `on_error`, `budget`, `threads`, `show_progress`, `restart`.

    >>> import tempfile
    >>> prepare(from_texts(["one", "two"]), "bytes", tempfile.mkdtemp()).documents
    2
    """
    from penstock.preparation import run
    from penstock.preparation.tokenize import text_source

    texts = text_source(source.definition, field, settings) if isinstance(source, Pipeline) else source
    return run.prepare(texts, tokenizer, out, **settings)
