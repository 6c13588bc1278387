"""Canonical JSON is byte for byte what `json.dumps` writes: identities of tokenizers in stores are hashes of it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from penstock.tokenizers.canonical import canonical

from . import generated


def plain(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def test_every_character() -> None:
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for value in (characters, dict.fromkeys(reversed(characters), 1), "".join(characters)):
        assert canonical(value) == plain(value)


@pytest.mark.parametrize(
    "value",
    [
        1e-7, [1.5, -0.0, 1e22, 1e300], {"scores": [["a", -3.9549850190771427]]}, 2**70, [-(2**63), 2**64 - 1],
        "\ud800", {"\udfff": 1}, {1: "a", 2: "b"}, (1, "é"), [True, None, {"é": [[], {}, ""]}], [[["ß", 1.0]]], "", [],
        {"b": {"z": 1, "é": 2, "\uffff": 3, "\U00010000": 4}, "a": {}}, float("inf"), "\x7f\x1f\b\f\n\r\t\\\"/",
    ],
)  # fmt: skip
def test_values_that_writers_of_json_disagree_on(value: Any) -> None:
    assert canonical(value) == plain(value)


def test_deep_nesting() -> None:
    value: Any = "é"
    for _ in range(300):
        value = [value]
    assert canonical(value) == plain(value)


def test_generated_values_and_tokenizers() -> None:
    draw = random.Random(7)

    def some(depth: int) -> Any:
        kind = draw.randrange(8 if depth else 6)
        if kind == 6:
            return [some(depth - 1) for _ in range(draw.randrange(4))]
        if kind == 7:
            return {chr(draw.randrange(0x300)) * draw.randrange(3): some(depth - 1) for _ in range(draw.randrange(4))}
        return [draw.randrange(-9, 9), None, True, draw.random(), "a" * draw.randrange(3), chr(draw.randrange(9999))][
            kind
        ]

    for _ in range(2000):
        value = some(4)
        assert canonical(value) == plain(value)
    for seed in range(30):
        value = json.loads(generated.make(seed).to_str())
        assert canonical(value) == plain(value)
