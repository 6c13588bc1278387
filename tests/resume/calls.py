"""The calls that made a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock import Pipeline


def calls(value: Any) -> Iterator[str]:
    """The names of the calls that made a pipeline, and those that it consists of."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from calls(item)
    while isinstance(value, Pipeline) and (made := value._made_by) is not None:
        yield made.name
        yield from calls([item for item in (*made.args, *made.named.values()) if item is not made.on])
        value = made.on
