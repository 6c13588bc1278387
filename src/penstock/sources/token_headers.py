"""First bytes of files that are not bare token arrays: refused, with the function that reads them.

A bare array has no header, so any bytes could be tokens. The marks below are long enough that real tokens do not begin
with them by chance, and gzip, whose mark is short, is tried.
"""

from __future__ import annotations

import codecs
import os
import zlib

from penstock.core.errors import StoreError
from penstock.storage import filesystem, objects

_NPY = "open_tokens(numpy.load(path, mmap_mode='r'))"
_PLAIN = "decompress it first"
_OTHER = "convert it to bare tokens, or read it with the library that wrote it"
# (bytes, what such a file is, how to read it)
_MARKS = (
    (b"\x93NUMPY", "a real .npy file with a header, as np.save writes it", _NPY),
    (b"MMIDIDX\0", "an index of Megatron", "open_megatron(prefix)"),
    (b"TNTIDX\0\0", "a legacy index of Megatron or fairseq", _OTHER),
    (b"\x28\xb5\x2f\xfd", "Zstandard data", _PLAIN), (b"\xfd7zXZ\0", "xz data", _PLAIN),
    (b"\x04\x22\x4d\x18", "LZ4 data", _PLAIN), (b"PK\x03\x04", "a zip archive (.npz, or a PyTorch file)", _OTHER),
    (b"PAR1", "a Parquet file", "read_parquet(path)"), (b"PARE", "an encrypted Parquet file", _OTHER),
    (b"ARROW1\0\0", "an Arrow file", "from_hf(datasets.Dataset.from_file(path))"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", _OTHER), (b"SQLite format 3\0", "an SQLite database", _OTHER),
    (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19", "a legacy PyTorch file", _OTHER), (b"GGUF", "model weights", _OTHER),
    (b"\x80\x04\x95", "a pickle", _OTHER), (b"\x80\x05\x95", "a pickle", _OTHER),
    (b"\x89PNG\r\n\x1a\n", "an image", "read_images(folder)"), (b"%PDF-", "a PDF document", _OTHER),
    (b"\x7fELF", "a program", _OTHER), (b"Obj\x01", "an Avro file", _OTHER),
)  # fmt: skip
# int32 marks of llm.c: headers of 256 int32, of which only token files are read.
_LLMC = {
    20240520: "tokens of llm.c (uint16)", 20240801: "tokens of llm.c (uint32)",
    20240522: "an evaluation set of llm.c", 20240326: "GPT-2 weights of llm.c", 20240803: "Llama weights of llm.c",
    20240327: "a debug state of llm.c", 20240328: "a tokenizer of llm.c", 20240527: "an optimiser state of llm.c",
}  # fmt: skip
HEAD_BYTES = 1024
_FEWEST_BYTES = 64
LLMC_TOKENS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
"""Version and dtype of llm.c's token files, by their mark."""


def check_bare(path: str | os.PathLike[str], head: bytes, width: int, options: filesystem.Options = None) -> None:
    """Raises if a file that begins with `head` is not a bare array of tokens of `width` bytes."""
    for mark, title, reader in _MARKS:
        if head.startswith(mark):
            raise _foreign(path, title, reader)
    number = int.from_bytes(head[:4], "little")
    if number in _LLMC:
        raise _foreign(path, _LLMC[number], "open_nanogpt(path)" if number in LLMC_TOKENS else _OTHER)
    if head[:3] == b"\x1f\x8b\x08" and _inflates(head):
        raise _foreign(path, "gzip data", _PLAIN)
    length = int.from_bytes(head[:8], "little")
    if head[8:10] == b'{"' and length < 1 << 27:
        raise _foreign(path, "a safetensors file", _OTHER)
    if head[257:262] == b"ustar":
        raise _foreign(path, "a tar archive", "read_tar(path)")
    if width > 1 and _is_text(head):
        raise _foreign(path, f"text: {head[:24]!r}...", "read_text(path), read_jsonl(path)")
    index = os.path.splitext(os.fspath(path))[0] + ".idx"
    if objects.exists(index, options) if filesystem.scheme(index) else os.path.isfile(index):
        with filesystem.open_read(index, options) as file:
            if file.read(8) == b"MMIDIDX\0":
                raise _foreign(
                    path, f"tokens of Megatron: {os.path.basename(index)} is beside it", "open_megatron(prefix)"
                )


def _is_text(head: bytes) -> bool:
    """Whether all of it is printable UTF-8: of tokens of two bytes or more, hundreds would have to be so by chance."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # a character cut off at the end is left out
    except UnicodeDecodeError:
        return False
    return len(head) >= _FEWEST_BYTES and all(c.isprintable() or c.isspace() for c in text)


def _inflates(head: bytes) -> bool:
    try:
        zlib.decompressobj(wbits=31).decompress(head)
    except zlib.error:
        return False
    return True


def _foreign(path: str | os.PathLike[str], title: str, reader: str) -> StoreError:
    return StoreError(
        "a bare array of tokens, without a header",
        got=title,
        where=os.fspath(path),
        fix=reader if reader in (_PLAIN, _OTHER) else f"penstock.{reader}",
    )
