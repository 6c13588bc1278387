"""Tokenizers that this process has used, by identity: so that tokens can be shown as text without naming one again.

A store holds the identity of its tokenizer, not the tokenizer. The last few that wrote a store here are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.tokenizers.base import Tokenizer

_KEPT = 8
_used: dict[str, Tokenizer] = {}


def remember(tokenizer: Tokenizer) -> None:
    """Keeps a tokenizer for `known_tokenizer`."""
    key = str(tokenizer.identity()["sha256"])
    _used.pop(key, None)
    _used[key] = tokenizer
    while len(_used) > _KEPT:
        _used.pop(next(iter(_used)), None)


def known_tokenizer(identity: Mapping[str, Any] | None) -> Tokenizer | None:
    """The tokenizer with this identity: bytes, or one that was used in this process; else None.

    >>> known_tokenizer({"kind": "bytes"}).vocab_size, known_tokenizer({"kind": "tokenizers", "sha256": "0"})
    (257, None)
    """
    if not identity:
        return None
    if identity.get("kind") == "bytes":
        from penstock.tokenizers import as_tokenizer

        return as_tokenizer("bytes")
    return _used.get(str(identity.get("sha256")))
