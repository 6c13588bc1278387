"""Parquet files that are encrypted, damaged or lie: an error that names the file, never a crash or other values.

A crash would end the test run too, so what might crash runs in a child process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

import penstock as ps
from penstock.core.errors import DataError, PenstockError
from penstock.core.limits import LIMITS
from penstock.sources import parquet_footer
from penstock.sources.parquet import ParquetFiles
from tests.hostile.fuzzing import mutants


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keeps its keys in memory."""

    def __init__(self, _config: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _master: str) -> bytes:
        return key.hex().encode()

    def unwrap_key(self, wrapped: bytes, _master: str) -> bytes:
        return bytes.fromhex(bytes(wrapped).decode())


def encrypted(path: Path, *, plaintext_footer: bool) -> None:
    table = pa.table({"text": ["one", "two"], "secret": ["three", "four"]})
    factory = encryption.CryptoFactory(Keys)
    config = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["secret"]}, plaintext_footer=plaintext_footer
    )
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_an_encrypted_column_is_refused_only_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    encrypted(path, plaintext_footer=True)
    read = """
import sys, penstock as ps
from penstock.sources.parquet import ParquetFiles
for columns in (["text"], None, ["secret"]):
    try:
        print([row["text"] for row in ps.read_parquet(sys.argv[1], columns=columns, on_error="skip").peek()])
        print([t for c in ParquetFiles(sys.argv[1], columns).iterate() for t in c.texts])
    except ps.PenstockError as error:
        print(type(error).__name__, error)
"""
    found = run(read, path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("['one', 'two']\n['one', 'two']\n")
    assert found.stdout.count("encrypted cannot be read") == 2
    assert found.stdout.count(str(path)) == 2


def test_an_encrypted_footer_is_refused(tmp_path: Path) -> None:
    encrypted(tmp_path / "a.parquet", plaintext_footer=False)
    with pytest.raises(DataError, match=r"(?s)a\.parquet.*decrypt the file"):
        ps.read_parquet(tmp_path / "a.parquet")


def table() -> pa.Table:
    rows = range(60)
    return pa.table(
        {
            "text": [f"text {i}" for i in rows],
            "n": list(rows),
            "ids": [[i, i + 1] for i in rows],
            "s": [{"a": i, "b": ["x"]} for i in rows],
            "t": pa.array(rows, pa.timestamp("ns")),
            "d": pa.array(["x", "y", "z"] * 20).dictionary_encode(),
        }
    )


FUZZ = """
import sys, pathlib, numpy as np
from penstock.core.errors import PenstockError
from penstock.sources.parquet import ParquetFiles
from tests.hostile.fuzzing import mutants

folder, count, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sound = (folder / "sound.parquet").read_bytes()
length = int.from_bytes(sound[-8:-4], "little")
body, footer = sound[: -8 - length], sound[-8 - length : -8]

def made(part):  # damage behind a tail that still fits it
    changed = mutants(footer if part else body, count, seed)
    for m in changed:
        yield (body + m if part else m + footer) + (len(m) if part else length).to_bytes(4, "little") + b"PAR1"

def read(path):
    source = ParquetFiles(path)
    columns = source.read(np.arange(min(len(source), 1000)))
    texts = [text for chunk in source.iterate() for text in chunk.texts]
    return len(source), {name: column.tolist() for name, column in columns.items()}, texts

expected = read(folder / "sound.parquet")
counts = {"refused": 0, "same": 0, "other": 0}
path = folder / "mutant.parquet"
for part in (0, 1):
    for number, mutant in enumerate(made(part)):
        path.write_bytes(mutant)
        print(part, number, flush=True)
        try:
            result = read(path)
        except PenstockError as error:
            assert "mutant.parquet" in str(error), error
            counts["refused"] += 1
            continue
        same = result == expected
        counts["same" if same else "other"] += 1
        assert same or part, "other values although every page has a checksum"
print(counts)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_mutants_end_in_an_error_and_pages_are_checked(tmp_path: Path, seed: int) -> None:
    pq.write_table(table(), tmp_path / "sound.parquet", row_group_size=25, write_page_checksum=True)
    found = run(FUZZ, tmp_path, 250, seed)
    assert found.returncode == 0, found.stdout[-100:] + found.stderr[-2000:]
    assert "'refused': 0" not in found.stdout


def test_a_flipped_value_is_noticed_by_the_page_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    numbers = pa.table({"n": np.arange(1000)})
    pq.write_table(numbers, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[data.index(np.int64(500).tobytes())] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"(?s)CRC.*a\.parquet"):
        ps.read_parquet(path).peek(1)
    with pytest.raises(DataError, match="none among 1000"):  # the rows of its group
        ps.read_parquet(path, on_error="skip").peek(1)


def test_sizes_of_column_chunks_are_those_of_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, row_group_size=25)
    found = parquet_footer.column_sizes(str(path), path.stat().st_size, LIMITS)
    meta = pq.ParquetFile(path).metadata
    for number, sizes in enumerate(found):
        group = meta.row_group(number)
        for name, (stored, decoded) in sizes.items():
            parts = [group.column(i) for i in range(group.num_columns)]
            parts = [part for part in parts if part.path_in_schema.split(".")[0] == name]
            assert stored == sum(part.total_compressed_size for part in parts)
            assert decoded == sum(part.total_uncompressed_size for part in parts)
    assert len(found) == 3 and set(found[0]) == {"text", "n", "ids", "s", "t", "d"}


def test_a_damaged_footer_is_refused_by_its_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path)
    sound = path.read_bytes()
    length = int.from_bytes(sound[-8:-4], "little")
    for mutant in mutants(sound[-8 - length : -8], 500, 3):
        path.write_bytes(mutant + len(mutant).to_bytes(4, "little") + b"PAR1")
        with contextlib.suppress(PenstockError):
            parquet_footer.column_sizes(str(path), path.stat().st_size, LIMITS)


def test_row_groups_of_wrong_size_are_refused(tmp_path: Path) -> None:
    """Negative row counts, as fuzzers make them: 25 rows of a group become -25 (zigzag 50 to 49)."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(25)}), path)
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - length
    for place in [i for i in range(start, len(data) - 8) if data[i] == 50]:
        changed = bytearray(data)
        changed[place] = 49
        path.write_bytes(bytes(changed))
        with contextlib.suppress(PenstockError):
            source = ParquetFiles(path)
            assert source.read(np.arange(25))["n"].tolist() == list(range(25))
