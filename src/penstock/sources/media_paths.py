"""Lists, globs and brace patterns of media files, and manifests that name them."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import UsageError
from penstock.core.limits import Limits
from penstock.sources import formats
from penstock.sources.base import Source
from penstock.storage import filesystem
from penstock.storage.braces import expand_braces

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
MANIFESTS = ("jsonl", "json", "csv", "parquet", "arrow")
PATH_COLUMNS = (
    "path", "file_name", "filename", "file", "file_path", "filepath", "image_path", "img_path", "image", "audio_path",
    "audio_filepath", "audio", "wav",
)  # fmt: skip


def is_list(paths: Paths) -> bool:
    """Whether media are named one by one: a list, a pattern, or one file; not a folder to search."""
    if not isinstance(paths, str | os.PathLike):
        return True
    text = os.fspath(paths)
    if filesystem.scheme(text):
        return glob.has_magic(text) or len(expand_braces(text)) > 1 or text.lower().endswith(_SUFFIXES)
    local = filesystem.local(text)
    return not os.path.isdir(local) and (
        os.path.isfile(local) or glob.has_magic(local) or expand_braces(text) != [text]
    )


_SUFFIXES = (*formats.IMAGE_SUFFIXES, *formats.AUDIO_SUFFIXES)


def listed(
    paths: Any, suffixes: tuple[str, ...], options: filesystem.Options
) -> tuple[str, list[str], dict[str, filesystem.Stamp]]:
    """The folder that holds all files of a list, their names below it in the order of the list, and remote stamps."""
    found = filesystem.expand_stamped(paths, options, suffixes)
    schemes = sorted({filesystem.scheme(path) for path in found})
    if len(schemes) > 1:
        got = " and ".join(f"{name}://" if name else "local files" for name in schemes)
        raise UsageError("files of one storage", got=got, fix="read each, and join them: concat()")
    if schemes[0]:
        folders = [url.split("/")[:-1] for url in found]
        levels = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
        root = "/".join(level[0] for level in levels)
        known = filesystem.stamps(found, options)
        stamps = {url[len(root) + 1 :]: stamp for url, stamp in zip(found, known, strict=True)}
        return root, list(stamps), stamps
    full = [os.path.abspath(filesystem.local_only(path, "a file")) for path in found]
    root = os.path.commonpath([os.path.dirname(path) for path in full])
    return root, [os.path.relpath(path, root).replace(os.sep, "/") for path in full], {}


def folder_of(root: str, name: str) -> str:
    """The name of the folder that holds a file: its class, where files are listed one by one."""
    return f"{root}/{name}".replace(os.sep, "/").split("/")[-2]


def manifest_format(paths: Any) -> formats.Format | None:
    """The format of a file of records that name media; None for anything else."""
    if not isinstance(paths, str | os.PathLike):
        return None
    text = os.fspath(paths)
    known = next((formats.FORMATS[name] for name in MANIFESTS if formats.FORMATS[name].has_suffix(text)), None)
    if known is None or (not filesystem.scheme(text) and not os.path.isfile(filesystem.local(text))):
        return None
    return formats.format_of(text)


def open_manifest(
    path: str | os.PathLike[str], found: formats.Format, limits: Limits, options: filesystem.Options
) -> Source:
    """The records of a manifest, with all their columns."""
    from penstock.sources.arrow_files import ArrowFiles
    from penstock.sources.csv import CsvFiles
    from penstock.sources.json_array import JsonArrays
    from penstock.sources.jsonl import JsonlFiles
    from penstock.sources.parquet import ParquetFiles

    text = os.fspath(path)
    if found.name == "jsonl":
        return JsonlFiles(text, None, limits=limits, storage_options=options)
    readers: dict[str, Any] = {"json": JsonArrays, "csv": CsvFiles, "parquet": ParquetFiles, "arrow": ArrowFiles}
    source: Source = readers[found.name](text, limits=limits, storage_options=options)
    return source


def path_column(columns: list[str], chosen: str | None, where: str) -> str:
    """The column of a manifest that holds paths: the chosen one, or the first with a usual name."""
    column = chosen or next((name for name in PATH_COLUMNS if name in columns), None)
    if column is None or column not in columns:
        raise UsageError(
            f"a column {chosen!r} of paths" if chosen else "a column of paths with a usual name, such as 'path'",
            got=", ".join(map(repr, columns[:20])), where=where, fix="path_column= one of these",
        )  # fmt: skip
    return column


def folder_url(path: str) -> str:
    """The folder or URL that holds a file."""
    if filesystem.scheme(path):
        return path.rpartition("/")[0]
    return os.path.dirname(os.path.abspath(filesystem.local(path)))
