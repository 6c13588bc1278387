"""Reads untrusted `.npy` files: nothing is unpickled, and no more memory is used than the file has bytes."""

from __future__ import annotations

import math
import os
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

HEADER_BYTES = 10_000


def read_npy(file: BinaryIO) -> NDArray[Any]:
    """Returns the array of an open `.npy` file; ValueError or EOFError if it is damaged or holds objects.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(3))
    >>> read_npy(file).tolist()
    [0, 1, 2]
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file, max_header_size=HEADER_BYTES)
    held = size - file.tell()
    if dtype.hasobject or math.prod(map(int, shape)) * dtype.itemsize != held:
        raise ValueError(f"{dtype} of shape {shape} in {held} bytes")
    file.seek(0)
    array: NDArray[Any] = np.load(file, allow_pickle=False)
    return array
