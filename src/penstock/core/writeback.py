"""Asks the system to write a part of a file to its disk now, so that the sync at the end finds little left. Linux only.

A hint: nothing is waited for and nothing promised. What must survive a power cut is synced by whoever wrote it.
"""

from __future__ import annotations

import ctypes
import os

_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_call = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None
if _call is not None:
    _call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def begin_writeback(handle: int, start: int, stop: int) -> bool:
    """Starts to write bytes [start, stop) of an open file. False where the system or the file cannot.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     _ = file.write(bytes(8192)), file.flush()
    ...     begin_writeback(file.fileno(), 0, 8192) in (True, False)
    True
    """
    return _call is not None and _call(handle, start, stop - start, _WRITE) == 0
