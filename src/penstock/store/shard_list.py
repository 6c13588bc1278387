"""The list of a store's shards: entries by number, and the shard of a token or document.

`ShardList` is the interface; `ListedShards` holds all entries in memory, as a manifest of few shards does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from penstock.store.part_search import PartSearch
from penstock.store.writer import ShardInfo

I64 = NDArray[np.int64]


class ShardList(Sequence[ShardInfo]):
    """Shards in order. Shard k holds tokens [token_edges[k], token_edges[k + 1]) of the stream, documents likewise.

    Both edges are exact next to every shard that `of_token`, `of_document` or an index returned, and at the end of the
    list; between shards that nobody has asked for they may not be read yet.
    """

    token_edges: I64
    document_edges: I64
    page_bytes: int
    total_bytes: int
    files: Mapping[str, int]  # the files that hold the list, beside the manifest, and their sizes

    def __init__(self, token_edges: I64, document_edges: I64) -> None:
        self.token_edges, self.document_edges = token_edges, document_edges
        self._search_tokens, self._search_documents = PartSearch(token_edges), PartSearch(document_edges)

    @property
    def tokens(self) -> int:
        return int(self.token_edges[-1])

    @property
    def documents(self) -> int:
        return int(self.document_edges[-1])

    def of_token(self, positions: I64) -> I64:
        """Returns the shard of each token; positions are inside the stream."""
        return self._search_tokens(positions)

    def of_document(self, numbers: I64) -> I64:
        """Returns the shard of each document; numbers are below `documents`."""
        return self._search_documents(numbers)

    def read_all(self) -> None:
        """Makes the edges of all shards exact."""

    @abstractmethod
    def entry(self, number: int) -> ShardInfo:
        """Returns the entry of shard `number`, in [0, len)."""

    def lines_before(self, _number: int) -> int:
        """Returns the lines of its file before those that a shard's `_line` counts from, if the list has them."""
        return 0

    def __len__(self) -> int:
        return len(self.token_edges) - 1

    @overload
    def __getitem__(self, index: int) -> ShardInfo: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ShardInfo, ...]: ...

    def __getitem__(self, index: int | slice) -> ShardInfo | tuple[ShardInfo, ...]:
        numbers = range(len(self))[index]
        return self.entry(numbers) if isinstance(numbers, int) else tuple(self.entry(k) for k in numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardList):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} shards, {self.documents} documents, {self.tokens} tokens)"


class ListedShards(ShardList):
    """Shards whose entries are all in memory.

    >>> shards = ListedShards([ShardInfo("a", 9, 2, 5, "", "<u2", 10), ShardInfo("b", 9, 1, 3, "", "<u2", 10)])
    >>> shards.tokens, shards.documents, shards.total_bytes, shards[-1].name
    (8, 3, 18, 'b')
    >>> shards.of_token(np.array([4, 5])).tolist(), shards.of_document(np.array([1, 2])).tolist()
    ([0, 1], [0, 1])
    """

    def __init__(self, entries: Iterable[ShardInfo]) -> None:
        self._entries = tuple(entries)
        self.page_bytes = self._entries[0].page_bytes
        self.total_bytes = sum(s.bytes for s in self._entries)
        self.files = {}
        super().__init__(
            np.cumsum([0, *(s.tokens for s in self._entries)], dtype=np.int64),
            np.cumsum([0, *(s.documents for s in self._entries)], dtype=np.int64),
        )

    def entry(self, number: int) -> ShardInfo:
        return self._entries[number]
