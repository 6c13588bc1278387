"""Reads untrusted `.npy` files: no pickles, and no memory beyond the size of the file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from penstock.core.errors import RecordError

HEADER_BYTES = 10_000


def load_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Reads the array of a `.npy` file; raises `RecordError` if it is damaged or holds objects.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/a.npy", np.arange(3))
    ...     load_npy(f"{folder}/a.npy").tolist()
    [0, 1, 2]
    """
    try:
        with open(path, "rb") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(file, max_header_size=HEADER_BYTES)
            wanted = int(dtype.itemsize) * int(np.prod([int(side) for side in shape], dtype=object))
            held = os.fstat(file.fileno()).st_size - file.tell()
        if dtype.hasobject or wanted != held:
            raise ValueError(f"{dtype} of shape {shape} in {held} bytes")
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise RecordError(
            "a .npy file of numbers", got=str(error)[:200], where=os.fspath(path), fix="write it again"
        ) from error
    return array
