"""What a file is by its first bytes, where its name does not say: a format of the registry, or refused by name."""

from __future__ import annotations

from penstock.core.errors import UsageError
from penstock.sources.compressed import read_up_to
from penstock.storage import filesystem

_HEAD = 4096
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
    b"\x89HDF\r\n": "an HDF5 file", b"\x80\x04\x95": "a pickle", b"\x7fELF": "a program", b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file", b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text",
}  # fmt: skip
_FIX = {
    "UTF-16 text": "convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
    "a zip archive": "unpack it first",
    "a pickle": "write it as JSON lines or Parquet; pickles run code and are never loaded",
}


def format_name(path: str) -> str:
    """The registry's name for a file's content: "text" if it could be text; what is neither is refused.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "corpus")
    >>> _ = path.write_text("It was a dark night.")
    >>> format_name(str(path))
    'text'
    """
    with filesystem.open_read(path) as file:
        head = read_up_to(file, _HEAD)
    for at, magic, name in _KNOWN:
        if head[at : at + len(magic)] == magic:
            return name
    foreign = next((title for magic, title in _FOREIGN.items() if head.startswith(magic)), "")
    if b"\0" in head and not foreign and not head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        foreign = "binary data of an unknown format"
    if foreign:
        raise UsageError(
            "a file of a known format",
            got=foreign,
            where=path,
            fix=_FIX.get(foreign, "convert it to text, JSON lines or Parquet, or read it in Python: from_arrays()"),
        )
    return "text"
