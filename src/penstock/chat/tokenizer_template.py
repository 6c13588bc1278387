"""A tokenizer's own chat template, and the names of its special tokens.

A transformers object holds both. A folder (or a file in one) holds them in `chat_template.jinja` and
`tokenizer_config.json`. Any other tokenizer knows at least which of its tokens begin, end and pad a text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.core.errors import LimitError, UsageError
from penstock.core.limits import LIMITS
from penstock.core.optional import need
from penstock.storage import filesystem
from penstock.tokenizers import Tokenizer
from penstock.tokenizers.base import BaseTokenizer

_CONFIGURATIONS = ("special_tokens_map.json", "tokenizer_config.json")
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def special_names(original: Any, tokenizer: Tokenizer) -> dict[str, str]:
    """Text of each special token a template may name: `original` is what the user passed, `tokenizer` what it became.

    A transformers object or a configuration file says which there are. Others are named by their usual texts.

    >>> from penstock.tokenizers import as_tokenizer
    >>> special_names("bytes", as_tokenizer("bytes"))
    {}
    """
    folder = _folder(original)
    config = _config(folder)
    decided = any(hasattr(original, name) for name in _NAMES) or (
        folder is not None and any((folder / name).is_file() for name in _CONFIGURATIONS)
    )
    named = tokenizer.added_tokens if isinstance(tokenizer, BaseTokenizer) else tokenizer.special_tokens
    texts = {number: text for text, number in named.items()}
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
    found = {}
    for name in _NAMES:
        value = getattr(original, name, None)
        value = _content(config.get(name)) if value is None else str(value)
        number = ids.get(name)
        if value is None and number is not None and not decided:
            value = texts.get(number)
        if value is not None:
            found[name] = value
    # Tokens with names of their own, such as image_token.
    more = getattr(original, "special_tokens_map", None) or config.get("extra_special_tokens")
    for name, value in more.items() if isinstance(more, Mapping) else ():
        text = _content(value)
        if text is not None and isinstance(name, str) and name.endswith("_token"):
            found.setdefault(name, text)
    return found


def own_templates(original: Any) -> dict[str, str]:
    """The chat templates that belong to a tokenizer, by name: "default", and "tool_use" for records with tools."""
    found = getattr(original, "chat_template", None)
    folder = _folder(original)
    if found is None and folder is not None:
        file = folder / "chat_template.jinja"
        found = read_template(file) if file.is_file() else _config(folder).get("chat_template")
        more = folder / "additional_chat_templates" / "tool_use.jinja"
        if isinstance(found, str) and more.is_file():
            found = {"default": found, "tool_use": read_template(more)}
    elif found is None and isinstance(original, str) and original != "bytes":  # a hub name, already in the local cache
        library = need("transformers", extra="hf", purpose="to find the tokenizer's chat template")
        with suppress(OSError, ValueError):  # the name of something else, such as a tiktoken encoding
            found = library.AutoTokenizer.from_pretrained(original, local_files_only=True).chat_template
    if isinstance(found, list):
        named = [item for item in found if isinstance(item, Mapping)]
        found = {item.get("name"): item.get("template") for item in named}
    return dict(found) if isinstance(found, Mapping) else {} if found is None else {"default": found}


def read_template(path: str | os.PathLike[str]) -> str:
    """The text of a template file, which may be no larger than a template may be."""
    return _read(Path(path), LIMITS.template_bytes)


def _read(path: Path, most: int) -> str:
    with filesystem.open_read(str(path)) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise LimitError(
            f"a file of at most {most} bytes", got="a larger one", where=str(path), fix="name the right file"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError("a file of UTF-8 text", got=str(error), where=str(path), fix="save it as UTF-8") from error


def _folder(original: Any) -> Path | None:
    if not isinstance(original, str | os.PathLike):
        return None
    text = os.fspath(original)
    return Path(text) if os.path.isdir(text) else Path(text).parent if os.path.isfile(text) else None


def _config(folder: Path | None) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in _CONFIGURATIONS:
        if folder is not None and (folder / name).is_file():
            try:
                value = json.loads(_read(folder / name, LIMITS.manifest_bytes))
            except (ValueError, RecursionError) as error:
                raise UsageError(
                    "a JSON object", got=str(error), where=str(folder / name), fix="repair or remove the file"
                ) from error
            out |= {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else {}
    return out


def _content(value: Any) -> str | None:
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None
