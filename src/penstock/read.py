"""Where pipelines begin: `read_*` for files, `from_*` for data in memory, `open_*` for tokens; `mix` and `pair`.

Each function imports its source when it is called, so a program loads only the formats that it reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import changed, explained
from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline

if TYPE_CHECKING:
    import datasets
    from numpy.typing import ArrayLike, DTypeLike

    from penstock.core.limits import Limits
    from penstock.preparation.run import Prepared
    from penstock.sources.base import Source, TextSource
    from penstock.sources.exclude import Exclude

PathLike = str | os.PathLike[str]
Paths = PathLike | Sequence[PathLike]
OnError = Literal["raise", "skip"]
Labels = Literal["folder", "name"] | Callable[[str], str | int] | None


def _begin(source: Source, on_error: OnError = "raise", budget: int | float | None = None) -> Pipeline:
    return _skipping(Pipeline(source), on_error, budget)


def _skipping(pipeline: Pipeline, on_error: OnError, budget: int | float | None) -> Pipeline:
    if on_error not in ("raise", "skip"):
        raise UsageError('on_error="raise" or "skip"', got=repr(on_error), fix='on_error="skip", budget=100')
    return pipeline.skip_errors(budget) if on_error == "skip" else pipeline


def _chosen(**options: Any) -> dict[str, Any]:
    """Options that are not None: the source has its own defaults."""
    return {name: value for name, value in options.items() if value is not None}


@explained
def read_text(
    paths: Paths, *, by: Literal["file", "line", "paragraph"] = "file",
    errors: Literal["strict", "replace"] = "strict", on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads plain text, also .gz and .zst: each file, line or paragraph is a record `{"text": ...}`.

    Args:
        paths: a path, folder, glob or URL, or a list of them.
        errors: "replace" decodes bytes that are not UTF-8 as U+FFFD instead of treating them as a bad record.
        on_error: "skip" replaces bad records, at most `budget` (a count or a fraction): as `.skip_errors(budget)`.
        limits: `penstock.Limits` on the size of a record.
        storage_options: passed to fsspec for URLs.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.txt")
    >>> _ = path.write_text("one\\ntwo\\n")
    >>> read_text(path, by="line").peek(1)
    [{'text': 'one'}]
    """
    from penstock.sources.text import TextFiles

    source = TextFiles(paths, mode=by, errors=errors, **_chosen(limits=limits, storage_options=storage_options))
    return _begin(source, on_error, budget)


@explained
def read_jsonl(
    paths: Paths, *, field: str | None = "text", fields: Sequence[str] | None = None,
    types: Mapping[str, str] | None = None, on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads JSON lines, also .gz and .zst: each line is a record. Keeps one 64-bit offset per line.

    Args:
        field: the one text field to read; None reads `fields`, or all fields of the first record.
        types: type of a field, where the first record does not show it: {"score": "float"}.

    The other arguments are those of `read_text`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = path.write_text('{"text": "one", "n": 1}')
    >>> read_jsonl(path).peek(), read_jsonl(path, fields=["n"]).peek()
    ([{'text': 'one'}], [{'n': np.int64(1)}])
    """
    from penstock.sources.jsonl import JsonlFiles

    options = _chosen(limits=limits, storage_options=storage_options)
    return _begin(JsonlFiles(paths, field, fields=fields, types=types, **options), on_error, budget)


@explained
def read_parquet(
    paths: Paths, *, columns: Sequence[str] | None = None, text: str = "text", on_error: OnError = "raise",
    budget: int | float | None = None, limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads Parquet files: each row is a record. Keeps the last few row groups in memory.

    Args:
        columns: read only these.
        text: the column that `prepare` and `.tokenize()` can read in one pass.

    The other arguments are those of `read_text`.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> path = tempfile.mkdtemp() + "/a.parquet"
    >>> pq.write_table(pa.table({"text": ["one"], "n": [1]}), path)
    >>> read_parquet(path, columns=["n"]).peek()
    [{'n': np.int64(1)}]
    """
    from penstock.sources.parquet import ParquetFiles

    options = _chosen(limits=limits, storage_options=storage_options)
    return _begin(ParquetFiles(paths, columns, text=text, **options), on_error, budget)


@explained
def read_images(
    root: PathLike, labels: Labels = "folder", *, exclude: Exclude = None, suffixes: Sequence[str] | None = None,
    identity: Literal["sampled", "full"] = "sampled", on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None,
) -> Pipeline:  # fmt: skip
    """Reads the image files below a folder: `bytes`, `path` and, unless `labels=None`, `label`.

    Args:
        labels: where the class comes from: "folder", "name" (up to the first "_", "-" or "."), or a function of the
            path.
        exclude: paths, record numbers, or the ledger of another run.
        suffixes: file extensions to read; default the common image formats.
        identity: what the fingerprint reads: "sampled" names, sizes and 256 files; "full" every byte.
        on_error, budget, limits: as in `read_text`.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "cat").mkdir(), (root / "cat" / "1.png").write_bytes(b"...")
    >>> read_images(root).peek()
    [{'bytes': b'...', 'path': 'cat/1.png', 'label': np.int64(0)}]
    """
    from penstock.sources.exclude import exclude_records
    from penstock.sources.folders import ImageFolder

    folder = ImageFolder(root, labels, identity=identity, **_chosen(suffixes=suffixes, limits=limits))
    return _begin(exclude_records(folder, exclude), on_error, budget)


@explained
def read_audio(
    root: PathLike, labels: Labels = "folder", *, sample_rate: int | None = None, exclude: Exclude = None,
    suffixes: Sequence[str] | None = None, identity: Literal["sampled", "full"] = "sampled",
    on_error: OnError = "raise", budget: int | float | None = None, limits: Limits | None = None,
) -> Pipeline:  # fmt: skip
    """Reads the audio files below a folder: `audio` (the file, for `.decode_audio()` to seek in), `path`, `label`.

    Args:
        sample_rate: decode full files while reading: `audio` is ragged, and `.bucket()` and `.batch_tokens()` plan
            batches by duration, in samples. Reads one header per file.

    The other arguments are those of `read_images`.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "7_anna.wav").write_bytes(b"...")
    >>> read_audio(root, labels="name").peek()[0]["path"]
    '7_anna.wav'
    """
    from penstock.sources.exclude import exclude_records
    from penstock.sources.folders import AudioFolder, AudioPaths

    options = _chosen(suffixes=suffixes, limits=limits)
    folder: AudioFolder
    if sample_rate is None:
        folder = AudioPaths(root, labels, identity=identity, **options)
    else:
        from penstock.sources.recordings import Recordings

        folder = Recordings(root, labels, sample_rate=sample_rate, identity=identity, **options)
    return _begin(exclude_records(folder, exclude), on_error, budget)


@explained
def read_tar(
    paths: Paths, *, decode: bool = True, parts: Sequence[str] | None = None, index: PathLike | None = "beside",
    exclude: Exclude = None, on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads tar shards in the WebDataset layout: `key`, and a column for each part, named by its extension.

    Opening walks the headers of each shard once and keeps an index beside it.

    Args:
        decode: decode text, JSON and integers (`.txt`, `.json`, `.cls`...); other parts are always bytes, for
            `.decode_images(224, column="jpg")`.
        parts: extensions to read; default those of the first record.
        index: "beside" the shards, a folder, or None for memory only.
        exclude: keys, record numbers, or the ledger of another run.

    The other arguments are those of `read_text`.

    >>> import io, tarfile, tempfile
    >>> path = tempfile.mkdtemp() + "/a.tar"
    >>> with tarfile.open(path, "w") as tar:
    ...     info = tarfile.TarInfo("0.txt")
    ...     info.size = 3
    ...     tar.addfile(info, io.BytesIO(b"one"))
    >>> read_tar(path).peek()
    [{'key': '0', 'txt': 'one'}]
    """
    from penstock.sources.exclude import exclude_records
    from penstock.sources.tar import TarShards

    shards = TarShards(paths, parts=parts, index=index, **_chosen(limits=limits, storage_options=storage_options))
    pipeline = Pipeline(exclude_records(shards, exclude))
    return _skipping(pipeline.decode_parts() if decode else pipeline, on_error, budget)


@explained
def from_texts(texts: Sequence[str]) -> Pipeline:
    """Begins with strings in memory: each is a record `{"text": ...}`.

    >>> from_texts(["one", "two"]).peek(1)
    [{'text': 'one'}]
    """
    from penstock.sources.arrays import Texts

    return _begin(Texts(texts))


@explained
def from_arrays(columns: Mapping[str, Any]) -> Pipeline:
    """Begins with columns in memory (arrays, lists, `Ragged`), one row per record.

    >>> from_arrays({"x": [1, 2], "y": [[1, 2], [3, 4]]}).peek(1)
    [{'x': np.int64(1), 'y': array([1, 2])}]
    """
    from penstock.sources.arrays import Arrays

    return _begin(Arrays(columns))


@explained
def from_hf(dataset: datasets.Dataset) -> Pipeline:
    """Begins with a Hugging Face `datasets.Dataset`: each row is a record, read from its Arrow table in blocks.

    >>> import datasets
    >>> from_hf(datasets.Dataset.from_dict({"x": [1, 2]})).peek(1)
    [{'x': np.int64(1)}]
    """
    from penstock.sources.hf import HFDataset

    return _begin(HFDataset(dataset))


@explained
def from_tfds(folder: PathLike | Any, split: str = "train", *, decoders: Mapping[str, Any] | None = None) -> Pipeline:
    """Begins with a prepared TensorFlow dataset: its folder, name, builder or data source. Needs no TensorFlow.

    Args:
        split: also cut, as "train[:10%]".
        decoders: `{"image": tfds.decode.SkipDecoding()}` keeps images encoded, for `.decode_images(column="image")`.
    """
    from penstock.sources.tfds import TFDSource

    return _begin(TFDSource.open(folder, split, decoders))


@explained
def open_store(path: PathLike, *, verify: Literal["first-touch", "open", "off"] = "first-touch") -> Pipeline:
    """Opens a token store that `penstock prepare` wrote. Reads one small file, whatever the size of the store.

    Args:
        verify: when page checksums are compared: at the first read of a page, all when opening, or never.

    >>> import tempfile
    >>> made = prepare(from_texts(["hi"]), "bytes", tempfile.mkdtemp())
    >>> open_store(made.path).peek()[0]["input_ids"].tolist()
    [104, 105, 256]
    """
    from penstock.sources.tokens import TokenStore

    return _begin(TokenStore(path, verify=verify))


@explained
def open_tokens(tokens: ArrayLike, documents: ArrayLike | None = None, vocab_size: int | None = None) -> Pipeline:
    """Opens tokens in memory or memory-mapped.

    Args:
        documents: offsets at which documents begin, and the end; default one document.

    >>> [row["input_ids"].tolist() for row in open_tokens([5, 6, 7], [0, 2, 3]).peek()]
    [[5, 6], [7]]
    """
    from penstock.sources.tokens import TokenArray

    return _begin(TokenArray(tokens, documents, vocab_size))


@explained
def open_megatron(prefix: PathLike, *, vocab_size: int | None = None) -> Pipeline:
    """Opens Megatron's `.bin` and `.idx` without conversion.

    Args:
        prefix: the path without extension, or either file.
    """
    from penstock.sources import megatron

    return _begin(megatron.open_megatron(prefix, vocab_size=vocab_size))


@explained
def open_nanogpt(
    path: Paths, *, dtype: DTypeLike = "uint16", eos_id: int | None = None, vocab_size: int | None = None
) -> Pipeline:
    """Opens `.bin` files of nanoGPT or llm.c without conversion.

    Args:
        dtype: of files without a header.
        eos_id: the id that ends each document; opening then reads all tokens once. Without it a file is a document.

    >>> import tempfile, numpy as np
    >>> path = tempfile.mkdtemp() + "/train.bin"
    >>> np.array([5, 6, 0, 7], np.uint16).tofile(path)
    >>> [row["input_ids"].tolist() for row in open_nanogpt(path, eos_id=0).peek()]
    [[5, 6, 0], [7]]
    """
    from penstock.sources import nanogpt

    return _begin(nanogpt.open_nanogpt(path, dtype=dtype, eos_id=eos_id, vocab_size=vocab_size))


@explained
def open_dolma(
    paths: Paths, *, dtype: DTypeLike | None = None, ends: Paths | None = None, eos_id: int | None = None,
    vocab_size: int | None = None,
) -> Pipeline:  # fmt: skip
    """Opens token arrays as Dolma and OLMo write them, without conversion.

    Args:
        dtype: of the tokens, which the files do not state.
        ends: a CSV per file with the start and end of each document; or `eos_id`; else a file is a document.

    >>> import tempfile, numpy as np
    >>> path = tempfile.mkdtemp() + "/part-0.npy"
    >>> np.array([5, 6, 0, 7], np.uint32).tofile(path)
    >>> [row["input_ids"].tolist() for row in open_dolma(path, dtype="uint32", eos_id=0).peek()]
    [[5, 6, 0], [7]]
    """
    from penstock.sources import dolma

    return _begin(dolma.open_dolma(paths, dtype=dtype, ends=ends, eos_id=eos_id, vocab_size=vocab_size))


@explained
def pair(
    media: Pipeline, captions: Pipeline | Mapping[str, str], *, on: str = "key",
    key: Callable[[str], str] | None = None, missing: Literal["error", "drop"] = "error",
) -> Pipeline:  # fmt: skip
    """Joins media with their captions by key. Steps come after the pair.

    Args:
        captions: a dict, or a pipeline with a column `on`.
        key: the key of a media path; default the path without its extension, or the bare name.
        missing: "drop" leaves out media without a caption.

    >>> media = from_arrays({"key": ["a", "b"], "bytes": [b"1", b"2"]})
    >>> pair(media, {"b": "a boat"}, missing="drop").peek()
    [{'key': 'b', 'text': 'a boat', 'bytes': b'2'}]
    """
    from penstock.sources.base import Source
    from penstock.sources.pairs import Pairs

    if media.definition.steps or not isinstance(media.definition.origin, Source):
        raise UsageError("a plain source of media in pair()", got="one with steps", fix="pair first, then decode")
    known = captions if isinstance(captions, Mapping) else captions.rows()
    pairs = _begin(Pairs.of(media.definition.origin, known, on=on, key=key, missing=missing))
    rank, world = media.definition.rank, media.definition.world
    return pairs.shard(rank, world) if media.definition.sharded else pairs


@explained
def mix(
    pipelines: Sequence[Pipeline], weights: Sequence[float] | None = None, *, seed: int = 0,
    stop: Literal["never", "first", "all"] = "never",
) -> Pipeline:  # fmt: skip
    """Draws rows from several pipelines in exact proportion to `weights` (default: to their sizes).

    Args:
        stop: an epoch ends "never", or when the "first" pipeline or "all" of them have been read once.

    >>> mixed = mix([from_texts(["a"]), from_texts(["b"])], [3, 1])
    >>> sorted(row["text"] for row in mixed.peek(4))
    ['a', 'a', 'a', 'b']
    """
    from penstock.plan.build import mixed

    return Pipeline(mixed([p.definition for p in pipelines], weights, seed, stop))


@explained
def prepare(
    source: Pipeline | TextSource, tokenizer: Any, out: PathLike, *, field: str = "text", eos: bool | int = True,
    engine: Literal["auto", "reference"] = "auto", shard_tokens: int = 1 << 25, on_error: OnError | None = None,
    budget: int | float | None = None, threads: int | None = None, show_progress: bool | None = None,
    restart: bool = False, add_special_tokens: bool | None = None, allowed_special: Collection[str] | None = None,
    disallowed_special: Collection[str] | None = None,
) -> Prepared:  # fmt: skip
    """Tokenizes texts into a token store in the folder `out`. Run again after an interruption, it resumes.

    Uses a few chunks of 4 MB and one open shard of memory. The arguments are those of `Pipeline.tokenize`, and:

    Args:
        restart: replace a store of other data or settings in `out`.

    >>> import tempfile
    >>> prepare(from_texts(["one", "two"]), "bytes", tempfile.mkdtemp()).documents
    2
    """
    from penstock.preparation import run
    from penstock.preparation.tokenize import text_source
    from penstock.sources.base import TextSource

    settings = changed(
        prepare, eos=eos, engine=engine, shard_tokens=shard_tokens, on_error=on_error, budget=budget,
        threads=threads, show_progress=show_progress, restart=restart, add_special_tokens=add_special_tokens,
        allowed_special=allowed_special, disallowed_special=disallowed_special,
    )  # fmt: skip
    if not isinstance(source, Pipeline | TextSource):
        raise UsageError(
            "a pipeline of texts to prepare", got=repr(source)[:80], fix="prepare(penstock.read_text(paths), ...)"
        )
    texts = text_source(source.definition, field, settings) if isinstance(source, Pipeline) else source
    return run.prepare(texts, tokenizer, out, **settings)
