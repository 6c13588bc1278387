"""What a path is, and the source that reads it. Decided by names and first bytes, never by trial."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.cli import say
from penstock.core.errors import UsageError
from penstock.preparation.journal import JOB
from penstock.sources import jsonl, parquet, text
from penstock.storage import filesystem

TOKEN_KINDS = ("store", "megatron", "nanogpt", "array", "dolma")
_LISTS = {"text": text.SUFFIXES, "jsonl": jsonl.SUFFIXES, "parquet": parquet.SUFFIXES}


def is_name(path: str) -> bool:
    """Whether it names a dataset rather than files: nothing is there, and it is no pattern, address or file name."""
    if os.path.exists(path) or any(os.path.exists(path + end) for end in (".idx", ".bin")):
        return False
    plain = "://" not in path and not any(c in path for c in "*?[") and not os.path.isabs(path)
    return plain and not os.path.splitext(path)[1] and path.count("/") <= 1


def kind_of(path: str) -> str:
    """One of `TOKEN_KINDS`, "text", "jsonl" or "parquet"."""
    if os.path.isfile(os.path.join(path, "manifest.json")) or path.endswith((".tokens", "manifest.json")):
        return "store"
    if os.path.isfile(os.path.join(path, JOB)):
        raise UsageError(
            "a finished token store",
            got="a preparation that was interrupted",
            where=path,
            fix="run the same `penstock prepare` command again: it goes on where it stopped",
        )
    base = path[:-4] if path.endswith((".bin", ".idx")) else path
    if os.path.isfile(base + ".idx") and os.path.isfile(base + ".bin"):
        return "megatron"
    if path.endswith(".bin"):
        return "nanogpt"
    if path.endswith(".npy"):
        with filesystem.open_read(path) as file:
            return "array" if file.read(6) == b"\x93NUMPY" else "dolma"
    return kind_of_texts([path])


def kind_of_texts(paths: Sequence[str]) -> str:
    """The one format of some files, by their names; names that say nothing are plain text."""
    every = tuple(suffix for suffixes in _LISTS.values() for suffix in suffixes)
    kinds = Counter(_by_name(path) for path in filesystem.expand(list(paths), suffixes=every))
    if len(kinds) > 1:
        found = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        raise UsageError(
            "files of one format",
            got=found,
            where=", ".join(paths[:3]),
            fix="name the files of one format, or say --format text, jsonl or parquet",
        )
    return next(iter(kinds))


def _by_name(path: str) -> str:
    name = path.lower()
    return next((kind for kind in ("parquet", "jsonl") if name.endswith(_LISTS[kind])), "text")


def open_texts(paths: Sequence[str], kind: str = "auto", field: str = "text", by: str = "file") -> Any:
    """The source of some text files."""
    if kind == "auto":
        kind = kind_of_texts(paths)
    if kind == "jsonl":
        return jsonl.JsonlFiles(list(paths), field=field)
    if kind == "parquet":
        return parquet.ParquetFiles(list(paths), [field], text=field)
    return text.TextFiles(list(paths), mode=by)


def open_tokens(path: str, dtype: str | None = None, split_id: int | None = None) -> Any:
    """The token source at a path; refuses what is not tokens."""
    kind = kind_of(path)
    if kind == "store":
        from penstock.sources.tokens import TokenStore

        return TokenStore(path)
    if kind == "megatron":
        from penstock.sources.megatron import open_megatron

        return open_megatron(path)
    if kind == "nanogpt":
        from penstock.sources.nanogpt import open_nanogpt

        if dtype is None:
            say.note(f"{path}: taking a bare .bin for uint16 tokens; --dtype says otherwise")
        return open_nanogpt(path, dtype=dtype or "uint16", eos_id=split_id)
    if kind == "array":
        return _open_array(path)
    if kind == "dolma":
        from penstock.sources.dolma import open_dolma

        return open_dolma(path, dtype=dtype, eos_id=split_id)
    raise UsageError(
        "tokens: a token store, a Megatron prefix, or a .bin or .npy of tokens",
        got=f"{kind} files",
        where=path,
        fix=f"make a store first: penstock prepare {path} --tokenizer T --out DIR",
    )


def _open_array(path: str) -> Any:
    import numpy as np

    from penstock.sources.tokens import TokenArray

    try:
        return TokenArray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise UsageError(
            "a .npy file of integers", got=str(error)[:200], where=path, fix="write it with np.save"
        ) from error


def decoder(source: Any, name: str | None) -> Any:
    """The tokenizer to decode with: as named, or bytes for a store of bytes; None when there is none to use.

    Says so when the store was made with another tokenizer than the one named.
    """
    from penstock.tokenizers import as_tokenizer

    known = source.describe().get("tokenizer") or {}
    if name is None:
        return as_tokenizer("bytes") if known.get("kind") == "bytes" else None
    tokenizer = as_tokenizer(name)
    if known and known.get("sha256") != tokenizer.identity()["sha256"]:
        say.note(f"the store was made with another tokenizer than {name!r}: texts may come out wrong")
    return tokenizer


def decoded(tokenizer: Any, ids: Any) -> str | None:
    """Text of ids, or None without a tokenizer or for ids it does not have."""
    if tokenizer is None:
        return None
    numbers = [int(i) for i in ids]
    if numbers and not 0 <= min(numbers) <= max(numbers) < tokenizer.vocab_size:
        return None
    return str(tokenizer.decode(numbers))
