"""The beginning of a document of a token source: its ids, its text and where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.errors import PenstockError


def beginning(source: Any, number: int, most: int) -> tuple[int, list[int]]:
    """Returns the length of a document and its first ids, at most `most`."""
    one = np.array([number])
    length = int(source.lengths(one)[0])
    return length, source.gather(source.starts(one), min(length, most))[0].tolist() if length else []


def place(source: Any, number: int) -> str:
    """Names a document: its number and, if they are known, its file and line."""
    try:
        facts = source.locate(number)
    except PenstockError as error:
        return f"document {number:,}: {error.expected}"
    file, line = facts.get("file", facts.get("shard", "")), facts.get("line")
    return f"document {number:,}" + (f", {file}" if file else "") + ("" if line is None else f", line {line}")


def decoded(tokenizer: Any, ids: Sequence[int]) -> str | None:
    """Decodes ids to text; None without a tokenizer or for ids outside its vocabulary."""
    numbers = [int(i) for i in ids]
    if tokenizer is None or (numbers and not 0 <= min(numbers) <= max(numbers) < tokenizer.vocab_size):
        return None
    return str(tokenizer.decode(numbers))
