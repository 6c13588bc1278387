"""Views of Megatron pairs, against files written here byte by byte from the published layout."""

from __future__ import annotations

import pickle
import shutil
import struct
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import StoreError
from penstock.sources.base import TokenSource
from penstock.sources.megatron import open_megatron

CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def write(
    prefix: Path, sequences: list[list[int]], documents: list[int], code: int = 8, modes: bool = False, version: int = 1
) -> Path:
    """`documents` are sequence numbers at which documents begin, and the number of sequences."""
    kind = np.dtype(CODES[code])
    lengths = np.array([len(s) for s in sequences], "<i4")
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * kind.itemsize
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, len(sequences), len(documents))
    index = head + lengths.tobytes() + pointers.astype("<i8").tobytes() + np.array(documents, "<i8").tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(index + (bytes(len(sequences)) if modes else b""))
    prefix.with_name(prefix.name + ".bin").write_bytes(
        b"".join(np.array(s, kind.newbyteorder("<")).tobytes() for s in sequences)
    )
    return prefix


def test_a_known_pair_byte_for_byte(tmp_path: Path) -> None:
    prefix = tmp_path / "known"
    (tmp_path / "known.idx").write_bytes(
        bytes.fromhex(
            "4d4d49444944580000" "0100000000000000" "08" "0300000000000000" "0300000000000000"
            "02000000" "01000000" "03000000"
            "0000000000000000" "0400000000000000" "0600000000000000"
            "0000000000000000" "0200000000000000" "0300000000000000"
        )
    )  # fmt: skip
    (tmp_path / "known.bin").write_bytes(bytes.fromhex("0a00 0b00 0c00 0d00 0e00 ffff"))
    source = open_megatron(prefix)
    assert isinstance(source, TokenSource)
    assert source.dtype == np.uint16
    assert source.read(np.array([1, 0]))["input_ids"].tolist() == [[13, 14, 65535], [10, 11, 12]]
    assert source.gather(np.array([2, 0]), 3).tolist() == [[12, 13, 14], [10, 11, 12]]
    assert source.documents_at(np.arange(6)).tolist() == [0, 0, 0, 1, 1, 1]
    assert source.locate(1) == {"file": f"{prefix}.bin", "document": 1, "start": 3, "tokens": 3, "byte": 6}
    assert source.describe()["boundaries"] == "document index of known.idx"


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("modes", [False, True])
def test_every_type_code(tmp_path: Path, code: int, modes: bool) -> None:
    source = open_megatron(write(tmp_path / "a", [[1, 2], [3], [4, 5, 6]], [0, 1, 3], code, modes))
    assert source.dtype == np.dtype(CODES[code])
    assert source.read(np.array([1, 0]))["input_ids"].tolist() == [[3, 4, 5, 6], [1, 2]]


def test_many_documents_some_empty(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 65536, n).tolist() for n in rng.integers(0, 9, 500)]
    documents = [0, *sorted(rng.integers(0, 501, 120).tolist()), 500]
    prefix = write(tmp_path / "a", sequences, documents)
    expected = [list(chain(*sequences[a:b])) for a, b in pairwise(documents)]
    for source in (open_megatron(prefix), pickle.loads(pickle.dumps(open_megatron(f"{prefix}.bin")))):
        assert source.read(np.arange(len(expected)))["input_ids"].tolist() == expected
        sizes = [len(d) for d in expected]
        assert source.starts(np.arange(len(expected) + 1)).tolist() == np.cumsum([0, *sizes]).tolist()
        at = np.arange(source.n_tokens)
        assert source.documents_at(at).tolist() == np.repeat(np.arange(len(expected)), sizes).tolist()


def test_an_empty_set(tmp_path: Path) -> None:
    source = open_megatron(write(tmp_path / "a", [], [0]))
    assert (len(source), source.n_tokens) == (0, 0)
    assert source.fingerprint()


def patched(prefix: Path, at: int, data: bytes) -> Path:
    path = prefix.with_name(prefix.name + ".idx")
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(bytes(raw))
    return prefix


@pytest.mark.parametrize(
    ("at", "data", "text"),
    [
        (0, b"X", "begins with MMIDIDX"),
        (9, struct.pack("<Q", 2), "index version 1\n.*version 2"),
        (17, b"\x07", r"integer tokens: 1 \(uint8\).*\n.*code 7 float32"),
        (17, b"\x63", "code 99"),
        (18, struct.pack("<Q", 2**60), "bytes for 1152921504606846976 sequences"),
        (26, struct.pack("<Q", 2**61), "document entries"),
        (34, struct.pack("<i", 9), "sequences one right after another\n.*sequence 1"),
        (34, struct.pack("<i", -1), "sequence 0: length -1"),
        (46, struct.pack("<q", 8), "sequence 0: length 2, pointer 8"),
        (70, struct.pack("<q", 1), "a document index from 0 to 3"),
        (78, struct.pack("<q", 7), "non-decreasing"),
        (86, struct.pack("<q", 2), "a document index from 0 to 3"),
    ],
)
def test_lies_in_the_index_are_refused(tmp_path: Path, at: int, data: bytes, text: str) -> None:
    prefix = patched(write(tmp_path / "a", [[1, 2], [3], [4]], [0, 1, 3]), at, data)
    with pytest.raises(StoreError, match=text) as caught:
        open_megatron(prefix)
    assert caught.value.where == f"{prefix}.idx"


def test_truncation_of_either_file(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", [[1, 2], [3], [4]], [0, 1, 3])
    for suffix in (".idx", ".bin"):
        path = Path(f"{prefix}{suffix}")
        data = path.read_bytes()
        for cut in range(len(data)):
            path.write_bytes(data[:cut])
            with pytest.raises(StoreError):
                open_megatron(prefix)
        path.unlink()
        with pytest.raises(FileNotFoundError, match="does not exist"):
            open_megatron(prefix)
        path.write_bytes(data)
    open_megatron(prefix)


def test_the_fingerprint_is_of_content_and_a_changed_size_is_noticed(tmp_path: Path) -> None:
    one = open_megatron(write(tmp_path / "a", [[1, 2], [3]], [0, 1, 2]))
    (tmp_path / "far").mkdir()
    for suffix in ("idx", "bin"):
        shutil.copy(tmp_path / f"a.{suffix}", tmp_path / "far" / f"b.{suffix}")
    assert open_megatron(tmp_path / "far" / "b").fingerprint() == one.fingerprint()
    assert open_megatron(write(tmp_path / "c", [[1, 2], [3]], [0, 2])).fingerprint() != one.fingerprint()
    assert open_megatron(write(tmp_path / "d", [[1, 2], [4]], [0, 1, 2])).fingerprint() != one.fingerprint()
    (tmp_path / "a.bin").write_bytes(b"\0" * 8)
    with pytest.raises(StoreError, match="as when it was opened"):
        one.read(np.array([0]))
