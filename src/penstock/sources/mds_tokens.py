"""A column of token ids of an MDS dataset as one stream of tokens; nothing is converted.

Samples are not contiguous in a shard, so windows are cut out of the documents that they overlap: a read fetches those
documents completely. Opening reads the table of every shard and, where the table alone does not say how long the
tokens of each sample are, also the first bytes of each sample. It holds 8 bytes per document.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import BadRecords, StoreError, UsageError
from penstock.order.ragged_index import prefix
from penstock.sources.mds import MDSDataset, Verify, readable_columns
from penstock.sources.mds_index import MDSShard
from penstock.storage import filesystem
from penstock.store.doctable import OffsetTable, check_range
from penstock.store.stream import TabledTokens

_BLOCK = 1 << 16  # samples whose heads are read at a time


class MDSTokens(TabledTokens):
    """The token ids of `column`, one document per sample, as a `TokenSource`.

    `dtype` is required for a column of bytes, as whoever wrote it knows; arrays state their own type.
    """

    def __init__(
        self, dataset: MDSDataset, column: str | None = None, *, dtype: Any = None, vocab_size: int | None = None
    ) -> None:
        self.dataset = dataset
        self.column_name = _only_tokens(dataset) if column is None else column
        if self.column_name not in dataset.columns:
            raise UsageError(
                f"a column of the dataset: {', '.join(dataset.columns)}", got=repr(column), where=dataset.indexes[0],
                fix="column='tokens'",
            )  # fmt: skip
        self._encoding = dataset.encodings[self.column_name]
        self._dtype = self._type(dtype)
        dataset.files.open(range(len(dataset.files.shards)))
        self._offsets = prefix(np.concatenate([self._lengths(number) for number in range(len(dataset.files.shards))]))
        super().__init__(self._offsets, self._dtype, OffsetTable(self._offsets), vocab_size)

    @property
    def scanned(self) -> bool:
        """Whether remote shards are fetched when they are opened."""
        return self.dataset.block_facts() is not None

    @property
    def held(self) -> bool:
        """Whether they are kept then."""
        return self.scanned

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Documents as a ragged column `input_ids`."""
        indices = check_range(indices, len(self), "documents")
        return {"input_ids": self._documents(indices)}

    def block_sizes(self) -> NDArray[np.int64]:
        """Documents of each shard."""
        return self.dataset.block_sizes()

    def gather(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Row i is stream[starts[i] : starts[i] + length]; each document is read once."""
        starts = np.asarray(starts, np.int64)
        if len(starts) == 0 or length < 1:
            return np.empty((len(starts), max(length, 0)), self._dtype)
        first = self.documents_at(starts)
        last = self.documents_at(starts + (length - 1))
        counts = last - first + 1
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        needed = np.unique(np.repeat(first, counts) + within)
        try:
            held = self._documents(needed)
        except BadRecords as error:  # its row numbers are those of documents, not of windows
            raise StoreError(error.expected, got=error.got, where=error.where, fix="write the dataset again") from error
        # Documents from first to last are neighbours in `needed` too, so a window is one run of `held.values`.
        begins = held.offsets[np.searchsorted(needed, first)] + starts - self._offsets[first]
        found: NDArray[Any] = held.values[begins[:, None] + np.arange(length)]
        return found

    def fingerprint(self) -> str:
        """The dataset's fingerprint, the column and the length of every document."""
        state = xxhash.xxh3_128(self._offsets.astype("<i8").tobytes())
        return f"{self.dataset.fingerprint()}:{self.column_name}:{self._dtype.str}:{state.hexdigest()}"

    def describe(self) -> dict[str, Any]:
        facts = self.dataset.describe()
        boundaries = f"one document per sample, column {self.column_name!r}"
        return self._facts("MosaicML MDS", facts["bytes"], facts["files"], boundaries)

    def locate(self, index: int) -> dict[str, Any]:
        found = super().locate(index)
        return self.dataset.locate(found["document"]) | found

    def __repr__(self) -> str:
        return f"MDSTokens({self.column_name}: {len(self)} documents, {self.n_tokens} tokens, {self._dtype.name})"

    def _documents(self, indices: NDArray[np.int64]) -> Ragged:
        if self._encoding.name == "bytes":
            (values,), errors = self.dataset.stored([self.column_name], indices)
            if errors:
                raise BadRecords(errors)
            found = Ragged.of([np.frombuffer(value, self._dtype) for value in values], self._dtype)
        else:
            column = self.dataset.column(self.column_name, indices)
            found = column if isinstance(column, Ragged) else _rows_of(column)
        wrong = np.flatnonzero(found.lengths != self.lengths(indices))
        if len(wrong):
            document = int(indices[wrong[0]])
            raise StoreError(
                f"{int(self.lengths(indices[wrong[:1]])[0])} tokens, as when the dataset was opened",
                got=f"{int(found.lengths[wrong[0]])} tokens", where=str(self.dataset.locate(document)),
                fix="the shard was changed, or its arrays are not stored as MDSWriter stores them: write it again",
            )  # fmt: skip
        return found

    def _type(self, dtype: Any) -> np.dtype[Any]:
        encoding, where = self._encoding, f"{self.dataset.indexes[0]}, column {self.column_name!r}"
        if encoding.name == "bytes":
            if dtype is None:
                raise UsageError(
                    "dtype, the type of the tokens in a column of bytes", got="none", where=where,
                    fix="pass dtype='int64' (LLM Foundry's default), 'uint16', ..., as the tool that wrote it used",
                )  # fmt: skip
            kind: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
        elif encoding.name == "ndarray":
            example = self.dataset.column(self.column_name, np.zeros(1, np.int64))
            array = example[0]
            if array.ndim != 1:
                raise UsageError("arrays of one dimension", got=f"{array.ndim} dimensions", where=where, fix="read_mds")
            kind = array.dtype
            if dtype is not None and np.dtype(dtype) != kind:
                raise UsageError(f"dtype {kind.name}, as stored", got=repr(dtype), where=where, fix="leave dtype out")
        else:
            raise UsageError(
                "a column of token ids: bytes, or arrays of integers", got=f"the encoding {encoding.name!r}",
                where=where, fix="name the column of tokens; texts are read by read_mds(...).tokenize(...)",
            )  # fmt: skip
        if kind.kind not in "iu":
            raise UsageError("token ids as integers", got=kind.name, where=where, fix="name another column")
        return kind

    def _lengths(self, number: int) -> NDArray[np.int64]:
        """Tokens of each sample of a shard."""
        shard, table = self.dataset.files.shards[number], self.dataset.files.offsets(number)
        place = shard.names.index(self.column_name)
        if self._encoding.shape is not None:
            return np.full(shard.samples, self._encoding.shape[0], np.int64)
        sizes = self._value_bytes(number, shard, table, place)
        if self._encoding.name == "bytes":
            rest = sizes % self._dtype.itemsize
            lengths = sizes // self._dtype.itemsize
        else:
            lengths, rest = _array_lengths(sizes, self._dtype.itemsize, own_type=self._encoding.dtype is None)
        bad = np.flatnonzero((rest != 0) | (sizes < 0))
        if len(bad):
            raise StoreError(
                f"a number of {self._dtype.name} tokens in every sample", got=f"{int(sizes[bad[0]])} bytes",
                where=f"{shard.raw.path}, sample {int(bad[0])}", fix="check dtype; if it is right, write it again",
            )  # fmt: skip
        return lengths

    def _value_bytes(self, number: int, shard: MDSShard, table: NDArray[np.int64], place: int) -> NDArray[np.int64]:
        """Bytes that the column takes in each sample: from the table, or from the sizes at the start of samples."""
        varying = [at for at, size in enumerate(shard.sizes) if not size]
        if len(varying) == 1:
            return np.diff(table) - 4 - sum(size or 0 for size in shard.sizes)
        found = np.empty(shard.samples, np.int64)
        offset = 4 * varying.index(place)
        for at in range(0, shard.samples, _BLOCK):
            begins = table[:-1][at : at + _BLOCK]
            ends = np.minimum(begins + offset + 4, table[1:][at : at + _BLOCK])
            heads = self.dataset.files.ranges(number, list(zip((begins + offset).tolist(), ends.tolist(), strict=True)))
            if any(len(head) < 4 for head in heads):
                raise StoreError(
                    "a size for each column", got="a shorter sample", where=shard.raw.path, fix="write it again"
                )
            found[at : at + len(heads)] = np.frombuffer(b"".join(heads), "<u4")
        return found


def _array_lengths(
    sizes: NDArray[np.int64], item: int, *, own_type: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Items of one-dimensional arrays, from the bytes of each with its header; and bytes that are left over.

    The header is a type code (unless the column has one type), a byte, and the length in as few bytes as hold it.

    >>> [a.tolist() for a in _array_lengths(np.array([2 + 4 * 3, 3 + 4 * 300]), 4, own_type=False)]
    [[3, 300], [0, 0]]
    """
    lengths, rest = np.zeros_like(sizes), np.ones_like(sizes)
    for width in (1, 2, 4):
        body = sizes - (1 + width + own_type)
        n = body // item
        fits = (body >= 0) & (body % item == 0) & (n < 1 << (8 * width)) & (rest != 0)
        lengths[fits], rest[fits] = n[fits], 0
    return lengths, rest


def _rows_of(column: NDArray[Any]) -> Ragged:
    rows, width = column.shape
    return Ragged(np.ascontiguousarray(column).reshape(-1), np.arange(rows + 1, dtype=np.int64) * width)


def open_tokens(
    paths: filesystem.Paths, column: str | None = None, *, dtype: Any = None, split: str | None = None,
    vocab_size: int | None = None, verify: Verify = "first-touch", storage_options: filesystem.Options = None,
) -> MDSTokens:  # fmt: skip
    """The tokens of datasets; columns that cannot be read, such as pickles, do not matter."""
    names = [column] if column is not None else readable_columns(paths, split, storage_options)[0]
    dataset = MDSDataset(paths, columns=names or None, split=split, verify=verify, storage_options=storage_options)
    return MDSTokens(dataset, column, dtype=dtype, vocab_size=vocab_size)


def _only_tokens(dataset: MDSDataset) -> str:
    names = dataset.columns
    likely = [name for name in names if name in ("tokens", "input_ids")] or names
    if len(likely) != 1:
        raise UsageError(
            "the column that holds the token ids", got=f"columns {', '.join(names)}", where=dataset.indexes[0],
            fix=f"column={likely[0]!r}",
        )  # fmt: skip
    return likely[0]
