"""Vocabularies that gigatoken reads differently from `tokenizers`: it looks tokens up by their bytes.

In a byte-level vocabulary a token is written in 256 stand-in characters. One that holds another character, such as
`🇨`, can never be made by merges, but gigatoken takes it for its UTF-8 bytes; if the byte-level form is there too, which
of the two ids it returns is random for each engine. The same holds for tokens that differ in a blank and `▁` only.
An added token that takes the blanks beside it ([MASK], `lstrip`) may overlap one made of blanks: `tokenizers` then
finds both, gigatoken one.
"""

from __future__ import annotations

from typing import Any

_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_CHARACTERS = frozenset(map(chr, _PRINTED)) | frozenset(chr(256 + i) for i in range(256 - len(_PRINTED)))


def ambiguity(config: dict[str, Any]) -> str | None:
    """Which token of a tokenizer.json gigatoken may take for another, or None.

    >>> bytes_only = {"model": {"vocab": {"a": 0, "ðŁ": 1}}, "pre_tokenizer": {"type": "ByteLevel"}}
    >>> ambiguity(bytes_only)
    >>> bytes_only["model"]["vocab"]["🇨"] = 2
    >>> ambiguity(bytes_only)
    "the token '🇨' is not written in byte-level characters"
    """
    if (overlap := _overlap(config)) is not None:
        return overlap
    vocab = config.get("model", {}).get("vocab")
    if not isinstance(vocab, dict):
        return None
    matched = _always_matched(config)
    if _types(config.get("pre_tokenizer")) & {"ByteLevel"} or _types(config.get("normalizer")) & {"ByteLevel"}:
        literal = (t for t in vocab if t not in matched and not BYTE_CHARACTERS.issuperset(t))
        found = next(literal, None)
        return None if found is None else f"the token {found!r} is not written in byte-level characters"
    found = next((t for t in vocab if " " in t and t not in matched), None)
    return None if found is None else f"the token {found!r} holds a blank, which is written as ▁ in this vocabulary"


def _overlap(config: dict[str, Any]) -> str | None:
    """Two added tokens of which one takes the blanks that the other holds at its edge, or None."""
    added = config.get("added_tokens") or ()
    for flag, bare in (("lstrip", str.rstrip), ("rstrip", str.lstrip)):
        taking = next((t["content"] for t in added if t[flag]), None)
        blank = next((t["content"] for t in added if bare(t["content"]) != t["content"]), None)
        if taking is not None and blank is not None:
            return f"the token {taking!r} takes blanks beside it ({flag}), and {blank!r} holds some"
    return None


def _always_matched(config: dict[str, Any]) -> set[str]:
    """Added tokens that are taken out of a text wherever they occur, so that merges never see them."""
    normalized = config.get("normalizer") is not None
    added = config.get("added_tokens") or ()
    return {t["content"] for t in added if not t["single_word"] and not (t["normalized"] and normalized)}


def _types(part: Any) -> set[str]:
    """The types of a normalizer or pre-tokenizer and of those inside it."""
    if not isinstance(part, dict):
        return set()
    inside = part.get("pretokenizers") or part.get("normalizers") or ()
    return {str(part.get("type"))}.union(*map(_types, inside))
