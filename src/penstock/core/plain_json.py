"""JSON of plain values, for their identity: NaN and the infinities, which orjson writes as null, differ from None."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson


def identity_json(value: Any, option: int, default: Callable[[Any], Any] | None = None) -> bytes:
    """The JSON of a value, and after it what each null stands for if one is a number.

    >>> identity_json([1.5, None], 0), identity_json([1.5, float("nan")], 0)
    (b'[1.5,null]', b'[1.5,null]nan')
    """
    data = orjson.dumps(value, option=option, default=default)
    if b"null" not in data:
        return data
    found = [*nulls(value)]
    return data if all(one is None for one in found) else data + ",".join(map(str, found)).encode()


def nulls(value: Any) -> Iterator[float | None]:
    """What becomes null in the JSON of a value, dicts in the order of their keys: None, NaN or an infinity."""
    if isinstance(value, np.ndarray | np.generic):
        numbers = value.reshape(-1) if value.dtype.kind == "f" else np.empty(0)
        yield from numbers[~np.isfinite(numbers)].tolist()
    elif value is None or (isinstance(value, float) and not math.isfinite(value)):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from nulls(value[key])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from nulls(inner)
