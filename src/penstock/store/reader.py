"""Opens a token store and reads documents and windows from it.

Opening reads one small manifest, for any size of store; each shard is mapped when it is first needed. Tokens, document
tables and columns are read through the map, and every page is checked against its hash at its first use
(`verify="first-touch"`; "open" checks all pages when opening, "off" none). A store can be pickled and used by many
threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import StoreError, UsageError
from penstock.core.mapped import MappedFile
from penstock.storage.filesystem import local_only
from penstock.store import gather, layout
from penstock.store.arrays import ArrayTable, OpenArrays, Part, distinct, page_range
from penstock.store.doctable import OffsetTable, check_range
from penstock.store.manifest import NAME, Manifest, dataset_id, read_manifest
from penstock.store.page_marks import PageMarks
from penstock.store.shard import Shard
from penstock.store.shard_list import ListedShards
from penstock.store.stream import TokenStream
from penstock.store.values import PREFIX, decode_values
from penstock.store.writer import ShardInfo

VERIFY = ("first-touch", "open", "off")

_ORIGIN = ("_file", "_line")


class TokenStore(TokenStream):
    """A folder of shards with a manifest (or a single shard file) as a `TokenSource`.

    >>> import tempfile
    >>> from penstock.store.manifest import write_manifest
    >>> from penstock.store.writer import ShardWriter
    >>> folder = tempfile.mkdtemp()
    >>> with ShardWriter(Path(folder) / "00000.tokens", vocab_size=100) as shard:
    ...     shard.add(Ragged.of([[5, 6, 7], [8, 9]]))
    >>> _ = write_manifest(folder, [shard.finish()])
    >>> store = TokenStore(folder)
    >>> len(store), store.n_tokens, store.gather(np.array([1, 2]), 3).tolist()
    (2, 5, [[6, 7, 8], [7, 8, 9]])
    >>> store.read(np.array([1]))["input_ids"].tolist()
    [[8, 9]]
    """

    place_of_row: Callable[[int], dict[str, Any]] | None = None
    """Where a row of the pipeline that this store was prepared from comes from; unknown in other processes."""

    def __init__(self, path: str | os.PathLike[str], *, verify: str = "first-touch") -> None:
        if verify not in VERIFY:
            raise UsageError(
                f"verify, one of {', '.join(VERIFY)}",
                got=repr(verify),
                where="TokenStore",
            )
        self.verify = verify
        self.manifest = self._find(path)
        shards = self.manifest.shards
        super().__init__(shards.token_edges, np.dtype(self.manifest.dtype), self.manifest.vocab_size)
        self._documents = shards.document_edges
        self._page_bits = self.manifest.page_bytes.bit_length() - 1
        self._marks = PageMarks(len(shards))
        self._shards = _Shards(self._new_shard)
        self._verified = verify == "off"  # every page of tokens is verified, or need not be
        self._verified_shards: set[int] = set()  # all of their tokens
        self._unverified_tokens = self.n_tokens  # in all other shards
        self._count_lock = threading.Lock()
        self._open = OpenArrays(len(shards), self._open_one, self._drop_one)
        self._closed = False
        if verify == "open":
            for number in range(len(shards)):
                shard = self._shard(number)
                shard.check_pages(np.arange(shard.pages))

    def _find(self, path: str | os.PathLike[str]) -> Manifest:
        """Reads the manifest; `where` names the store in errors."""
        self.path = Path(local_only(path, "the token store"))
        self.where = str(self.path)
        found = _read(self.path)
        self._shard_folder = self.path if self.path.is_dir() else self.path.parent
        return found

    def shard_of(self, entry: ShardInfo) -> Shard:
        """A shard on its own, to be verified or described."""
        return Shard(self._shard_folder / entry.name, entry)

    def reading_all(self, shard: Shard, read: Callable[[Shard], None]) -> None:
        """Calls `read` with a shard of `shard_of` whose pages have all been verified."""
        read(shard)

    def files(self) -> list[str] | None:
        """The names of all files in the store's folder; None if the store is a single shard."""
        return [path.name for path in self.path.iterdir()] if self.path.is_dir() else None

    def __len__(self) -> int:
        return int(self._documents[-1])

    def fingerprint(self) -> str:
        """The dataset id of the manifest: it depends on content, never on a path."""
        return f"penstock-store:{self.manifest.id}"

    def describe(self) -> dict[str, Any]:
        m = self.manifest
        return {
            "kind": "token store",
            "id": m.id,
            "records": len(self),
            "tokens": self.n_tokens,
            "bytes": m.bytes,
            "files": len(m.shards),
            "dtype": self._dtype.name,
            "vocab_size": m.vocab_size,
            "eos_id": m.eos_id,
            "tokenizer": m.tokenizer,
            "columns": self.columns,
            "boundaries": "document table",
        }

    def locate(self, index: int) -> dict[str, Any]:
        """Returns shard, number in the shard, stream position, length and byte offset of document `index`."""
        number = int(check_range([index], len(self), "documents")[0])
        part = int(self.manifest.shards.of_document(np.array([number]))[0])
        start = int(self.starts(np.array([number]))[0])
        first = self._shard(part).header.section("tokens").offset
        facts = {
            "shard": self.manifest.shards[part].name,
            "document": number,
            "document_in_shard": number - int(self._documents[part]),
            "start": start,
            "tokens": int(self.lengths(np.array([number]))[0]),
            "byte": first + (start - int(self._bounds[part])) * self._dtype.itemsize,
        }
        return facts | {name: fact for name, fact in self._origin(number, part).items() if name not in facts}

    def _origin(self, number: int, part: int) -> dict[str, Any]:
        """File and line of the document's source text, if the store recorded them; or its row in a pipeline."""
        found = {s.name: self._read_column(s, np.array([number])) for s in self.manifest.columns if s.name in _ORIGIN}
        if len(found) != len(_ORIGIN):
            return {}
        file, line = (int(found[name][0]) for name in _ORIGIN)
        names = self.manifest.metadata.get("files")
        known = names if isinstance(names, list) else []
        line += self.manifest.lines_before(part)
        if names == []:  # what was prepared had rows, not files
            return {"pipeline_row": line - 1} | ({} if self.place_of_row is None else self.place_of_row(line - 1))
        return {"file": str(known[file]) if 0 <= file < len(known) else file, "line": line}

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Returns documents as a ragged column `input_ids`, and the store's other columns under their names."""
        indices = check_range(indices, len(self), "documents")
        starts, lengths = self._spans(indices)
        columns: Columns = {"input_ids": Ragged(*gather.gather_rows(self, starts, lengths))}
        for spec in self.manifest.columns:
            if not spec.name.startswith("_"):  # the origin of a document is for `locate`, not for training
                columns[spec.name.removeprefix(PREFIX)] = self._values(spec, indices)
        return columns

    def _values(self, spec: layout.ColumnSpec, indices: NDArray[np.int64]) -> Ragged | NDArray[Any]:
        """A column of some documents, decoded if it holds values of any kind."""
        column = self._read_column(spec, indices)
        if not spec.name.startswith(PREFIX) or not isinstance(column, Ragged):
            return column
        return decode_values(column, self.where)

    @property
    def columns(self) -> list[str]:
        """Names of the store's columns other than `input_ids`."""
        return [spec.name.removeprefix(PREFIX) for spec in self.manifest.columns]

    def column(self, name: str, indices: NDArray[np.int64]) -> Ragged | NDArray[Any]:
        """Returns one column of some documents, without reading their tokens."""
        spec = next((s for s in self.manifest.columns if s.name.removeprefix(PREFIX) == name), None)
        if spec is None:
            raise UsageError(f"a column of the store: {', '.join(self.columns) or 'it has none'}", got=repr(name))
        return self._values(spec, check_range(indices, len(self), "documents"))

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        indices = check_range(indices, len(self) + 1, "documents")
        out = np.full(len(indices), self.n_tokens, np.int64)
        inner = np.flatnonzero(indices < len(self))
        out[inner] = self._spans(indices[inner])[0]
        return out

    def documents_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the document of each stream position. The first use in a shard verifies its full document table."""
        positions = check_range(positions, self.n_tokens, "positions")
        out = np.empty(len(positions), np.int64)
        for part, places in gather.by_part(self.part_of(positions)):
            shard = self._shard(part)
            shard.check_all("offsets")
            table = OffsetTable(shard.section("offsets"))
            out[places] = table.find(positions[places] - self._bounds[part]) + self._documents[part]
        return out

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Stream position of the start of each shard, and of the end. Reads the full list of shards."""
        self.manifest.shards.read_all()
        return self._bounds

    def part_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.manifest.shards.of_token(positions)

    @property
    def sound(self) -> bool:
        """Whether every page of tokens is verified, or need not be."""
        return self._verified and not self._closed

    def ready(self, part: Part, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        """Opens these shards and verifies the pages of these ranges of tokens; returns the table of open shards."""
        if self._closed:
            raise UsageError("an open store", got="one that was closed", where=self.where, fix="open it again")
        table = self._open.need(part)
        table.check(part)
        if self._verified:
            return table
        if isinstance(part, int):
            shard = self._shards[part]
            if not shard.tokens_verified:
                shard.check(shard.header.sections[0], starts, lengths)
            return table
        longest = (lengths if isinstance(lengths, int) else int(lengths.max(initial=0))) * self._dtype.itemsize
        if longest and longest <= 1 << self._page_bits:
            first, last = page_range(layout.ALIGN, starts, lengths, self._dtype.itemsize, self._page_bits)
            base, flags = self._marks.first[part], self._marks.flags
            if bool(flags[first + base].all()) and bool(flags[last + base].all()):
                return table
        for number in distinct(part).tolist():
            here = part == number
            shard = self._shards[number]
            shard.check(shard.header.sections[0], starts[here], lengths if isinstance(lengths, int) else lengths[here])
        return table

    def close(self) -> None:
        """Closes all files. Using the store afterwards raises."""
        self._closed = True
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path), self.verify, self.manifest.id)

    def __repr__(self) -> str:
        return f"TokenStore({self.where!r}: {len(self)} documents, {self.n_tokens} tokens, {self._dtype.name})"

    def _spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, lengths = np.empty(len(indices), np.int64), np.empty(len(indices), np.int64)
        for part, places in gather.by_part(self.manifest.shards.of_document(indices)):
            local = indices[places] - self._documents[part]
            first, stop = self._pairs(part, "offsets", local, int(self._bounds[part + 1] - self._bounds[part]))
            starts[places], lengths[places] = first + self._bounds[part], stop - first
        return starts, lengths

    def _pairs(
        self, part: int, section: str, local: NDArray[np.int64], limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns start and end of rows from an offsets section; raises unless 0 <= start <= end <= limit."""
        shard = self._shard(part)
        offsets = shard.section(section)
        known = shard.header.section(section)
        if len(local) > 1 and bool((local[1:] - local[:-1] == 1).all()):
            shard.check(known, local[:1], len(local) + 1)
            edges = offsets[local[0] : local[-1] + 2].astype(np.int64)
            first, stop = edges[:-1], edges[1:]
        else:
            shard.check(known, local, 2)
            first, stop = offsets[local].astype(np.int64), offsets[local + 1].astype(np.int64)
        if bool((first > stop).any()) or int(stop.max(initial=0)) > limit or int(first.min(initial=0)) < 0:
            bad = int(np.argmax((first > stop) | (stop > limit) | (first < 0)))
            raise layout.damaged(
                f"non-decreasing offsets in [0, {limit}]",
                f"{int(first[bad])} to {int(stop[bad])}",
                f"{shard.path}, section {section}",
            )
        return first, stop

    def _read_column(self, spec: layout.ColumnSpec, indices: NDArray[np.int64]) -> Ragged | NDArray[Any]:
        name, kind = f"column:{spec.name}", np.dtype(spec.dtype)
        if not spec.ragged:
            out = np.empty((len(indices), *spec.shape), kind)
            width = out[:1].size if len(out) else 0
            for part, places in gather.by_part(self.manifest.shards.of_document(indices)):
                shard, local = self._shard(part), indices[places] - self._documents[part]
                values = shard.section(name).reshape(-1, *spec.shape)
                shard.check(shard.header.section(name), local * width, width)
                out[places] = values[local]
            return out
        lengths = np.zeros(len(indices), np.int64)
        found: list[tuple[NDArray[np.int64] | slice, NDArray[np.int64], NDArray[Any]]] = []
        for part, places in gather.by_part(self.manifest.shards.of_document(indices)):
            shard, local = self._shard(part), indices[places] - self._documents[part]
            section = shard.header.section(name)
            first, stop = self._pairs(part, f"{name}:offsets", local, section.items)
            lengths[places] = stop - first
            shard.check(section, first, stop - first)
            found.append((places, stop - first, gather.rows(shard.section(name), first, stop - first)))
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        flat = np.empty(int(offsets[-1]), kind)
        for places, counts, piece in found:
            shift = np.repeat(offsets[places] - (np.cumsum(counts) - counts), counts)
            flat[np.arange(len(piece)) + shift] = piece
        return Ragged(flat, offsets)

    def _shard(self, number: int) -> Shard:
        if self._closed:
            raise UsageError("an open store", got="one that was closed", where=self.where, fix="open it again")
        self._open.need(number).check(number)
        return self._shards[number]

    def _new_shard(self, number: int) -> Shard:
        entry = self.manifest.shards[number]
        return Shard(
            self._shard_folder / entry.name, entry, verify=self.verify != "off", marks=self._marks, number=number,
            on_verified=partial(self._shard_verified, number, entry.tokens),
        )  # fmt: skip

    def _open_one(self, number: int) -> tuple[NDArray[Any], MappedFile]:
        shard = self._shards.hold(number)
        array = shard.section("tokens")
        if not shard.tokens_verified:
            with self._count_lock:
                if number in self._verified_shards:  # the file was replaced since it was last open
                    self._verified_shards.remove(number)
                    self._unverified_tokens += self.manifest.shards[number].tokens
                    self._verified = False
        return array, shard.open()

    def _shard_verified(self, number: int, tokens: int) -> None:
        with self._count_lock:
            if number not in self._verified_shards:
                self._verified_shards.add(number)
                self._unverified_tokens -= tokens
                self._verified = self._unverified_tokens == 0

    def _drop_one(self, number: int) -> None:
        self._shards.drop(number)


StoreT = TypeVar("StoreT", bound=TokenStore)


class _Shards:
    """The shards of a store by number, created when needed. Shards that are not held vanish with their last user."""

    def __init__(self, create: Callable[[int], Shard]) -> None:
        self._create = create
        self._held: dict[int, Shard] = {}  # those in the table of open shards
        self._known: WeakValueDictionary[int, Shard] = WeakValueDictionary()

    def __getitem__(self, number: int) -> Shard:
        found = self._held.get(number)
        if found is None:
            found = self._known.get(number)
        if found is None:
            self._known[number] = found = self._create(number)
        return found

    def hold(self, number: int) -> Shard:
        """Returns a shard and keeps it."""
        self._held[number] = found = self[number]
        return found

    def drop(self, number: int) -> None:
        """Closes a shard: its header and hashes are read again when it is needed, its pages stay marked."""
        found = self._held.pop(number, None)
        if found is not None:
            found.drop()

    def __iter__(self) -> Iterator[Shard]:
        return iter(list(self._known.values()))


def _read(path: Path) -> Manifest:
    if path.is_file() and path.name != NAME:
        _refuse_other_files(path)
        return one_shard(Shard(path).info())
    return read_manifest(path if path.name != NAME else path.parent)


def one_shard(info: ShardInfo) -> Manifest:
    """The manifest of a shard that is read on its own."""
    return Manifest(
        dataset_id([info], None, None),
        info.dtype,
        info.vocab_size,
        ListedShards([info]),
        info.columns,
    )


def _refuse_other_files(path: Path) -> None:
    """Raises for a file that neither has the name of a shard nor begins like one."""
    with open(path, "rb") as file:
        begins = file.read(len(layout.MAGIC))
    if begins != layout.MAGIC and path.suffix != ".tokens":
        raise StoreError(
            "a token store: the folder that `penstock prepare` wrote, or one of its shard files",
            got="another kind of file",
            where=str(path),
            fix="prepare the texts first, for example penstock.prepare(penstock.read_text(path), tokenizer, folder)",
        )


def _reopen(path: str, verify: str, ident: str) -> TokenStore:
    """Opens a store from a pickle; raises if the folder now holds another store."""
    return expect_id(TokenStore(path, verify=verify), ident)


def expect_id(store: StoreT, ident: str) -> StoreT:
    """Returns the store if it has this id; raises otherwise."""
    if store.manifest.id != ident:
        raise StoreError(
            f"the store {ident}",
            got=f"the store {store.manifest.id}",
            where=store.where,
            fix="the store was rewritten after the pipeline was built: build the pipeline again",
        )
    return store
