"""The manifest: one JSON file that lists the shards of a store in order.

It is the only file read when a store is opened and the last one written. Its `id` is a hash of the shards' root hashes
and of what defines the meaning of the numbers (dtype, vocabulary, tokenizer, end-of-document id): never of a path, a
time or the version of the tool. A checksum covers the rest, so that an edited file is detected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from penstock._version import __version__
from penstock.core import local_files
from penstock.core.errors import StoreError, UsageError
from penstock.storage.filesystem import local_only
from penstock.store import layout
from penstock.store.layout import ColumnSpec, canonical_json, count
from penstock.store.writer import ShardInfo

NAME = "manifest.json"
FORMAT = "penstock-store"
MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest: ids, dtype, shards and columns of a store."""

    id: str
    dtype: str
    vocab_size: int | None
    shards: tuple[ShardInfo, ...]
    columns: tuple[ColumnSpec, ...] = ()
    tokenizer: dict[str, Any] | None = None
    eos_id: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tool: str = ""

    @property
    def documents(self) -> int:
        return sum(s.documents for s in self.shards)

    @property
    def tokens(self) -> int:
        return sum(s.tokens for s in self.shards)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.shards)


def write_manifest(
    folder: str | os.PathLike[str],
    shards: Sequence[ShardInfo],
    *,
    tokenizer: dict[str, Any] | None = None,
    eos_id: int | None = None,
    metadata: dict[str, Any] | None = None,
    tool: str = f"penstock {__version__}",
) -> Manifest:
    """Writes the manifest of a folder of finished shards. `eos_id` is the id appended to every document, or None.

    >>> import tempfile
    >>> from penstock.core.columns import Ragged
    >>> from penstock.store.writer import ShardWriter
    >>> folder = Path(tempfile.mkdtemp())
    >>> with ShardWriter(folder / "00000.tokens", vocab_size=10) as shard:
    ...     shard.add(Ragged.of([[1, 2], [3]]))
    >>> manifest = write_manifest(folder, [shard.finish()])
    >>> manifest.documents, manifest.tokens, read_manifest(folder) == manifest
    (2, 3, True)
    """
    manifest = _build(shards, tokenizer, eos_id, dict(metadata or {}), tool)
    data = _encode(manifest)
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"a manifest of at most {MAX_BYTES} bytes",
            got=f"{len(data)} bytes",
            fix="use fewer, larger shards",
        )
    local_files.atomic_write(os.path.join(folder, NAME), data)
    return manifest


def _build(
    shards: Sequence[ShardInfo],
    tokenizer: dict[str, Any] | None,
    eos_id: int | None,
    metadata: dict[str, Any],
    tool: str,
) -> Manifest:
    if not shards:
        raise UsageError(
            "at least one shard",
            got="none",
            where=NAME,
            fix="write a shard first, even an empty one",
        )
    first = shards[0]
    for shard in shards:
        if _kind(shard) != _kind(first):
            raise UsageError(
                f"the dtype, vocabulary and columns of {first.name}: {first.dtype}, vocabulary {first.vocab_size}",
                got=f"{shard.dtype}, vocabulary {shard.vocab_size}, columns {[c.name for c in shard.columns]}",
                where=shard.name,
                fix="write all shards of a store with the same arguments",
            )
        if not plain_name(shard.name):
            raise UsageError("shard names without folders", got=repr(shard.name), where=NAME)
    if len({s.name for s in shards}) != len(shards):
        raise UsageError("different shard names", got="a name that repeats", where=NAME)
    ident = dataset_id(shards, tokenizer, eos_id)
    return Manifest(
        ident,
        first.dtype,
        first.vocab_size,
        tuple(shards),
        first.columns,
        tokenizer,
        eos_id,
        metadata,
        tool,
    )


def _kind(shard: ShardInfo) -> tuple[Any, ...]:
    return shard.dtype, shard.vocab_size, shard.columns, shard.page_bytes


def dataset_id(shards: Sequence[ShardInfo], tokenizer: dict[str, Any] | None, eos_id: int | None) -> str:
    """Returns the id of the content, 32 hexadecimal digits."""
    meaning = {
        "dtype": shards[0].dtype,
        "eos_id": eos_id,
        "roots": [s.root for s in shards],
        "tokenizer": tokenizer,
        "version": layout.VERSION,
        "vocab_size": shards[0].vocab_size,
    }
    return xxhash.xxh3_128_hexdigest(canonical_json(meaning))


def _encode(manifest: Manifest) -> bytes:
    plain = {
        "columns": [asdict(c) for c in manifest.columns],
        "dtype": manifest.dtype,
        "eos_id": manifest.eos_id,
        "format": FORMAT,
        "id": manifest.id,
        "metadata": manifest.metadata,
        "page_bytes": manifest.shards[0].page_bytes,
        "shards": [
            {
                "bytes": s.bytes,
                "documents": s.documents,
                "name": s.name,
                "root": s.root,
                "tokens": s.tokens,
            }
            for s in manifest.shards
        ],
        "tokenizer": manifest.tokenizer,
        "tool": manifest.tool,
        "totals": {
            "bytes": manifest.bytes,
            "documents": manifest.documents,
            "tokens": manifest.tokens,
        },
        "version": layout.VERSION,
        "vocab_size": manifest.vocab_size,
    }
    return _to_bytes({**plain, "checksum": xxhash.xxh3_128_hexdigest(canonical_json(plain))})


def _to_bytes(plain: dict[str, Any]) -> bytes:
    """Encodes the manifest with line breaks, so that people can read the file."""
    canonical_json(plain)
    return (json.dumps(plain, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Reads and checks the manifest of a store, without opening a shard."""
    path = Path(local_only(folder, "the token store")) / NAME
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise StoreError(
                    f"a manifest of at most {MAX_BYTES} bytes",
                    got=f"{size} bytes",
                    where=str(path),
                )
            data = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"a token store: a folder with {NAME}",
            got="no such file" if Path(folder).exists() else "no such folder",
            where=str(path),
            fix="pass the folder that `penstock prepare` wrote; a run that has not finished has no manifest",
        ) from error
    return _decode(data, str(path))


def _decode(data: bytes, where: str) -> Manifest:
    try:
        plain = json.loads(data)
        if plain["format"] != FORMAT:
            raise ValueError("format")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise layout.damaged("a manifest in JSON", f"{type(error).__name__}: {str(error)[:200]}", where) from error
    if plain.get("version") != layout.VERSION:
        raise StoreError(
            f"store format version {layout.VERSION}",
            got=f"version {str(plain.get('version'))[:40]}",
            where=where,
            fix="read it with the release of penstock that wrote it, or write the store again",
        )
    try:
        checksum = plain.pop("checksum")
        intact = xxhash.xxh3_128_hexdigest(canonical_json(plain)) == checksum
        if not intact or _to_bytes({**plain, "checksum": checksum}) != data:
            raise ValueError("the checksum differs: edited or damaged")
        columns = tuple(layout.parse_column(c) for c in plain["columns"])
        dtype, vocab, page = plain["dtype"], plain["vocab_size"], count(plain["page_bytes"])
        if dtype not in layout.TOKEN_DTYPES or not layout.valid_page_size(page):
            raise ValueError("dtype or page_bytes")
        kind = (dtype, None if vocab is None else count(vocab), columns, page)
        shards = tuple(_shard(s, kind) for s in plain["shards"])
        manifest = _build(
            shards,
            plain["tokenizer"],
            plain["eos_id"],
            plain["metadata"],
            plain["tool"],
        )
        totals = {
            "bytes": manifest.bytes,
            "documents": manifest.documents,
            "tokens": manifest.tokens,
        }
        if manifest.id != plain["id"] or totals != plain["totals"] or manifest.tokens >= 1 << 62:
            raise ValueError("id or totals differ from the shards listed")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise layout.damaged("an intact manifest", f"{type(error).__name__}: {str(error)[:300]}", where) from error
    return manifest


def _shard(plain: Any, kind: tuple[str, int | None, tuple[ColumnSpec, ...], int]) -> ShardInfo:
    name, root = plain["name"], plain["root"]
    if not isinstance(name, str) or not plain_name(name) or not isinstance(root, str):
        raise ValueError(f"shard name {str(name)[:80]!r}")
    size, documents, tokens = count(plain["bytes"]), count(plain["documents"]), count(plain["tokens"])
    return ShardInfo(name, size, documents, tokens, root, *kind)


def plain_name(name: str) -> bool:
    """Whether a name is a plain file name, without a folder.

    >>> plain_name("00000.tokens"), plain_name("../x"), plain_name("a/b"), plain_name("")
    (True, False, False, False)
    """
    return bool(name) and name not in (".", "..") and not any(c in name for c in "/\\:\0")
