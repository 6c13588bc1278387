"""Identity of content: xxh3-128, as 32 hex digits.

Equal content has an equal id on every machine and under every path. It is a checksum against accidents, not against
someone who forges collisions. A file is hashed by all of its bytes: memory-bound when it is in the page cache
(several GB/s), otherwise as fast as the disk or network gives it. A file met again in this process with the same
size and modification time is not read again; nothing is remembered on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xxhash

from penstock import _files

_BLOCK = 4 << 20
_seen: dict[tuple[str, int, str], str] = {}


def content_id(parts: Iterable[Any]) -> str:
    """Id of a sequence of str, bytes, int, None and arrays; each is hashed with its kind and length.

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
        # A lone surrogate can sit in a str of the user's own; it must not make hashing fail.
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


def file_id(path: str, storage_options: Mapping[str, Any] | None = None) -> str:
    """Id of a file's bytes, whatever its name. Reads the whole file once per process."""
    stamp = _files.stamp(path, storage_options)
    key = (path, stamp.size, stamp.tag)
    if stamp.tag and key in _seen:
        return _seen[key]
    state = xxhash.xxh3_128()
    with _files.open_read(path, storage_options) as file:
        while block := file.read(_BLOCK):
            state.update(block)
    result = state.hexdigest()
    if stamp.tag:
        _seen[key] = result
    return result
