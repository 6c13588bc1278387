"""What a conversion writes: a token store, Megatron's `.bin` and `.idx`, or MosaicML MDS.

Each is written under temporary names and gets its own name when it is complete (`converted_place`); Megatron's files in
a folder by two renames, the `.bin` last.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged, row
from penstock.core.errors import DataError, LimitError, UsageError
from penstock.core.local_files import sync_folder
from penstock.preparation.converted_place import Place
from penstock.preparation.token_input import NOTE, TokenInput
from penstock.preparation.write_mds import MDSWriter
from penstock.sources.mds_index import NAME as INDEX
from penstock.store.layout import TOKEN_DTYPES, token_dtype
from penstock.store.manifest import NAME as MANIFEST
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardInfo, ShardWriter

SHARD_TOKENS = 1 << 25
_COPIED = 1 << 20
_MEGATRON = {"<u1": 1, "<i4": 4, "<u2": 8}  # type codes of Megatron's index
_HEAD = struct.Struct("<9sQBQQ")


class TokenOutput(Protocol):
    """Takes documents in order. `lost` says what of the input this format cannot hold."""

    lost: list[str]

    def add(self, ids: Ragged, columns: Columns) -> None: ...

    def finish(self) -> int:
        """Completes the output under its name; returns its size in bytes."""
        ...

    def abort(self) -> None:
        """Removes everything that was written."""
        ...


class StoreOutput:
    """A token store. Ids are stored in the type of the vocabulary, else of the input, else in 32 bits."""

    def __init__(self, place: Place, source: TokenInput, shard_tokens: int = SHARD_TOKENS) -> None:
        self._place, self._source, self._most = place, source, shard_tokens
        kind = None if source.dtype is None else source.dtype.newbyteorder("<").str.replace("|", "<")
        self._dtype = None if source.vocab_size else kind if kind in TOKEN_DTYPES else "<u4"
        self._shards: list[ShardInfo] = []
        self._writer: ShardWriter | None = None
        self.lost: list[str] = []

    def add(self, ids: Ragged, columns: Columns) -> None:
        if self._writer is None:
            path = self._place.partial / f"{len(self._shards):05d}.tokens"
            self._writer = ShardWriter(path, vocab_size=self._source.vocab_size, dtype=self._dtype)
        self._writer.add(ids, columns)
        if self._writer.tokens >= self._most:
            self._shards.append(self._writer.finish())
            self._writer = None
            self._place.send()

    def finish(self) -> int:
        if self._writer is not None:
            self._shards.append(self._writer.finish())
        source = self._source
        metadata = {"converted": source.title}
        write_manifest(
            self._place.partial, self._shards, tokenizer=source.tokenizer, eos_id=source.eos_id, metadata=metadata
        )
        return self._place.finish(MANIFEST)

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        self._place.remove()


class MDSOutput:
    """An MDS dataset: `tokens` as arrays, and a column for each other column."""

    def __init__(self, place: Place, source: TokenInput, compression: str | None, size_limit: int) -> None:
        self._place, self._source = place, source
        self._options: dict[str, Any] = {"compression": compression, "size_limit": size_limit}
        self._writer: MDSWriter | None = None
        self.lost: list[str] = []

    def add(self, ids: Ragged, columns: Columns) -> None:
        if self._writer is None:
            self._writer = self._begin(ids, columns)
        columns = {name: _without_bool(column) for name, column in columns.items()}
        for i, tokens in enumerate(ids):
            self._writer.write({"tokens": tokens.astype(self._kind, copy=False), **row(columns, i)})
        self._place.send()

    def _begin(self, ids: Ragged, columns: Columns) -> MDSWriter:
        if "tokens" in columns:
            raise UsageError("no other column named 'tokens'", got="one", fix="choose columns with columns=")
        self._kind = ids.dtype if self._source.vocab_size is None else token_dtype(self._source.vocab_size)
        encodings = {"tokens": f"ndarray:{self._kind.name}"}
        for name, column in columns.items():
            kind = _without_bool(column).dtype.name
            if isinstance(column, Ragged):
                encodings[name] = f"ndarray:{kind}"
            else:
                shape = ",".join(map(str, column.shape[1:]))
                encodings[name] = f"ndarray:{kind}:{shape}" if shape else kind
            if column.dtype == bool:
                self.lost.append(f"the type of column {name!r}: MDS has no bool, so it is uint8")
        return MDSWriter(str(self._place.partial), encodings, **self._options)

    def finish(self) -> int:
        source = self._source
        note = {"vocab_size": source.vocab_size, "eos_id": source.eos_id, "tokenizer": source.tokenizer}
        if self._writer is None:
            raise DataError("at least one document", got="none", where=source.title, fix="check the input")
        self._writer.finish({NOTE: note})
        return self._place.finish(INDEX)

    def abort(self) -> None:
        self._place.remove()


class MegatronOutput:
    """`prefix.bin` and `prefix.idx`, in Megatron's index format of version 1: each document is one sequence.

    Holds nothing in memory: lengths are kept in a temporary file until the index is written. With `place` the files in
    the folder of `out` are sent there at the end.
    """

    def __init__(self, out: Path, source: TokenInput, place: Place | None = None) -> None:
        self._place = place
        base = out.name.removesuffix(".bin").removesuffix(".idx")
        self.bin, self.idx = out.with_name(f"{base}.bin"), out.with_name(f"{base}.idx")
        out.parent.mkdir(parents=True, exist_ok=True)
        self._partial = [path.with_name(f".{path.name}.partial") for path in (self.bin, self.idx)]
        self._file: IO[bytes] = open(self._partial[0], "wb", buffering=1 << 20)  # noqa: SIM115
        self._lengths = cast("IO[bytes]", tempfile.TemporaryFile(dir=out.parent))  # noqa: SIM115
        kind = None if source.dtype is None else source.dtype.newbyteorder("<").str.replace("|", "<")
        small = source.vocab_size is not None and source.vocab_size <= 1 << 16
        self._kind = np.dtype(kind if kind in ("<u1", "<u2") else "<u2" if small else "<i4")
        self._documents = 0
        known = {"the tokenizer's identity": source.tokenizer, "the end token's id": source.eos_id}
        known["the vocabulary size"] = source.vocab_size
        self.lost = [what for what, value in known.items() if value is not None]

    def add(self, ids: Ragged, columns: Columns) -> None:
        if not self._documents:
            self.lost += [f"column {name!r}" for name in columns]
        values, lengths = ids.values[ids.offsets[0] : ids.offsets[-1]], ids.lengths
        top = int(np.iinfo(self._kind).max)
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if low < 0 or high > top:
            raise DataError(
                f"token ids in [0, {top}] for Megatron's {self._kind.name}", got=f"ids from {low} to {high}",
                where=f"documents {self._documents} to {self._documents + len(lengths)}",
                fix="Megatron has no unsigned 32-bit ids: a vocabulary of more than 2**31 does not fit",
            )  # fmt: skip
        if len(lengths) and int(lengths.max()) > np.iinfo(np.int32).max:
            raise LimitError("documents of less than 2**31 tokens", got=str(int(lengths.max())), fix="cut it: eos_id=")
        self._file.write(np.ascontiguousarray(values, self._kind).view(np.uint8).data)
        self._lengths.write(lengths.astype("<i4").tobytes())
        self._documents += len(lengths)

    def finish(self) -> int:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        with open(self._partial[1], "wb", buffering=1 << 20) as index:
            count, code = self._documents, _MEGATRON[self._kind.str.replace("|", "<")]
            index.write(_HEAD.pack(b"MMIDIDX\x00\x00", 1, code, count, count + 1))
            for lengths in self._blocks():
                index.write(lengths.tobytes())
            at = 0
            for lengths in self._blocks():
                sizes = lengths.astype("<i8") * self._kind.itemsize
                index.write((at + np.cumsum(sizes) - sizes).astype("<i8").tobytes())
                at += int(sizes.sum())
            for first in range(0, count + 1, _COPIED):
                index.write(np.arange(first, min(first + _COPIED, count + 1), dtype="<i8").tobytes())
            index.flush()
            os.fsync(index.fileno())
        self._lengths.close()
        size = sum(path.stat().st_size for path in self._partial)
        self.bin.unlink(missing_ok=True)  # with `restart`: the old pair must not look complete
        os.replace(self._partial[1], self.idx)
        os.replace(self._partial[0], self.bin)
        sync_folder(str(self.bin.parent))
        return size if self._place is None else self._place.finish(self.idx.name)

    def _blocks(self) -> Any:
        self._lengths.seek(0)
        while data := self._lengths.read(4 * _COPIED):
            yield np.frombuffer(data, "<i4")

    def abort(self) -> None:
        self._file.close()
        self._lengths.close()
        for path in self._partial:
            path.unlink(missing_ok=True)
        if self._place is not None:
            self._place.remove()


def _without_bool(column: Ragged | NDArray[Any]) -> Ragged | NDArray[Any]:
    if column.dtype != bool:
        return column
    if isinstance(column, Ragged):
        return Ragged(column.values.view(np.uint8), column.offsets)
    return column.astype(np.uint8)
