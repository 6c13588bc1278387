"""Tokenised documents of any source, in order, for a conversion: token stores, token files, and records with ids.

Documents come in blocks of about four million tokens, so memory is bounded by one block, or by the longest document.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns, Ragged
from penstock.core.errors import DataError, UsageError
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptRows
from penstock.sources import formats
from penstock.sources.base import ColumnSource, PipelineLike, Source, TokenSource
from penstock.sources.mds import MDSDataset, readable_columns
from penstock.sources.record_source import source_of
from penstock.sources.records import data_kind
from penstock.sources.tokens import TokenStore
from penstock.storage import filesystem
from penstock.store.layout import COLUMN_DTYPES

IDS = ("input_ids", "tokens")
NOTE = "penstock"  # what an MDS index that was converted from a store says about its tokens
_TOKENS, _DOCUMENTS, _ROWS = 1 << 22, 1 << 16, 256
_NOTED = 1 << 20
_KEPT = {np.dtype(kind) for kind in COLUMN_DTYPES}


class Block(NamedTuple):
    """Consecutive documents and their other columns."""

    ids: Ragged
    columns: Columns


@dataclass
class TokenInput:
    """What a conversion reads. `total` is the number of records, for the progress bar."""

    title: str
    total: int
    blocks: Callable[[], Iterator[Block]]
    dtype: np.dtype[Any] | None = None
    vocab_size: int | None = None
    eos_id: int | None = None
    tokenizer: dict[str, Any] | None = None
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class InputOptions:
    """The arguments of `convert` that say how to read."""

    column: str | None = None
    columns: Sequence[str] | None = None
    dtype: Any = None
    eos_id: int | None = None
    split: str | None = None
    storage_options: filesystem.Options = None


def token_input(source: Any, options: InputOptions) -> TokenInput:
    """The documents of paths, a pipeline or a source."""
    kind = data_kind(source)
    if isinstance(source, PipelineLike):
        definition: Definition = source.definition
        definition.refuse_shard("convert()")
        if isinstance(definition.origin, TokenSource) and not definition.steps:
            return _tokens(definition.origin, options)
        return _records(definition, options)
    if kind == "source":
        return _tokens(source, options) if isinstance(source, TokenSource) else _records(Definition(source), options)
    return _paths(source, options) if kind == "paths" else _records(Definition(in_memory(source)), options)


def in_memory(data: Any) -> Source:
    """The source of a dataset in memory: Hugging Face, TFDS, a list of records; raises for anything else."""
    found = source_of(data)
    if found is None:
        raise UsageError(
            "a path, a pipeline, a dataset or a source to convert", got=type(data).__name__,
            fix="penstock.from_arrays(columns), or another function of penstock that begins a pipeline",
        )  # fmt: skip
    return found


def _paths(paths: Any, options: InputOptions) -> TokenInput:
    listed = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = formats.format_of(listed[0] if len(listed) == 1 else listed, options.storage_options)
    one = listed[0] if len(listed) == 1 else listed
    if found.kind == "tokens":
        return _tokens(found.open(one, _open_options(options)), options)
    if found.name == "mds":
        return _mds(listed, options)
    if found.name == "tar":
        return _records(tar_records(listed, options.storage_options), options)
    if found.kind == "records":
        source = found.open(one, _open_options(options))
    else:
        raise UsageError(
            "tokens, or records with a column of token ids", got=found.title, where=", ".join(listed[:3]),
            fix="pass a tokenizer to tokenise the texts: tokenizer=, or --tokenizer",
        )  # fmt: skip
    return _records(Definition(source), options)


def tar_records(paths: list[str], storage_options: filesystem.Options) -> Definition:
    """The records of tar shards, their parts decoded."""
    from penstock.sources.tar import TarShards
    from penstock.steps.decode_parts import DecodeParts

    return Definition(TarShards(paths, storage_options=storage_options), (DecodeParts(),))


def _open_options(options: InputOptions) -> formats.Options:
    return formats.Options(
        every_field=True, split=options.split or "train", dtype=options.dtype, eos_id=options.eos_id,
        storage_options=options.storage_options,
    )  # fmt: skip


def _tokens(source: TokenSource, options: InputOptions) -> TokenInput:
    """A stream of tokens with a document table. Of a token store all columns are read, also those of provenance."""
    if options.column is not None:
        raise UsageError(
            "column= only for records", got=f"column={options.column!r} for {source.describe().get('kind')}",
            fix="leave it out: the documents are the tokens",
        )  # fmt: skip
    store = source if isinstance(source, TokenStore) else None
    names = _wanted(store.columns if store is not None else (), options.columns)

    def blocks() -> Iterator[Block]:
        for at in range(0, len(source), _DOCUMENTS):
            indices = np.arange(at, min(at + _DOCUMENTS, len(source)))
            for some in _cut(indices, source.lengths(indices)):
                ids = source.read(some)["input_ids"]
                assert isinstance(ids, Ragged)
                yield Block(ids, {name: store.column(name, some) for name in names} if store is not None else {})

    facts = source.describe()
    tokenizer = facts.get("tokenizer")
    lost = [f"column {name!r}, by request" for name in (store.columns if store else ()) if name not in names]
    return TokenInput(
        str(facts["kind"]), len(source), blocks, source.dtype, source.vocab_size, facts.get("eos_id"),
        tokenizer if isinstance(tokenizer, dict) else None, lost,
    )  # fmt: skip


def _cut(indices: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Runs of documents of about `_TOKENS` tokens.

    >>> [run.tolist() for run in _cut(np.arange(3), np.array([1 << 22, 1, 2]))]
    [[0], [1, 2]]
    """
    part = np.cumsum(lengths) - lengths
    edges = np.flatnonzero(np.diff(part // _TOKENS)) + 1
    yield from np.split(indices, edges)


def _mds(paths: list[str], options: InputOptions) -> TokenInput:
    """MDS datasets as records; columns that cannot be read (pickles) are left out."""
    readable, refused = readable_columns(paths, options.split, options.storage_options)
    named = options.columns is not None and options.column is not None
    wanted = [options.column, *(options.columns or ())] if named else readable
    dataset = MDSDataset(
        paths, split=options.split, columns=[n for n in wanted if n], storage_options=options.storage_options
    )
    found = _records(Definition(dataset), options)
    found.title = "MosaicML MDS"
    found.lost += [f"column {name!r}, which cannot be read ({encoding})" for name, encoding in refused.items()]
    if len(dataset.indexes) == 1:
        note = _note(dataset.indexes[0], options.storage_options)
        found.vocab_size, found.eos_id, found.tokenizer = note["vocab_size"], note["eos_id"], note["tokenizer"]
    return found


def _note(index: str, storage_options: filesystem.Options) -> dict[str, Any]:
    """What a conversion to MDS wrote into the index about its tokens; None for what is missing or nonsense."""
    with filesystem.open_read(index, storage_options) as file:
        data = bytearray()
        while block := file.read(_NOTED):
            data += block
    found = orjson.loads(data)  # the dataset is open, so it is an index of a bounded size
    note = found.get(NOTE) if isinstance(found, Mapping) else None
    note = note if isinstance(note, Mapping) else {}
    size, eos, tokenizer = note.get("vocab_size"), note.get("eos_id"), note.get("tokenizer")
    size = size if type(size) is int and 1 <= size <= 1 << 32 else None
    plain = isinstance(tokenizer, Mapping) and all(isinstance(v, str | int | None) for v in tokenizer.values())
    return {
        "vocab_size": size, "eos_id": eos if type(eos) is int and 0 <= eos < (size or 1 << 32) else None,
        "tokenizer": dict(tokenizer) if plain and isinstance(tokenizer, Mapping) else None,
    }  # fmt: skip


def _records(definition: Definition, options: InputOptions) -> TokenInput:
    """Records, one column of which holds token ids. Steps of a pipeline run as in a preparation."""
    origin = definition.origin
    plain = origin if isinstance(origin, Source) and not definition.steps else None
    rows = None if plain is not None else KeptRows(definition, "convert()")

    def read() -> Iterator[tuple[Columns, NDArray[np.int64]]]:
        if rows is not None:
            yield from ((block.columns, block.positions) for block in rows.blocks(0, _ROWS) if len(block.positions))
        elif plain is not None:  # as stored: a pipeline's first node would turn loss masks into labels
            for at in range(0, len(plain), _ROWS):
                some = np.arange(at, min(at + _ROWS, len(plain)))
                yield plain.read(some), some

    first = next((columns for columns, _ in read()), None)
    known = list(origin.columns) if isinstance(origin, ColumnSource) and not definition.steps else list(first or ())
    if first is None:
        raise DataError("at least one record to convert", got="none", where=str(_facts(origin)), fix="check the data")
    column = options.column or _only_ids(first, known)
    if column not in first:
        raise UsageError(
            f"a column of the records: {', '.join(map(str, first))}",
            got=repr(column),
            fix=f"column={next(iter(first))!r}",
        )
    others = [name for name in first if name != column]
    names = [name for name in _wanted(others, options.columns) if _can_keep(first[name])]
    if options.columns is not None and (odd := [name for name in options.columns if name not in names]):
        raise UsageError(
            "columns of numbers, which formats of tokens can hold", got=", ".join(map(repr, odd)), fix="leave them out"
        )
    lost = [f"column {name!r}" for name in others if name not in names]

    def blocks() -> Iterator[Block]:
        for columns, positions in read():
            ids = _ids(columns[column], options.dtype, column, positions)
            yield Block(ids, {name: columns[name] for name in names})

    kind = str(_facts(origin).get("kind", "records"))
    ids = _ids(first[column], options.dtype, column, np.arange(len(first[column])))
    total = len(plain) if plain is not None else rows.size if rows is not None else 0
    return TokenInput(kind, total, blocks, ids.dtype if ids.dtype.kind == "u" else None, lost=lost)


def _facts(origin: Any) -> dict[str, Any]:
    return origin.describe() if isinstance(origin, Source) else {}


def _only_ids(first: Columns, known: Sequence[str]) -> str:
    found = [name for name in IDS if name in first]
    if len(found) != 1:
        raise UsageError(
            "the column that holds the token ids", got=f"columns {', '.join(map(str, known))}",
            fix="column=, or --column; for texts tokenizer=, or --tokenizer",
        )  # fmt: skip
    return found[0]


def _wanted(known: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(known)
    missing = [name for name in columns if name not in known]
    if missing:
        got = ", ".join(map(repr, missing))
        raise UsageError(f"columns to keep of: {', '.join(known) or 'none'}", got=got, fix="correct the names")
    return list(columns)


def _can_keep(column: Column) -> bool:
    if column.dtype.kind == "O" or (isinstance(column, np.ndarray) and column.ndim > 8):
        return False
    return column.dtype.newbyteorder("<") in _KEPT


def _ids(column: Column, dtype: Any, name: str, positions: NDArray[np.int64]) -> Ragged:
    """Token ids of records as a ragged column of integers."""
    if isinstance(column, Ragged) or (column.ndim == 2 and column.dtype.kind != "O"):
        found = column if isinstance(column, Ragged) else _rows(column)
        if found.dtype.kind not in "iu":
            raise _no_ids(name, f"numbers of type {found.dtype}", positions[0])
        return found
    if column.dtype.kind != "O" or column.ndim != 1:
        raise _no_ids(name, f"{column.ndim}-dimensional {column.dtype}", positions[0])
    rows = []
    for value, position in zip(column, positions.tolist(), strict=True):
        if isinstance(value, bytes):
            rows.append(_from_bytes(value, dtype, name, position))
            continue
        array = np.asarray(value) if isinstance(value, list | tuple | np.ndarray) else None
        if array is None or array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            raise _no_ids(name, type(value).__name__, position)
        rows.append(array.astype(array.dtype if len(array) else np.int64))
    return Ragged.of(rows)


def _from_bytes(value: bytes, dtype: Any, name: str, position: int) -> NDArray[Any]:
    if dtype is None:
        raise UsageError(
            f"dtype, the type of the ids in column {name!r} of bytes", got="none",
            fix="dtype='int64' (LLM Foundry's default) or 'uint16', as the tool that wrote it used; --dtype",
        )  # fmt: skip
    kind: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    if kind.kind not in "iu" or len(value) % kind.itemsize:
        raise _no_ids(name, f"{len(value)} bytes, as {kind.name}", position)
    return np.frombuffer(value, kind)


def _rows(column: NDArray[Any]) -> Ragged:
    return Ragged(
        np.ascontiguousarray(column).reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * column.shape[1]
    )


def _no_ids(name: str, got: str, position: Any) -> DataError:
    return DataError(
        f"a list of integer token ids in column {name!r}", got=got, where=f"record {int(position)}",
        fix="name the column of ids: column=, or --column; for texts tokenizer=, or --tokenizer",
    )  # fmt: skip
