"""Views of Dolma and OLMo arrays with and without their boundary files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import StoreError, UsageError
from penstock.sources.base import TokenSource
from penstock.sources.dolma import open_dolma


def write(folder: Path, name: str, docs: list[list[int]], dtype: str = "<u4") -> tuple[Path, Path]:
    tokens, rows = [], []
    for number, doc in enumerate(docs):
        rows.append(f"{len(tokens)},{len(tokens) + len(doc)},id-{number},src/{name}.jsonl,{number}")
        tokens += doc
    np.array(tokens, dtype).tofile(folder / f"{name}.npy")
    with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
        file.write("".join(row + "\n" for row in rows))
    return folder / f"{name}.npy", folder / f"{name}.csv.gz"


def test_several_files_with_boundaries(tmp_path: Path) -> None:
    docs = [[[1, 2, 0], [100_000, 0]], [[7]], [[], [8, 9]]]
    pairs = [write(tmp_path, f"part-{k}", d) for k, d in enumerate(docs)]
    source = open_dolma([p for p, _ in pairs], dtype="uint32", ends=[e for _, e in pairs])
    assert isinstance(source, TokenSource)
    assert source.read(np.arange(len(source)))["input_ids"].tolist() == [d for part in docs for d in part]
    assert source.gather(np.array([3, 0]), 4).tolist() == [[100_000, 0, 7, 8], [1, 2, 0, 100_000]]
    assert source.documents_at(np.array([0, 5, 6])).tolist() == [0, 2, 4]
    assert source.locate(2)["file"].endswith("part-1.npy")
    assert source.describe()["boundaries"] == "start,end in the CSV of each file"
    assert source.describe()["files"] == 3


def test_without_boundaries_and_with_a_named_id(tmp_path: Path) -> None:
    path, ends = write(tmp_path, "a", [[1, 0], [2, 0]], "<u2")
    whole = open_dolma(path, dtype=np.uint16)
    assert len(whole) == 1
    assert whole.describe()["boundaries"].startswith("unknown: each file is one document")
    asked = open_dolma(path, dtype=np.uint16, eos_id=0)
    assert asked.read(np.arange(2))["input_ids"].tolist() == [[1, 0], [2, 0]]
    known = open_dolma(path, dtype=np.uint16, ends=ends)
    assert len({s.fingerprint() for s in (whole, asked, known)}) == 3


def test_the_type_is_never_guessed(tmp_path: Path) -> None:
    path, _ = write(tmp_path, "a", [[1]])
    with pytest.raises(UsageError, match=r"dtype, the type of the tokens[\s\S]*never guessed"):
        open_dolma(path)


def test_the_wrong_type_does_not_fit_the_boundaries(tmp_path: Path) -> None:
    path, ends = write(tmp_path, "a", [[1, 2], [3, 4]])
    with pytest.raises(StoreError, match=r"documents that cover all 8 tokens[\s\S]*check its dtype"):
        open_dolma(path, dtype="uint16", ends=ends)
    with pytest.raises(StoreError, match="follow one another in 2 tokens"):
        open_dolma(path, dtype="uint64", ends=ends)


@pytest.mark.parametrize(
    ("text", "line"),
    [("0,2\n3,4\n", 2), ("1,4\n", 1), ("0,2\n2,1\n", 2), ("x,2\n", 1), ("0\n", 1), ("0,9\n", 1), ("0,2\n", 1)],
)
def test_bad_boundaries_are_named_with_their_line(tmp_path: Path, text: str, line: int) -> None:
    path, _ = write(tmp_path, "a", [[1, 2], [3, 4]])
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(StoreError) as caught:
        open_dolma(path, dtype="uint32", ends=tmp_path / "bad.csv")
    assert caught.value.where == f"{tmp_path / 'bad.csv'}, line {line}"


def test_damaged_or_missing_boundary_files(tmp_path: Path) -> None:
    path, ends = write(tmp_path, "a", [[1, 2], [3, 4]])
    data = ends.read_bytes()
    for cut in (0, 5, len(data) // 2, len(data) - 1):
        ends.write_bytes(data[:cut])
        with pytest.raises(StoreError, match=r"a\.csv\.gz"):
            open_dolma(path, dtype="uint32", ends=ends)
    ends.unlink()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_dolma(path, dtype="uint32", ends=ends)
    with pytest.raises(UsageError, match="one boundary file for each of 1"):
        open_dolma(path, dtype="uint32", ends=[])


def test_a_bomb_of_empty_documents_is_refused(tmp_path: Path) -> None:
    path, ends = write(tmp_path, "a", [[1, 2]])
    with gzip.open(ends, "wb") as file:
        file.write(b"0,0\n" * ((1 << 20) + 100))
    with pytest.raises(StoreError, match="a million more documents than tokens"):
        open_dolma(path, dtype="uint32", ends=ends)


def test_a_real_npy_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint32))
    with pytest.raises(StoreError, match=r"a bare array[\s\S]*mmap_mode='r'"):
        open_dolma(tmp_path / "a.npy", dtype="uint32")
