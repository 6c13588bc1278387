"""The protocols of sources: `Source` is required, every other one is a capability that a source may have.

Sources are the bottom of a pipeline. They know nothing about order, batches or epochs. They can be pickled (they hold
paths and small tables, and open files again on the other side) and many threads read them at once.

| protocol | adds | who uses it |
|---|---|---|
| `Source` | `len`, `read(indices)`, `fingerprint`, `describe`, `locate` | every pipeline |
| `ColumnSource` | `columns`: names known without reading | labels, tokens in a plain column |
| `ColumnReader` | `column(name, indices)`: one column alone | loss masks of a token store |
| `LengthSource` | `lengths(indices)` without reading | `.bucket()`, `.batch_tokens()` |
| `TokenSource` | documents that are also one stream of tokens | `.windows()`, `.pack()`, `.pad()` |
| `WindowReader` | `reader(starts, length)`: many slices of the same starts | `.windows()`, `.pad()` |
| `TokenParts` | the arrays behind a token stream | `.pack()` |
| `SpanReader` | `spans(starts, lengths)`: many ranges in few requests | `.pack()` |
| `PagedTokens` | `needs(starts, lengths)`: which pages of a remote store reads need | the loader, to fetch ahead |
| `RowsAheadSource` | `claim_ahead(indices, step)`: remote records, requested before they are read | the loader |
| `MemorySource` | `in_memory`, `use_moved`: data that child processes share | loaders with child processes |
| `BorrowSource` | `borrow(indices, arena)`: bytes in reused memory | `.decode_images()` |
| `RecordRanges` | `record_ranges(indices)`: the bytes that reads request | `penstock plan` |
| `ScannedSource` | `scanned`, `held`: whether files are read whole at first | `penstock plan` |
| `BlockSource` | `block_sizes()`: records that are stored together | `.shuffle(lanes=)` |
| `NamedSource` | `record_names()` without reading | `exclude=`, `pair` |
| `NotedSource` | `note()`: what reading in this order costs, if it matters | `Loader.stats()` |
| `ClassSource` | `class_names`: what the numbers of a column stand for | `pipeline.classes` |
| `FileSource` | `paths` | provenance of prepared documents |
| `TextSource` | `iterate(cursor)`: all texts in one pass, resumable | `prepare`, `.tokenize()` |
| `StampedSource` | `stamp_id()`: identity by sizes and tags | `prepare`, for large or remote input |
| `RangeSource` | `ranges(most)`: independent parts of that pass, by names and sizes | `prepare` |
| `TextColumnSource` | `text_column`: which column `iterate` reads | `.tokenize(field=)` |

They are structural: a class satisfies one by having its members. Check with `isinstance(source, ColumnSource)`, when a
pipeline is built and not for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns
from penstock.storage.small_files import Arena
from penstock.store.gather import Parts as TokenParts

if TYPE_CHECKING:
    from penstock.sources.lines import Chunk
    from penstock.sources.names import Names
    from penstock.sources.ranges import Range
    from penstock.storage.filesystem import Stamp
    from penstock.storage.page_needs import PageNeeds
    from penstock.storage.ranges_ahead import RangesAhead

__all__ = [
    "BlockSource", "BorrowSource", "ClassSource", "ColumnReader", "ColumnSource", "FileSource", "HeldRecords",
    "LengthSource", "NamedSource", "NotedSource", "PagedTokens", "PartialSource", "PipelineLike", "RangeSource",
    "RowsAheadSource", "ScannedSource", "Source", "SpanReader", "StampedSource", "TextColumnSource", "TextSource",
    "TokenParts", "TokenSource", "WindowReader",
]  # fmt: skip


@runtime_checkable
class Source(Protocol):
    """Records by number.

    `read` takes any int64 indices in [0, len), in any order, repeats allowed, and returns one row for each, in that
    order. When rows are bad it raises `BadRecords` naming every bad row of the call, so that the caller can stop, or
    replace those rows.
    """

    def __len__(self) -> int: ...

    def read(self, indices: NDArray[np.int64]) -> Columns: ...

    def fingerprint(self) -> str:
        """Identity of the content: equal content, equal text, whatever the path or machine."""
        ...

    def describe(self) -> dict[str, Any]:
        """A few plain facts for reprs and `info`: kind, records, bytes, files."""
        ...

    def locate(self, index: int) -> dict[str, Any]:
        """Where record `index` is, in plain JSON: file, line, byte offset, document."""
        ...


@runtime_checkable
class PartialSource(Source, Protocol):
    """A source that may read a part of each record. `unread` says what to write to read the rest, if there is one."""

    @property
    def unread(self) -> str: ...


@runtime_checkable
class TokenSource(Source, Protocol):
    """A source whose records are tokenised documents, and which also reads as one long stream of tokens.

    `read(indices)` returns the documents as a ragged column `input_ids`. The stream is all documents one after
    another; `gather` cuts windows out of it.
    """

    @property
    def n_tokens(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def vocab_size(self) -> int | None: ...

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens in each of these documents, without reading tokens."""
        ...

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stream position at which each of these documents begins; `len(self)` itself is at n_tokens."""
        ...

    def documents_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The document that holds each stream position, by binary search in the document table."""
        ...

    def gather(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Array (len(starts), length) of raw tokens: row i is stream[starts[i] : starts[i] + length]. Never short."""
        ...


@runtime_checkable
class PipelineLike(Protocol):
    """A pipeline, whose package is above this one: a definition whose rows are a source."""

    @property
    def definition(self) -> Any: ...

    def rows(self) -> Source: ...


@runtime_checkable
class ColumnSource(Protocol):
    """Column names that are known without reading. A token store names its columns besides `input_ids`."""

    @property
    def columns(self) -> Sequence[str]: ...


@runtime_checkable
class ColumnReader(ColumnSource, Protocol):
    """One column of some records, without reading the others."""

    def column(self, name: str, indices: NDArray[np.int64]) -> Column: ...


@runtime_checkable
class LengthSource(Protocol):
    """The length of each record (in tokens or samples), known without reading it, and the dtype of its items."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]: ...


@runtime_checkable
class WindowReader(Protocol):
    """`reader(starts, length)(a, b)` equals `gather(starts[a:b], length)`, for many slices of the same starts."""

    def reader(self, starts: NDArray[np.int64], length: int) -> Callable[[int, int], NDArray[Any]]: ...


@runtime_checkable
class SpanReader(Protocol):
    """Reads ranges of a token stream of any lengths together, one after another: a remote source merges requests."""

    def spans(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]: ...


@runtime_checkable
class PagedTokens(Protocol):
    """A token stream that is read through a page cache: which pages ranges of tokens are in, without reading them.

    `document_needs` are those of the document table and of columns, for which it may read where rows begin.
    """

    def needs(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> PageNeeds: ...

    def document_needs(self, documents: NDArray[np.int64], columns: Sequence[str]) -> PageNeeds: ...


@runtime_checkable
class RowsAheadSource(Protocol):
    """Records that are byte ranges of remote files, which can be requested before they are read."""

    @property
    def ahead(self) -> RangesAhead | None:
        """What was requested and not read yet; None if no file is remote."""
        ...

    def claim_ahead(self, indices: NDArray[np.int64], step: int, /) -> Callable[[], int]:
        """Readers of these records before `step` wait for the call of the result, which fetches them."""
        ...


@runtime_checkable
class RecordRanges(Protocol):
    """Records that are byte ranges of files, known without reading them; each read requests them, merged.

    `range_unit`: ranges are widened to multiples of this many bytes; 0 if the records are not read by ranges.
    """

    def file_sizes(self) -> NDArray[np.int64]:
        """Bytes of each file."""
        ...

    @property
    def range_unit(self) -> int: ...

    def record_ranges(self, indices: NDArray[np.int64], /) -> NDArray[np.int64]:
        """A row (file, start, stop) for each of these records."""
        ...


@runtime_checkable
class ScannedSource(Protocol):
    """Files that each process may have to read from beginning to end before its first read."""

    @property
    def scanned(self) -> bool:
        """Whether it does: to find records or documents, or to decompress."""
        ...

    @property
    def held(self) -> bool:
        """Whether it keeps what it read, so that later reads request nothing."""
        ...


@runtime_checkable
class SizedRows(Protocol):
    """Rows whose sizes differ, and are known without reading them."""

    def bytes_of_rows(self, indices: NDArray[np.int64], /) -> int:
        """The bytes of all these rows together."""
        ...

    def largest_row(self) -> int | None:
        """The bytes of the largest row, if that is known: then few rows of small data need not be looked up."""
        ...


@runtime_checkable
class MemorySource(Protocol):
    """Data in memory, which children copy unless it is moved into memory that they share (`core.shared_memory`)."""

    def in_memory(self) -> Any:
        """Everything that may be moved."""
        ...

    def use_moved(self, values: Any, /) -> None:
        """Reads from an equal copy of what `in_memory` returned."""
        ...


@runtime_checkable
class BorrowSource(Protocol):
    """`read`, with bytes placed in `arena`: the caller must be done with them before it clears the arena."""

    def borrow(self, indices: NDArray[np.int64], arena: Arena | None) -> Columns: ...


@runtime_checkable
class BlockSource(Protocol):
    """Records that are stored in blocks, which are best read as one: row groups of Parquet files, tar shards."""

    def block_sizes(self) -> NDArray[np.int64]:
        """Records of each block, in record order; together all records."""
        ...


@runtime_checkable
class HeldRecords(Protocol):
    """A stream, which is read in order: how many of the last records it holds for who asks out of order."""

    @property
    def held_records(self) -> int: ...


@runtime_checkable
class NamedSource(Protocol):
    """Records that have names (relative paths, keys of a tar shard), known without reading them."""

    def record_names(self) -> Names: ...


@runtime_checkable
class NotedSource(Protocol):
    """What a user may want to know of how a source is read, in one sentence; empty most of the time."""

    def note(self) -> str: ...


@runtime_checkable
class ClassSource(Protocol):
    """The names of classes whose numbers a column holds, by the name of the column."""

    @property
    def class_names(self) -> Mapping[str, tuple[str, ...]]: ...


@runtime_checkable
class FileSource(Protocol):
    """The files that records come from, in record order."""

    @property
    def paths(self) -> Sequence[str]: ...


@runtime_checkable
class TextSource(Protocol):
    """All texts in one pass, in chunks. `start` is the cursor of an earlier chunk: reading resumes right after it."""

    def iterate(self, start: Any = None) -> Iterator[Chunk]: ...

    def describe(self) -> dict[str, Any]: ...

    def fingerprint(self) -> str: ...


@runtime_checkable
class RangeSource(TextSource, Protocol):
    """A `TextSource` that is cut into ranges of about `most` bytes by names and sizes alone, and reads one of them."""

    def ranges(self, most: int) -> list[Range]: ...

    def iterate(self, start: Any = None, part: Range | None = None) -> Iterator[Chunk]: ...


@runtime_checkable
class StampedSource(FileSource, Protocol):
    """Files with sizes and tags (ETag or modification time), by which they are recognised without reading them."""

    @property
    def stamps(self) -> Sequence[Stamp]: ...

    def stamp_id(self) -> str: ...


@runtime_checkable
class LocatesRows(Protocol):
    """A `TextSource` that knows where each of its rows comes from."""

    def locate(self, index: int) -> dict[str, Any]: ...


@runtime_checkable
class TextColumnSource(TextSource, Protocol):
    """A `TextSource` that says which column `iterate` reads; None when several fields were chosen and it cannot."""

    @property
    def text_column(self) -> str | None: ...
