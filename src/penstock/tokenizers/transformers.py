"""transformers tokenizers.

Fast ones run as the `tokenizers` object inside them, if a copy of that returns the same ids; slow ones run as they are,
one text at a time in Python. A name that is not local is looked up in the local cache first, then on
the hub. Code that comes with a model is never run: `trust_remote_code` stays off.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np

from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.core.os_errors import temporary_errors
from penstock.core.signals import surface
from penstock.tokenizers.base import PROBES, BaseTokenizer, Ids, SerialTokenizer, Specials, Tokenizer
from penstock.tokenizers.hf import HFTokenizer, difference


class SlowTokenizer(SerialTokenizer):
    """A transformers tokenizer called through its own Python code, one call at a time."""

    kind = "transformers"

    def __init__(self, original: Any, adds: bool = False) -> None:
        self.adds = adds
        size = max(len(original), 1 + max(original.get_vocab().values(), default=-1))
        specials = Specials(original.eos_token_id, original.bos_token_id, original.pad_token_id)
        super().__init__(original, getattr(original, "name_or_path", ""), size, specials)

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(zip(self.original.all_special_tokens, self.original.all_special_ids, strict=True))

    def _facts(self) -> dict[str, Any]:
        files = {}
        with temporary_errors("the vocabulary of a tokenizer"), tempfile.TemporaryDirectory() as folder:
            try:
                saved = self.original.save_vocabulary(folder)
            except NotImplementedError:  # nothing beyond get_vocab() to save
                saved = ()
            for path in sorted(map(Path, saved or ())):
                files[path.name] = path.read_bytes().hex()
        probes = [self._ids(text).tolist() for text in PROBES]
        return {"vocab": sorted(self.original.get_vocab().items()), "files": files, "probes": probes}

    def _ids(self, text: str) -> Ids:
        return np.array(reference_ids(self.original, text, self.adds), np.uint32)

    def adding(self, add: bool) -> SlowTokenizer:
        if add == self.adds or (add and not self.original.num_special_tokens_to_add(pair=False)):
            return self
        return SlowTokenizer(self.original, add)

    def __reduce__(self) -> tuple[Any, ...]:
        return SlowTokenizer, (self.original, self.adds)


def reference_ids(original: Any, text: str, adds: bool = False) -> list[int]:
    """Ids by the object's own call, with or without the special tokens it adds, without cut or padding."""
    out = original(
        text,
        add_special_tokens=adds,
        truncation=False,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return list(out["input_ids"])


def from_object(original: Any) -> Tokenizer:
    """From a live transformers tokenizer, fast or slow."""
    backend = getattr(original, "backend_tokenizer", None) if getattr(original, "is_fast", False) else None
    try:
        text = None if backend is None else backend.to_str()
    except Exception as error:  # the library raises bare Exception for parts that are written in Python
        surface(error)
        text = None
    if text is None:
        return SlowTokenizer(original)
    options: dict[str, Any] = {
        "name": str(getattr(original, "name_or_path", "") or type(original).__name__),
        "named": {"eos": original.eos_token, "bos": original.bos_token, "pad": original.pad_token},
        "plain_specials": bool(getattr(original, "split_special_tokens", False)),
    }
    fast = HFTokenizer(text, **options)
    if difference(fast, backend) is not None:
        return SlowTokenizer(original)
    probes = [*PROBES, *(f"a {token}b" for token in fast.added_tokens)]
    if not _same(fast, original, False, probes):
        return SlowTokenizer(original)  # a subclass changed what its own backend does
    if not _same(fast.adding(True), original, True, PROBES):
        return _AddsItself(original, text, **options)
    return fast


class _AddsItself(HFTokenizer):
    """A fast tokenizer whose special tokens are added by its class, not by its backend."""

    def __init__(self, original: Any, text: str, **options: Any) -> None:
        super().__init__(text, **options)
        self.original = original

    def adding(self, add: bool) -> BaseTokenizer:
        return SlowTokenizer(self.original, True) if add else self

    def __reduce__(self) -> tuple[Any, ...]:
        return from_object, (self.original,)


def _same(made: BaseTokenizer, original: Any, adds: bool, texts: Sequence[str]) -> bool:
    return all(made.encode(text).tolist() == reference_ids(original, text, adds) for text in texts)


def from_name(name: str) -> Tokenizer:
    """From a local folder in transformers' format or a hub name."""
    library = need("transformers", extra="hf", purpose=f"to look up the tokenizer {name!r}")
    load = partial(library.AutoTokenizer.from_pretrained, name, trust_remote_code=False)
    try:
        found = load(local_files_only=True)
    except Exception as error:  # of any type: a class fails in its own ways on files that are not its own
        surface(error)
        if Path(name).exists() or not _hub_reachable():
            raise UsageError(
                "a tokenizer that is here, or a hub name that can be reached",
                got=f"{name!r}: {_first_line(error)}",
                fix="pass the path of a tokenizer.json or .model, or load it once with a network so that it is cached",
            ) from error
        try:
            found = load()
        except Exception as remote:
            surface(remote)
            raise UsageError(
                "a tokenizer on the hub",
                got=f"{name!r}: {_first_line(remote)}",
                fix="check the name, or pass the path of a tokenizer.json",
            ) from remote
    return from_object(found)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def from_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a folder that transformers saved."""
    return from_name(str(folder))


def _hub_reachable() -> bool:
    """A quick check: the hub client itself retries for most of a minute before it fails."""
    if any(
        os.environ.get(k, "").upper() in {"1", "ON", "YES", "TRUE"} for k in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    ):
        return False
    if any(os.environ.get(k) for k in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    place = urlparse(need("huggingface_hub.constants", extra="hf").ENDPOINT)
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=3).close()
    except OSError:
        return False
    return True
