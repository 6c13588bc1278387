"""Token sources: a token store, an array in memory, and token files that other tools wrote.

`TokenStore` (see `penstock.store.reader`) is the format of this project. `TokenArray` wraps a NumPy array in the same
protocol. `TokenFiles` does it for raw arrays on disk and is what the views of foreign formats return: nothing is
converted or copied, files are memory-mapped when first used, and the document table is whatever the format has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import StoreError, UsageError
from penstock.core.mapped import MappedFile, map_file, map_of
from penstock.core.os_errors import storage_errors
from penstock.sources.formats import Options
from penstock.storage.filesystem import check_regular, local_only
from penstock.store.arrays import ArrayTable, OpenArrays, Part
from penstock.store.doctable import DocTable, OffsetTable, check_range
from penstock.store.gather import gather_rows
from penstock.store.reader import TokenStore
from penstock.store.stream import TokenStream

__all__ = ["TokenArray", "TokenFile", "TokenFiles", "TokenStore"]

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 256
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def open_path(path: str | os.PathLike[str], _options: Options) -> TokenStore:
    """The opener of the registry."""
    return TokenStore(path)


def open_npy(path: str | os.PathLike[str], _options: Options) -> TokenArray:
    """A `.npy` file of integers, memory-mapped; one document."""
    try:
        return TokenArray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise UsageError(
            "a .npy file of integers", got=str(error)[:200], where=str(path), fix="write it with np.save"
        ) from error


class _Stream(TokenStream):
    """A stream whose documents are in one table, with nothing but tokens."""

    def __init__(
        self, bounds: NDArray[np.int64], dtype: np.dtype[Any], table: DocTable, vocab_size: int | None
    ) -> None:
        super().__init__(bounds, dtype, vocab_size)
        self._table = table
        self._print: str | None = None

    def __len__(self) -> int:
        return len(self._table)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Documents as a ragged column `input_ids`."""
        starts, lengths = self._spans(check_range(indices, len(self), "documents"))
        return {"input_ids": Ragged(*gather_rows(self, starts, lengths))}

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._table.starts(check_range(indices, len(self) + 1, "documents"))

    def documents_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._table.find(check_range(positions, self.n_tokens, "positions"))

    def _spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts = self._table.starts(indices)
        return starts, self._table.starts(indices + 1) - starts

    def _facts(self, kind: str, size: int, files: int, boundaries: str) -> dict[str, Any]:
        return {
            "kind": kind, "records": len(self), "tokens": self.n_tokens, "bytes": size, "files": files,
            "dtype": self._dtype.name, "vocab_size": self._vocab_size, "boundaries": boundaries,
        }  # fmt: skip

    def locate(self, index: int) -> dict[str, Any]:
        number = check_range([index], len(self), "documents")
        start, length = self._spans(number)
        return {"document": int(number[0]), "start": int(start[0]), "tokens": int(length[0])}


class TokenArray(_Stream):
    """An array of token ids as a `TokenSource`; `doc_offsets` (n + 1 rising positions) are its documents.

    Without offsets the array is one document. The array is used as it is, not copied; pickling copies it.

    >>> source = TokenArray(np.arange(10, dtype=np.uint16), doc_offsets=[0, 4, 10])
    >>> len(source), source.gather(np.array([3]), 4).tolist(), source.documents_at(np.array([3, 4])).tolist()
    (2, [[3, 4, 5, 6]], [0, 1])
    """

    def __init__(self, tokens: Any, doc_offsets: Any = None, vocab_size: int | None = None) -> None:
        array = np.asarray(tokens)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(
                "tokens as a one-dimensional array of integers",
                got=f"{array.ndim} dimensions of {array.dtype.name}",
                where="TokenArray",
                fix="flatten it, or convert it with .astype(np.uint16) or .astype(np.uint32)",
            )
        array = np.ascontiguousarray(array)
        self._array = array
        self._given = doc_offsets is not None
        offsets = np.array([0, len(array)]) if doc_offsets is None else np.asarray(doc_offsets).astype(np.int64)
        if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(array):
            raise UsageError(
                f"doc_offsets from 0 to {len(array)}, the number of tokens",
                got=f"{offsets.tolist()[:1]} to {offsets.tolist()[-1:]}",
                where="TokenArray",
                fix="pass n + 1 positions: where each document begins, and the end",
            )
        falls = np.flatnonzero(np.diff(offsets) < 0)
        if len(falls):
            raise UsageError(
                "non-decreasing doc_offsets",
                got=f"doc_offsets[{falls[0]}] > doc_offsets[{falls[0] + 1}]",
                where="TokenArray",
                fix="sort them",
            )
        super().__init__(np.array([0, len(array)]), array.dtype, OffsetTable(offsets), vocab_size)
        self._offsets = offsets
        self._parts = ArrayTable(1)
        self._parts.add(0, array, map_of(array))

    def ready(self, part: Part, _starts: NDArray[np.int64], _lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        self._parts.check(part)
        return self._parts

    def fingerprint(self) -> str:
        """Hash of all tokens and offsets; computed once, at memory speed."""
        if self._print is None:
            little = self._array.astype(self._dtype.newbyteorder("<"), copy=False)
            state = xxhash.xxh3_128(f"tokens {little.dtype.str} {len(self._offsets)} ".encode())
            state.update(self._offsets.astype("<i8", copy=False).data)
            state.update(little.view(np.uint8).data)
            self._print = f"token-array:{state.hexdigest()}"
        return self._print

    def describe(self) -> dict[str, Any]:
        boundaries = "doc_offsets" if self._given else "unknown: the whole array is one document"
        return self._facts("token array", int(self._array.nbytes), 0, boundaries)


@dataclass(frozen=True)
class TokenFile:
    """A run of tokens in a file: `tokens` items from byte `offset`."""

    path: str
    offset: int
    tokens: int
    size: int  # of the file when it was opened


class TokenFiles(_Stream):
    """Raw token files, one after another, as one stream. Made by `open_megatron`, `open_nanogpt`, `open_dolma`.

    The files carry no checksums, so damage cannot be noticed; a file whose size has changed since is refused.
    `identity` is hashed into the fingerprint: the full content of the format's own index.
    """

    def __init__(
        self,
        kind: str,
        files: Sequence[TokenFile],
        dtype: Any,
        table: DocTable,
        *,
        vocab_size: int | None = None,
        boundaries: str,
        identity: Sequence[bytes] = (),
    ) -> None:
        if not files:
            raise UsageError("at least one file", got="none", where=f"open_{kind}", fix="check the pattern")
        bounds = np.cumsum([0, *(f.tokens for f in files)], dtype=np.int64)
        super().__init__(bounds, np.dtype(dtype), table, vocab_size)
        self._kind, self._files, self._boundaries, self._identity = kind, list(files), boundaries, list(identity)
        self._open = self._closed_parts()

    def ready(self, part: Part, _starts: NDArray[np.int64], _lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        table = self._open.need(part)
        table.check(part)
        return table

    def fingerprint(self) -> str:
        """Content, at a bounded cost: sizes, the full index of the format, and 256 spread blocks of 64 KiB per file.

        Files up to 16 MiB are hashed in full. In larger ones a change between the sampled blocks that keeps the size
        is NOT noticed: foreign formats have no checksums, and reading terabytes for a fingerprint is too slow.
        Convert to a token store when that matters. No path or time goes in. Computed once.
        """
        if self._print is None:
            state = xxhash.xxh3_128(f"{self._kind} {self._dtype.str} {len(self)} ".encode())
            for piece in self._identity:
                state.update(len(piece).to_bytes(8, "little") + piece)
            for file in self._files:
                state.update(f"{file.tokens} ".encode())
                _hash_sampled(state, file, self._dtype.itemsize)
            self._print = f"{self._kind}:{state.hexdigest()}"
        return self._print

    def describe(self) -> dict[str, Any]:
        return self._facts(self._kind, sum(f.size for f in self._files), len(self._files), self._boundaries)

    def locate(self, index: int) -> dict[str, Any]:
        found = super().locate(index)
        start = found["start"]
        part = min(int(np.searchsorted(self._bounds, start, "right")) - 1, len(self._files) - 1)
        file = self._files[part]
        byte = file.offset + (start - int(self._bounds[part])) * self._dtype.itemsize
        return {"file": file.path} | found | {"byte": byte}

    def close(self) -> None:
        """Closes the files; they are opened again when used."""
        self._open.clear()

    def _closed_parts(self) -> OpenArrays:
        return OpenArrays(len(self._files), self._map)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = self._closed_parts()

    def __repr__(self) -> str:
        return f"TokenFiles({self._kind}: {len(self)} documents, {self.n_tokens} tokens, {self._dtype.name})"

    def _map(self, part: int) -> tuple[NDArray[Any], MappedFile | None]:
        file = self._files[part]
        if file.tokens == 0:
            return np.empty(0, self._dtype), None
        with opened(file.path) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size != file.size:
                raise StoreError(
                    f"a file of {file.size} bytes, as when it was opened",
                    got=f"{size} bytes",
                    where=file.path,
                    fix="do not change token files under a running loader; open them again",
                )
            found = map_file(file.path, handle.fileno())
        return np.frombuffer(found.array, self._dtype, file.tokens, file.offset), found


def _hash_sampled(state: Any, file: TokenFile, itemsize: int) -> None:
    total = file.tokens * itemsize
    with opened(file.path) as handle:
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


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """The file, open for reading, or an error that names it."""
    check_regular(os.fspath(path))
    with storage_errors(path):
        return open(path, "rb")


def token_file(path: str | os.PathLike[str], dtype: Any, *, offset: int = 0) -> TokenFile:
    """A file of raw tokens from byte `offset` to its end, its size checked to be a multiple of the token size."""
    kind = np.dtype(dtype)
    with opened(path) as handle:
        size = os.fstat(handle.fileno()).st_size
    if (size - offset) % kind.itemsize or size < offset:
        raise StoreError(
            f"a whole number of {kind.name} tokens, {kind.itemsize} bytes each",
            got=f"{size - offset} bytes",
            where=str(path),
            fix="check the dtype; if it is right, the file was cut short: copy it again",
        )
    return TokenFile(str(path), offset, (size - offset) // kind.itemsize, size)


def token_kind(dtype: Any, where: str) -> np.dtype[Any]:
    """The dtype, little-endian; required, and an integer type."""
    if dtype is None:
        raise UsageError(
            "dtype, the type of the tokens in the file",
            got="none",
            where=where,
            fix="pass dtype='uint16' or 'uint32', as the tool that wrote the file used; it is never guessed",
        )
    kind: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    if kind.kind not in "iu":
        raise UsageError("an integer dtype", got=kind.name, where=where, fix="token ids are integers")
    return kind


def without_table(
    kind: str, files: Sequence[TokenFile], dtype: np.dtype[Any], *, eos_id: int | None, vocab_size: int | None, fix: str
) -> TokenFiles:
    """Files of a format without a document table: documents end after each `eos_id`, or each file is one."""
    if eos_id is None:
        offsets = np.cumsum([0, *(f.tokens for f in files)], dtype=np.int64)
        boundaries = f"unknown: each file is one document (pass {fix})"
    else:
        offsets, boundaries = _split_at(files, dtype, eos_id), f"after each id {eos_id}, as asked"
    return TokenFiles(
        kind, files, dtype, OffsetTable(offsets), vocab_size=vocab_size, boundaries=boundaries,
        identity=[str(eos_id).encode()],
    )  # fmt: skip


def listed(paths: Paths) -> list[str]:
    """One path or several, as a list."""
    return [local_only(path, "a token file") for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def _split_at(files: Sequence[TokenFile], dtype: np.dtype[Any], eos_id: int) -> NDArray[np.int64]:
    """Document offsets where each document ends with `eos_id` (kept). Reads every token once, in bounded memory.

    A file's end also ends a document.
    """
    ends: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    base = 0
    for file in files:
        last = base
        with opened(file.path) as handle:
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
