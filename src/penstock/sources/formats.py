"""The registry of file formats: what a path is, and what opens it.

`FORMATS` has one line per format. To add a format, write `sources/<format>.py` with an opener and add a line: the
command line, the facades and `sources.records` then recognise its files.

A path is recognised by its name, by the files in a folder and, where names are not enough, by its first bytes; never
by trying to parse it. A path that could be two things is refused, with the argument that decides.
"""

from __future__ import annotations

import glob as globbing
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from penstock.core.errors import FileMissing, UsageError
from penstock.sources import content, splits, tfds_folders
from penstock.storage import filesystem, objects
from penstock.storage.schemes import OBJECTS
from penstock.storage.suffixes import ends_in

Kind = Literal["text", "records", "tokens", "images", "audio", "videos"]
_JOB, _RECORDS = "job.json", ("done", "journal.jsonl")  # an interrupted `penstock prepare` leaves the job and records
_NPY = b"\x93NUMPY"


@dataclass(frozen=True)
class Options:
    """How to open a path; a format uses the fields that apply to it."""

    field: str = "text"  # the field or column that holds the text
    every_field: bool = False  # read the other fields too
    by: str = "file"  # what a record of a text file is: "file", "line" or "paragraph"
    split: str = "train"  # of a dataset that has splits
    dtype: str | None = None  # of token files without a header
    eos_id: int | None = None  # the id that ends a document in token files without a document table
    storage_options: filesystem.Options = None  # of URLs


@dataclass(frozen=True)
class Format:
    """One file format. `opener` is "module:function" in `penstock.sources`, called as `function(paths, options)`."""

    name: str
    kind: Kind
    title: str  # in messages
    read: str  # how to read it in Python, in messages
    opener: str = ""  # empty: only through `read`, which takes arguments that cannot be guessed
    suffixes: tuple[str, ...] = ()
    folder: tuple[str, ...] = ()  # a folder that holds all of these files is one dataset of this format
    versions: bool = False  # so is one that holds such a folder for a version, as TFDS keeps its data
    check: str = ""  # "module:function" of a path, in `penstock.sources`: whether its content is of this format
    magic: bytes = b""  # first bytes, where the suffix is shared with another format
    pair: tuple[str, ...] = ()  # a common prefix and these endings make one dataset
    one_pass: bool = False  # a `TextSource`: `penstock prepare` reads its texts from front to back
    needs: str = ""  # an argument that only the user knows

    def open(self, paths: Any, options: Options = Options()) -> Any:  # noqa: B008  (frozen)
        """The source of a path, or of a list of paths."""
        module, _, function = self.opener.partition(":")
        if not function:
            raise UsageError(
                "a path that can be opened without further arguments",
                got=self.title,
                where=", ".join(_listed(paths)[:3]),
                fix=f"penstock.{self.read}",
            )
        if self.one_pass and any(os.path.isdir(path) for path in _listed(paths)):
            paths = splits.data_files(paths, self.suffixes, options.storage_options)
        return getattr(import_module(f"penstock.sources.{module}"), function)(paths, options)

    def has_suffix(self, path: str) -> bool:
        return bool(self.suffixes) and ends_in(path, self.suffixes)

    def is_at(self, path: str, storage_options: filesystem.Options = None) -> bool:
        """Whether this one path, or URL of an object store, is a dataset of this format."""
        if self.check:
            module, _, function = self.check.partition(":")
            return bool(getattr(import_module(f"penstock.sources.{module}"), function)(path, storage_options))
        if self.folder and all(_is_file(objects.join(path, name), storage_options) for name in self.folder):
            return True
        if self.versions and os.path.isdir(path) and tfds_folders.versions_below(path):
            return True
        if self.pair:
            base = next((path.removesuffix(end) for end in self.pair if path.endswith(end)), path)
            return all(_is_file(base + end, storage_options) for end in self.pair)
        return self.has_suffix(path) and (not self.magic or _begins(path, self.magic, storage_options))


def _packed(*stems: str) -> tuple[str, ...]:
    return tuple(stem + end for stem in stems for end in ("", ".gz", ".zst"))


IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2")
AUDIO_SUFFIXES = (
    ".wav",
    ".flac",
    ".ogg",
    ".oga",
    ".opus",
    ".mp3",
    ".aiff",
    ".aif",
    ".au",
    ".caf",
    ".w64",
    ".m4a",
    ".aac",
    ".mka",
    ".webm",
)
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".avi", ".mpg", ".mpeg", ".ts", ".3gp", ".ogv", ".flv", ".wmv")
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".txt.gz", ".txt.zst", ".md.gz", ".md.zst")

# One path is one dataset. The first line that recognises a path wins.
DATASETS = (
    Format("store", "tokens", "a token store", "open_store(path)", "tokens:open_path",
           suffixes=(".tokens", "manifest.json"), folder=("manifest.json",)),
    Format("megatron", "tokens", "Megatron tokens", "open_megatron(prefix)", "megatron:open_path",
           pair=(".bin", ".idx")),
    Format("nanogpt", "tokens", "bare tokens (.bin)", "open_nanogpt(path, dtype=...)", "nanogpt:open_path",
           suffixes=(".bin",), needs="dtype"),
    Format("array", "tokens", "a NumPy array", "open_tokens(numpy.load(path))", "tokens:open_npy",
           suffixes=(".npy",), magic=_NPY),
    Format("dolma", "tokens", "bare tokens (.npy)", "open_dolma(path, dtype=...)", "dolma:open_path",
           suffixes=(".npy",), needs="dtype"),
    Format("mds", "records", "a MosaicML MDS dataset", "read_mds(folder)", "mds:open_path",
           folder=("index.json",), check="mds_index:is_mds"),
    Format("tfds", "records", "a TFDS dataset", "from_tfds(folder)", "tfds:open_path",
           folder=tfds_folders.NAMES, versions=True),
    Format("hf", "records", "a Hugging Face dataset", "from_hf(datasets.load_from_disk(folder))", "hf:open_path",
           folder=("dataset_info.json", "state.json")),
    Format("hf splits", "records", "Hugging Face splits", "from_hf(datasets.load_from_disk(folder)[split])",
           "hf:open_path", folder=("dataset_dict.json",)),
)  # fmt: skip

# A list of files is one dataset; folders are searched for these suffixes.
FILES = (
    Format("text", "text", "text files", "read_text(paths)", "text:open_path", suffixes=TEXT_SUFFIXES, one_pass=True),
    Format("jsonl", "records", "JSON lines", "read_jsonl(paths)", "jsonl:open_path",
           suffixes=_packed(".jsonl", ".ndjson", ".json"), one_pass=True),
    Format("json", "records", "JSON arrays", "read_json(paths)", "json_array:open_path",
           suffixes=_packed(".json"), one_pass=True),
    Format("parquet", "records", "Parquet files", "read_parquet(paths)", "parquet:open_path",
           suffixes=(".parquet", ".pq"), one_pass=True),
    Format("csv", "records", "CSV files", "read_csv(paths)", "csv:open_path", suffixes=_packed(".csv", ".tsv"),
           one_pass=True),
    Format("arrow", "records", "Arrow files", "read_arrow(paths)", "arrow_files:open_path",
           suffixes=(".arrow", ".feather", ".ipc"), one_pass=True),
    Format("array_record", "records", "ArrayRecord files", "read_array_record(paths)", "array_record:open_path",
           suffixes=(".array_record", ".arrayrecord")),
    Format("tfrecord", "records", "TFRecord files", "read_tfrecords(paths)", "tfrecord_files:open_path",
           suffixes=_packed(".tfrecord", ".tfrecords"), one_pass=True),
    Format("tar", "records", "tar shards", "read_tar(paths)", suffixes=(".tar",)),
    Format("images", "images", "image files", "read_images(folder)", suffixes=IMAGE_SUFFIXES),
    Format("audio", "audio", "audio files", "read_audio(folder)", suffixes=AUDIO_SUFFIXES),
    Format("videos", "videos", "video files", "read_videos(folder)", suffixes=VIDEO_SUFFIXES),
)  # fmt: skip

FORMATS = {known.name: known for known in (*DATASETS, *FILES)}
TEXT_FORMATS = tuple(known.name for known in FILES if known.one_pass)
_LOOKED_AT = 1000
_CHECKED = 16  # files of a list whose content is compared with their names; others are checked when read
_SUFFIXES = tuple(suffix for known in FORMATS.values() for suffix in (*known.suffixes, *known.pair))
# What a folder is searched for first: a folder of images with a text beside them is text, as far as a path says.
_TEXTS = tuple(suffix for known in FILES if known.one_pass for suffix in known.suffixes)
_OTHERS = tuple(suffix for known in FILES for suffix in known.suffixes if suffix not in _TEXTS)


def format_of(
    paths: str | Sequence[str], storage_options: filesystem.Options = None, *, most: bool = False
) -> Format:  # fmt: skip
    """The one format of a path, a glob, a URL, a folder, or of a list of them.

    A file whose name says nothing is recognised by its first bytes; what is not text either is refused. Of a folder
    with texts or records and media the texts count, as a list of file names and labels would; with `most`, for a look
    at what is there, the media do if they are more files.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("a.jsonl", "b.ndjson.gz"): _ = (folder / name).write_bytes(b"{}")
    >>> format_of(str(folder)).title, format_of(str(folder / "a.jsonl")).name
    ('JSON lines', 'jsonl')
    """
    found: Counter[str] = Counter()
    rest = []
    for path in [paths] if isinstance(paths, str) else paths:
        known = dataset_at(path, storage_options)
        if known is None:
            rest.append(path)
        else:
            found[known.name] += 1
    if rest:
        files = _found(rest, storage_options, most)[1]
        names = [by_suffix(path, storage_options).name for path in files]
        array = _is_array(files, storage_options)
        found.update("json" if name == "jsonl" and array else name for name in names)
        for path in files[:_CHECKED]:
            if (known := by_suffix(path, storage_options)).name in ("text", "jsonl"):
                content.check_text(path, known.title, storage_options)
    if not found:
        raise UsageError("at least one path", got="an empty list", fix="name a file, folder, glob or URL")
    if len(found) > 1:
        raise UsageError(
            "files of one format",
            got=", ".join(f"{count} {name}" for name, count in found.most_common()),
            where=paths if isinstance(paths, str) else ", ".join(paths[:3]),
            fix="name the files of one format, for example with a glob; on the command line --format says which it is",
        )
    return FORMATS[next(iter(found))]


def dataset_at(path: str, storage_options: filesystem.Options = None) -> Format | None:
    """The format of a path that is a dataset by itself; None for files that are read as a list."""
    if filesystem.scheme(path) in OBJECTS:
        if globbing.has_magic(path) or any(known.has_suffix(path) for known in FILES):
            return None
        return next((known for known in DATASETS if known.is_at(path.rstrip("/"), storage_options)), None)
    if os.path.isfile(os.path.join(path, _JOB)) and any(os.path.exists(os.path.join(path, name)) for name in _RECORDS):
        raise UsageError(
            "a finished token store",
            got="a preparation that was interrupted",
            where=path,
            fix="run the same `penstock prepare` command again: it resumes where it stopped",
        )
    return next((known for known in DATASETS if known.is_at(path)), None)


def by_suffix(path: str, storage_options: filesystem.Options = None) -> Format:
    """The format of a file of a list: by its name, else by its first bytes."""
    name = os.path.basename(path).lower()
    named = _by_ending(name[name.find(".") :]) if "." in name else None
    return named or FORMATS[content.format_name(path, storage_options)]


@lru_cache(1024)
def _by_ending(ending: str) -> Format | None:
    """The format of files that end so, from the first dot of the name on; kept, for folders of many files."""
    return next((known for known in FILES if known.has_suffix(ending)), None)


def _is_array(files: Sequence[str], storage_options: filesystem.Options) -> bool:
    """Whether files named .json hold arrays, and not JSON lines: by the content of the first."""
    return all(FORMATS["json"].has_suffix(path) for path in files) and content.is_array(files[0], storage_options)


def names_files(items: Sequence[object]) -> bool:
    """Whether a list holds paths; False when it holds data. A list of both is refused.

    A str is a path when it is a URL, ends like a file of a known format without a space in it, ends in "/*", or names
    something that exists. Beside sentences, a word that is also the name of something here is a text. Of a long list
    the first thousand items are looked at.

    >>> names_files(["a.jsonl", "b.jsonl.gz"]), names_files(["What is a.jsonl?"]), names_files([{"text": "a.jsonl"}])
    (True, False, False)
    >>> names_files(["."]), names_files([".", "A sentence"])
    (True, False)
    """
    if not items or not isinstance(items[0], str | os.PathLike):
        return False
    looked = items[:_LOOKED_AT]
    found = [_names_file(item) for item in looked]
    if not any(found) or all(found):
        return all(found)
    others = [item for item, one in zip(looked, found, strict=True) if not one]
    named = [item for item, one in zip(looked, found, strict=True) if one]
    if not any(map(_is_written_as_a_path, named)) and any(isinstance(o, str) and len(o.split()) > 1 for o in others):
        return False
    raise UsageError(
        "only paths or only texts (or records)",
        got=f"paths, and {str(others[0])[:60]!r}",
        where=f"items {found.index(True)} and {found.index(False)} of the list",
        fix='pass paths as pathlib.Path, or texts as records: [{"text": text} for text in texts]',
    )


def _names_file(item: object) -> bool:
    if not isinstance(item, str):
        return isinstance(item, os.PathLike)
    if not item or len(item) > 1024 or "\n" in item or "\0" in item:
        return False
    return _has_the_form(item) or os.path.exists(item)


def _has_the_form(item: str) -> bool:
    return " " not in item and ("://" in item or item.endswith(("/*", "/**")) or item.lower().endswith(_SUFFIXES))


def _is_written_as_a_path(item: object) -> bool:
    """Whether it is more than a word that something happens to be named by."""
    return not isinstance(item, str) or _has_the_form(item) or os.sep in item


def suffixes_at(paths: Sequence[str], storage_options: filesystem.Options = None) -> tuple[str, ...]:
    """Which endings to look for in folders: of text, JSON lines, Parquet and CSV, or else of whatever is there."""
    return _found(paths, storage_options)[0]


def _found(
    paths: Sequence[str], storage_options: filesystem.Options, most: bool = False
) -> tuple[tuple[str, ...], list[str]]:
    """The endings, and the files that have them: a folder is walked once."""
    if all(os.path.isdir(path) for path in paths):
        with suppress(FileMissing):  # said below, with what is there
            every = splits.data_files(paths, (*_TEXTS, *_OTHERS), storage_options)
            texts = [path for path in every if ends_in(path, _TEXTS)]
            if len(texts) == len(every) or (texts and not (most and 2 * len(texts) < len(every))):
                return _TEXTS, texts
            return _OTHERS, [path for path in every if ends_in(path, _OTHERS)] if texts else every
    for suffixes in (_TEXTS, _OTHERS):
        try:
            return suffixes, splits.data_files(paths, suffixes, storage_options)
        except FileMissing as error:
            if not any(os.path.isdir(path) for path in paths):
                raise
            missing = error
    every = [name for path in paths if os.path.isdir(path) for name in splits.data_files(path)]
    ends = Counter(os.path.splitext(name)[1] or os.path.basename(name) for name in every)
    missing.got = ", ".join(f"{count} {end}" for end, count in ends.most_common(5))
    raise missing


def _is_file(path: str, storage_options: filesystem.Options) -> bool:
    return objects.exists(path, storage_options) if filesystem.scheme(path) else os.path.isfile(path)


def _listed(paths: Any) -> list[str]:
    return [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def _begins(path: str, magic: bytes, storage_options: filesystem.Options) -> bool:
    with filesystem.open_read(path, storage_options) as file:
        return file.read(len(magic)) == magic
