"""Endings of file names, also of shards that are numbered after the ending: `a.tfrecord-00003-of-00010`."""

from __future__ import annotations

_TAIL = len("-00000-of-00010")


def ends_in(name: str, ends: tuple[str, ...]) -> bool:
    """Whether a name ends in one of `ends`, which are in lower case; so does every name where there are none.

    >>> [ends_in(name, (".jsonl",)) for name in ("a.JSONL", "a.jsonl-00001-of-00002", "a.txt", "jsonl-of-x")]
    [True, True, False, False]
    """
    lower = name.lower()
    return not ends or lower.endswith(ends) or (lower[-9:-5] == "-of-" and lower[:-_TAIL].endswith(ends))
