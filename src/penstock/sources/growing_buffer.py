"""A buffer that is written piece by piece: in memory, or in a file whose pages are hashed on the way."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.local_files import writing
from penstock.sources.arrow_buffers import I64, NotStored
from penstock.storage.sizes import PAGE

_TRAILER = 64  # at least these bytes of 0xff follow the values, to a multiple of 64: Arrow may read past the end
_INT32 = (1 << 31) - 1


class GrowingBuffer:
    """A `Sink`. With a path, at most about `held` bytes are in memory; the file is closed between writes.

    >>> buffer = GrowingBuffer(None, 0)
    >>> buffer.bits(None, 3); buffer.bits(np.array([False, True]), 2); buffer.bits(None, 4)
    >>> buffer.finish()[:2].tolist()
    [247, 1]
    """

    def __init__(self, path: str | None, held: int) -> None:
        self.path, self.size, self.hashes = path, 0, array("Q")
        self._most, self._held = max(PAGE, held), bytearray()
        self._bits, self._written, self._carry = 0, False, np.empty(0, bool)
        self._last = -1  # the last offset

    def bytes(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self.size += len(view)
        if self.path is None:
            self._held += view
            return
        while view:
            part = view[: max(PAGE, self._most - len(self._held))]
            self._held += part
            view = view[len(part) :]
            if len(self._held) >= self._most:
                self._flush(len(self._held) // PAGE * PAGE)

    def bits(self, values: NDArray[np.bool_] | None, count: int) -> None:
        if values is None and not self._written:
            self._bits += count  # nothing is written as long as all bits are 1
            return
        if not self._written:
            self._written = True
            for at in range(0, self._bits // 8, PAGE):
                self.bytes(b"\xff" * min(PAGE, self._bits // 8 - at))
            self._carry = np.ones(self._bits % 8, bool)
        bits = np.concatenate([self._carry, np.ones(count, bool) if values is None else values])
        full = len(bits) // 8 * 8
        self.bytes(np.packbits(bits[:full], bitorder="little"))
        self._carry = bits[full:]

    def offsets(self, offsets: I64, narrow: bool) -> None:
        first = self._last < 0
        last = max(0, self._last)
        self._last = last + int(offsets[-1])
        if narrow and self._last > _INT32:
            raise NotStored(f"more than {_INT32} entries of maps")
        moved = (offsets if first else offsets[1:]) + last
        self.bytes(np.ascontiguousarray(moved, np.int32 if narrow else np.int64))

    def finish(self) -> NDArray[np.uint8]:
        """Ends the buffer. Returns it, if it is in memory."""
        if len(self._carry):
            self.bytes(np.packbits(self._carry, bitorder="little"))
        if self.size:
            self.bytes(b"\xff" * (_TRAILER + -self.size % _TRAILER))
        if self.path is not None:
            self._flush(len(self._held))
        return np.frombuffer(bytes(self._held), np.uint8)

    def _flush(self, size: int) -> None:
        assert self.path is not None
        view = memoryview(self._held)[:size]
        for at in range(0, size, PAGE):
            self.hashes.append(xxhash.xxh3_64_intdigest(view[at : at + PAGE]))
        with writing(self.path), open(self.path, "ab") as file:
            file.write(view)
        view.release()
        del self._held[:size]
