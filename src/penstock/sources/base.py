"""What a source is: a sequence of records that answers many indices in one call.

Sources are the bottom of a pipeline. They know nothing of order, batches or epochs. They can be pickled (they hold
paths and small tables, and open files again on the other side) and are read by many threads at once.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns


@runtime_checkable
class Source(Protocol):
    """Records by number.

    `read` takes any int64 indices in [0, len), in any order, repeats allowed, and gives one row for each, in that
    order. When rows are bad it raises `BadRecords` naming every bad row of the call, so that the caller can decide
    whether to stop or to fill the holes.
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
class TokenSource(Source, Protocol):
    """A source whose records are tokenised documents, and which also reads as one long stream of tokens.

    `read(indices)` gives the documents as a ragged column `input_ids`. The stream is all documents one after
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
        """Stream position at which each of these documents begins; `len(self)` itself gives n_tokens."""
        ...

    def documents_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The document that holds each stream position, by binary search in the document table."""
        ...

    def gather(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Array (len(starts), length) of raw tokens: row i is stream[starts[i] : starts[i] + length]. Never short."""
        ...
