"""Content ids: xxh3-128 as 32 hex digits.

Equal content has the same id on every machine and under every path. The hash protects against accidents, not against
forged collisions. `storage.filesystem.file_id` does the same for the bytes of a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash


def content_id(parts: Iterable[Any]) -> str:
    """Returns the id of a sequence of str, bytes, numbers, None and arrays, each hashed with its type and length.

    >>> content_id(["ab", "c"]) == content_id(["a", "bc"])
    False
    >>> len(content_id([1, b"x", None]))
    32
    """
    state = xxhash.xxh3_128()
    for part in parts:
        kind, payload = _payload(part)
        state.update(f"{kind}:{len(payload)}:".encode())
        state.update(payload)
    return state.hexdigest()


def _payload(part: Any) -> tuple[str, Any]:
    if isinstance(part, str):
        # A user's str may hold a lone surrogate, which plain UTF-8 refuses to encode.
        return "s", part.encode("utf-8", "surrogatepass")
    if isinstance(part, bytes | bytearray):
        return "b", part
    if part is None or isinstance(part, bool | int | float):
        return type(part).__name__, repr(part).encode()
    if isinstance(part, np.ndarray) and not part.dtype.hasobject:
        little = part.astype(part.dtype.newbyteorder("<"), copy=False)
        shape = ",".join(map(str, part.shape))
        return f"a{little.dtype.str}[{shape}]", np.ascontiguousarray(little).reshape(-1).view(np.uint8)
    raise TypeError(f"content_id takes str, bytes, numbers, None and plain arrays, not {type(part).__name__}")
