"""Fingerprints that need not be computed again: of Hugging Face datasets whose files have not changed.

Hashing content takes about a second for each few gigabytes, at every start. A dataset that lies in files is known by
its own fingerprint, its columns and each file's path, size and time of change; what was hashed once under these is
kept in the cache folder, one small file each. Data in memory is always hashed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from penstock.core import hashing, local_files
from penstock.preparation.cache import cache_folder
from penstock.sources.hf import HFDataset


def recall(source: Any, cache_dir: str | None) -> None:
    """Gives a source its fingerprint, from the cache folder or by hashing once."""
    inner = getattr(source, "source", source)  # a part of a dataset
    if not isinstance(inner, HFDataset) or inner._id:
        return
    key = _outside(inner)
    if key is None:
        return
    path = cache_folder(cache_dir) / "ids" / key
    known = path.read_text() if path.is_file() else ""
    if re.fullmatch(r"[0-9a-f]{32}", known):
        inner._id = known
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    local_files.atomic_write(str(path), inner.fingerprint().encode())


def _outside(source: HFDataset) -> str | None:
    """What is known of a dataset without reading it; None if it is not all in files."""
    files = [Path(entry["filename"]) for entry in source.dataset.cache_files]
    if not files:
        return None
    stamps: list[str | int] = []
    for path in files:
        try:
            found = os.stat(path)
        except OSError:
            return None
        stamps += [str(path.resolve()), found.st_size, found.st_mtime_ns]
    return hashing.content_id([str(source.dataset._fingerprint), *source.columns, *stamps])
