"""Memory that child processes map instead of copying: blocks in unnamed files, and what was moved into one.

A block is mapped until the last array in it is gone, and holds one descriptor (and the map's own) as long.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.os_errors import temporary_errors
from penstock.core.pickling import dump, load

_ALIGN = 64  # bytes: what Arrow asks for
_regions: dict[int, tuple[int, int]] = {}  # address of a shared block -> its descriptor and size


def moved(value: Any, least: int) -> Any:
    """An equal value whose arrays and Arrow buffers are in shared memory, read-only; None if that moves few bytes.

    Memory-mapped arrays stay in their files, and what is in shared memory already stays where it is.

    >>> column = np.arange(1000)
    >>> (moved([column], least=1)[0] == column).all(), moved([column], least=9000)
    (np.True_, None)
    """
    body, buffers = dump(value)
    own = [shared_part(buffer) is None for buffer in buffers]
    if sum(buffer.nbytes for buffer, mine in zip(buffers, own, strict=True) if mine) < max(1, least):
        return None
    starts: list[int] = []
    with temporary_errors("data that child processes share"), open(unnamed_file("penstock-data"), "w+b") as file:
        at = 0
        for buffer, mine in zip(buffers, own, strict=True):
            starts.append(at)
            if mine:
                file.seek(at)
                file.write(buffer)
                at += -(-buffer.nbytes // _ALIGN) * _ALIGN
        file.truncate(at)
        block = shared_block(os.dup(file.fileno()), at).data
    parts = zip(buffers, own, starts, strict=True)
    return load(body, [block[at : at + buffer.nbytes] if mine else buffer for buffer, mine, at in parts])


def shared_block(fd: int, size: int) -> NDArray[np.uint8]:
    """Maps a file whose content does not change any more; its descriptor is closed with the last array."""
    memory = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    block = np.frombuffer(memory, np.uint8)
    address = int(block.__array_interface__["data"][0])
    _regions[address] = fd, size
    weakref.finalize(memory, _forget, address, fd)
    return block


def _forget(address: int, fd: int) -> None:
    if _regions.get(address, (-1, 0))[0] == fd:
        del _regions[address]
    os.close(fd)


def shared_part(buffer: memoryview) -> tuple[int, int] | None:
    """The descriptor and offset of a buffer that lies in shared memory; None for any other."""
    if not _regions or not buffer.nbytes:
        return None
    address = int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])
    for start, (fd, size) in list(_regions.items()):
        if start <= address and address + buffer.nbytes <= start + size:
            return fd, address - start
    return None


def unnamed_file(label: str) -> int:
    """The descriptor of a memfd, or of an unlinked temporary file where the system has none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label)
    with tempfile.TemporaryFile(prefix=label) as file:
        return os.dup(file.fileno())
