"""Token files with foreign headers, odd sizes and damage: refused with the function that reads them, or read right."""

from __future__ import annotations

import gzip
import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import StoreError
from penstock.sources.dolma import open_dolma
from penstock.sources.megatron import open_megatron
from penstock.sources.nanogpt import open_nanogpt
from tests.hostile.fuzzing import fuzz
from tests.hostile.test_tar import archive, header, padded

TOKENS = np.arange(5000, dtype=np.uint16)


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, TOKENS)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, TOKENS)
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), file)
    return file.getvalue()


def llmc(magic: int, version: int = 1, tokens: int = 5000, body: bytes = TOKENS.tobytes()) -> bytes:
    return np.array([magic, version, tokens, *[0] * 253], "<i4").tobytes() + body


FOREIGN = {
    "np.save": (npy(), r"penstock\.open_tokens\(numpy\.load\(path"),
    "np.savez": (npz(), "a zip archive"),
    "llm.c evaluation": (llmc(20240522), "an evaluation set of llm.c"),
    "llm.c weights": (llmc(20240326, 3), "GPT-2 weights"),
    "llm.c tokenizer": (llmc(20240328), "a tokenizer of llm.c"),
    "Megatron index": (b"MMIDIDX\0\0" + bytes(100), r"penstock\.open_megatron\(prefix\)"),
    "gzip": (gzip.compress(TOKENS.tobytes() * 3), "gzip data"),
    "Parquet": (parquet(), r"penstock\.read_parquet\(path\)"),
    "safetensors": (struct.pack("<Q", 20) + b'{"__metadata__": {} }' + bytes(3), "safetensors"),
    "Japanese text": ("日本語のテキストです。\n".encode() * 9, "text: "),
    "Russian text": ("Это текст, а не числа.\n".encode() * 60, "text: "),
    "tar": (archive(header("a.txt", 4) + padded(b"text")), r"a tar archive"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(24), "HDF5"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("opener", [open_nanogpt, open_dolma])
def test_a_foreign_header_is_refused(tmp_path: Path, name: str, opener: Any) -> None:
    data, text = FOREIGN[name]
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"(?s)a bare array of tokens.*{text}") as caught:
        opener(path, dtype="uint16" if "text" in name else "uint8")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (llmc(20240520, 2), "version 1 after magic 20240520"),
        (llmc(20240520, 1, 4999), "4999 tokens of uint16, as the header says"),
        (llmc(20240520)[:-1], "a whole number of uint16 tokens"),
        (llmc(20240520)[:600], "a header of 1024 bytes"),
        (llmc(20240801, 7, 2500)[:-2], "a whole number of uint32 tokens"),
        (TOKENS.tobytes()[:-1], "a whole number of uint16 tokens"),
    ],
)
def test_odd_sizes_and_headers(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a.bin").write_bytes(data)
    with pytest.raises(StoreError, match=text):
        open_nanogpt(tmp_path / "a.bin")


def test_tokens_of_llmc_are_not_read_as_dolma(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(llmc(20240520))
    with pytest.raises(StoreError, match=r"penstock\.open_nanogpt\(path\)"):
        open_dolma(tmp_path / "a.npy", dtype="uint16")


def megatron(folder: Path) -> Path:
    lengths = np.array([3, 2, 4], "<i4")
    tokens = np.arange(9, dtype="<u2")
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype("<i8") * 2
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 3, 4)
    documents = np.arange(4, dtype="<i8")
    (folder / "a.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + documents.tobytes())
    (folder / "a.bin").write_bytes(tokens.tobytes())
    return folder / "a"


def test_the_bin_of_megatron_is_not_bare(tmp_path: Path) -> None:
    prefix = megatron(tmp_path)
    assert len(open_megatron(prefix)) == 3
    with pytest.raises(StoreError, match=r"(?s)tokens of Megatron: a\.idx is beside it.*open_megatron"):
        open_nanogpt(tmp_path / "a.bin")


def test_what_is_not_there_is_a_missing_file(tmp_path: Path) -> None:
    for opener in (ps.open_nanogpt, ps.open_dolma, ps.open_megatron):
        options = {"dtype": "uint16"} if opener is ps.open_dolma else {}
        with pytest.raises(FileNotFoundError, match="nothing"):
            opener(tmp_path / "nothing", **options)  # type: ignore[operator]
    TOKENS.tofile(tmp_path / "a.bin")
    with pytest.raises(FileNotFoundError, match=r"penstock\.open_nanogpt\(path\)"):
        ps.open_megatron(tmp_path / "a")
    (tmp_path / "b.idx").write_bytes(b"TNTIDX\0\0" + bytes(100))
    with pytest.raises(StoreError, match="legacy index"):
        ps.open_megatron(tmp_path / "b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.bin")
    with pytest.raises(ps.PenstockError, match="a regular file"):
        ps.open_nanogpt(tmp_path / "a.bin")


def rows(source: Any) -> object:
    return source.read(np.arange(len(source)))["input_ids"].tolist() if len(source) < 1000 else len(source)


@pytest.mark.parametrize("part", ["a.idx", "a.bin"])
def test_mutants_of_megatron(tmp_path: Path, part: str) -> None:
    prefix = megatron(tmp_path)

    def read(data: bytes) -> object:
        (tmp_path / part).write_bytes(data)
        return rows(open_megatron(prefix))

    assert fuzz(read, (tmp_path / part).read_bytes(), 500)["refused"]


def test_mutants_of_nanogpt(tmp_path: Path) -> None:
    def read(data: bytes) -> object:
        (tmp_path / "a.bin").write_bytes(data)
        return rows(open_nanogpt(tmp_path / "a.bin", eos_id=0))

    assert fuzz(read, llmc(20240520, 1, 8, np.array([1, 2, 0, 3, 0, 4, 5, 6], "<u2").tobytes()), 500)["refused"]
    fuzz(read, np.array([1, 2, 0, 3, 0, 4, 5, 6], "<u2").tobytes(), 200)


def test_mutants_of_dolma(tmp_path: Path) -> None:
    np.arange(9, dtype="<u4").tofile(tmp_path / "a.npy")
    plain = b"0,3,x\n3,5,y\n5,9,z\n"

    def read(data: bytes, name: str) -> object:
        (tmp_path / name).write_bytes(data)
        return rows(open_dolma(tmp_path / "a.npy", dtype="uint32", ends=tmp_path / name))

    assert fuzz(lambda data: read(data, "a.csv"), plain, 400)["refused"]
    assert fuzz(lambda data: read(data, "a.csv.gz"), gzip.compress(plain, mtime=0), 400)["refused"]
