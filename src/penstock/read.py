"""Where pipelines begin: `read_*` for files, `from_*` for what is in memory, `open_*` for prepared tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline
from penstock.preparation.run import Prepared
from penstock.sources.base import Source
from penstock.sources.exclude import Exclude, exclude_records
from penstock.sources.folders import AudioPaths, ImageFolder, Labels
from penstock.sources.pairs import Missing, Pairs
from penstock.sources.recordings import Recordings
from penstock.sources.tar import TarShards

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
OnError = Literal["raise", "skip"]


def _guarded(source: Any, on_error: OnError, budget: int | float | None) -> Pipeline:
    return _skipping(Pipeline(source), on_error, budget)


def _skipping(pipeline: Pipeline, on_error: OnError, budget: int | float | None) -> Pipeline:
    if on_error not in ("raise", "skip"):
        raise UsageError('on_error="raise" or "skip"', got=repr(on_error), fix='on_error="skip", budget=100')
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


def read_images(
    root: str | os.PathLike[str],
    labels: Labels = "folder",
    *,
    exclude: Exclude = None,
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """The image files below a folder: `bytes`, `path` and, unless `labels=None`, a `label`.

    `labels` says where the class comes from: "folder", "name", a function of the path, or None. `exclude` takes paths,
    record numbers, or the ledger of another run. `options` are those of `sources.folders.ImageFolder`.
    """
    return _guarded(exclude_records(ImageFolder(root, labels, **options), exclude), on_error, budget)


def read_audio(
    root: str | os.PathLike[str],
    labels: Labels = "folder",
    *,
    sample_rate: int | None = None,
    exclude: Exclude = None,
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """The audio files below a folder: `audio` (where the file is, for `.decode_audio()` to seek in), `path`, `label`.

    With `sample_rate` files are decoded whole as they are read: `audio` is ragged, `.bucket()` and `.batch_tokens()`
    (in samples) plan batches by duration. Other arguments are those of `read_images`.
    """
    if sample_rate is not None:
        return _guarded(
            exclude_records(Recordings(root, labels, sample_rate=sample_rate, **options), exclude), on_error, budget
        )
    return _guarded(exclude_records(AudioPaths(root, labels, **options), exclude), on_error, budget)


def read_tar(
    paths: Paths,
    *,
    decode: bool = True,
    exclude: Exclude = None,
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """Tar shards in the WebDataset layout: `key`, and a column for each part, named by its extension.

    Parts of text, JSON and whole numbers (`.txt`, `.json`, `.cls`...) come decoded, see `steps.decode_parts`; all
    others, and with `decode=False` these too, as bytes: `.decode_images(224, column="jpg")`. `exclude` takes keys,
    record numbers, or the ledger of another run. `options` are those of `sources.tar.TarShards`.
    """
    shards = TarShards(paths, **options)
    pipeline = Pipeline(exclude_records(shards, exclude))
    if decode:
        pipeline = pipeline.decode_parts()
    return _skipping(pipeline, on_error, budget)


def pair(
    media: Pipeline,
    captions: Pipeline | Mapping[str, str],
    *,
    on: str = "key",
    key: Callable[[str], str] | None = None,
    missing: Missing = "error",
) -> Pipeline:
    """Media with their captions, matched by key: `pair(read_images("photos", None), {"001": "a cat"})`.

    Captions are a dict, or a pipeline with a column `on`. A file's key is its path without the extension, or its bare
    name; `key` is a function of the path where that is not so. Steps come after the pair.
    """
    if media.definition.steps or not isinstance(media.definition.origin, Source):
        raise UsageError("a plain source of media in pair()", got="one with steps", fix="pair first, then decode")
    known = captions if isinstance(captions, Mapping) else captions.rows()
    return Pipeline(Pairs.of(media.definition.origin, known, on=on, key=key, missing=missing))


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
