"""TFRecord files: what TensorFlow's own writer wrote (tests/data/tfrecord), and files made here."""

from __future__ import annotations

import gzip
import pickle
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.sources.tf_example import NotExample, parse
from penstock.sources.tfrecord_frames import masked
from penstock.testing import assert_elastic, assert_exact_resume
from tests.hostile.fuzzing import fuzz

TENSORFLOW = Path(__file__).parents[1] / "data" / "tfrecord"


def field(number: int, data: bytes) -> bytes:
    """A field of a protocol buffer that holds bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def feature(values: Any) -> bytes:
    values = values if isinstance(values, list) else [values]
    if values and isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    if values and isinstance(values[0], int):
        return field(3, field(1, b"".join(map(varint, values))))
    return field(1, b"".join(field(1, one.encode() if isinstance(one, str) else one) for one in values))


def features(record: dict[str, Any]) -> bytes:
    return b"".join(field(1, field(1, n.encode()) + field(2, feature(v))) for n, v in record.items())


def example(record: dict[str, Any]) -> bytes:
    return field(1, features(record))


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length).to_bytes(4, "little") + data + masked(data).to_bytes(4, "little")


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(frame(example(record)) for record in records))
    return path


@pytest.mark.parametrize("name", ["plain", "gzip", "zlib"])
def test_what_tensorflow_wrote(name: str) -> None:
    rows = ps.read_tfrecords(TENSORFLOW / f"{name}.tfrecord", types={"text": "str", "names": "str_list"}).rows()
    found = rows.read(np.arange(12))
    assert found["label"].tolist() == [i % 3 for i in range(12)] and found["label"].dtype == np.int64
    assert found["text"].tolist() == [f"records of TensorFlow, märz {i}" for i in range(12)]
    assert found["image"].tolist() == [bytes(range(i, i + 5)) for i in range(12)]
    assert found["ids"].tolist() == [[(-1) ** k * 7**k for k in range(i)] for i in range(12)]
    assert found["weights"].tolist() == [[k / 4 for k in range(i)] for i in range(12)]
    assert found["weights"].dtype == np.float32
    assert found["names"].tolist() == [[f"n{k}" for k in range(i % 4)] for i in range(12)]
    assert found["big"].tolist() == [[-(1 << 63), (1 << 63) - 1, 0, i] for i in range(12)]
    shaped = ps.read_tfrecords(TENSORFLOW / f"{name}.tfrecord", features=["box"], shapes={"box": (2, 2)})
    assert shaped.batch(3).to_numpy().batch_at(1)["box"][0].tolist() == [[0.25, 0.5], [3.0, -1.5]]


def test_sequences_that_tensorflow_wrote() -> None:
    shapes, types = {"frames": (2,)}, {"title": "str", "words": "str_list"}
    rows = ps.read_tfrecords(TENSORFLOW / "sequence.tfrecord", shapes=shapes, types=types).rows()
    found = rows.read(np.arange(8))
    assert [frames.tolist() for frames in found["frames"]] == [[[k, k + 0.5] for k in range(i)] for i in range(1, 9)]
    assert found["tokens"].tolist() == [[100 * i + k for k in range(i)] for i in range(1, 9)]
    assert found["words"].tolist()[2] == ["w0", "w1", "w2"] and found["id"].tolist() == list(range(1, 9))
    assert found["title"][7] == "clip 8"
    with pytest.raises(
        ps.DataError, match=r"(?s)1 value in each step of feature 'frames'.*shapes=\{'frames': \(2,\)\}"
    ):
        ps.read_tfrecords(TENSORFLOW / "sequence.tfrecord").peek(1)


def test_records_of_another_kind() -> None:
    path = TENSORFLOW / "other.tfrecord"
    records = [b"\xff\xff no example", b"", b"three"]
    assert [row["bytes"] for row in ps.read_tfrecords(path, parse=False).peek()] == records
    with pytest.raises(ps.DataError, match="parse=False"):
        ps.read_tfrecords(path)


def test_the_law(tmp_path: Path) -> None:
    files = [TENSORFLOW / "plain.tfrecord", TENSORFLOW / "zlib.tfrecord"]
    more = [{"label": i, "text": f"t{i}", "image": b"", "box": [0.0] * 4, "big": [i], "ids": [i]} for i in range(30)]
    more = [record | {"names": ["a"], "weights": [1.0]} for record in more]
    files.append(write(tmp_path / "more.tfrecord-00000-of-00001", more))

    def make(batch: int) -> ps.Pipeline:
        return ps.read_tfrecords(files, features=["label", "text", "ids"]).shuffle(seed=7).batch(batch)

    assert_exact_resume(lambda: make(8))
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=9)
    copy = pickle.loads(pickle.dumps(make(9)))
    expected = [batch["label"].tolist() for batch in make(9).to_numpy(threads=0)]
    assert [batch["label"].tolist() for batch in copy.to_numpy(workers=2)] == expected
    at = make(9).to_numpy().why(1, 2)["from"]
    assert set(at) >= {"file", "record", "offset"} and at["file"] in map(str, files)
    again = ps.from_config(ps.read_tfrecords(files, features=["label"]).shuffle(seed=7).to_config())
    assert again.fingerprint() == ps.read_tfrecords(files, features=["label"]).shuffle(seed=7).fingerprint()


def test_identity_is_content_and_settings(tmp_path: Path) -> None:
    one, other = shutil.copy(TENSORFLOW / "plain.tfrecord", tmp_path / "x"), TENSORFLOW / "plain.tfrecord"
    assert ps.read_tfrecords(one).fingerprint() == ps.read_tfrecords(other).fingerprint()
    settings = [{}, {"features": ["label"]}, {"types": {"text": "str"}}, {"shapes": {"box": 4}}, {"parse": False},
                {"defaults": {"label": 1}}, {"defaults": {"label": 2}}]  # fmt: skip
    assert len({ps.read_tfrecords(one, **how).fingerprint() for how in settings}) == len(settings)


def test_a_first_record_whose_length_looks_like_gzip_or_zlib(tmp_path: Path) -> None:
    for magic in (b"\x1f\x8b\x08", b"\x78\x9c", b"\x28\xb5"):
        size = int.from_bytes(magic, "little")
        path = tmp_path / f"{magic.hex()}.tfrecord"
        path.write_bytes(frame(b"y" * size) + frame(b"second"))
        assert path.read_bytes().startswith(magic)
        assert [len(row["bytes"]) for row in ps.read_tfrecords(path, parse=False).peek()] == [size, 6]


def test_defaults_missing_features_and_types(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"a": i, "b": [1.0, 2.0]} for i in range(120)]
    records[110] = {"b": [3.0]}
    records[111] = {"a": [1, 2], "b": []}
    path = write(tmp_path / "a.tfrecord", records)
    rows = ps.read_tfrecords(path).rows()
    with pytest.raises(ps.DataError, match=r"(?s)one int in feature 'a'.*none.*record 110.*defaults=\{'a'"):
        rows.read(np.array([109, 110]))
    with pytest.raises(ps.DataError, match=r"(?s)one int in feature 'a'.*2 values.*types=\{'a': 'ints'\}"):
        rows.read(np.array([111]))
    found = ps.read_tfrecords(path, types={"a": "ints"}).rows().read(np.array([110, 111, 5]))
    assert found["a"].tolist() == [[], [1, 2], [5]] and found["b"].tolist() == [[3.0], [], [1.0, 2.0]]
    found = ps.read_tfrecords(path, defaults={"a": -1}, shapes={"b": 2}).rows().read(np.array([3]))
    assert found["a"].tolist() == [3] and found["b"].tolist() == [[1.0, 2.0]]
    shaped = ps.read_tfrecords(path, defaults={"a": -1, "b": [7, 8]}, shapes={"b": 2}, features=["a", "b"]).rows()
    assert shaped.read(np.array([3]))["b"].dtype == np.float32
    with pytest.raises(ps.DataError, match=r"2 floats in feature 'b', for the shape \(2,\)"):
        shaped.read(np.array([110]))
    skipped = ps.read_tfrecords(path, on_error="skip").batch(40).to_numpy(threads=0)
    assert sum(len(batch["a"]) for batch in skipped) == 120 and skipped.ledger.total == 2


@pytest.mark.parametrize(("how", "text"), [
    ({"features": ["c"]}, r"a feature 'c'(.|\n)*'a', 'b'"), ({"types": {"a": "integer"}}, "types as one of int, float"),
    ({"shapes": {"a": (0,)}}, "whole numbers above 0"), ({"shapes": {"b": 3}, "features": ["a"]}, "a feature 'b'"),
    ({"defaults": {"a": "x"}}, "one int in 'a'"), ({"defaults": {"b": [1]}}, "a list of floats in 'b'"),
    ({"parse": False, "features": ["a"]}, "leave out parse=False"), ({"features": []}, "different names"),
])  # fmt: skip
def test_wrong_arguments(tmp_path: Path, how: dict[str, Any], text: str) -> None:
    path = write(tmp_path / "a.tfrecord", [{"a": 1, "b": [1.0, 2.0]}, {"a": 2, "b": [1.0]}])
    with pytest.raises((ps.UsageError, ps.DataError), match=text):
        ps.read_tfrecords(path, **how)


def test_types_that_differ(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", [{"a": 1}, {"a": 1.5}])
    with pytest.raises(ps.DataError, match=r"(?s)one type of feature 'a' in the first 2.*float and int.*types="):
        ps.read_tfrecords(path)
    with pytest.raises(ps.DataError, match=r"(?s)feature 'a' of type int.*floats"):
        ps.read_tfrecords(path, types={"a": "int"}).rows().read(np.array([1]))


def test_an_empty_list_has_no_type_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", [{"a": [], "b": []}, {"a": [1, 2], "b": []}])
    found = ps.read_tfrecords(path).rows().read(np.array([0, 1]))
    assert found["a"].tolist() == [[], [1, 2]] and found["b"].tolist() == [[], []]


def test_texts_for_prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "corpus.tfrecord-00000-of-00002", [{"text": f"text {i}", "n": i} for i in range(5)])
    write(tmp_path / "corpus.tfrecord-00001-of-00002", [{"text": f"text {i}", "n": i} for i in range(5, 9)])
    assert main(["prepare", str(tmp_path), "--tokenizer", "bytes", "--out", str(tmp_path / "store"), "--quiet"]) == 0
    stored = ps.open_store(tmp_path / "store").peek(9)
    assert [bytes(row["input_ids"][:-1].tolist()).decode() for row in stored] == [f"text {i}" for i in range(9)]
    tokens = ps.read_tfrecords(tmp_path, types={"text": "str"}).tokenize("bytes", show_progress=False)
    assert bytes(tokens.peek(9)[8]["input_ids"][:-1].tolist()) == b"text 8"
    capsys.readouterr()
    assert main(["peek", str(tmp_path / "corpus.tfrecord-00001-of-00002"), "-n", "1"]) == 0
    assert "text 5" in capsys.readouterr().out
    shutil.copy(tmp_path / "corpus.tfrecord-00001-of-00002", tmp_path / "store" / "part-00001-of-00002")
    assert main(["info", str(tmp_path / "store" / "part-00001-of-00002")]) == 0
    assert "TFRecord" in capsys.readouterr().out


def test_cut_and_damaged_files(tmp_path: Path) -> None:
    data = (TENSORFLOW / "plain.tfrecord").read_bytes()
    path = tmp_path / "a.tfrecord"
    for cut in (1, 3, 200, len(data) - 13):
        path.write_bytes(data[:-cut])
        with pytest.raises(ps.DataError, match=r"TFRecord.*(.|\n)*ends after the file"):
            ps.read_tfrecords(path, features=["label"], types={"label": "int"})
        with pytest.raises(ps.DataError, match=r"TFRecord.*(.|\n)*ends after the file"):
            len(ps.read_tfrecords(path, parse=False).skip_errors().rows())
    broken = bytearray(data)
    broken[30] ^= 1
    path.write_bytes(broken)
    rows = ps.read_tfrecords(path, features=["label"]).rows()
    with pytest.raises(ps.DataError, match=r"(?s)checksum of its data differs.*record 0"):
        rows.read(np.array([0, 1]))
    assert rows.read(np.array([1]))["label"].tolist() == [1]
    for packed in (gzip.compress(data), zlib.compress(data)):
        path.write_bytes(packed[:-20])
        with pytest.raises(ps.DataError, match="ends in the middle of it"):
            len(ps.read_tfrecords(path).rows())
    path.write_text("this is no TFRecord file at all")
    with pytest.raises(ps.DataError, match="a TFRecord file, plain or compressed"):
        ps.read_tfrecords(path)


def test_mutated_files_are_refused_or_read_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"

    def read(data: bytes) -> list[Any]:
        path.write_bytes(data)
        rows = ps.read_tfrecords(path, features=["label", "ids", "names"]).rows()
        return [str(rows.read(np.array([i]))) for i in range(len(rows))]

    for name, count in (("plain", 500), ("gzip", 200)):
        counts = fuzz(read, (TENSORFLOW / f"{name}.tfrecord").read_bytes(), count)
        assert counts["refused"] > count // 2
    counts = fuzz(lambda data: str(_parsed(data)), example({"a": list(range(40)), "b": ["x", "yz"], "c": 1.5}), 3000)
    assert counts["other"] > 100 and counts["refused"] > 100


def _parsed(data: bytes) -> Any:
    try:
        return {name: value.items for name, value in parse(data).items()}  # type: ignore[union-attr]
    except NotExample as error:
        raise ps.DataError("an example", got=str(error)) from error


def test_unpacked_numbers_merged_lists_and_unknown_fields() -> None:
    numbers = [0, 1, -1, 300, -(1 << 63), (1 << 63) - 1]
    unpacked = b"".join(varint(1 << 3) + varint(n) for n in numbers)
    mixed = field(1, varint(7)) + varint(1 << 3) + varint(8)
    record = field(1, b"".join([
        field(1, field(1, b"unpacked") + field(2, field(3, unpacked))),
        field(1, field(1, b"mixed") + field(2, field(3, mixed) + field(3, field(1, varint(9))))),
        field(1, field(1, b"floats") + field(2, field(2, varint(1 << 3 | 5) + struct.pack("<f", 2.5)))),
        field(1, field(1, b"last") + field(2, feature(1))), field(1, field(1, b"last") + field(2, feature("two"))),
        field(9, b"unknown") + varint(9 << 3) + varint(5) + varint(9 << 3 | 1) + b"8 bytes.",
        field(1, field(1, b"long") + field(2, feature(numbers * 20))), field(1, field(1, b"empty")),
    ]))  # fmt: skip
    found = {name: list(value.items) for name, value in parse(record).items()}  # type: ignore[union-attr]
    assert found == {
        "unpacked": numbers, "mixed": [7, 8, 9], "floats": [2.5], "last": [b"two"], "long": numbers * 20, "empty": [],
    }  # fmt: skip
    assert list(parse(record, {b"floats"})) == ["floats"]


@pytest.mark.parametrize(("data", "text"), [
    (field(1, b"\x0a\x7f"), "ends after its message"), (b"\x0b", "wire type 3"), (b"\x00\x00", "number 0"),
    (field(1, field(1, field(1, b"\xff") + field(2, b""))), "not UTF-8"),
    (b"\x0a" + b"\x80" * 11, "more than 10 bytes"),
    (field(1, field(1, field(1, b"a") + field(2, field(2, field(1, b"abc"))))), "floats that is cut"),
    (field(1, field(1, field(1, b"a") + field(2, field(3, field(1, b"\x80" * 30))))), "ints that is cut"),
    (field(1, field(1, field(1, b"a") + field(2, field(3, field(1, b"\x80" * 30 + b"\1"))))), "more than 10 bytes"),
    (features({}) + field(1, features({"a": 1})) + field(2, field(1, field(1, b"a"))), "in the context and another"),
    (field(1, field(1, field(1, b"a") + field(2, field(1, b"\x0a\x00" * (1 << 21))))), "more than 2,097,152"),
])  # fmt: skip
def test_hostile_examples(data: bytes, text: str) -> None:
    with pytest.raises(NotExample, match=text):
        parse(data)


def test_long_records_are_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(frame(example({"text": "x" * size})) for size in (10, 5000, 20)))
    limits = ps.Limits(record_bytes=1000)
    for data in (path.read_bytes(), gzip.compress(path.read_bytes())):
        path.write_bytes(data)
        source = ps.read_tfrecords(path, limits=limits).definition.origin
        assert len(source) == 3
        with pytest.raises(ps.DataError, match=r"(?s)a record of at most 1000 bytes.*record 1,.*limits.record_bytes"):
            source.read(np.array([0, 1, 2]))
        chunks = list(source.iterate())
        assert [t for chunk in chunks for t in chunk.texts] == ["x" * 10, "x" * 20]
        assert [str(e.expected) for chunk in chunks for e in chunk.errors] == ["a TFRecord of at most 1016 bytes"]


def test_one_pass_resumes_after_every_chunk(tmp_path: Path) -> None:
    records = [{"text": f"text {i} " + "x" * (i % 90)} for i in range(500)]
    one, two = write(tmp_path / "a.tfrecord", records), tmp_path / "b.tfrecord.gz"
    two.write_bytes(gzip.compress(one.read_bytes()))
    source = ps.read_tfrecords([one, two]).definition.origin
    chunks = list(source.files.chunks(source._parse_texts, size=4000))
    texts = [t for chunk in chunks for t in chunk.texts]
    assert texts == [record["text"] for record in records] * 2 and len(chunks) > 5
    done = 0
    for chunk in chunks:
        done += len(chunk.texts)
        rest = source.files.chunks(source._parse_texts, chunk.cursor, size=4000)
        assert [t for c in rest for t in c.texts] == texts[done:]
    parts = source.ranges(1 << 12)
    assert [t for part in parts for c in source.iterate(part=part) for t in c.texts] == texts
