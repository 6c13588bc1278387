"""Token files of other tools in object stores: their tokens by byte ranges, merged and concurrent; nothing is copied.

A read costs a round trip, and reads are made as a batch is built, in the loader's threads: convert to a token store
(`penstock convert`) for reads that are fetched ahead, cached on disk and verified. The files carry no checksums; an
object that was replaced since it was opened is refused by its ETag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import UsageError
from penstock.order.ragged_index import prefix
from penstock.sources.token_files import TokenFile, files_fingerprint, place_of
from penstock.storage.filesystem import Options, Stamp
from penstock.storage.scattered import read_scattered
from penstock.store.doctable import DocTable, check_range
from penstock.store.stream import TabledTokens

I64 = NDArray[np.int64]


class TokenObjects(TabledTokens):
    """Token files behind URLs, one after another, as a `TokenSource`. Fingerprint and tokens are those of local files.

    Made by `open_megatron`, `open_nanogpt` and `open_dolma`.
    """

    def __init__(
        self, kind: str, files: Sequence[TokenFile], dtype: Any, table: DocTable, *, vocab_size: int | None,
        boundaries: str, identity: Sequence[bytes], options: Options, scanned: bool = False,
    ) -> None:  # fmt: skip
        bounds = prefix(np.array([file.tokens for file in files], np.int64))
        super().__init__(bounds, np.dtype(dtype), table, vocab_size)
        self._kind, self.files, self._boundaries, self._identity = kind, list(files), boundaries, list(identity)
        self.scanned, self.held = scanned, False
        self._options = None if options is None else dict(options)
        self._print: str | None = None

    def read(self, indices: I64) -> Columns:
        """Documents as a ragged column `input_ids`."""
        starts, lengths = self._spans(check_range(indices, len(self), "documents"))
        return {"input_ids": Ragged(self.spans(starts, lengths), prefix(lengths))}

    def gather(self, starts: I64, length: int) -> NDArray[Any]:
        starts = np.asarray(starts, np.int64)
        if length < 0 or (len(starts) and (int(starts.min()) < 0 or int(starts.max()) > self.n_tokens - length)):
            raise UsageError(f"windows of {length} tokens inside a stream of {self.n_tokens}", got="others")
        return self.spans(starts, np.full(len(starts), length, np.int64)).reshape(len(starts), length)

    def reader(self, starts: I64, length: int) -> Callable[[int, int], NDArray[Any]]:
        return lambda a, b: self.gather(starts[a:b], length)

    def spans(self, starts: I64, lengths: I64) -> NDArray[Any]:
        """The tokens of ranges of the stream, one after another, read together."""
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        file, begin, count, owner = [], [], [], []
        left, row = lengths, np.arange(len(starts))
        while len(starts):
            part = np.searchsorted(self._bounds, starts, "right") - 1
            here = np.minimum(left, self._bounds[part + 1] - starts)
            file.append(part)
            begin.append(starts - self._bounds[part])
            count.append(here)
            owner.append(row)
            more = left > here  # the range continues in the next file
            starts, left, row = (starts + here)[more], (left - here)[more], row[more]
        if not file:
            return np.empty(0, self._dtype)
        files, local, counts = (np.concatenate(each) for each in (file, begin, count))
        size = self._dtype.itemsize
        first = np.array([each.offset for each in self.files], np.int64)[files] + local * size
        data = read_scattered(
            [each.path for each in self.files], [Stamp(each.size, each.tag) for each in self.files], files, first,
            first + counts * size, self._options,
        )  # fmt: skip
        order = np.argsort(np.concatenate(owner), kind="stable")
        return np.frombuffer(b"".join(data[i] for i in order.tolist()), self._dtype)

    def fingerprint(self) -> str:
        """As `TokenFiles.fingerprint`."""
        if self._print is None:
            self._print = files_fingerprint(
                self._kind, self._dtype, len(self), self._identity, self.files, self._options
            )
        return self._print

    def describe(self) -> dict[str, Any]:
        return self._facts(self._kind, sum(file.size for file in self.files), len(self.files), self._boundaries)

    def locate(self, index: int) -> dict[str, Any]:
        found = super().locate(index)
        return place_of(self.files, self._bounds, found["start"], self._dtype.itemsize) | found

    def __repr__(self) -> str:
        return f"TokenObjects({self._kind}: {len(self)} documents, {self.n_tokens} tokens, {self._dtype.name})"
