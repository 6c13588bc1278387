"""Compressed MDS shards: every compression of MosaicML's writer, never more bytes than the index says and one."""

from __future__ import annotations

import bz2
import io

from penstock.core.errors import DataError, LimitError
from penstock.core.limits import Limits
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.sources.compressed import expanding, read_up_to

# By the name before the colon in `compression`, such as "zstd:7".
KINDS = {"gz": "gzip", "zstd": "zstd", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}
_PURPOSE = "to decompress MDS shards"


def unpacked(packed: bytes, kind: str, size: int, path: str, limits: Limits) -> bytes:
    """The content of a compressed shard, at most `size` + 1 bytes; damage is a DataError."""
    if kind in ("gzip", "zstd"):
        return read_up_to(expanding(io.BytesIO(packed), kind, path, limits), size + 1)
    if not limits.expansion_allowed(len(packed), size):
        raise LimitError(
            f"at most {limits.expansion} bytes per stored byte", got=f"{size} bytes from {len(packed)}", where=path,
            fix="this looks like a decompression bomb; if it is honest, raise limits.expansion",
        )  # fmt: skip
    try:
        if kind == "bz2":
            with bz2.open(io.BytesIO(packed)) as file:
                return file.read(size + 1)
        arrow = need("pyarrow", extra="parquet", purpose=_PURPOSE)
        if kind == "brotli":
            with arrow.CompressedInputStream(arrow.BufferReader(packed), kind) as stream:
                return read_up_to(stream, size + 1)
        if (said := _snappy_size(packed)) != size:  # else the codec would leave the rest empty
            return bytes(min(said, size + 1))
        content: bytes = arrow.Codec(kind).decompress(packed, decompressed_size=size, asbytes=True)
    except (OSError, EOFError, ValueError) as error:
        surface(error)
        raise DataError(
            f"{kind} data", got=" ".join(str(error).split())[:200], where=path, fix="copy the shard again"
        ) from error
    return content


def _snappy_size(packed: bytes) -> int:
    """The decompressed size that the first bytes say."""
    size = 0
    for place, byte in enumerate(packed[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            return size
    raise ValueError("no size at its beginning")
