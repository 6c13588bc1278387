"""Token stores made on the way: kept under a cache folder, keyed by content, made once however many ask.

The key is a hash of the texts' content, the tokenizer and the settings; never of a path or a time. Two processes that ask
at the same moment: one prepares, the other waits and reads. A preparation that was killed is completed by the next.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import orjson

from penstock._errors import UsageError
from penstock._hash import content_id
from penstock.prepare.run import TextSource, prepare
from penstock.sources.tokens import TokenStore
from penstock.text.tokenizers import as_tokenizer

WAIT_SECONDS = 0.2


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Where caches live: as given, else `PENSTOCK_CACHE`, else the user's cache folder."""
    if given is not None:
        return Path(given)
    if named := os.environ.get("PENSTOCK_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def cached_store(
    source: TextSource, tokenizer: Any, *, cache_dir: str | os.PathLike[str] | None, settings: dict[str, Any]
) -> TokenStore:
    """The token store of these texts, prepared if it is not there."""
    resolved = as_tokenizer(tokenizer)
    plain = {k: v for k, v in settings.items() if k in ("eos", "shard_tokens", "on_error")}
    key = content_id([source.fingerprint(), orjson.dumps(resolved.identity()), orjson.dumps(plain)])
    folder = cache_folder(cache_dir) / "tokens" / key
    while not (folder / "manifest.json").exists():
        try:
            prepare(source, resolved, folder, **settings)
        except UsageError as error:
            if "preparing a token store" not in str(error):
                raise
            time.sleep(WAIT_SECONDS)  # somebody else is preparing this very store
    return TokenStore(folder)
