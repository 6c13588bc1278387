"""The byte layout of a shard file, and the checks of its header before any number in it is used.

    0        superblock, 4 KiB: magic, version, page size (for tools that look at the first bytes)
    4096     tokens, raw little-endian u8, u16 or u32
             document offsets (u32, or u64 past 2**32 tokens), then each column; every section starts on 4 KiB
    tail     one xxh3-64 per page of everything above, then the header: JSON with counts, sections, metadata
    footer   64 bytes: magic, version, sizes, the root hash (xxh3-128 of the tail), xxh3-64 of the footer itself

The footer covers itself, the root covers the tail, the tail covers every page: any flipped bit is detected. Opening
reads the footer and the tail, 8 bytes per page. The default page of 64 KiB is about what an operating system reads
ahead anyway, so that checking a page at its first use does not multiply cold reads; xxh3 runs at memory speed.
xxh3 detects accidents; it does not stop someone who forges a shard.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from penstock.core.errors import StoreError, UsageError

VERSION = 1
MAGIC = b"PENSTOCK"
FOOTER_MAGIC = b"KCOTSNEP"
ALIGN = 4096
PAGE_BYTES = 1 << 16
FOOTER_BYTES = 64
MAX_HEADER_BYTES = 1 << 24  # the JSON of one shard
TOKEN_DTYPES = ("<u1", "<u2", "<u4")
COLUMN_DTYPES = (
    *TOKEN_DTYPES,
    "<u8",
    "<i1",
    "<i2",
    "<i4",
    "<i8",
    "<f2",
    "<f4",
    "<f8",
    "|b1",
)

_SUPERBLOCK = struct.Struct("<8sII")
_FOOTER = struct.Struct("<8sIIQQQ16s")


@dataclass(frozen=True)
class Section:
    """An array of items of one dtype in the file."""

    name: str
    dtype: str
    offset: int
    items: int

    @property
    def bytes(self) -> int:
        return self.items * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ColumnSpec:
    """A column with one row per document: of fixed `shape`, or ragged (rows of different lengths, `shape` empty)."""

    name: str
    dtype: str
    ragged: bool = False
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Header:
    """The header in the tail of a shard, checked against the size of the file."""

    documents: int
    tokens: int
    vocab_size: int | None
    page_bytes: int
    columns: tuple[ColumnSpec, ...]
    sections: tuple[Section, ...]
    metadata: dict[str, Any] = field(default_factory=dict)

    def section(self, name: str) -> Section:
        return next(s for s in self.sections if s.name == name)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.section("tokens").dtype)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Returns the smallest dtype that holds every id below `vocab_size`.

    >>> token_dtype(256).name, token_dtype(50257).name, token_dtype(100_000).name
    ('uint8', 'uint16', 'uint32')
    """
    if not 1 <= vocab_size <= 1 << 32:
        raise UsageError(
            "a vocabulary size in [1, 2**32]",
            got=str(vocab_size),
            where="token store",
            fix="pass the tokenizer's number of ids",
        )
    return np.dtype("<u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


def canonical_json(value: Any) -> bytes:
    """Encodes a JSON value canonically: sorted keys, no spaces, ASCII.

    >>> canonical_json({"b": [1, 2], "a": None})
    b'{"a":null,"b":[1,2]}'
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise UsageError(
            "metadata made of plain JSON values",
            got=str(error),
            where="token store metadata",
            fix="use only dict with text keys, list, str, int, finite float, bool and None",
        ) from error


def superblock(page_bytes: int) -> bytes:
    """The first 4 KiB of a shard."""
    return _SUPERBLOCK.pack(MAGIC, VERSION, page_bytes).ljust(ALIGN, b"\0")


def plan_sections(
    documents: int,
    tokens: int,
    dtype: np.dtype[Any],
    columns: Sequence[ColumnSpec],
    ragged_items: dict[str, int],
) -> tuple[Section, ...]:
    """Computes the offset of each section. Writer and reader both do, so a file cannot place a section elsewhere."""
    wanted: list[tuple[str, str, int]] = [("tokens", _dtype_name(dtype), tokens)]
    wanted.append(("offsets", offset_dtype(tokens), documents + 1))
    for spec in columns:
        if spec.ragged:
            items = ragged_items[spec.name]
            wanted.append((f"column:{spec.name}:offsets", offset_dtype(items), documents + 1))
        else:
            items = documents * int(np.prod(spec.shape, dtype=object))
        wanted.append((f"column:{spec.name}", spec.dtype, items))
    sections: list[Section] = []
    at = ALIGN
    for name, kind, items in wanted:
        sections.append(Section(name, kind, at, items))
        at = align(at + sections[-1].bytes)
    return tuple(sections)


def align(position: int) -> int:
    """Rounds up to a multiple of 4 KiB."""
    return -(-position // ALIGN) * ALIGN


def offset_dtype(total: int) -> str:
    """Returns the dtype of offsets: 4 bytes if they fit, else 8."""
    return "<u4" if total < 1 << 32 else "<u8"


def _dtype_name(dtype: np.dtype[Any]) -> str:
    name = dtype.newbyteorder("<").str
    return "<" + name[1:] if name[1:] in ("u1", "i1") else name


def dtype_name(dtype: Any, allowed: Sequence[str], what: str) -> str:
    """Returns the stored name of a dtype, or raises an error that lists the allowed ones."""
    name = _dtype_name(np.dtype(dtype))
    if name not in allowed:
        raise UsageError(
            f"{what} with a dtype that a store supports: {', '.join(np.dtype(a).name for a in allowed)}",
            got=np.dtype(dtype).name,
            where="token store",
            fix="convert it first with .astype(...)",
        )
    return name


def pack_tail(header: Header, pages: np.ndarray[Any, Any], body_bytes: int) -> tuple[bytes, bytes]:
    """Encodes the bytes after the body (tail and footer). Returns them and the root hash."""
    plain = {
        "columns": [
            {
                "dtype": c.dtype,
                "name": c.name,
                "ragged": c.ragged,
                "shape": list(c.shape),
            }
            for c in header.columns
        ],
        "documents": header.documents,
        "dtype": header.section("tokens").dtype,
        "metadata": header.metadata,
        "ragged_items": {c.name: header.section(f"column:{c.name}").items for c in header.columns if c.ragged},
        "tokens": header.tokens,
        "vocab_size": header.vocab_size,
    }
    encoded = canonical_json(plain)
    if len(encoded) > MAX_HEADER_BYTES:
        raise UsageError(
            f"metadata below {MAX_HEADER_BYTES} bytes",
            got=f"{len(encoded)} bytes",
            where="token store metadata",
            fix="keep large tables in a column",
        )
    tail = pages.astype("<u8").tobytes() + encoded
    root = xxhash.xxh3_128_digest(tail)
    size = body_bytes + len(tail) + FOOTER_BYTES
    front = _FOOTER.pack(FOOTER_MAGIC, VERSION, header.page_bytes, size, body_bytes, len(pages), root)
    return tail + front + xxhash.xxh3_64_digest(front), root


def read_tail(file: Any, size: int, where: str) -> tuple[Header, np.ndarray[Any, Any], bytes]:
    """Reads and checks footer and tail of an open binary file. Returns header, page hashes and root hash.

    Every size is checked against the size of the file before memory is allocated.
    """
    if size < ALIGN + FOOTER_BYTES:
        raise damaged(f"a shard of at least {ALIGN + FOOTER_BYTES} bytes", f"{size} bytes", where)
    file.seek(size - FOOTER_BYTES)
    raw = file.read(FOOTER_BYTES)
    front, seal = raw[: _FOOTER.size], raw[_FOOTER.size :]
    magic, version, page_bytes, said, body, pages, root = _FOOTER.unpack(front)
    if magic != FOOTER_MAGIC or xxhash.xxh3_64_digest(front) != seal:
        raise damaged(
            "an intact footer in the last 64 bytes",
            "other bytes: truncated, damaged, or not a shard",
            where,
        )
    if version != VERSION:
        raise StoreError(
            f"shard format version {VERSION}",
            got=f"version {version}",
            where=where,
            fix="read it with the release of penstock that wrote it, or write the store again",
        )
    if said != size:
        raise damaged(f"a file of {said} bytes, as its footer says", f"{size} bytes", where)
    header_bytes = size - FOOTER_BYTES - body - 8 * pages
    if (
        not valid_page_size(page_bytes)
        or body < ALIGN
        or pages != -(-body // page_bytes)
        or not 0 < header_bytes <= MAX_HEADER_BYTES
    ):
        raise damaged(
            "sizes in the footer that fit the file",
            f"body {body}, {pages} pages of {page_bytes}",
            where,
        )
    file.seek(body)
    tail = file.read(8 * pages + header_bytes)
    if xxhash.xxh3_128_digest(tail) != root:
        raise damaged(
            f"a tail with root hash {root.hex()}",
            xxhash.xxh3_128_hexdigest(tail),
            where,
        )
    hashes = np.frombuffer(tail, "<u8", pages)
    return _parse_header(tail[8 * pages :], page_bytes, body, where), hashes, root


def _parse_header(encoded: bytes, page_bytes: int, body: int, where: str) -> Header:
    try:
        plain = json.loads(encoded)
        columns = tuple(parse_column(c) for c in plain["columns"])
        ragged = {str(k): count(v) for k, v in plain["ragged_items"].items()}
        documents, tokens = count(plain["documents"]), count(plain["tokens"])
        vocab = None if plain["vocab_size"] is None else count(plain["vocab_size"])
        if plain["dtype"] not in TOKEN_DTYPES or len({c.name for c in columns}) != len(columns):
            raise ValueError("dtype of the tokens or names of the columns")
        sections = plan_sections(documents, tokens, np.dtype(plain["dtype"]), columns, ragged)
        metadata = plain["metadata"]
        if not isinstance(metadata, dict):
            raise TypeError("metadata is not an object")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(
            "a header this version understands",
            f"{type(error).__name__}: {error}",
            where,
        ) from error
    last = sections[-1]
    if align(last.offset + last.bytes) != body:
        raise damaged(
            "counts in the header that fit the file",
            f"{documents} documents and {tokens} tokens in {body} bytes",
            where,
        )
    return Header(documents, tokens, vocab, page_bytes, columns, sections, metadata)


def parse_column(plain: Any) -> ColumnSpec:
    """Parses the JSON of a column, or raises ValueError."""
    name, kind, ragged = plain["name"], plain["dtype"], plain["ragged"]
    shape = tuple(count(n) for n in plain["shape"])
    if not isinstance(name, str) or kind not in COLUMN_DTYPES or not isinstance(ragged, bool) or len(shape) > 8:
        raise ValueError(f"column {name!r}")
    return ColumnSpec(name, kind, ragged, shape)


def count(value: Any) -> int:
    """Returns `value` if it is an int in [0, 2**63), or raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"not a count: {str(value)[:40]}")
    return value


_PLAIN = re.compile(r"[^/\\:\0]+").fullmatch


def plain_name(name: str) -> bool:
    """Whether a name is a plain file name, without a folder.

    >>> plain_name("00000.tokens"), plain_name("../x"), plain_name("a/b"), plain_name("")
    (True, False, False, False)
    """
    return _PLAIN(name) is not None and name not in (".", "..")


def damaged(expected: str, got: str, where: str) -> StoreError:
    """Creates the error for bytes that differ from what was written."""
    return StoreError(
        expected,
        got=got,
        where=where,
        fix="copy this file again from its source, or write the store again; `penstock verify` lists all damage",
    )


def valid_page_size(page_bytes: int) -> bool:
    """Whether this is a valid page size: a power of two in [4 KiB, 1 GiB]."""
    return ALIGN <= page_bytes <= 1 << 30 and page_bytes & (page_bytes - 1) == 0


def page_spans(first: int, stop: int, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields start and stop of each page of the bytes [first, stop); `first` is on a page boundary."""
    for at in range(first, stop, page_bytes):
        yield at, min(at + page_bytes, stop)
