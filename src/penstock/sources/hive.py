"""Columns that are spelled in folder names, as Hive and Spark write them: `year=2024/part.parquet`.

Folders count below the path that was asked for: of a pattern, below its first wildcard; of several paths, below the
folder that they share. Values are integers where each is spelled as Python would write it, text otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Literal, get_args
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, strings
from penstock.core.errors import DataError, UsageError
from penstock.storage import filesystem

Partitions = Literal["columns", "ignore"]
_FOLDER = re.compile(r"([^=/]+)=([^/]*)")
_WILD = re.compile(r"[*?\[{]")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_FIX = 'partitions="ignore" reads the files without these columns'


class PartitionColumns:
    """The columns in the folder names of files, one value for each file.

    >>> found = PartitionColumns("d", ["d/year=2023/a.parquet", "d/year=2024/a.parquet"])
    >>> found.of(np.array([1, 1, 0]))["year"].tolist()
    [2024, 2024, 2023]
    """

    def __init__(self, paths: filesystem.Paths, files: Sequence[str], choice: Partitions = "columns") -> None:
        if choice not in get_args(Partitions):
            raise UsageError('partitions="columns" or "ignore"', got=repr(choice))
        self._values: dict[str, NDArray[np.generic]] = {}
        asked = [os.fspath(one) for one in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        root = _root(asked, files)
        found = [_folders(path[len(root) :]) for path in files] if choice == "columns" else []
        for path, folders in zip(files, found, strict=False):
            if folders.keys() != found[0].keys():
                raise DataError(
                    f"folders of the same partitions in every path: {', '.join(found[0]) or 'none'}",
                    got=", ".join(folders) or "none", where=path, fix=_FIX,
                )  # fmt: skip
            if _NULL in folders.values():
                raise DataError("a value for each partition", got=_NULL, where=path, fix=_FIX)
        for name in found[0] if found else ():
            texts = [folders[name] for folders in found]
            integers = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in texts)
            self._values[name] = np.array(texts).astype(np.int64) if integers else strings(texts)

    @property
    def names(self) -> list[str]:
        return list(self._values)

    def chosen(self, columns: Sequence[str] | None, stored: Sequence[str]) -> list[str] | None:
        """Keeps those of `columns` that files do not store; returns the columns to read from files."""
        kept = [name for name in self._values if name not in stored and (columns is None or name in columns)]
        self._values = {name: self._values[name] for name in kept}
        if columns is None:
            return None
        rest = [name for name in columns if name not in kept]
        if not rest:
            raise UsageError("at least one column that the files store", got=", ".join(columns) or "none")
        return rest

    def of(self, files: NDArray[np.int64]) -> Columns:
        """The columns of rows that are in these files."""
        return {name: values[files] for name, values in self._values.items()}

    def identity(self) -> list[str]:
        """For fingerprints: nothing where there are no partitions."""
        return [repr((name, values.tolist())) for name, values in self._values.items()]


def _root(asked: Sequence[str], files: Sequence[str]) -> str:
    """The part of all files' paths in which folder names do not count."""
    roots = []
    for path in asked:
        wild = _WILD.search(path)
        if wild is not None and path not in files:
            roots.append(path[: path.rfind("/", 0, wild.start()) + 1])
        else:
            roots.append(path.rpartition("/")[0] + "/" if path in files else path.rstrip("/") + "/")
    root = _shared(roots)
    return root if all(path.startswith(root) for path in files) else _shared(files)  # spelled in another way


def _shared(paths: Sequence[str]) -> str:
    """The folders that all paths begin with."""
    kept = []
    for parts in zip(*(path.split("/")[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        kept.append(parts[0] + "/")
    return "".join(kept)


def _folders(path: str) -> dict[str, str]:
    matches = (_FOLDER.fullmatch(part) for part in path.split("/")[:-1])
    return {unquote(found[1]): unquote(found[2]) for found in matches if found}
