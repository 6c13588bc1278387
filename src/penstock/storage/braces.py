"""Braces in paths, as the shell and WebDataset have them: `shard-{000..099}.tar`, `{train,dev}.jsonl`."""

from __future__ import annotations

import re

from penstock.core.errors import LimitError

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_MOST = 1_000_000


def expand_braces(path: str) -> list[str]:
    """The paths that a pattern with braces stands for, in order; the path itself if it has none.

    >>> expand_braces("s-{08..10}.tar"), expand_braces("{a,b}/{1..2}.txt"), expand_braces("plain{x}.txt")
    (['s-08.tar', 's-09.tar', 's-10.tar'], ['a/1.txt', 'a/2.txt', 'b/1.txt', 'b/2.txt'], ['plain{x}.txt'])
    """
    found = [""]
    at = 0
    for group in _GROUP.finditer(path):
        choices = _choices(group[1])
        literal = path[at : group.start()]
        choices = [group[0]] if choices is None else choices
        if len(found) * len(choices) > _MOST:
            raise LimitError(f"at most {_MOST:,} paths of one pattern", got="more", where=path[:200], fix="use a glob")
        found = [f"{start}{literal}{choice}" for start in found for choice in choices]
        at = group.end()
    return [start + path[at:] for start in found]


def _choices(text: str) -> list[str] | None:
    if "," in text:
        return text.split(",")
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
