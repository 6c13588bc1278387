"""Opens the token store at a path or a URL. A local store loads nothing that reads remote ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.storage import filesystem
from penstock.store.reader import TokenStore


def open_token_store(
    path: str | os.PathLike[str],
    verify: str = "first-touch",
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> TokenStore:
    """The token store at a path or URL. The other arguments are for stores on an object store."""
    text = os.fspath(path)
    if isinstance(text, str) and filesystem.scheme(text):
        from penstock.store.remote_store import RemoteStore

        return RemoteStore(
            text, verify=verify, storage_options=storage_options, cache_dir=cache_dir, cache_bytes=cache_bytes
        )
    return TokenStore(path, verify=verify)
