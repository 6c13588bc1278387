"""Token sources: a token store, an array in memory, and token files that other tools wrote.

`TokenStore` (see `penstock.store.reader`) is the format of this project. `TokenArray` wraps a NumPy array in the same
protocol. `TokenFiles` does it for raw arrays on disk and is what the views of foreign formats return: nothing is
converted or copied, files are memory-mapped when first used, and the document table is whatever the format has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import StoreError, UsageError
from penstock.core.mapped import MappedFile, map_file, map_of
from penstock.sources.token_files import TokenFile, files_fingerprint, opened, place_of, split_at
from penstock.storage.filesystem import scheme
from penstock.store.arrays import ArrayTable, OpenArrays, Part
from penstock.store.doctable import DocTable, OffsetTable, check_range
from penstock.store.gather import gather_rows
from penstock.store.opening import open_token_store
from penstock.store.reader import TokenStore
from penstock.store.stream import TabledTokens, TokenStream

if TYPE_CHECKING:
    from penstock.sources.formats import Options
    from penstock.sources.token_objects import TokenObjects
    from penstock.storage.filesystem import Options as StorageOptions

__all__ = ["TokenArray", "TokenFile", "TokenFiles", "TokenStore"]


def open_path(path: str | os.PathLike[str], options: Options) -> TokenStore:
    """The opener of the registry."""
    return open_token_store(path, storage_options=options.storage_options)


def open_npy(path: str | os.PathLike[str], _options: Options) -> TokenArray:
    """A `.npy` file of integers, memory-mapped; one document."""
    if scheme(os.fspath(path)):
        raise UsageError(
            "a local .npy file of an array", got=os.fspath(path),
            fix="it is mapped into memory: copy it first; bare tokens behind URLs are read by open_dolma(path, dtype=)",
        )  # fmt: skip
    try:
        return TokenArray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise UsageError(
            "a .npy file of integers", got=str(error)[:200], where=str(path), fix="write it with np.save"
        ) from error


class _Stream(TabledTokens, TokenStream):
    """A stream of arrays whose documents are in one table."""

    _print: str | None = None

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Documents as a ragged column `input_ids`."""
        starts, lengths = self._spans(check_range(indices, len(self), "documents"))
        return {"input_ids": Ragged(*gather_rows(self, starts, lengths))}


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
        scanned: bool = False,
    ) -> None:
        if not files:
            raise UsageError("at least one file", got="none", where=f"open_{kind}", fix="check the pattern")
        bounds = np.cumsum([0, *(f.tokens for f in files)], dtype=np.int64)
        super().__init__(bounds, np.dtype(dtype), table, vocab_size)
        self._kind, self.files, self._boundaries, self._identity = kind, list(files), boundaries, list(identity)
        self.scanned, self.held = scanned, False
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
            self._print = files_fingerprint(self._kind, self._dtype, len(self), self._identity, self.files)
        return self._print

    def describe(self) -> dict[str, Any]:
        return self._facts(self._kind, sum(f.size for f in self.files), len(self.files), self._boundaries)

    def locate(self, index: int) -> dict[str, Any]:
        found = super().locate(index)
        place = place_of(self.files, self._bounds, found["start"], self._dtype.itemsize)
        return {"file": place["file"]} | found | {"byte": place["byte"]}

    def close(self) -> None:
        """Closes the files; they are opened again when used."""
        self._open.clear()

    def _closed_parts(self) -> OpenArrays:
        return OpenArrays(len(self.files), self._map)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = self._closed_parts()

    def __repr__(self) -> str:
        return f"TokenFiles({self._kind}: {len(self)} documents, {self.n_tokens} tokens, {self._dtype.name})"

    def _map(self, part: int) -> tuple[NDArray[Any], MappedFile | None]:
        file = self.files[part]
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


def token_source(
    kind: str, files: Sequence[TokenFile], dtype: Any, table: DocTable, *, vocab_size: int | None = None,
    boundaries: str, identity: Sequence[bytes] = (), options: StorageOptions = None, scanned: bool = False,
) -> TokenFiles | TokenObjects:  # fmt: skip
    """The source of token files: mapped into memory, or read by ranges if some are behind URLs."""
    if any(scheme(file.path) for file in files):
        from penstock.sources.token_objects import TokenObjects

        return TokenObjects(
            kind, files, dtype, table, vocab_size=vocab_size, boundaries=boundaries, identity=identity, options=options,
            scanned=scanned,
        )  # fmt: skip
    return TokenFiles(
        kind, files, dtype, table, vocab_size=vocab_size, boundaries=boundaries, identity=identity, scanned=scanned
    )


def without_table(
    kind: str, files: Sequence[TokenFile], dtype: np.dtype[Any], *, eos_id: int | None, vocab_size: int | None,
    fix: str, options: StorageOptions = None,
) -> TokenFiles | TokenObjects:  # fmt: skip
    """Files of a format without a document table: documents end after each `eos_id`, or each file is one."""
    if eos_id is None:
        offsets = np.cumsum([0, *(f.tokens for f in files)], dtype=np.int64)
        boundaries = f"unknown: each file is one document (pass {fix})"
    else:
        offsets, boundaries = split_at(files, dtype, eos_id, options), f"after each id {eos_id}, as asked"
    return token_source(
        kind, files, dtype, OffsetTable(offsets), vocab_size=vocab_size, boundaries=boundaries,
        identity=[str(eos_id).encode()], options=options, scanned=eos_id is not None,
    )  # fmt: skip
