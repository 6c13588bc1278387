"""Opens the paths of the command line, through the registry of formats (`sources.formats`)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from penstock.cli import console
from penstock.core.errors import UsageError
from penstock.sources.formats import FORMATS, Options, format_of
from penstock.sources.splits import data_files, refuse_several
from penstock.view.targets import is_name

__all__ = ["decoder", "is_name", "open_run", "open_texts", "open_tokens"]


def open_texts(
    paths: Sequence[str], kind: str = "auto", field: str = "text", by: str = "file", *,
    keep: Sequence[str] | None = (), allow: Sequence[str] = (), settings: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Opens text files, or the pipeline of a configuration, to be read in one pass.

    `keep`: columns that stay beside the tokens. `settings` are those of the preparation, which a pipeline completes.
    """
    from penstock.preparation.tokenize import text_source
    from penstock.read.config import from_config, is_config

    if len(paths) == 1 and kind == "auto" and is_config(paths[0]):
        return text_source(from_config(paths[0], allow_functions=allow).definition, field, settings or {}, keep)
    found = format_of(paths) if kind == "auto" else FORMATS[kind]
    if any(map(os.path.isdir, paths)):
        refuse_several(paths, data_files(paths, found.suffixes), texts=found.name == "text")
    if not found.one_pass:
        raise UsageError(
            f"files of text: {', '.join(known.title for known in FORMATS.values() if known.one_pass)}",
            got=found.title,
            where=", ".join(paths[:3]),
            fix=f"read them in Python: penstock.{found.read}",
        )
    if keep != ():
        from penstock.plan.definition import Definition

        source = found.open(list(paths), Options(field=field, by=by, every_field=True))
        return text_source(Definition(source), field, settings or {}, keep)
    return found.open(list(paths), Options(field=field, by=by))


def open_tokens(path: str, dtype: str | None = None, split_id: int | None = None, *, split: str | None = None) -> Any:
    """Opens the token source at a path; raises if it does not hold tokens."""
    found = format_of(path)
    if found.name == "mds":
        from penstock.sources import mds_tokens

        return mds_tokens.open_tokens(path, dtype=dtype, split=split)
    if found.kind != "tokens":
        raise UsageError(
            "tokens: a token store, a Megatron prefix, MDS, or a .bin or .npy of tokens",
            got=found.title,
            where=path,
            fix=f"make a store first: penstock prepare {path} --tokenizer T --out DIR",
        )
    if found.name == "nanogpt" and dtype is None:
        console.note(f"{path}: assuming uint16 tokens in a raw .bin; use --dtype for others")
    return found.open(path, Options(dtype=dtype, eos_id=split_id))


def open_run(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Opens the token source of `add_windows`, and returns it with the arguments of `view.training_run`."""
    names = ("length", "stride", "batch", "seed", "world")
    options = {name: getattr(args, name) for name in names} | {"shuffle": not args.no_shuffle}
    return open_tokens(args.store, args.dtype, args.split_id), options


def decoder(source: Any, name: str | None) -> Any:
    """Returns the tokenizer to decode with: the named one, or bytes for a store of bytes; None without one.

    Prints a note if the store was written with another tokenizer than the named one.
    """
    from penstock.tokenizers import as_tokenizer

    known = source.describe().get("tokenizer") or {}
    if name is None:
        return as_tokenizer("bytes") if known.get("kind") == "bytes" else None
    tokenizer = as_tokenizer(name)
    if known and known.get("sha256") != tokenizer.identity()["sha256"]:
        console.note(f"the store was written with another tokenizer than {name!r}: texts may be wrong")
    return tokenizer
