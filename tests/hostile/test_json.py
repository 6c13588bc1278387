"""Every oddity of JSON, as a line of a file: read as written, or refused with the true reason."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import BadRecords, DataError, RecordError
from penstock.sources.json_fields import load
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.records import records_of
from tests.hostile.fuzzing import fuzz

READ: dict[str, Any] = {
    '{"v": 9223372036854775807}': 2**63 - 1,
    '{"v": -9223372036854775808}': -(2**63),
    '{"v": 18446744073709551615}': 2**64 - 1,
    '{"v": 18446744073709551616}': 2**64,
    '{"v": -9223372036854775809}': -(2**63) - 1,
    '{"v": 123456789012345678901234567890}': 123456789012345678901234567890,
    '{"v": [1, {"w": 100000000000000000001}]}': [1, {"w": 10**20 + 1}],
    '{"v": 1e30}': 1e30,
    '{"v": "12345678901234567890123"}': "12345678901234567890123",
    '{"v": 1, "v": 2}': 2,
    '{"v": "\\u0000"}': "\0",
    '{"v": "\\ud83d\\ude00"}': "😀",
    '{"v": -0}': 0,
    '{"v": 1.7976931348623157e308}': 1.7976931348623157e308,
    '{"v": {"": 1}}': {"": 1},
    ' \t{"v": 1} ': 1,
}
REFUSED = {
    '{"v": NaN}': "write null, NaN is not JSON",
    '{"v": [1, -Infinity]}': "write null, -Infinity is not JSON",
    '{"v": 1e999}': "infinity",
    '{"v": "\\ud800"}': "surrogate",
    '{"v": "\\udc00\\ud800"}': "surrogate",
    '{"v": 01}': "leading zero",
    '{"v": +1}': "valid JSON",
    '{"v": 1.}': "valid JSON",
    '{"v": .5}': "valid JSON",
    '{"v": 0x10}': "valid JSON",
    "{'v': 1}": "valid JSON",
    '{"v": 1,}': "valid JSON",
    '{"v": 1} {"v": 2}': "valid JSON",
    '{"v": "\t"}': "valid JSON",
    '{"v": "': "valid JSON",
    '{"v": tru}': "valid JSON",
    '// c\n{"v": 1}': "valid JSON",
    "[1]": "a JSON object on each line",
    "null": "a JSON object on each line",
    '{"v": ' + "[" * 70 + "]" * 70 + "}": "levels",
    '{"v": ' + "[" * 5000 + "]" * 5000 + "}": "valid JSON",
    '{"v": ' + "1" * 5000 + "}": "infinity|exactly",
}


@pytest.mark.parametrize("text", READ)
def test_read_as_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    assert json.loads(text)["v"] == READ[text]
    assert load(text.encode(), "")["v"] == READ[text]
    for value in (
        ps.read_jsonl(path, field=None, types={"v": "object"}).peek()[0]["v"],
        records_of(str(path)).read([0])[0]["v"],
    ):
        assert value == READ[text] and type(value) is type(READ[text])


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_refused_with_the_reason_even_as_the_only_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=REFUSED[text]) as caught:
        ps.read_jsonl(path, field=None, types={"v": "object"}).peek()
    assert "a.jsonl, line 1" in str(caught.value)
    record = records_of(str(path)).read([0])[0]
    assert isinstance(record, RecordError)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"v": "\xff"}\n')
    with pytest.raises(DataError, match="JSON in UTF-8"):
        ps.read_jsonl(tmp_path / "a.jsonl", field=None)


@pytest.mark.parametrize(
    ("first", "second", "got"),
    [
        ("1", "18446744073709551615", "18446744073709551615, beyond 64-bit signed integers"),
        ("1", "123456789012345678901", "beyond 64-bit signed integers"),
        ("1", "-9223372036854775809", "beyond 64-bit signed integers"),
        ("1", "1.5", "1.5, which is no integer"),
        ("[1]", "[2, 9223372036854775808]", "a list whose item 1 is 9223372036854775808, beyond 64-bit"),
        ("[1]", "[2, 3.5]", "a list whose item 1 is 3.5, which is no integer"),
        ("[1]", '[2, "x"]', "a list whose item 1 is a string"),
        ("[0.5]", "[null]", "a list whose item 0 is null"),
    ],
)
def test_numbers_that_do_not_fit_their_column(tmp_path: Path, first: str, second: str, got: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"v": {first}}}\n{{"v": {second}}}\n')
    with pytest.raises(BadRecords, match=f"field 'v' of type (.|\n)*{got}"):
        JsonlFiles(tmp_path / "a.jsonl", field=None).read(np.array([1]))


def test_a_first_record_beyond_64_bits_does_not_make_a_column_of_floats(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"v": 123456789012345678901, "w": [99999999999999999999]}\n')
    assert JsonlFiles(tmp_path / "a.jsonl", field=None).types == {"v": "int", "w": "ints"}
    with pytest.raises(BadRecords, match="beyond 64-bit"):
        JsonlFiles(tmp_path / "a.jsonl", field=None).read(np.array([0]))
    floats = JsonlFiles(tmp_path / "a.jsonl", fields=["v"], types={"v": "float"}, field=None)
    assert floats.read(np.array([0]))["v"].tolist() == [123456789012345678901.0]


def test_prompts_are_made_of_the_numbers_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"n": 123456789012345678901}]')
    assert records_of(str(tmp_path / "a.json")).read([0]) == [{"n": 123456789012345678901}]


def test_json_in_tar_shards_is_exact(tmp_path: Path) -> None:
    data = b'{"n": 123456789012345678901}'
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("0.json")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    assert ps.read_tar(tmp_path / "a.tar").peek()[0]["json"] == {"n": 123456789012345678901}


def test_a_damaged_first_file_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b\x08" + bytes(20))
    with pytest.raises(DataError, match=r"(?s)complete compressed data.*a\.jsonl\.gz"):
        ps.read_jsonl(tmp_path / "a.jsonl.gz", field=None)


@pytest.mark.parametrize("field", ["text", None])
def test_mutants(tmp_path: Path, field: str | None) -> None:
    lines = b'{"text": "one \\u00e9", "n": 1, "m": {"k": [1.5, null]}}\n{"text": "two", "n": 2, "m": null}\n'
    path = tmp_path / "a.jsonl"

    def read(data: bytes) -> object:
        path.write_bytes(data)
        source = JsonlFiles(path, field)
        columns = source.read(np.arange(len(source)))
        if field:
            assert [t for c in source.iterate() for t in c.texts] == columns["text"].tolist()
        return {name: column.tolist() for name, column in columns.items()}

    assert fuzz(read, lines, 500)["refused"] > 100
