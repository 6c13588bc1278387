"""`as_tokenizer`: from whatever people have to the one shape Penstock uses.

Nothing that comes as data is executed: no pickle, no remote code. Objects are recognised by their class's module, so
no tokenizer library is imported to look at one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from penstock.core.errors import UsageError
from penstock.tokenizers import hf, sentencepiece, tiktoken, transformers
from penstock.tokenizers.base import Tokenizer
from penstock.tokenizers.bytes import ByteTokenizer
from penstock.tokenizers.duck import DuckTokenizer

ACCEPTED = (
    '"bytes"; the path of a tokenizer.json or of a SentencePiece .model; a folder with tokenizer.json, with vocab.json '
    "and merges.txt, or with a .model; a hub name; a tokenizers.Tokenizer, transformers tokenizer, tiktoken Encoding "
    "or SentencePieceProcessor; any object with encode(text) and a vocab_size"
)


def as_tokenizer(obj: Any) -> Tokenizer:
    """A `Tokenizer` from a name, a path or an object; one that already is comes back as it is.

    Accepted: `"bytes"`; a `tokenizer.json` or SentencePiece `.model` path; a folder with `tokenizer.json`, with
    `vocab.json` and `merges.txt`, or with a `.model`; a hub name (needs the `hf` extra, local cache first); objects of
    tokenizers, transformers, tiktoken and SentencePiece; `MicroTransformerTokenizer`; any object whose `encode` gives a
    list, an `Encoding` or a dict with `input_ids` and that states its vocabulary size.

    >>> as_tokenizer("bytes").encode("hi").tolist()
    [104, 105]
    """
    if isinstance(obj, str | os.PathLike):
        return _from_string(os.fspath(obj))
    if isinstance(obj, type):
        raise _refuse(f"the class {obj.__name__}, not an object of it")
    if isinstance(obj, Tokenizer):
        return obj
    backend = getattr(obj, "penstock_tokenizer", None)
    if callable(backend):
        return as_tokenizer(backend())
    roots = {kind.__module__.partition(".")[0] for kind in type(obj).__mro__}
    if "tokenizers" in roots and hasattr(obj, "to_str"):
        return hf.from_object(obj)
    if "transformers" in roots and hasattr(obj, "get_vocab"):
        return transformers.from_object(obj)
    if "tiktoken" in roots and hasattr(obj, "encode_ordinary"):
        return tiktoken.TiktokenTokenizer(obj)
    if "sentencepiece" in roots and hasattr(obj, "serialized_model_proto"):
        return sentencepiece.from_object(obj)
    if callable(getattr(obj, "encode", None)) and not isinstance(obj, bytes):
        return DuckTokenizer(obj)
    raise _refuse(f"{type(obj).__name__} {repr(obj)[:60]}")


def _from_string(text: str) -> Tokenizer:
    if text == "bytes":
        return ByteTokenizer()
    path = Path(text)
    if os.path.isdir(text):  # unlike Path.is_dir, answers False for text that cannot be a path
        return _from_folder(path)
    if os.path.isfile(text):
        if path.suffix == ".json":
            return hf.from_json_file(path)
        if path.suffix == ".model":
            return sentencepiece.from_file(path)
        raise _refuse(f"the file {text!r}, which is neither .json nor .model")
    looks_local = path.is_absolute() or path.suffix in {".json", ".model", ".tiktoken", ".txt"} or text.startswith(".")
    if looks_local or not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", text):
        raise _refuse(f"{text!r}, where no file or folder is")
    return transformers.from_name(text)


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return hf.from_json_file(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return hf.from_vocab_merges(folder)
    models = sorted(folder.glob("*.model"))
    if len(models) == 1:
        return sentencepiece.from_file(models[0])
    if len(models) > 1:
        raise _refuse(f"the folder {str(folder)!r} with several models: {', '.join(m.name for m in models)}")
    if (folder / "tokenizer_config.json").is_file():
        return transformers.from_name(str(folder))
    held = sorted(p.name for p in folder.iterdir())
    raise _refuse(f"the folder {str(folder)!r} holding {', '.join(held[:8]) or 'nothing'}")


def _refuse(got: str) -> UsageError:
    return UsageError("a tokenizer", got=got, fix=f"accepted are {ACCEPTED}")
