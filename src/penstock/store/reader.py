"""Opens a token store and reads documents and windows from it.

Opening reads one manifest, for any size of store; each shard is mapped when it is first needed. Tokens, document
tables and columns are read through the map, and every page is checked against its hash at its first use
(`verify="first-touch"`; "open" checks all pages when opening, "off" none). A store can be pickled and used by many
threads.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import StoreError, UsageError
from penstock.core.mapped import MappedFile
from penstock.storage.filesystem import local_only
from penstock.store import gather, layout
from penstock.store.arrays import ArrayTable, OpenArrays, Part, page_range
from penstock.store.doctable import OffsetTable, check_range
from penstock.store.manifest import NAME, Manifest, dataset_id, read_manifest
from penstock.store.shard import Shard
from penstock.store.stream import TokenStream

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

    def __init__(self, path: str | os.PathLike[str], *, verify: str = "first-touch") -> None:
        if verify not in VERIFY:
            raise UsageError(
                f"verify, one of {', '.join(VERIFY)}",
                got=repr(verify),
                where="TokenStore",
            )
        self.path = Path(local_only(path, "the token store"))
        self.verify = verify
        self.manifest = _read(self.path)
        folder = self.path if self.path.is_dir() else self.path.parent
        listed = self.manifest.shards
        self._documents = _prefix_sum(s.documents for s in listed)
        bounds = _prefix_sum(s.tokens for s in listed)
        super().__init__(bounds, np.dtype(self.manifest.dtype), self.manifest.vocab_size)
        # One flag per page of the store, so that a batch over many shards is checked in one lookup.
        self._page_bits = listed[0].page_bytes.bit_length() - 1
        self._pages = _prefix_sum((s.bytes >> self._page_bits) + 1 for s in listed)
        self._page_verified = np.zeros(int(self._pages[-1]), bool)
        flags = [self._page_verified[a:b] for a, b in pairwise(self._pages.tolist())]
        on = verify != "off"
        self._shards = [
            Shard(folder / s.name, s, verify=on, page_verified=f, on_verified=self._shard_verified)
            for s, f in zip(listed, flags, strict=True)
        ]
        self._verified = not on  # every page of tokens is verified, or need not be
        self._open = OpenArrays(len(listed), self._open_one, self._drop_one)
        self._closed = False
        if verify == "open":
            for number in range(len(self._shards)):
                shard = self._shard(number)
                shard.check_pages(np.arange(shard.pages))

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
            "columns": [c.name for c in m.columns],
            "boundaries": "document table",
        }

    def locate(self, index: int) -> dict[str, Any]:
        """Returns shard, number in the shard, stream position, length and byte offset of document `index`."""
        number = int(check_range([index], len(self), "documents")[0])
        part = int(np.searchsorted(self._documents, number, "right")) - 1
        start = int(self.starts(np.array([number]))[0])
        first = self._shard(part).header.section("tokens").offset
        return {
            "shard": self.manifest.shards[part].name,
            "document": number,
            "document_in_shard": number - int(self._documents[part]),
            "start": start,
            "tokens": int(self.lengths(np.array([number]))[0]),
            "byte": first + (start - int(self._bounds[part])) * self._dtype.itemsize,
        } | self._origin(number)

    def _origin(self, number: int) -> dict[str, Any]:
        """File and line of the document's source text, if the store recorded them."""
        found = {s.name: self._read_column(s, np.array([number])) for s in self.manifest.columns if s.name in _ORIGIN}
        if len(found) != len(_ORIGIN):
            return {}
        file, line = (int(found[name][0]) for name in _ORIGIN)
        names = self.manifest.metadata.get("files")
        known = names if isinstance(names, list) else []
        return {"file": str(known[file]) if 0 <= file < len(known) else file, "line": line}

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Returns documents as a ragged column `input_ids`, and the store's other columns under their names."""
        indices = check_range(indices, len(self), "documents")
        starts, lengths = self._spans(indices)
        columns: Columns = {"input_ids": Ragged(*gather.gather_rows(self, starts, lengths))}
        for spec in self.manifest.columns:
            if not spec.name.startswith("_"):  # the origin of a document is for `locate`, not for training
                columns[spec.name] = self._read_column(spec, indices)
        return columns

    @property
    def columns(self) -> list[str]:
        """Names of the store's columns other than `input_ids`."""
        return [spec.name for spec in self.manifest.columns]

    def column(self, name: str, indices: NDArray[np.int64]) -> Ragged | NDArray[Any]:
        """Returns one column of some documents, without reading their tokens."""
        spec = next((s for s in self.manifest.columns if s.name == name), None)
        if spec is None:
            raise UsageError(f"a column of the store: {', '.join(self.columns) or 'it has none'}", got=repr(name))
        return self._read_column(spec, check_range(indices, len(self), "documents"))

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
        for part, places in gather.by_part(self._bounds, positions):
            shard = self._shard(part)
            shard.check_all("offsets")
            table = OffsetTable(shard.section("offsets"))
            out[places] = table.find(positions[places] - self._bounds[part]) + self._documents[part]
        return out

    @property
    def sound(self) -> bool:
        """Whether every page of tokens is verified, or need not be."""
        return self._verified and not self._closed

    def ready(self, part: Part, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        """Opens these shards and verifies the pages of these ranges of tokens; returns the table of open shards."""
        if self._closed:
            raise UsageError("an open store", got="one that was closed", where=str(self.path), fix="open it again")
        table = self._open.need(part)
        table.check(part)
        if self._verified or isinstance(part, int):
            if not self._verified and not self._shards[part].tokens_verified:
                self._shards[part].check(self._shards[part].header.sections[0], starts, lengths)
            return table
        longest = (lengths if isinstance(lengths, int) else int(lengths.max(initial=0))) * self._dtype.itemsize
        if longest and longest <= 1 << self._page_bits:
            first, last = page_range(layout.ALIGN, starts, lengths, self._dtype.itemsize, self._page_bits)
            base = self._pages[part]
            if bool(self._page_verified[first + base].all()) and bool(self._page_verified[last + base].all()):
                return table
        for number in np.unique(part).tolist():
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
        return f"TokenStore({str(self.path)!r}: {len(self)} documents, {self.n_tokens} tokens, {self._dtype.name})"

    def _spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, lengths = np.empty(len(indices), np.int64), np.empty(len(indices), np.int64)
        for part, places in gather.by_part(self._documents, indices):
            local = indices[places] - self._documents[part]
            first, stop = self._pairs(part, "offsets", local, self.manifest.shards[part].tokens)
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
            for part, places in gather.by_part(self._documents, indices):
                shard, local = self._shard(part), indices[places] - self._documents[part]
                values = shard.section(name).reshape(-1, *spec.shape)
                shard.check(shard.header.section(name), local * width, width)
                out[places] = values[local]
            return out
        lengths = np.zeros(len(indices), np.int64)
        found: list[tuple[NDArray[np.int64] | slice, NDArray[np.int64], NDArray[Any]]] = []
        for part, places in gather.by_part(self._documents, indices):
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
            raise UsageError("an open store", got="one that was closed", where=str(self.path), fix="open it again")
        self._open.need(number).check(number)
        return self._shards[number]

    def _open_one(self, number: int) -> tuple[NDArray[Any], MappedFile]:
        array = self._shards[number].section("tokens")
        if not self._shards[number].tokens_verified:  # also when the file was replaced since it was last open
            self._verified = False
        return array, self._shards[number].open()

    def _shard_verified(self) -> None:
        pairs = zip(self._shards, self.manifest.shards, strict=True)
        self._verified = all(shard.tokens_verified or not listed.tokens for shard, listed in pairs)

    def _drop_one(self, number: int) -> None:
        self._shards[number].drop()


def _read(path: Path) -> Manifest:
    if path.is_file() and path.name != NAME:
        _refuse_other_files(path)
        info = Shard(path).info()
        return Manifest(
            dataset_id([info], None, None),
            info.dtype,
            info.vocab_size,
            (info,),
            info.columns,
        )
    return read_manifest(path if path.name != NAME else path.parent)


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


def _prefix_sum(counts: Any) -> NDArray[np.int64]:
    return np.cumsum([0, *counts], dtype=np.int64)


def _reopen(path: str, verify: str, ident: str) -> TokenStore:
    """Opens a store from a pickle; raises if the folder now holds another store."""
    store = TokenStore(path, verify=verify)
    if store.manifest.id != ident:
        raise StoreError(
            f"the store {ident}",
            got=f"the store {store.manifest.id}",
            where=path,
            fix="the store was rewritten after the pipeline was built: build the pipeline again",
        )
    return store
