"""Where the bytes of a source are: tokens or records to byte addresses, for counting requests without making them.

Addresses of one source are one line of numbers on which every object begins at a page and objects are further apart
than any gap that a request reads over, so that merging never joins two objects.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, expm1
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.sizes import size
from penstock.order.ragged_index import prefix, ranges
from penstock.plan.assumptions import Assumptions
from penstock.sources.base import RecordRanges, RowsAheadSource, ScannedSource, Source, TokenSource
from penstock.sources.token_objects import TokenObjects
from penstock.sources.tokens import TokenFiles
from penstock.storage.coalesce import distinct
from penstock.store.layout import ALIGN, offset_dtype
from penstock.store.reader import TokenStore
from penstock.store.stream import TokenStream

I64 = NDArray[np.int64]

_SAMPLED_FILES = 256
LARGEST = 1 << 62  # addresses are 64-bit integers


@dataclass(frozen=True, eq=False)
class ByteLayout:
    """Items (tokens or records) of `item_bytes` in objects; object i holds items [bounds[i], bounds[i + 1]).

    Without `bounds` every object holds `per_object` items. `exact`: the addresses are those of the real objects;
    otherwise all records are taken to be of equal size.
    """

    items: int
    item_bytes: float
    page_bytes: int
    spacing: int  # addresses from one object to the next, beyond its bytes
    per_object: int = 0
    bounds: I64 | None = None
    header: int = 0
    exact: bool = False
    cached: bool = True  # what was fetched stays in the cache of the host; else each step requests it again
    opened: bool = False  # objects have a table of hashes that is read first: shards of a token store
    private: bool = False  # each process keeps what it fetched for itself; the processes of a host share nothing
    scanned: bool = False  # each process reads all bytes once before its first read: to index or to decompress them
    held: bool = False  # and keeps them: reads request nothing
    documents: int = 0  # of a token store: the objects have tables of where they begin

    @property
    def objects(self) -> int:
        return len(self.bounds) - 1 if self.bounds is not None else -(-self.items // self.per_object)

    @property
    def bytes(self) -> int:
        """Bytes of all items."""
        return int(self.items * self.item_bytes)

    @property
    def pages(self) -> int:
        """Pages that hold items."""
        if self.bounds is None:
            full, rest = divmod(self.items, self.per_object)
            return full * self._pages(self.per_object) + (self._pages(rest) if rest else 0)
        sizes, times = np.unique(np.diff(self.bounds), return_counts=True)
        return sum(self._pages(n) * k for n, k in zip(sizes.tolist(), times.tolist(), strict=True) if n)

    def tables(self, reads: float | None, get_bytes: int) -> tuple[float, float]:
        """Requests and bytes of the tables of documents: of this many random documents, or of all in order (None)."""
        if not self.documents:
            return 0.0, 0.0
        each = (self.documents / self.objects + 1) * np.dtype(offset_dtype(self.items // self.objects)).itemsize
        pages = self.objects * ceil(each / self.page_bytes)
        if reads is None:
            return float(self.objects * ceil(each / get_bytes)), float(pages * self.page_bytes)
        touched = -pages * expm1(-reads / pages)
        return touched, touched * self.page_bytes

    @property
    def last_page(self) -> int:
        """The number of the page at the end of all addresses."""
        return int(self._base(np.array([self.objects]))[0]) // self.page_bytes

    def _pages(self, items: int) -> int:
        return -(-(self.header + int(np.ceil(items * self.item_bytes))) // self.page_bytes)

    def addresses(self, starts: I64, lengths: I64) -> tuple[I64, I64]:
        """Address and bytes of the items [start, start + length); those in several objects are several reads."""
        kept = lengths > 0
        starts, lengths = starts[kept], lengths[kept]
        first, last = self._object(starts), self._object(starts + lengths - 1)
        counts = last - first + 1
        if len(counts) and int(counts.max()) > 1:
            object_ = ranges(first, counts)
            begin = np.maximum(np.repeat(starts, counts), self._first(object_))
            end = np.minimum(np.repeat(starts + lengths, counts), self._first(object_ + 1))
            some = end > begin  # an object may be empty
            first, starts, lengths = object_[some], begin[some], (end - begin)[some]
        local = starts - self._first(first)
        begins = self._bytes(local)
        return self._base(first) + self.header + begins, np.maximum(1, self._bytes(local + lengths) - begins)

    def requested(self, begins: I64, sizes: I64) -> tuple[I64, I64]:
        """First and last addresses of the full pages that hold these bytes."""
        return begins // self.page_bytes * self.page_bytes, -(-(begins + sizes) // self.page_bytes) * self.page_bytes

    def objects_of(self, starts: I64) -> int:
        """How many objects hold these items."""
        return len(distinct(self._object(starts)))

    def _bytes(self, items: I64) -> I64:
        even = float(self.item_bytes).is_integer()
        found: I64 = items * int(self.item_bytes) if even else np.floor(items * self.item_bytes).astype(np.int64)
        return found

    def _object(self, item: I64) -> I64:
        if self.bounds is None:
            return item // self.per_object
        return np.searchsorted(self.bounds, item, "right") - 1

    def _first(self, number: I64) -> I64:
        found: I64 = np.minimum(number * self.per_object, self.items) if self.bounds is None else self.bounds[number]
        return found

    def _base(self, number: I64) -> I64:
        if self.bounds is None:
            return number * (self._pages(self.per_object) * self.page_bytes + self.spacing)
        found: I64 = self._bases[number]
        return found

    @cached_property
    def _bases(self) -> I64:
        items = np.empty(0, np.int64) if self.bounds is None else np.diff(self.bounds)
        wide = (np.ceil(items * self.item_bytes).astype(np.int64) + self.header) // self.page_bytes + 1
        return prefix(wide * self.page_bytes + self.spacing)


def even_layout(
    items: int, item_bytes: float, assumed: Assumptions, *, unit: int = 0, opened: bool = False
) -> ByteLayout:
    """Items of equal size in objects of `shard_bytes`; `unit`: bytes that are always fetched together."""
    page = unit or assumed.page_bytes
    per_object = max(1, int(max(assumed.shard_bytes, page) / max(item_bytes, 1e-9)))
    layout = ByteLayout(items, item_bytes, page, spacing(assumed, page), min(per_object, max(items, 1)), opened=opened)
    if items * item_bytes + layout.objects * (layout.spacing + page) > LARGEST:
        raise UsageError(
            f"at most {size(LARGEST)} in all, with the space between objects",
            got=f"{items:,} times {item_bytes:,.6g} bytes", where="plan", fix="plan a part of it",
        )  # fmt: skip
    return layout


def layout_of(source: Source, assumed: Assumptions) -> ByteLayout | None:
    """The layout of a source; None if its size is unknown."""
    facts = source.describe()
    scanned, held = (source.scanned, source.held) if isinstance(source, ScannedSource) else (False, False)
    if held and not assumed.sample_bytes:
        size = max(1, round(_mean_bytes(source, facts)))
        return ByteLayout(len(source), size, size, spacing(assumed, size), len(source), cached=False,
                          scanned=True, held=True, exact=True)  # fmt: skip
    if isinstance(source, TokenFiles | TokenObjects):
        bounds = prefix(np.array([file.tokens for file in source.files], np.int64))
        return ByteLayout(
            source.n_tokens, source.dtype.itemsize, 1, spacing(assumed, 1), bounds=bounds, exact=True, cached=False,
            scanned=scanned,
        )  # fmt: skip
    if isinstance(source, TokenSource):
        page = assumed.page_bytes
        bounds = np.array([0, source.n_tokens], np.int64)
        if isinstance(source, TokenStream):
            bounds = np.asarray(source.bounds, np.int64)
        stored = isinstance(source, TokenStore)
        if isinstance(source, TokenStore):
            page = source.manifest.shards[0].page_bytes
        return ByteLayout(
            source.n_tokens, source.dtype.itemsize, page, spacing(assumed, page), bounds=bounds,
            header=ALIGN if stored else 0, exact=stored, opened=stored, documents=len(source) if stored else 0,
        )  # fmt: skip
    if isinstance(source, RecordRanges) and source.range_unit and len(source) and not assumed.sample_bytes:
        return record_layout(source, len(source), spacing(assumed, source.range_unit), scanned)
    records, files = len(source), int(facts.get("files", 0) or 0)
    mean = float(assumed.sample_bytes) or _mean_bytes(source, facts)
    if not mean:
        return None
    if files == records and records > 1:  # one object per record, always fetched as a whole
        page = max(1, int(mean))
        return ByteLayout(records, mean, page, spacing(assumed, page), 1)
    unit = int(records * mean / facts["row_groups"]) if facts.get("row_groups") else 0
    layout = even_layout(records, mean, assumed, unit=unit)
    if not files:
        return layout
    bounds = np.array([records * i // files for i in range(files + 1)], np.int64)
    return ByteLayout(records, mean, layout.page_bytes, layout.spacing, bounds=bounds)


@dataclass(frozen=True, eq=False)
class RecordLayout(ByteLayout):
    """Records whose ranges in their files are known, and are requested by each step that uses them."""

    source: RecordRanges = field(kw_only=True)
    bases: I64 = field(kw_only=True)  # the address of each file
    ends: I64 = field(kw_only=True)

    @property
    def ahead(self) -> bool:
        """Whether the records of some steps are requested together."""
        return isinstance(self.source, RowsAheadSource)

    @property
    def objects(self) -> int:
        return len(self.bases)

    @property
    def bytes(self) -> int:
        return int((self.ends - self.bases).sum())

    @property
    def pages(self) -> int:
        return -(-self.bytes // self.page_bytes)

    def addresses(self, starts: I64, lengths: I64) -> tuple[I64, I64]:
        files, begins, stops = self.source.record_ranges(ranges(starts, lengths)).T
        return self.bases[files] + begins, stops - begins

    def requested(self, begins: I64, sizes: I64) -> tuple[I64, I64]:
        first, last = super().requested(begins, sizes)
        return first, np.minimum(last, self.ends[np.searchsorted(self.bases, begins, "right") - 1])

    def objects_of(self, starts: I64) -> int:
        return len(distinct(self.source.record_ranges(starts)[:, 0]))


def record_layout(source: RecordRanges, records: int, apart: int, scanned: bool) -> RecordLayout:
    """The layout of records of files; every file begins at a page."""
    unit, sizes = source.range_unit, source.file_sizes()
    bases = prefix(-(-sizes // unit) * unit + apart)[:-1]
    return RecordLayout(
        records, float(sizes.sum()) / records, unit, apart, exact=True, cached=False, scanned=scanned, source=source,
        bases=bases, ends=bases + sizes,
    )  # fmt: skip


def _mean_bytes(source: Source, facts: dict[str, Any]) -> float:
    """Bytes of a record on average: from the size of all files, or of some of them."""
    if facts.get("bytes"):
        return float(facts["bytes"]) / max(1, len(source))
    if not facts.get("files"):
        return 0.0
    picked = np.unique(np.linspace(0, len(source) - 1, min(len(source), _SAMPLED_FILES)).astype(np.int64)).tolist()
    sizes = [_size(str(source.locate(number).get("file", ""))) for number in picked]
    return float(np.mean(sizes)) if all(sizes) else 0.0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def spacing(assumed: Assumptions, page: int) -> int:
    """Addresses between objects, so that no request reads over the end of one."""
    return (assumed.gap_bytes // page + 2) * page
