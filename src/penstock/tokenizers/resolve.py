"""`as_tokenizer`: a `Tokenizer` from a name, a path or an object, by the registry `KINDS`.

To add a kind, write `tokenizers/<kind>.py` with a function that returns a `Tokenizer`, and add a line to `KINDS`.
Tokenizer files are never executed: no pickle, no remote code. Objects are recognised by the module of their class, so
no tokenizer library is imported to look at one.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.core.arguments import explained_call
from penstock.core.errors import MissingExtra, UsageError
from penstock.tokenizers.base import BaseTokenizer, Special, SpecialTextPolicy, Tokenizer
from penstock.tokenizers.configured import is_configured
from penstock.tokenizers.duck import DuckTokenizer, overrides_encode, parameter_of, with_any_ids

END_OF_TEXT = "<|endoftext|>"
PUBLISHED = ("cl100k_base", "gpt2", "o200k_base", "o200k_harmony", "p50k_base", "p50k_edit", "r50k_base")
_HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


@dataclass(frozen=True)
class Kind:
    """One way to name a tokenizer. `make`, "module:function" in `penstock.tokenizers`, takes the name, path or object.

    A kind is recognised by exactly one of `name`, `suffix`, `folder` and `library`.
    """

    accepts: str  # in messages
    make: str
    name: str = ""  # this text
    suffix: str = ""  # a file with this suffix
    folder: tuple[str, ...] = ()  # a folder with a file for each of these names or patterns
    library: str = ""  # an object whose class, or a base of it, is defined in this library
    method: str = ""  # and which has this method

    def __call__(self, value: Any) -> Tokenizer:
        module, _, function = self.make.partition(":")
        made: Tokenizer = getattr(import_module(f"penstock.tokenizers.{module}"), function)(value)
        return made

    def holds(self, folder: Path) -> bool:
        return bool(self.folder) and all(any(p.is_file() for p in folder.glob(pattern)) for pattern in self.folder)


# The first line that recognises a value wins.
KINDS = (
    Kind('"bytes"', "bytes:from_name", name="bytes"),
    Kind("the path of a tokenizer.json", "hf:from_json_file", suffix=".json"),
    Kind("the path of a SentencePiece .model", "sentencepiece:from_file", suffix=".model"),
    Kind("a folder with tokenizer.json", "hf:from_folder", folder=("tokenizer.json",)),
    Kind("a folder with vocab.json and merges.txt", "hf:from_vocab_merges", folder=("vocab.json", "merges.txt")),
    Kind("a folder with one .model", "sentencepiece:from_folder", folder=("*.model",)),
    Kind("a tokenizers.Tokenizer", "hf:from_object", library="tokenizers", method="to_str"),
    Kind("a transformers tokenizer", "transformers:from_object", library="transformers", method="get_vocab"),
    Kind("a tiktoken Encoding", "tiktoken:TiktokenTokenizer", library="tiktoken", method="encode_ordinary"),
    Kind("a SentencePieceProcessor", "sentencepiece:from_object", library="sentencepiece",
         method="serialized_model_proto"),
)  # fmt: skip
CONFIGURED = Kind("a folder of transformers", "transformers:from_folder")
HUB = Kind("a hub name", "transformers:from_name")
TIKTOKEN = Kind("the name of a tiktoken encoding", "tiktoken:from_name")
_KNOWN = "; ".join(kind.accepts for kind in (*KINDS, TIKTOKEN, HUB)) + "; any object with encode(text) and a vocab_size"
_HUB_TOO = ("gpt2",)  # also a name on the hub, with the same ids


@explained_call
def as_tokenizer(
    obj: Any, *, add_special_tokens: bool | None = None, allowed_special: Special | None = None,
    disallowed_special: Special | None = None,
) -> Tokenizer:  # fmt: skip
    """Returns a `Tokenizer` for a name, a path or an object; a `Tokenizer` is returned as it is.

    Accepted: `"bytes"`; a `tokenizer.json` or SentencePiece `.model` path; a folder with `tokenizer.json`, with
    `vocab.json` and `merges.txt`, or with a `.model`; the name of a tiktoken encoding (needs the `tiktoken` extra and
    its files); a hub name (needs the `hf` extra, local cache first); objects of
    tokenizers, transformers, tiktoken and SentencePiece; `MicroTransformerTokenizer`; any object that has a vocabulary
    size and whose `encode` returns a list, an `Encoding` or a dict with `input_ids`.

    Args:
        add_special_tokens: True keeps what the tokenizer itself adds around a text ([CLS], [SEP], BOS); by default
            a tokenizer adds nothing.
        allowed_special: for tiktoken, as in its `encode`: special tokens that text may spell, a set of them or "all".
        disallowed_special: for tiktoken: special tokens that text may not spell, by default all that are not allowed;
            () encodes them as ordinary text.

    >>> as_tokenizer("bytes").encode("hi").tolist()
    [104, 105]
    """
    made = _resolve(obj)
    if allowed_special is not None or disallowed_special is not None:
        made = _allowing(made, allowed_special, disallowed_special)
    if add_special_tokens is None:
        return made
    if isinstance(made, BaseTokenizer):
        return made.adding(bool(add_special_tokens))
    if add_special_tokens:
        raise UsageError(
            "a tokenizer that can add special tokens",
            got=f"{type(made).__name__}, a Tokenizer of your own",
            fix="let its encode_batch add them, and leave add_special_tokens out",
        )
    return made


def as_encoded(obj: Any) -> Tokenizer:
    """Returns a `Tokenizer` with the ids that `obj.encode(text)` returns, special tokens included where it adds them.

    An object without a vocabulary size may return any ids.

    >>> as_encoded("bytes").encode("hi").tolist()
    [104, 105]
    """
    if isinstance(obj, BaseTokenizer):
        return obj
    found = None if isinstance(obj, str) else parameter_of(obj, "encode", "add_special_tokens")
    return as_tokenizer(with_any_ids(obj), add_special_tokens=found is None or found.default is not False)


def with_end_of_text(obj: Any) -> Tokenizer:
    """Returns a `Tokenizer`; with tiktoken, `<|endoftext|>` in text is the special token, other special tokens are
    errors. A `Tokenizer` keeps its own policy.

    >>> with_end_of_text("bytes").encode("hi").tolist()
    [104, 105]
    """
    made = as_tokenizer(obj)
    if made is obj or not isinstance(made, SpecialTextPolicy) or END_OF_TEXT not in made.special_tokens:
        return made
    return made.allowing({END_OF_TEXT}, None)


def _allowing(made: Tokenizer, allowed: Special | None, disallowed: Special | None) -> Tokenizer:
    if isinstance(made, SpecialTextPolicy):
        return made.allowing(allowed, disallowed)
    name = "allowed_special" if allowed is not None else "disallowed_special"
    raise UsageError(
        f"`{name}` with a tiktoken encoding",
        got=f"a tokenizer of kind {made.kind}, which has a convention of its own for text that spells special tokens",
        fix=f"leave {name} out; with tokenizers, `tokenizer.encode_special_tokens = True` makes them ordinary text",
    )


def _resolve(obj: Any) -> Tokenizer:
    if isinstance(obj, str | os.PathLike):
        return _from_string(os.fspath(obj))
    if isinstance(obj, type):
        raise _refuse(f"the class {obj.__name__}, not an object of it")
    if isinstance(obj, Tokenizer):
        return obj
    backend = getattr(obj, "penstock_tokenizer", None)
    if callable(backend) and not overrides_encode(obj, beside="penstock_tokenizer"):
        return as_tokenizer(backend())
    libraries = {base.__module__.partition(".")[0] for base in type(obj).__mro__}
    for kind in KINDS:
        if kind.library in libraries and hasattr(obj, kind.method) and not overrides_encode(obj, kind.library):
            return kind(obj)
    if callable(getattr(obj, "encode", None)) and not isinstance(obj, bytes):
        return DuckTokenizer(obj)
    raise _refuse(f"{type(obj).__name__} {repr(obj)[:60]}")


def _from_string(text: str) -> Tokenizer:
    path, suffixes = Path(text), tuple(kind.suffix for kind in KINDS if kind.suffix)
    for kind in KINDS:
        if kind.name == text != "":
            return kind(text)
    if os.path.isdir(text):  # unlike Path.is_dir, returns False for text that cannot be a path
        if is_configured(path):
            return CONFIGURED(path)
        for kind in KINDS:
            if kind.holds(path):
                return kind(path)
        found = sorted(p.name for p in path.iterdir())
        raise _refuse(f"the folder {text!r} with {', '.join(found[:8]) or 'no files'}")
    if os.path.isfile(text):
        for kind in KINDS:
            if kind.suffix and path.suffix == kind.suffix:
                return kind(path)
        raise _refuse(f"the file {text!r}, whose suffix is not one of {', '.join(suffixes)}")
    local = path.is_absolute() or path.suffix in {*suffixes, ".tiktoken", ".txt"} or text.startswith(".")
    if local or not _HUB_NAME.fullmatch(text):
        raise _refuse(f"{text!r}: no such file or folder")
    names = tiktoken_names()
    if text in names and text not in _HUB_TOO:
        return TIKTOKEN(text)
    try:
        return HUB(text)
    except (UsageError, MissingExtra) as error:
        if text in names:
            return TIKTOKEN(text)
        if near := get_close_matches(text.lower(), ["bytes", *names], 1, 0.7):
            fix = f"did you mean {near[0]!r}? Accepted: {_KNOWN}"
            raise UsageError("a tokenizer", got=f"{text!r}, which is not found", fix=fix) from error
        raise


def _refuse(got: str) -> UsageError:
    return UsageError("a tokenizer", got=got, fix=f"use one of: {_KNOWN}")


def tiktoken_names() -> list[str]:
    """Names of tiktoken encodings: the published ones, and those of plugins if tiktoken is installed."""
    found = list(PUBLISHED)
    with suppress(ImportError, ValueError):
        found += import_module("tiktoken").list_encoding_names()
    return sorted(set(found))
