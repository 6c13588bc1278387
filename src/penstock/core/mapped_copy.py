"""Copies ranges out of mapped files in one system call, whatever file each is in.

The kernel copies: pages that are not in memory are read without the GIL, and memory behind the end of a file that was
cut is an error where this process would get SIGBUS. Some sandboxes do not allow the call: see `available`.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

import numpy as np
from numpy.typing import NDArray

_MAX_VECTORS = 1024  # the kernel's IOV_MAX
I64 = NDArray[np.int64]

_call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None) if os.name == "posix" else None
if _call is not None:
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]


@cache
def available() -> bool:
    """Whether the system lets this process copy its own memory that way."""
    memory = np.array([7], np.uint8)
    return copy_ranges(np.array([memory.ctypes.data]), np.array([1])) == [b"\7"]


def copy_ranges(addresses: I64, lengths: I64) -> list[bytes] | None:
    """The bytes of each range of memory; None if some cannot be read, because their file was cut.

    >>> memory = np.arange(10, dtype=np.uint8)
    >>> at = np.array([7, 2, 5]) + memory.ctypes.data
    >>> [list(part) for part in copy_ranges(at, np.array([2, 3, 0])) or ()] if available() else [[7, 8], [2, 3, 4], []]
    [[7, 8], [2, 3, 4], []]
    """
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    full = np.flatnonzero(lengths)
    for first in range(0, len(full), _MAX_VECTORS):
        some = full[first : first + _MAX_VECTORS]
        if not _copy(out[ends[some[0]] - lengths[some[0]] : ends[some[-1]]], addresses[some], lengths[some]):
            return None
    data = out.tobytes()
    return [data[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def _copy(out: NDArray[np.uint8], addresses: I64, lengths: I64) -> bool:
    while True:
        target, parts = np.array([out.ctypes.data, len(out)]), np.stack([addresses, lengths], axis=1)
        done = -1 if _call is None else _call(os.getpid(), target.ctypes.data, 1, parts.ctypes.data, len(parts), 0)
        if done == len(out) or done <= 0:
            return bool(done > 0)
        left = np.flatnonzero(np.cumsum(lengths) > done)  # a call ends after 2 GiB, or before what cannot be read
        skipped = done - int(lengths[: left[0]].sum())
        addresses, lengths, out = addresses[left], lengths[left], out[done:]
        addresses[0] += skipped
        lengths[0] -= skipped
