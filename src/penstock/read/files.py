"""Pipelines that begin with files of records: text, JSON lines, Parquet, images, audio, tar shards, MDS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import explained
from penstock.pipeline import Pipeline
from penstock.read.common import Labels, OnError, PathLike, Paths, begin, chosen, skipping
from penstock.read.manifests import from_manifest

if TYPE_CHECKING:
    from penstock.core.limits import Limits
    from penstock.sources.exclude import Exclude


@explained
def read_text(
    paths: Paths, *, by: Literal["file", "line", "paragraph"] = "file",
    errors: Literal["strict", "replace"] = "strict", on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads plain text, also .gz and .zst: each file, line or paragraph is a record `{"text": ...}`.

    Args:
        paths: a path, folder, glob or URL, or a list of them.
        by: "file", "line" (blank ones are not records) or "paragraph".
        errors: "replace" decodes bytes that are not UTF-8 as U+FFFD instead of treating them as a bad record.
        on_error: "skip" replaces bad records, at most `budget` (a count or a fraction): as `.skip_errors(budget)`.
        limits: `penstock.Limits` on the size of a record.
        storage_options: credentials, endpoint... of URLs: names of obstore, or of s3fs, gcsfs and adlfs.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.txt")
    >>> _ = path.write_text("one\\ntwo\\n")
    >>> ps.read_text(path, by="line").peek(1)
    [{'text': 'one'}]
    """
    from penstock.sources.text import TextFiles

    source = TextFiles(paths, mode=by, errors=errors, **chosen(limits=limits, storage_options=storage_options))
    return begin(source, on_error, budget)


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
    >>> ps.read_jsonl(path).peek(), ps.read_jsonl(path, fields=["n"]).peek()
    ([{'text': 'one'}], [{'n': np.int64(1)}])
    """
    from penstock.sources.jsonl import JsonlFiles

    options = chosen(limits=limits, storage_options=storage_options)
    return begin(JsonlFiles(paths, field, fields=fields, types=types, **options), on_error, budget)


@explained
def read_parquet(
    paths: Paths, *, columns: Sequence[str] | None = None, text: str = "text", on_error: OnError = "raise",
    budget: int | float | None = None, limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
    partitions: Literal["columns", "ignore"] = "columns",
) -> Pipeline:  # fmt: skip
    """Reads Parquet files: each row is a record. Keeps the last row groups, up to 512 MiB.

    Rows in random order are stored once in the cache folder (`PENSTOCK_CACHE`), from where they are read at once;
    `limits=ps.Limits(row_cache_bytes=0)` stores none.

    Args:
        columns: read only these.
        text: the column that `prepare` and `.tokenize()` can read in one pass.
        partitions: whether folders named like `year=2024` below `paths` are columns: integers, or text.

    The other arguments are those of `read_text`.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> path = tempfile.mkdtemp() + "/a.parquet"
    >>> pq.write_table(pa.table({"text": ["one"], "n": [1]}), path)
    >>> ps.read_parquet(path, columns=["n"]).peek()
    [{'n': np.int64(1)}]
    """
    from penstock.sources.parquet import ParquetFiles

    options = chosen(limits=limits, storage_options=storage_options)
    return begin(ParquetFiles(paths, columns, text=text, partitions=partitions, **options), on_error, budget)


@explained
def read_csv(
    paths: Paths, *, columns: Sequence[str] | None = None, text: str = "text", header: bool | Sequence[str] = True,
    delimiter: str | None = None, quote: str | None = '"', types: Mapping[str, str] | None = None,
    on_error: OnError = "raise", budget: int | float | None = None, limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads CSV and TSV files, also .gz and .zst: each row is a record. Keeps two 64-bit numbers per row.

    A column is whole numbers, decimal numbers (an empty cell is NaN), true/false or text, by its first 1,000 cells.

    Args:
        columns: read only these.
        text: the column that `prepare` and `.tokenize()` can read in one pass.
        header: whether the first record of each file names the columns; or their names, for files without one.
        delimiter: default a tab in .tsv files, else the one of `, ; | tab` that the first line has most of.
        quote: around cells with delimiters or line breaks; None reads quotes as plain text.
        types: "str", "int", "float" or "bool", where the first records do not show it: {"code": "str"}.

    The other arguments are those of `read_text`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.csv")
    >>> _ = path.write_text('text,n\\n"one, or two",1\\n')
    >>> ps.read_csv(path).peek()
    [{'text': 'one, or two', 'n': np.int64(1)}]
    """
    from penstock.sources.csv import CsvFiles

    options = chosen(limits=limits, storage_options=storage_options)
    source = CsvFiles(
        paths, columns, text=text, header=header, delimiter=delimiter, quote=quote, types=types, **options
    )
    return begin(source, on_error, budget)


@explained
def read_json(
    paths: Paths, *, fields: Sequence[str] | None = None, key: str | None = None,
    types: Mapping[str, str] | None = None, on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads JSON files that hold one array of objects, also .gz and .zst: each object is a record. Kept in memory.

    Args:
        fields: read only these; default those of the first record.
        key: the member that holds the array, where the file is an object with several.
        types: type of a field, where the first record does not show it: {"score": "float"}.

    `read_jsonl` reads one object per line. The other arguments are those of `read_text`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.json")
    >>> _ = path.write_text('[{"text": "one", "n": 1}]')
    >>> ps.read_json(path).peek()
    [{'text': 'one', 'n': np.int64(1)}]
    """
    from penstock.sources.json_array import JsonArrays

    options = chosen(limits=limits, storage_options=storage_options)
    return begin(JsonArrays(paths, fields, key=key, types=types, **options), on_error, budget)


@explained
def read_arrow(
    paths: Paths, *, columns: Sequence[str] | None = None, on_error: OnError = "raise",
    budget: int | float | None = None, limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads Arrow IPC files (.arrow, .feather), of the file or stream format: each row is a record. Memory-mapped.

    Args:
        columns: read only these.

    The other arguments are those of `read_text`.

    >>> import tempfile, pyarrow as pa, pyarrow.feather
    >>> path = tempfile.mkdtemp() + "/a.arrow"
    >>> pa.feather.write_feather(pa.table({"text": ["one"], "n": [1]}), path)
    >>> ps.read_arrow(path, columns=["n"]).peek()
    [{'n': np.int64(1)}]
    """
    from penstock.sources.arrow_files import ArrowFiles

    options = chosen(limits=limits, storage_options=storage_options)
    return begin(ArrowFiles(paths, columns, **options), on_error, budget)


@explained
def read_array_record(
    paths: Paths, *, on_error: OnError = "raise", budget: int | float | None = None, limits: Limits | None = None,
) -> Pipeline:  # fmt: skip
    """Reads ArrayRecord files, as Grain writes them: each record is `{"bytes": ...}`, for `.map()` to parse.

    The arguments are those of `read_text`. Files must be local; they are read by the package `array_record`.

    >>> import tempfile
    >>> from array_record.python.array_record_module import ArrayRecordWriter
    >>> path = tempfile.mkdtemp() + "/a.array_record"
    >>> writer = ArrayRecordWriter(path, "group_size:1")
    >>> _ = writer.write(b"one"), writer.close()
    >>> ps.read_array_record(path).peek()
    [{'bytes': b'one'}]
    """
    from penstock.sources.array_record import ArrayRecordFiles

    return begin(ArrayRecordFiles(paths, **chosen(limits=limits)), on_error, budget)


@explained
def read_tfrecords(
    paths: Paths, *, features: Sequence[str] | None = None, types: Mapping[str, str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None, defaults: Mapping[str, Any] | None = None, parse: bool = True,
    text: str = "text", on_error: OnError = "raise", budget: int | float | None = None, limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads TFRecord files of tf.train.Example or SequenceExample, also compressed: each is a record of its features.

    Keeps one 64-bit offset per record. `from_tfds` reads datasets that TFDS prepared, and decodes their images.

    Args:
        features: read only these; default those of the first records.
        types: "int", "float", "bytes" or "str" for one value in each record, "ints", "floats", "bytes_list" or
            "str_list" for lists, where the first records do not show it: {"caption": "str", "tokens": "ints"}.
        shapes: of features with as many numbers in each record: {"pixels": (28, 28)}; in a sequence, of each step.
        defaults: what a feature of one value or of a shape is in records without it. A list is empty there.
        parse: False reads records that are no examples as they are: `{"bytes": ...}`, for `.map()` to parse.
        text: the feature that `prepare` and `.tokenize()` can read in one pass.

    The other arguments are those of `read_text`.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.tfrecord")
    >>> _ = path.write_bytes(bytes.fromhex("1200000000000000241f64250a100a0e0a056c6162656c12051a030a0107368c84b9"))
    >>> ps.read_tfrecords(path).peek()
    [{'label': np.int64(7)}]
    """
    from penstock.sources.tfrecord_files import TFRecordFiles

    source = TFRecordFiles(
        paths, features, types=types, shapes=shapes, defaults=defaults, parse_examples=parse, text=text,
        **chosen(limits=limits, storage_options=storage_options),
    )  # fmt: skip
    return begin(source, on_error, budget)


@explained
def read_images(
    root: Paths, labels: Labels = "folder", *, path_column: str | None = None, media_root: PathLike | None = None,
    exclude: Exclude = None, suffixes: Sequence[str] | None = None,
    identity: Literal["sampled", "full"] = "sampled", on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads image files: `bytes`, `path` and, unless `labels=None`, `label`; or `bytes` and the columns of a manifest.

    Args:
        root: a folder, searched for images; a list of files, a glob or braces (`{000..099}`), in that order; or a
            manifest: JSON lines, CSV, JSON, Parquet or Arrow with a column of paths.
        path_column: of a manifest; default the first of "path", "file_name", "image"...
        media_root: below which the paths of a manifest are opened; default its own folder. Paths that lead out of it
            are bad records.
        labels: where the class comes from: "folder", "name" (up to the first "_", "-" or "."), or a function of the
            path.
        exclude: paths, record numbers, or the ledger of another run.
        suffixes: file extensions to read; default the common image formats.
        identity: what the fingerprint reads: "sampled" names, sizes and 256 files; "full" every byte.
        on_error, budget, limits, storage_options: as in `read_text`.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "cat").mkdir(), (root / "cat" / "1.png").write_bytes(b"...")
    >>> ps.read_images(root).peek()
    [{'bytes': b'...', 'path': 'cat/1.png', 'label': np.int64(0)}]
    """
    from penstock.sources.exclude import exclude_records
    from penstock.sources.folders import ImageFolder

    manifest = from_manifest(
        root, read_images, "bytes", path_column=path_column, media_root=media_root, on_error=on_error, budget=budget,
        limits=limits, storage_options=storage_options,
        unused={"labels": labels, "exclude": exclude, "suffixes": suffixes, "identity": identity},
    )  # fmt: skip
    if manifest is not None:
        return manifest
    options = chosen(suffixes=suffixes, limits=limits, storage_options=storage_options)
    folder = ImageFolder(root, labels, identity=identity, **options)
    return begin(exclude_records(folder, exclude), on_error, budget)


@explained
def read_audio(
    root: Paths, labels: Labels = "folder", *, sample_rate: int | None = None, path_column: str | None = None,
    media_root: PathLike | None = None, exclude: Exclude = None,
    suffixes: Sequence[str] | None = None, identity: Literal["sampled", "full"] = "sampled",
    on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads audio files: `audio` (the file, for `.decode_audio()` to seek in), `path`, `label`; or a manifest.

    Args:
        sample_rate: decode full files while reading: `audio` is ragged, and `.bucket()` and `.batch_tokens()` plan
            batches by duration, in samples. Reads one header per file.

    The other arguments are those of `read_images`.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "7_anna.wav").write_bytes(b"...")
    >>> ps.read_audio(root, labels="name").peek()[0]["path"]
    '7_anna.wav'
    """
    from penstock.sources.exclude import exclude_records
    from penstock.sources.folders import AudioFolder, AudioPaths

    manifest = from_manifest(
        root, read_audio, "audio", path_column=path_column, media_root=media_root, on_error=on_error, budget=budget,
        limits=limits, storage_options=storage_options,
        unused={
            "labels": labels, "sample_rate": sample_rate, "exclude": exclude, "suffixes": suffixes,
            "identity": identity,
        },
    )  # fmt: skip
    if manifest is not None:
        return manifest
    options = chosen(suffixes=suffixes, limits=limits, storage_options=storage_options)
    folder: AudioFolder
    if sample_rate is None:
        folder = AudioPaths(root, labels, identity=identity, **options)
    else:
        from penstock.sources.recordings import Recordings

        folder = Recordings(root, labels, sample_rate=sample_rate, identity=identity, **options)
    return begin(exclude_records(folder, exclude), on_error, budget)


@explained
def read_videos(
    root: Paths, labels: Labels = "folder", *, path_column: str | None = None, media_root: PathLike | None = None,
    exclude: Exclude = None, suffixes: Sequence[str] | None = None,
    identity: Literal["sampled", "full"] = "sampled", on_error: OnError = "raise", budget: int | float | None = None,
    limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads video files: `video` (the file, for `.decode_video()` to seek in), `path`, `label`; or a manifest.

    Args:
        suffixes: default those of video files; `.webm` is read with `suffixes=[".webm"]`, as it may be audio.

    The other arguments are those of `read_images`.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> (root / "run").mkdir()
    >>> _ = (root / "run" / "1.mp4").write_bytes(b"...")
    >>> ps.read_videos(root).peek()[0]["path"]
    'run/1.mp4'
    """
    from penstock.sources.exclude import exclude_records
    from penstock.sources.folders import VideoPaths

    manifest = from_manifest(
        root, read_videos, "video", path_column=path_column, media_root=media_root, on_error=on_error, budget=budget,
        limits=limits, storage_options=storage_options,
        unused={"labels": labels, "exclude": exclude, "suffixes": suffixes, "identity": identity},
    )  # fmt: skip
    if manifest is not None:
        return manifest
    options = chosen(suffixes=suffixes, limits=limits, storage_options=storage_options)
    return begin(exclude_records(VideoPaths(root, labels, identity=identity, **options), exclude), on_error, budget)


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
    >>> ps.read_tar(path).peek()
    [{'key': '0', 'txt': 'one'}]
    """
    from penstock.sources.exclude import exclude_records
    from penstock.sources.tar import TarShards

    shards = TarShards(paths, parts=parts, index=index, **chosen(limits=limits, storage_options=storage_options))
    pipeline = Pipeline(exclude_records(shards, exclude))
    return skipping(pipeline.decode_parts() if decode else pipeline, on_error, budget)


@explained
def read_mds(
    paths: Paths, *, columns: Sequence[str] | None = None, split: str | None = None,
    verify: Literal["first-touch", "open", "off"] = "first-touch", on_error: OnError = "raise",
    budget: int | float | None = None, limits: Limits | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Reads MosaicML MDS datasets without conversion: each sample is a record. Pickled columns are refused.

    Args:
        paths: the folder or URL that MDSWriter wrote, or a list of them, read one after another.
        columns: read only these.
        split: the subfolder to read.
        verify: when the hashes of the index are compared: of a shard at its first read, of all when opening, or never.

    Shards with zstd or gz are decompressed once into a temporary file. The other arguments are those of `read_text`.

    >>> import penstock as ps, tempfile
    >>> out = tempfile.mkdtemp() + "/mds"
    >>> _ = ps.convert(ps.open_tokens([5, 6, 7], [0, 2, 3]), out, to="mds", show_progress=False)
    >>> [row["tokens"].tolist() for row in ps.read_mds(out).peek()]
    [[5, 6], [7]]
    """
    from penstock.sources.mds import MDSDataset

    options = chosen(limits=limits, storage_options=storage_options)
    return begin(MDSDataset(paths, columns=columns, split=split, verify=verify, **options), on_error, budget)
