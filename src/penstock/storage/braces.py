"""Braces in paths, as the shell and WebDataset have them: `shard-{000..099}.tar`, `{train,dev}.jsonl`."""

from __future__ import annotations

import re
from itertools import pairwise

from penstock.core.errors import LimitError

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")
_MOST, _DEEPEST = 1_000_000, 16


def expand_braces(path: str) -> list[str]:
    """The paths that a pattern with braces stands for, in order; the path itself if it has none.

    >>> expand_braces("s-{08..10}.tar"), expand_braces("{a,b}/{1..2}.txt"), expand_braces("plain{x}.txt")
    (['s-08.tar', 's-09.tar', 's-10.tar'], ['a/1.txt', 'a/2.txt', 'b/1.txt', 'b/2.txt'], ['plain{x}.txt'])
    >>> expand_braces("{train-{0..1},val}.tar"), expand_braces("{a..c}")
    (['train-0.tar', 'train-1.tar', 'val.tar'], ['a', 'b', 'c'])
    """
    return _expanded(path, path, 0)


def _expanded(text: str, path: str, depth: int) -> list[str]:
    """The texts that a part of `path` stands for."""
    found, at = [""], 0
    while (start := text.find("{", at)) >= 0 and depth < _DEEPEST:
        stop, commas = _closing(text, start)
        if stop < 0:  # it opens nothing
            found = _product(found, [text[at : start + 1]], path)
            at = start + 1
            continue
        found = _product(found, [text[at:start]], path)
        inner = text[start + 1 : stop]
        if commas:
            edges = [start, *commas, stop]
            parts = [_expanded(text[a + 1 : b], path, depth + 1) for a, b in pairwise(edges)]
            choices = [choice for part in parts for choice in part]
        else:
            choices = _range(inner) or [f"{{{choice}}}" for choice in _expanded(inner, path, depth + 1)]
        found = _product(found, choices, path)
        at = stop + 1
    return _product(found, [text[at:]], path)


def _product(starts: list[str], choices: list[str], path: str) -> list[str]:
    if len(starts) * len(choices) > _MOST:
        raise LimitError(f"at most {_MOST:,} paths of one pattern", got="more", where=path[:200], fix="use a glob")
    return [start + choice for start in starts for choice in choices]


def _closing(text: str, start: int) -> tuple[int, list[int]]:
    """Where the brace at `start` is closed (-1: nowhere), and the commas between that belong to it."""
    depth, commas = 0, list[int]()
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if not depth:
                return at, commas
        elif text[at] == "," and depth == 1:
            commas.append(at)
    return -1, []


def _range(text: str) -> list[str] | None:
    """The numbers or letters of a range; None if it is none."""
    if letters := _LETTERS.fullmatch(text):
        first, last = ord(letters[1]), ord(letters[2])
        step = abs(int(letters[3] or 1)) or 1
        return [chr(c) for c in (range(first, last + 1, step) if first <= last else range(first, last - 1, -step))]
    numbers = _RANGE.fullmatch(text)
    if numbers is None:
        return None
    first, last = int(numbers[1]), int(numbers[2])
    step = abs(int(numbers[3] or 1)) or 1
    if abs(last - first) // step >= _MOST:
        raise LimitError(f"at most {_MOST:,} paths of one pattern", got="more", where=text, fix="use a glob")
    padded = any(len(n.lstrip("-")) > 1 and n.lstrip("-").startswith("0") for n in (numbers[1], numbers[2]))
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    values = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [f"{value:0{width}d}" for value in values]
