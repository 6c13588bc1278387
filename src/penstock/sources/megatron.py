"""A read-only view of Megatron `.bin`/`.idx` pairs; nothing is converted.

The index is: 9 bytes magic, u64 version (1), u8 type code, u64 sequences, u64 entries of the document index, then i32
lengths, i64 byte pointers, i64 document index, and one byte per sequence in multimodal sets. Opening reads the index
once in bounded memory (20 bytes per sequence) and checks all of it against the size of the `.bin`; nothing of it is
held: starts are looked up through a memory map, documents by binary search. A record is a Megatron document, one or
more sequences. Of a pair behind URLs, the index is read completely, and 8 bytes per document are held.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import StorageError, StoreError
from penstock.core.mapped import MappedFile, map_file
from penstock.sources.formats import Options
from penstock.sources.token_files import opened, token_file
from penstock.sources.token_objects import TokenObjects
from penstock.sources.tokens import TokenFiles, token_source
from penstock.storage.filesystem import Options as StorageOptions
from penstock.storage.filesystem import local_only, scheme, stamp
from penstock.storage.objects import exists
from penstock.store.doctable import OffsetTable, search

_MAGIC, _LEGACY = b"MMIDIDX\x00\x00", b"TNTIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_CODES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_BLOCK = 1 << 20


def open_megatron(
    prefix: str | os.PathLike[str], *, vocab_size: int | None = None, storage_options: StorageOptions = None
) -> TokenFiles | TokenObjects:
    """Opens `prefix.bin` and `prefix.idx` (either name itself will do) as a `TokenSource`.

    The fingerprint covers the full index and sampled tokens, see `TokenFiles.fingerprint`.
    """
    base = os.fspath(prefix)
    if not (isinstance(base, str) and scheme(base)):
        base = local_only(prefix, "the Megatron prefix")
    if base.endswith((".bin", ".idx")):
        base = base[:-4]
    path = base + ".idx"
    table, kind, digest = _read_index(path, storage_options)
    file = token_file(base + ".bin", kind, options=storage_options)
    if file.tokens != table.tokens:
        raise StoreError(
            f"{table.tokens} tokens of {kind.name} in the .bin, as the index says",
            got=f"{file.tokens} tokens",
            where=file.path,
            fix="the two files are not of one set, or the copy stopped early: copy both again",
        )
    boundaries = f"document index of {os.path.basename(path)}"
    documents = table if isinstance(table.place, str) else OffsetTable(table.starts(np.arange(len(table) + 1)))
    return token_source(
        "megatron", [file], kind, documents, vocab_size=vocab_size, boundaries=boundaries, identity=[digest],
        options=storage_options,
    )  # fmt: skip


def open_path(path: str | os.PathLike[str], options: Options) -> TokenFiles | TokenObjects:
    """The opener of the registry."""
    return open_megatron(path, storage_options=options.storage_options)


class _Index:
    """The document table of a Megatron index: of a path a map that is made again after pickling, or of its bytes."""

    def __init__(self, place: str | NDArray[np.uint8], kind: np.dtype[Any], sequences: int, entries: int) -> None:
        self.place, self._kind, self._sequences, self._entries = place, kind, sequences, entries
        self.tokens = 0
        self._map()

    def _map(self) -> None:
        self._file: MappedFile | None = None
        if isinstance(self.place, str):
            with opened(self.place) as file:
                self._file = map_file(self.place, file.fileno())
            raw = self._file.array
            if len(raw) < _HEAD.size + 12 * self._sequences + 8 * self._entries:
                raise _bad("the index that was opened before", f"a file of {len(raw)} bytes", self.place)
        else:
            raw = self.place
        n, m, at = self._sequences, self._entries, _HEAD.size
        # Fields sit at odd addresses: indexing copies single entries, which is all that is done with them.
        self.lengths: NDArray[np.int32] = np.ndarray((n,), "<i4", raw, at)
        self.pointers: NDArray[np.int64] = np.ndarray((n,), "<i8", raw, at + 4 * n)
        self.documents: NDArray[np.int64] = np.ndarray((m,), "<i8", raw, at + 12 * n)

    def __len__(self) -> int:
        return max(self._entries - 1, 0)

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._file is not None:
            self._file.check()
        sequence = self.documents[indices].astype(np.int64) if self._entries else np.zeros(len(indices), np.int64)
        out = np.full(len(sequence), self.tokens, np.int64)
        inner = sequence < self._sequences
        out[inner] = self.pointers[sequence[inner]] // self._kind.itemsize
        return out

    def find(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return search(self.starts, len(self), positions)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.place, self._kind, self._sequences, self._entries, self.tokens

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.place, self._kind, self._sequences, self._entries, self.tokens = state
        self._map()


def _read_index(path: str, options: StorageOptions) -> tuple[_Index, np.dtype[Any], bytes]:
    try:
        size = stamp(path, options).size
        with opened(path, options) as file:
            head = file.read(_HEAD.size)
    except StorageError as error:
        error.expected = "a Megatron index"
        bare = exists(path[:-4] + ".bin", options) if scheme(path) else os.path.isfile(path[:-4] + ".bin")
        error.fix = "pass the common prefix of the .bin and .idx files"
        error.fix += "; a .bin without an index is read by penstock.open_nanogpt(path)" if bare else ""
        raise
    if head.startswith(_LEGACY):
        raise _bad("an index that begins with MMIDIDX", "a legacy index of Megatron or fairseq (TNTIDX)", path)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise _bad("an index that begins with MMIDIDX", repr(head[:9]), path)
    _, version, code, sequences, entries = _HEAD.unpack(head)
    if version != 1:
        raise _bad("index version 1", f"version {version}", path)
    if code not in _CODES:
        known = ", ".join(f"{c} ({np.dtype(k).name})" for c, k in _CODES.items())
        raise _bad(f"a type code of integer tokens: {known}", f"code {code} {_FLOATS.get(code, '')}".strip(), path)
    need = _HEAD.size + 12 * sequences + 8 * entries
    if size not in (need, need + sequences):
        raise _bad(f"{need} bytes for {sequences} sequences and {entries} document entries", f"{size} bytes", path)
    kind = np.dtype(_CODES[code])
    table = _Index(_content(path, size, options) if scheme(path) else path, kind, sequences, entries)
    table.tokens = _check_sequences(table, kind.itemsize, path)
    _check_documents(table, sequences, path)
    return table, kind, _digest(path) if isinstance(table.place, str) else xxhash.xxh3_128(table.place.data).digest()


def _content(path: str, size: int, options: StorageOptions) -> NDArray[np.uint8]:
    """The bytes of an index behind a URL."""
    found = np.empty(size, np.uint8)
    at = 0
    with opened(path, options) as file:
        while block := file.read(_BLOCK << 4):
            found[at : at + len(block)] = np.frombuffer(block, np.uint8)[: size - at]
            at += len(block)
    if at != size:
        raise _bad(f"an index of {size} bytes", f"{at} bytes", path)
    return found


def _check_sequences(table: _Index, itemsize: int, path: str) -> int:
    """Lengths and pointers must agree, each sequence right after the one before; returns the tokens."""
    total = 0
    for at in range(0, len(table.lengths), _BLOCK):
        lengths = table.lengths[at : at + _BLOCK].astype(np.int64)
        ends = total + np.cumsum(lengths)
        wrong = (lengths < 0) | (table.pointers[at : at + _BLOCK] != (ends - lengths) * itemsize)
        if bool(wrong.any()):
            first = at + int(np.argmax(wrong))
            got = f"sequence {first}: length {int(table.lengths[first])}, pointer {int(table.pointers[first])}"
            raise _bad("sequences one right after another", got, path)
        total = int(ends[-1])
    return total


def _check_documents(table: _Index, sequences: int, path: str) -> None:
    """The document index must rise from 0 to the number of sequences: a record for every token."""
    entries = table.documents
    if len(entries) == 0 and sequences == 0:
        return
    if len(entries) == 0 or int(entries[0]) != 0 or int(entries[-1]) != sequences:
        got = f"{len(entries)} entries" + (f", from {int(entries[0])} to {int(entries[-1])}" if len(entries) else "")
        raise _bad(f"a document index from 0 to {sequences} sequences", got, path)
    for at in range(0, len(entries), _BLOCK):
        falls = np.flatnonzero(np.diff(entries[at : at + _BLOCK + 1].astype(np.int64)) < 0)
        if len(falls):
            raise _bad("a non-decreasing document index", f"entry {at + int(falls[0])} is larger than the next", path)


def _digest(path: str) -> bytes:
    state = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.digest()


def _bad(expected: str, got: str, where: str) -> StoreError:
    return StoreError(
        expected, got=got, where=where, fix="copy the .idx again, or write the set again with Megatron's preprocessing"
    )
