"""Whether the configuration in a folder changes the ids that its vocabulary files alone return.

transformers adds tokens that only `tokenizer_config.json` names, splits as its class does, and moves the ids of some
SentencePiece models. Such a folder is transformers' to read; the files alone would silently return other ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.core.errors import UsageError

_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
_LIKE_GPT2 = ("GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast")
_FIELDS = {
    "add_prefix_space": "add_prefix_space",
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_MATCHING = ("single_word", "lstrip", "rstrip", "normalized")


def is_configured(folder: Path) -> bool:
    """Whether only transformers knows the ids of a folder."""
    config = read_json(folder / _CONFIGS[0])
    if (folder / "tokenizer.json").is_file():
        made = read_json(folder / "tokenizer.json")
        return bool(config.get("split_special_tokens")) or _differs(config, made) or _names_others(folder, made)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return bool(config.get("tokenizer_class")) and config["tokenizer_class"] not in _LIKE_GPT2
    return (folder / _CONFIGS[0]).is_file() or ((folder / "config.json").is_file() and any(folder.glob("*.model")))


def _differs(config: dict[str, Any], made: dict[str, Any]) -> bool:
    """Whether a configuration sets what `tokenizer.json` holds to another value, as classes of transformers obey."""
    parts = [made.get(part) for part in ("normalizer", "pre_tokenizer")]
    return any(
        value != config[key]
        for key, field in _FIELDS.items()
        if config.get(key) is not None
        for part in parts
        for value in _values(part, field)
    )


def _values(part: Any, field: str) -> Iterator[Any]:
    """What a part of a `tokenizer.json`, and the parts inside it, have for a field."""
    if isinstance(part, dict):
        if field in part:
            yield part[field]
        for inside in part.get("pretokenizers") or part.get("normalizers") or ():
            yield from _values(inside, field)


def _names_others(folder: Path, made: dict[str, Any]) -> bool:
    """Whether a configuration names a token that `tokenizer.json` does not match, or matches in another way."""
    known = {t.get("content"): t for t in made.get("added_tokens") or () if isinstance(t, dict)}
    return any(
        name not in known or any(flags[flag] != known[name].get(flag) for flag in _MATCHING if flag in flags)
        for name, flags in _named(folder)
    )


def _named(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tokens that configurations name, and how they say that they are matched."""
    found = list(read_json(folder / "added_tokens.json"))
    for file in _CONFIGS:
        config = read_json(folder / file)
        for key, value in config.items():
            if key == "added_tokens_decoder" and isinstance(value, dict):
                found += value.values()
            elif key in ("additional_special_tokens", "extra_special_tokens"):
                found += value.values() if isinstance(value, dict) else value or ()
            elif key.endswith("_token"):
                found.append(value)
    for token in found:
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            yield content, token if isinstance(token, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError("a JSON object", got=str(error), where=str(path), fix="repair or remove the file") from error
    return value if isinstance(value, dict) else {}
