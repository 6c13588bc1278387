"""The manifest: one JSON file that lists the shards of a store in order, or the groups of very many shards.

It is the only file read when a store is opened and the last one written. Its `id` is a hash of the shards' root hashes
and of what defines the meaning of the numbers (dtype, vocabulary, tokenizer, end-of-document id): never of a path, a
time or the version of the tool. A checksum covers the rest, so that an edited file is detected.

Up to 1,024 shards are listed in the manifest itself (version 1). Of more, it has the sizes, hashes and totals of groups
(version 2), and the shards are in an index file, read when needed (see `shard_groups`).
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from penstock._version import __version__
from penstock.core import local_files
from penstock.core.errors import StoreError, UsageError
from penstock.core.os_errors import storage_errors
from penstock.storage.filesystem import local_only
from penstock.store import layout
from penstock.store.layout import ColumnSpec, canonical_json, count
from penstock.store.shard_groups import (
    GROUP_SHARDS,
    GroupedShards,
    Index,
    ReadRanges,
    encode_groups,
    hash_text,
    parse_index,
)
from penstock.store.shard_list import ListedShards, ShardList
from penstock.store.writer import ShardInfo

NAME = "manifest.json"
FORMAT = "penstock-store"
MAX_BYTES = 1 << 28
MAX_LISTED = 1024  # shards that the manifest itself lists
LINE_BASES = "line_bases"  # in the metadata, see `lines_before`
_SHARD_KEYS = {"bytes", "documents", "name", "root", "tokens"}
_text = json.encoder.encode_basestring_ascii
GROUPS_VERSION = 2  # of a manifest with groups: releases that know only version 1 say so


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest: ids, dtype, shards and columns of a store."""

    id: str
    dtype: str
    vocab_size: int | None
    shards: ShardList
    columns: tuple[ColumnSpec, ...] = ()
    tokenizer: dict[str, Any] | None = None
    eos_id: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tool: str = ""

    @property
    def documents(self) -> int:
        return self.shards.documents

    @property
    def tokens(self) -> int:
        return self.shards.tokens

    @property
    def bytes(self) -> int:
        return self.shards.total_bytes

    @property
    def page_bytes(self) -> int:
        return self.shards.page_bytes

    def lines_before(self, shard: int) -> int:
        """Lines of its file that come before those which a shard counts: it may be made from a later part of a file."""
        return lines_before(self.metadata, shard) + self.shards.lines_before(shard)


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
    manifest, files = manifest_files(shards, tokenizer=tokenizer, eos_id=eos_id, metadata=metadata, tool=tool)
    for name, data in files.items():
        local_files.atomic_write(os.path.join(folder, name), data)
    return manifest


def manifest_files(
    shards: Sequence[ShardInfo],
    *,
    tokenizer: dict[str, Any] | None = None,
    eos_id: int | None = None,
    metadata: dict[str, Any] | None = None,
    tool: str = f"penstock {__version__}",
) -> tuple[Manifest, dict[str, bytes]]:
    """Returns a manifest and its files by name, in the order in which they are to be written: the manifest last."""
    manifest = _build(shards, tokenizer, eos_id, dict(metadata or {}), tool)
    files: dict[str, bytes] = {}
    index, written = None, manifest
    if len(shards) > MAX_LISTED:
        # Line numbers may be as many as shards: they go into the index too.
        lines = np.array([lines_before(manifest.metadata, k) for k in range(len(shards))])
        index, content = encode_groups(shards, GROUP_SHARDS, lines)
        files[index.name] = content
        written = replace(manifest, metadata={k: v for k, v in manifest.metadata.items() if k != LINE_BASES})
    data = _encode(written, index)
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"a manifest of at most {MAX_BYTES} bytes",
            got=f"{len(data)} bytes",
            fix="keep large tables out of the metadata",
        )
    files[NAME] = data
    return manifest, files


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
        if not layout.plain_name(shard.name):
            raise UsageError("shard names without folders", got=repr(shard.name), where=NAME)
    if len({s.name for s in shards}) != len(shards):
        raise UsageError("different shard names", got="a name that repeats", where=NAME)
    ident = dataset_id(shards, tokenizer, eos_id)
    return Manifest(
        ident,
        first.dtype,
        first.vocab_size,
        ListedShards(shards),
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
    first = shards[0]
    return id_of_roots((s.root for s in shards), first.dtype, first.vocab_size, tokenizer, eos_id)


def id_of_roots(
    roots: Iterable[str], dtype: str, vocab_size: int | None, tokenizer: dict[str, Any] | None, eos_id: int | None
) -> str:
    """The same from the root hashes alone. The hashed JSON is never in memory at once: it may be 35 MB."""
    meaning: dict[str, Any] = {
        "dtype": dtype,
        "eos_id": eos_id,
        "roots": [],
        "tokenizer": tokenizer,
        "version": layout.VERSION,
        "vocab_size": vocab_size,
    }
    head, tail = canonical_json(meaning).split(b'"roots":[]', 1)
    state = xxhash.xxh3_128(head + b'"roots":[')
    separator, rest = b"", iter(roots)
    while some := list(islice(rest, 4096)):
        state.update(separator + canonical_json(some)[1:-1])
        separator = b","
    state.update(b"]" + tail)
    return state.hexdigest()


def _encode(manifest: Manifest, index: Index | None) -> bytes:
    if index is None:
        shards = [
            {"bytes": s.bytes, "documents": s.documents, "name": s.name, "root": s.root, "tokens": s.tokens}
            for s in manifest.shards
        ]
        listed: dict[str, Any] = {"shards": shards, "version": layout.VERSION}
    else:
        listed = {"index": index.plain(), "version": GROUPS_VERSION}
    plain = {
        **listed,
        "columns": [asdict(c) for c in manifest.columns],
        "dtype": manifest.dtype,
        "eos_id": manifest.eos_id,
        "format": FORMAT,
        "id": manifest.id,
        "metadata": manifest.metadata,
        "page_bytes": manifest.page_bytes,
        "tokenizer": manifest.tokenizer,
        "tool": manifest.tool,
        "totals": _totals(manifest.shards),
        "vocab_size": manifest.vocab_size,
    }
    return _to_bytes({**plain, "checksum": xxhash.xxh3_128_hexdigest(canonical_json(plain))})


def _totals(shards: ShardList) -> dict[str, int]:
    return {"bytes": shards.total_bytes, "documents": shards.documents, "tokens": shards.tokens}


def _to_bytes(plain: dict[str, Any]) -> bytes:
    """Encodes the manifest: a list of shards with line breaks, so that people can read it; groups in one line."""
    if "index" in plain:
        return canonical_json(plain) + b"\n"
    shards = plain["shards"]
    if len(shards) <= MAX_LISTED:
        return (json.dumps(plain, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")
    # The same text, ten times as fast: Python's encoder with line breaks takes 15 us for a shard.
    around = json.dumps({**plain, "shards": ["..."]}, sort_keys=True, indent=1, allow_nan=False) + "\n"
    before, after = around.split('"shards": [\n  "..."\n', 1)
    listed = ",\n".join(map(_shard_text, shards))
    return f'{before}"shards": [\n{listed}\n{after}'.encode("ascii")


def _shard_text(shard: Any) -> str:
    """A shard as `json.dumps` writes it with line breaks; what has other keys is written so that it differs."""
    if set(shard) != _SHARD_KEYS or not all(type(shard[name]) is int for name in ("bytes", "documents", "tokens")):
        raise ValueError("an entry of another kind in the list of shards")
    return (
        f'  {{\n   "bytes": {shard["bytes"]},\n   "documents": {shard["documents"]},\n   "name": '
        f'{_text(shard["name"])},\n   "root": {_text(shard["root"])},\n   "tokens": {shard["tokens"]}\n  }}'
    )


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
    manifest = decode_manifest(data, str(path), partial(_read_ranges, path.parent))
    for name, expected in manifest.shards.files.items():
        _check_index(path.parent / name, expected)
    return manifest


def _check_index(path: Path, expected: int) -> None:
    """Raises unless the index file is there and has the right size. Its content is checked when it is read."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise StoreError(
            "the list of shards that the manifest names",
            got="no such file",
            where=str(path),
            fix="copy it next to the manifest, or write the store again",
        ) from None
    if size != expected:
        raise layout.damaged(f"{expected} bytes, as the manifest says", f"{size} bytes", str(path))


def _read_ranges(folder: Path, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    with storage_errors(folder / name), open(folder / name, "rb") as file:
        found = []
        for start, stop in ranges:
            file.seek(start)
            found.append(file.read(stop - start))
        return found


def decode_manifest(data: bytes, where: str, read_ranges: ReadRanges) -> Manifest:
    """Checks the bytes of a manifest and returns its content; `where` is its path or URL.

    `read_ranges(name, ranges)` reads from another file of the store: from the index of a store of very many shards,
    when it is needed. What it returns is compared with its hash.
    """
    try:
        plain = json.loads(data)
        if plain["format"] != FORMAT:
            raise ValueError("format")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise layout.damaged("a manifest in JSON", f"{type(error).__name__}: {str(error)[:200]}", where) from error
    version = GROUPS_VERSION if "index" in plain else layout.VERSION
    if plain.get("version") != version:
        raise StoreError(
            f"store format version {version}",
            got=f"version {str(plain.get('version'))[:40]}",
            where=where,
            fix="read it with the release of penstock that wrote it, or write the store again",
        )
    try:
        checksum = plain.pop("checksum")
        intact = xxhash.xxh3_128_hexdigest(canonical_json(plain)) == checksum
        if not intact or _to_bytes({**plain, "checksum": checksum}) != data:
            raise ValueError("the checksum differs: edited or damaged")
        manifest = _parse(plain, where, read_ranges)
        if _totals(manifest.shards) != plain["totals"] or manifest.tokens >= 1 << 62:
            raise ValueError("id or totals differ from the shards listed")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise layout.damaged("an intact manifest", f"{type(error).__name__}: {str(error)[:300]}", where) from error
    return manifest


def _parse(plain: dict[str, Any], where: str, read_ranges: ReadRanges) -> Manifest:
    """Returns the content, or raises ValueError, KeyError, TypeError or AttributeError."""
    columns = tuple(layout.parse_column(c) for c in plain["columns"])
    dtype, vocab, page = plain["dtype"], plain["vocab_size"], count(plain["page_bytes"])
    if dtype not in layout.TOKEN_DTYPES or not layout.valid_page_size(page):
        raise ValueError("dtype or page_bytes")
    kind = (dtype, None if vocab is None else count(vocab), columns, page)
    tokenizer, eos_id, metadata, tool = (plain[name] for name in ("tokenizer", "eos_id", "metadata", "tool"))
    if "index" not in plain:
        shards = tuple(_shard(s, kind) for s in plain["shards"])
        manifest = _build(shards, tokenizer, eos_id, metadata, tool)
        if manifest.id != plain["id"]:
            raise ValueError("id or totals differ from the shards listed")
        return manifest
    index = parse_index(plain["index"])
    groups = GroupedShards(index, kind, read_ranges, f"{os.path.dirname(where)}/{index.name}")
    return Manifest(hash_text(plain["id"]), dtype, kind[1], groups, columns, tokenizer, eos_id, metadata, tool)


def _shard(plain: Any, kind: tuple[str, int | None, tuple[ColumnSpec, ...], int]) -> ShardInfo:
    name, root = plain["name"], plain["root"]
    if not isinstance(name, str) or not layout.plain_name(name) or not isinstance(root, str):
        raise ValueError(f"shard name {str(name)[:80]!r}")
    size, documents, tokens = count(plain["bytes"]), count(plain["documents"]), count(plain["tokens"])
    return ShardInfo(name, size, documents, tokens, root, *kind)


def lines_before(metadata: dict[str, Any], shard: int) -> int:
    """Lines of its file that come before those which a shard counts: it may be made from a later part of a file.

    `line_bases` holds the numbers of shards at which this changes, and the lines.

    >>> [lines_before({"line_bases": {"shards": [2, 5], "lines": [70, 0]}}, shard) for shard in (1, 2, 4, 5)]
    [0, 70, 70, 0]
    """
    bases = metadata.get(LINE_BASES, {})
    try:
        at = bisect_right(bases["shards"], shard) - 1 if bases else -1
        return count(bases["lines"][at]) if at >= 0 else 0
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise layout.damaged("line_bases: shards and lines", repr(bases)[:200], NAME) from error
