"""Raw token files, local or behind URLs: their sizes, their identity, and where documents end in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import StoreError, UsageError
from penstock.core.os_errors import storage_errors
from penstock.storage.filesystem import Options, check_regular, local_only, open_read, scheme, stamp

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 256
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class TokenFile:
    """A run of tokens in a file: `tokens` items from byte `offset`."""

    path: str
    offset: int
    tokens: int
    size: int  # of the file when it was opened
    tag: str = ""  # the ETag of an object


def files_fingerprint(
    kind: str, dtype: np.dtype[Any], documents: int, identity: Sequence[bytes], files: Sequence[TokenFile],
    options: Options = None,
) -> str:  # fmt: skip
    """The id of token files: see `TokenFiles.fingerprint`."""
    state = xxhash.xxh3_128(f"{kind} {dtype.str} {documents} ".encode())
    for piece in identity:
        state.update(len(piece).to_bytes(8, "little") + piece)
    for file in files:
        state.update(f"{file.tokens} ".encode())
        _hash_sampled(state, file, dtype.itemsize, options)
    return f"{kind}:{state.hexdigest()}"


def place_of(files: Sequence[TokenFile], bounds: NDArray[np.int64], start: int, itemsize: int) -> dict[str, Any]:
    """The file and byte of a position of the stream; `bounds` are the positions where files begin, and the end."""
    part = min(int(np.searchsorted(bounds, start, "right")) - 1, len(files) - 1)
    file = files[part]
    return {"file": file.path, "byte": file.offset + (start - int(bounds[part])) * itemsize}


def _hash_sampled(state: Any, file: TokenFile, itemsize: int, options: Options) -> None:
    total = file.tokens * itemsize
    with opened(file.path, options) as handle:
        if total <= _SAMPLE_BYTES * _SAMPLES:
            handle.seek(file.offset)
            state.update(_read_exactly(handle, total, file.path))
            return
        for k in range(_SAMPLES):
            handle.seek(file.offset + (total - _SAMPLE_BYTES) * k // (_SAMPLES - 1))
            state.update(_read_exactly(handle, _SAMPLE_BYTES, file.path))


def _read_exactly(handle: IO[bytes], size: int, path: str) -> bytes:
    data = handle.read(size)
    if len(data) < size:
        raise StoreError(
            f"{size} more bytes", got=f"{len(data)}", where=path, fix="it was cut while it was read: copy it again"
        )
    return data


def opened(path: str | os.PathLike[str], options: Options = None) -> IO[bytes]:
    """The file, open for reading, or an error that names it."""
    if scheme(os.fspath(path)):
        return open_read(os.fspath(path), options)
    check_regular(os.fspath(path))
    with storage_errors(path):
        return open(path, "rb")


def token_file(path: str | os.PathLike[str], dtype: Any, *, offset: int = 0, options: Options = None) -> TokenFile:
    """A file of raw tokens from byte `offset` to its end, its size checked to be a multiple of the token size."""
    kind = np.dtype(dtype)
    size, tag = stamp(os.fspath(path), options)
    if (size - offset) % kind.itemsize or size < offset:
        raise StoreError(
            f"a whole number of {kind.name} tokens, {kind.itemsize} bytes each",
            got=f"{size - offset} bytes",
            where=str(path),
            fix="check the dtype; if it is right, the file was cut short: copy it again",
        )
    return TokenFile(str(path), offset, (size - offset) // kind.itemsize, size, tag if scheme(os.fspath(path)) else "")


def token_kind(dtype: Any, where: str) -> np.dtype[Any]:
    """The dtype, little-endian; required, and an integer type."""
    if dtype is None:
        raise UsageError(
            "dtype, the type of the tokens in the file",
            got="none",
            where=where,
            fix="pass dtype='uint16' or 'uint32', as the tool that wrote the file used; it is never guessed",
        )
    kind: np.dtype[Any] = np.dtype(np.dtype(dtype).newbyteorder("<").str)  # native here, so that it can be a memoryview
    if kind.kind not in "iu":
        raise UsageError("an integer dtype", got=kind.name, where=where, fix="token ids are integers")
    return kind


def listed(paths: Paths) -> list[str]:
    """One path or URL or several, as a list."""
    each = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    return [path if scheme(path) else local_only(path, "a token file") for path in each]


def split_at(
    files: Sequence[TokenFile], dtype: np.dtype[Any], eos_id: int, options: Options = None
) -> NDArray[np.int64]:
    """Document offsets where each document ends with `eos_id` (kept). Reads every token once, in bounded memory.

    A file's end also ends a document.
    """
    ends: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    base = 0
    for file in files:
        last = base
        with opened(file.path, options) as handle:
            handle.seek(file.offset)
            for at in range(0, file.tokens, 1 << 22):
                count = min(1 << 22, file.tokens - at)
                array = np.frombuffer(_read_exactly(handle, count * dtype.itemsize, file.path), dtype)
                hits = np.flatnonzero(array == eos_id).astype(np.int64) + (base + at + 1)
                if len(hits):
                    ends.append(hits)
                    last = int(hits[-1])
        base += file.tokens
        if last != base:
            ends.append(np.array([base]))
    return np.concatenate(ends)
