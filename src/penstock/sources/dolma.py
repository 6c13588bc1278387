"""A read-only view of Dolma and OLMo token arrays; nothing is converted.

Despite their name the `.npy` files have no header: they are bare arrays, and the type is known only to whoever wrote
them, so `dtype` must be passed. Beside each file a gzipped CSV may say where documents are: `start,end` and columns
that are not read. Opening reads those CSVs once (8 bytes of memory per document) and checks that they cover the file.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from array import array
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import StoreError, UsageError
from penstock.sources.formats import Options
from penstock.sources.token_files import Paths, TokenFile, listed, opened, token_file, token_kind
from penstock.sources.token_headers import HEAD_BYTES, check_bare
from penstock.sources.token_objects import TokenObjects
from penstock.sources.tokens import TokenFiles, token_source, without_table
from penstock.storage.filesystem import Options as StorageOptions
from penstock.store.doctable import OffsetTable

_LONGEST_LINE = 1 << 20


def open_dolma(
    paths: Paths, *, dtype: Any = None, ends: Paths | None = None, eos_id: int | None = None,
    vocab_size: int | None = None, storage_options: StorageOptions = None,
) -> TokenFiles | TokenObjects:  # fmt: skip
    """Opens header-less token arrays, in this order, as one `TokenSource`.

    Documents come from `ends` (one CSV per file, gzipped or plain: start,end,...), or from `eos_id` (opening then reads
    all tokens once), or, with neither, each file is one document and `describe()` says so.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/part-0.npy"
    >>> np.array([5, 6, 0, 7], np.uint32).tofile(path)
    >>> open_dolma(path, dtype="uint32").describe()["boundaries"]
    'unknown: each file is one document (pass ends or eos_id)'
    """
    names = listed(paths)
    kind = token_kind(dtype, names[0] if names else "open_dolma")
    files = [_open_one(name, kind, storage_options) for name in names]
    if ends is None:
        return without_table(
            "dolma", files, kind, eos_id=eos_id, vocab_size=vocab_size, fix="ends or eos_id", options=storage_options
        )
    tables = listed(ends)
    if eos_id is not None or len(tables) != len(files):
        raise UsageError(
            f"one boundary file for each of {len(files)} token files, and no eos_id",
            got=f"{len(tables)} boundary files, eos_id {eos_id}",
            where="open_dolma",
            fix="pass ends in the order of paths",
        )
    offsets = _join([_read_ends(csv, file, storage_options) for csv, file in zip(tables, files, strict=True)], files)
    return token_source(
        "dolma", files, kind, OffsetTable(offsets), vocab_size=vocab_size,
        boundaries="start,end in the CSV of each file", identity=[b"None", offsets.astype("<i8").tobytes()],
        options=storage_options,
    )  # fmt: skip


def open_path(path: str | os.PathLike[str], options: Options) -> TokenFiles | TokenObjects:
    """The opener of the registry."""
    return open_dolma(path, dtype=options.dtype, eos_id=options.eos_id, storage_options=options.storage_options)


def _open_one(path: str, kind: np.dtype[Any], options: StorageOptions) -> TokenFile:
    with opened(path, options) as handle:
        check_bare(path, handle.read(HEAD_BYTES), kind.itemsize, options)
    return token_file(path, kind, options=options)


def _read_ends(path: str, file: TokenFile, options: StorageOptions) -> NDArray[np.int64]:
    """End of each document of one file; they must follow one another and cover it."""
    ends = array("q")
    at, line = 0, 0
    most = file.tokens + (1 << 20)  # a small archive can hold any number of empty documents
    raw = opened(path, options)
    packed = path.endswith(".gz")
    try:
        with raw, gzip.open(raw) if packed else io.BufferedReader(cast(Any, raw)) as rows:
            while row := rows.readline(_LONGEST_LINE):
                line += 1
                cells = row.split(b",", 2)
                start, end = (int(cells[0]), int(cells[1])) if len(cells) > 1 else (-1, -1)
                if start != at or end < start or end > file.tokens:
                    raise ValueError(f"start {start}, end {end} after {at}")
                if line > most:
                    raise ValueError("a million more documents than tokens")
                ends.append(end)
                at = end
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise StoreError(
            f"start,end of documents that follow one another in {file.tokens} tokens",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            where=f"{path}, line {line}",
            fix="pass the CSV that was written with this token file",
        ) from error
    if at != file.tokens:
        raise StoreError(
            f"documents that cover all {file.tokens} tokens of {file.path}",
            got=f"an end at token {at}",
            where=f"{path}, line {line}",
            fix="pass the CSV that was written with this token file, and check its dtype",
        )
    return np.frombuffer(ends, np.int64) if ends else np.empty(0, np.int64)


def _join(ends: list[NDArray[np.int64]], files: list[TokenFile]) -> NDArray[np.int64]:
    bases = np.cumsum([0, *(f.tokens for f in files)], dtype=np.int64)
    return np.concatenate([[0], *(e + base for e, base in zip(ends, bases[:-1].tolist(), strict=True))]).astype(
        np.int64
    )
