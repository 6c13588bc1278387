"""A read-only view of `.bin` token files of nanoGPT, llm.c and modded-nanogpt; nothing is converted.

nanoGPT's files are bare uint16 arrays. llm.c's begin with 256 int32: magic, version, number of tokens; the magic number
states the type (20240520: uint16, 20240801: uint32). Files with any other known header are refused. Neither knows
documents: a file is one document unless you name the id that ends them.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from penstock.core.errors import StoreError
from penstock.sources.formats import Options
from penstock.sources.token_files import Paths, TokenFile, listed, opened, token_file, token_kind
from penstock.sources.token_headers import HEAD_BYTES, LLMC_TOKENS, check_bare
from penstock.sources.token_objects import TokenObjects
from penstock.sources.tokens import TokenFiles, without_table
from penstock.storage.filesystem import Options as StorageOptions


def open_nanogpt(
    path: Paths, *, dtype: Any = "uint16", eos_id: int | None = None, vocab_size: int | None = None,
    storage_options: StorageOptions = None,
) -> TokenFiles | TokenObjects:  # fmt: skip
    """Opens one `.bin`, or several in this order, as a `TokenSource`.

    `dtype` is for files without a header; a header's own type goes before it. With `eos_id` each document ends with
    that id, and opening reads all tokens once to find them; without it each file is one document.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/train.bin"
    >>> np.array([5, 6, 0, 7], np.uint16).tofile(path)
    >>> len(open_nanogpt(path)), open_nanogpt(path, eos_id=0).lengths(np.array([0, 1])).tolist()
    (1, [3, 1])
    """
    paths = listed(path)
    found = [_open_one(p, dtype, storage_options) for p in paths]
    kinds = {kind for _, kind in found}
    if len(kinds) > 1:
        names = ", ".join(sorted(k.name for k in kinds))
        raise StoreError("files of one type", got=names, where=paths[0], fix="open them apart")
    files = [file for file, _ in found]
    return without_table(
        "nanogpt", files, kinds.pop() if kinds else dtype, eos_id=eos_id, vocab_size=vocab_size, fix="eos_id to split",
        options=storage_options,
    )  # fmt: skip


def open_path(path: str | os.PathLike[str], options: Options) -> TokenFiles | TokenObjects:
    """The opener of the registry; a file without a header is uint16 unless `dtype` says otherwise."""
    return open_nanogpt(
        path, dtype=options.dtype or "uint16", eos_id=options.eos_id, storage_options=options.storage_options
    )


def _open_one(path: str, dtype: Any, options: StorageOptions) -> tuple[TokenFile, np.dtype[Any]]:
    with opened(path, options) as file:
        head = file.read(HEAD_BYTES)
    magic = int.from_bytes(head[:4], "little")
    if magic not in LLMC_TOKENS:
        kind = token_kind(dtype, str(path))
        check_bare(path, head, kind.itemsize, options)
        return token_file(path, kind, options=options), kind
    if len(head) < HEAD_BYTES:
        raise StoreError(
            f"a header of {HEAD_BYTES} bytes after magic {magic}",
            got=f"a file of {len(head)} bytes",
            where=str(path),
            fix="the copy stopped early: copy it again",
        )
    version, tokens = int.from_bytes(head[4:8], "little"), int.from_bytes(head[8:12], "little")
    known, name = LLMC_TOKENS[magic]
    if version != known:
        raise StoreError(
            f"version {known} after magic {magic}", got=f"version {version}", where=str(path), fix="write it again"
        )
    kind = np.dtype(name)
    found = token_file(path, kind, offset=HEAD_BYTES, options=options)
    if found.tokens != tokens:
        raise StoreError(
            f"{tokens} tokens of {kind.name}, as the header says",
            got=f"{found.tokens} tokens",
            where=str(path),
            fix="the copy stopped early, or the file was edited: copy it again",
        )
    return found, kind
