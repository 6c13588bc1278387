"""What a file is by its first bytes, where its name does not say: a format of the registry, or refused by name."""

from __future__ import annotations

import re

import orjson

from penstock.core.errors import DataError, UsageError
from penstock.core.limits import LIMITS
from penstock.sources.compressed import kind_of, open_stream, read_up_to
from penstock.sources.tfrecord_head import begins_frame
from penstock.storage import filesystem

_HEAD = 4096
_LINES, _FEWEST_ROWS = 20, 3
_BOM = b"\xef\xbb\xbf"
# (offset, bytes, format of the registry)
_KNOWN = (
    (0, b"\xff\xd8\xff", "images"), (0, b"\x89PNG\r\n", "images"), (0, b"GIF8", "images"), (8, b"WEBP", "images"),
    (0, b"II*\0", "images"), (0, b"MM\0*", "images"), (4, b"ftypavif", "images"), (4, b"jP  \r\n", "images"),
    (8, b"WAVE", "audio"), (0, b"fLaC", "audio"), (0, b"OggS", "audio"), (0, b"ID3", "audio"), (8, b"AIFF", "audio"),
    (0, b"\xff\xfb", "audio"), (0, b".snd", "audio"), (0, b"caff", "audio"),
    (257, b"ustar", "tar"), (0, b"PAR1", "parquet"), (0, b"PARE", "parquet"), (0, b"ARROW1\0\0", "arrow"),
    (0, b"\x93NUMPY", "array"), (0, b"MMIDIDX\0", "megatron"),
)  # fmt: skip
_FOREIGN = {
    b"%PDF-": "a PDF document", b"PK\x03\x04": "a zip archive", b"SQLite format 3\0": "an SQLite database",
    b"\x89HDF\r\n": "an HDF5 file", b"\x80\x04\x95": "a pickle", b"\x80\x05\x95": "a pickle",
    b"\x7fELF": "a program", b"Obj\x01": "an Avro file", b"ORC": "an ORC file", b"BZh": "bzip2 data",
    b"\xfd7zXZ\0": "xz data", b"\x04\x22\x4d\x18": "LZ4 data", b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive", b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text",
}  # fmt: skip
_UNKNOWN = "binary data of an unknown format"
_FIX = {
    "UTF-16 text": "convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    **dict.fromkeys(("a zip archive", "a 7z archive", "a RAR archive"), "unpack it first"),
    **dict.fromkeys(("bzip2 data", "xz data", "LZ4 data"), "compress it with gzip or Zstandard instead, or unpack it"),
    "a pickle": "write it as JSON lines or Parquet; pickles run code and are never loaded",
}


def format_name(path: str, storage_options: filesystem.Options = None) -> str:
    """The registry's name for a file's content, looking into gzip and Zstandard; what is none of them is refused.

    Text that begins with a JSON object on a line of its own is "jsonl"; lines with equally many commas or tabs are
    "csv"; other text is "text".

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> texts = {"a": "It was a dark night.", "b": '{"text": "dark"}', "c": "id,text\\n1,dark\\n2,night"}
    >>> for name, text in texts.items(): _ = (folder / name).write_text(text)
    >>> [format_name(str(folder / name)) for name in "abc"]
    ['text', 'jsonl', 'csv']
    """
    head = _head(path, storage_options)
    name, foreign = _binary(head)
    if foreign:
        raise UsageError(
            "a file of a known format",
            got=foreign,
            where=path,
            fix=_FIX.get(foreign, "convert it to text, JSON lines or Parquet, or read it in Python: from_arrays()"),
        )
    return name or _text_format(head)


def is_array(path: str, storage_options: filesystem.Options = None) -> bool:
    """Whether a file is one JSON array, or one JSON object over several lines; not JSON lines."""
    try:
        head = _head(path, storage_options).removeprefix(_BOM).lstrip()
    except DataError:
        return False
    if head.startswith(b"{"):
        first, more, _ = head.partition(b"\n")
        return bool(more) and not _is_json(first)
    return head.startswith(b"[")


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def check_text(path: str, title: str, storage_options: filesystem.Options = None) -> None:
    """Raises if the content of a file that is named as text or JSON lines is something else."""
    try:
        head = _head(path, storage_options)
    except DataError:  # damaged compressed data: what reads the file says more
        return
    name, foreign = _binary(head)
    if name or (foreign and (foreign != _UNKNOWN or 20 * head.count(b"\0") > len(head))):  # a text may hold a few NULs
        raise UsageError(
            f"{title}, as the name of the file says",
            got=foreign or f"content of the format {name!r}",
            where=path,
            fix=_FIX.get(foreign or "", "rename it by what it holds, or convert it"),
        )


def _head(path: str, storage_options: filesystem.Options) -> bytes:
    with filesystem.open_read(path, storage_options) as file:
        raw = read_up_to(file, _HEAD)
    if not raw.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return raw
    stream = open_stream(path, kind_of(path, storage_options), LIMITS, storage_options)
    try:
        return read_up_to(stream, _HEAD)
    finally:
        stream.close()


def _binary(head: bytes) -> tuple[str, str]:
    """The registry's name of a binary format, or the title of a foreign one; two empty strings for text."""
    for at, magic, name in _KNOWN:
        if head[at : at + len(magic)] == magic:
            return name, ""
    if begins_frame(head[:12]):
        return "tfrecord", ""
    foreign = next((title for magic, title in _FOREIGN.items() if head.startswith(magic)), "")
    return "", foreign or (_UNKNOWN if b"\0" in head else "")


def _text_format(head: bytes) -> str:
    lines = head.removeprefix(_BOM).split(b"\n")
    lines = [line.strip() for line in (lines if len(head) < _HEAD else lines[:-1]) if line.strip()][:_LINES]
    if lines and lines[0].startswith(b"{") and _is_json(lines[0]):
        return "jsonl"
    if re.match(rb"\s*\[\s*\{\s*\"", head.removeprefix(_BOM)):
        return "json"
    counts = [{line.count(mark) for line in lines} for mark in (b",", b"\t")]
    even = any(len(count) == 1 and count != {0} for count in counts)
    return "csv" if even and len(lines) >= _FEWEST_ROWS else "text"
