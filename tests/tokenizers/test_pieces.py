"""The text of each token: joined, the pieces are the decoded text, for tokenizers of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.tokenizers import as_tokenizer
from penstock.tokenizers.known import known_tokenizer, remember
from penstock.tokenizers.pieces import pieces

TEXTS = [
    "the quick brown fox\n\n  jumps over lazy dogs, don't we'll",
    "日本語 🙂 e\u0301 café 👩‍👩‍👧‍👦 naïve Straße",
    "",
    " ",
    "<script>alert(1)</script>",
]
KINDS = ("bytes", "bpe", "tiktoken_encoding", "sp bpe", "sp bpe nfkc", "sp unigram")


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_joined_are_the_text(kind: str, request: pytest.FixtureRequest) -> None:
    made_of: Any = "bytes"
    if kind.startswith("sp "):
        made_of = request.getfixturevalue("sp_models")[kind[3:]]
    elif kind != "bytes":
        made_of = request.getfixturevalue(kind)
    tokenizer = as_tokenizer(made_of)
    for text in TEXTS:
        ids = tokenizer.encode(text).tolist()
        made = pieces(tokenizer, ids)
        assert made is not None and len(made) == len(ids)
        assert "".join(made) == tokenizer.decode(ids), text


def test_a_character_of_several_tokens_is_the_text_of_the_last() -> None:
    tokenizer = as_tokenizer("bytes")
    assert pieces(tokenizer, list("a🙂b".encode())) == ["a", "", "", "", "🙂", "b"]


def test_bytes_that_are_no_character_are_shown_and_end_tokens_are_empty() -> None:
    tokenizer = as_tokenizer("bytes")
    ids = [97, 0xFF, 0xFE, 98, 256, 99]
    made = pieces(tokenizer, ids)
    assert made is not None and "".join(made) == tokenizer.decode(ids)
    assert made[0] == "a" and made[-1] == "c" and made[4] == ""
    cut = list("é".encode())[:1]  # a row may end within a character
    assert pieces(tokenizer, cut) == ["\ufffd"]


def test_ids_of_another_vocabulary_have_no_text() -> None:
    assert pieces(as_tokenizer("bytes"), [1, 5000]) is None
    assert pieces(as_tokenizer("bytes"), [-1]) is None


def test_a_tokenizer_that_cannot_decode_has_no_text() -> None:
    class Encodes:
        vocab_size = 300

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    assert pieces(as_tokenizer(Encodes()), [97, 98]) is None


def test_a_used_tokenizer_is_found_by_the_identity_in_a_store(bpe: Any) -> None:
    tokenizer = as_tokenizer(bpe)
    remember(tokenizer)
    assert known_tokenizer(tokenizer.identity()) is tokenizer
    assert known_tokenizer({"kind": "tokenizers", "sha256": "other"}) is None
    assert known_tokenizer(None) is None
