"""Opens the paths of the command line, through the registry of formats (`sources.formats`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from penstock.cli import say
from penstock.core.errors import UsageError
from penstock.sources.formats import FORMATS, Options, format_of


def is_name(path: str) -> bool:
    """Whether it names a dataset rather than files: nothing is there, and it is no pattern, address or file name."""
    if os.path.exists(path) or any(os.path.exists(path + end) for end in (".idx", ".bin")):
        return False
    plain = "://" not in path and not any(c in path for c in "*?[") and not os.path.isabs(path)
    return plain and not os.path.splitext(path)[1] and path.count("/") <= 1


def open_texts(paths: Sequence[str], kind: str = "auto", field: str = "text", by: str = "file") -> Any:
    """The texts of some files, to be read in one pass."""
    found = format_of(paths) if kind == "auto" else FORMATS[kind]
    if not found.one_pass:
        raise UsageError(
            f"files of text: {', '.join(known.title for known in FORMATS.values() if known.one_pass)}",
            got=found.title,
            where=", ".join(paths[:3]),
            fix=f"read them in Python: penstock.{found.read}",
        )
    return found.open(list(paths), Options(field=field, by=by))


def open_tokens(path: str, dtype: str | None = None, split_id: int | None = None) -> Any:
    """The token source at a path; refuses what is not tokens."""
    found = format_of(path)
    if found.kind != "tokens":
        raise UsageError(
            "tokens: a token store, a Megatron prefix, or a .bin or .npy of tokens",
            got=found.title,
            where=path,
            fix=f"make a store first: penstock prepare {path} --tokenizer T --out DIR",
        )
    if found.name == "nanogpt" and dtype is None:
        say.note(f"{path}: taking a bare .bin for uint16 tokens; --dtype says otherwise")
    return found.open(path, Options(dtype=dtype, eos_id=split_id))


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
