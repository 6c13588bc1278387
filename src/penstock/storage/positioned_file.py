"""Files for reading whose bytes a subclass fetches."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any


class ReadFile(io.RawIOBase):
    """A file of which everything is read by `read`."""

    @abstractmethod
    def read(self, size: int | None = -1) -> bytes: ...

    def readable(self) -> bool:
        return True

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class PositionedFile(ReadFile):
    """The part that remote files share. `_at` is the position, `_size` the number of bytes."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self._size, self._at = name, size, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at
