"""Tar shards: records, side-cars, and every damage noticed."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
import threading

import numpy as np
import pytest

from penstock.core.errors import BadRecords, DataError, UsageError
from penstock.sources.base import Source
from penstock.sources.tar import TarShards

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def pack(path, members, form="pax", mtime=0):
    with tarfile.open(path, "w", format=FORMATS[form]) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime
            tar.addfile(info, io.BytesIO(data))
    return path


def members(n=6, size=1500, prefix=""):
    rng = np.random.default_rng(len(prefix))
    for i in range(n):
        yield f"{prefix}{i:04d}.jpg", rng.bytes(size + i)
        yield f"{prefix}{i:04d}.cls", str(i).encode()


@pytest.mark.parametrize("form", FORMATS)
def test_records_in_order_from_any_tar_format(form, tmp_path):
    long = "a" * 120 + "/" + "b" * 90 + "/"
    content = list(members(prefix="" if form == "ustar" else long))
    shards = TarShards([pack(tmp_path / "1.tar", content, form), pack(tmp_path / "0.tar", list(members(3)), form)])
    assert isinstance(shards, Source)
    assert len(shards) == 9
    assert shards.parts == ("cls", "jpg")
    columns = shards.read(np.array([8, 0, 5, 0]))
    assert columns["cls"].tolist() == [b"2", b"0", b"5", b"0"]
    assert columns["jpg"].tolist() == [dict(members(3))["0002.jpg"], content[0][1], content[10][1], content[0][1]]
    assert columns["key"][1] == content[0][0].removesuffix(".jpg")
    place = shards.locate(5)
    with open(place["file"], "rb") as file:
        file.seek(place["parts"]["jpg"]["offset"])
        assert file.read(place["parts"]["jpg"]["bytes"]) == content[10][1]
    assert shards.describe() | {"bytes": 0} == {
        "kind": "tar shards", "records": 9, "files": 2, "bytes": 0, "parts": ["cls", "jpg"], "skipped_members": 0,
        "index": "side-car",
    }  # fmt: skip


def test_parts_can_be_chosen(tmp_path):
    path = pack(tmp_path / "a.tar", [*members(2), ("0002.jpg", b"x"), ("0002.cls", b"1"), ("0002.TXT", b"hi")])
    assert set(TarShards(path, parts=["cls"]).read(np.arange(3))) == {"key", "cls"}
    with pytest.raises(DataError, match="key '0000' with cls, jpg"):
        TarShards(path, parts=["txt", "cls"])
    with pytest.raises(DataError, match="key '0002' with cls, jpg, txt") as error:
        TarShards(path)
    assert "a.tar" in str(error.value)
    with pytest.raises(UsageError, match="at least one part"):
        TarShards(path, parts=[])


def test_a_part_named_as_the_column_of_keys_is_refused(tmp_path):
    """Its bytes took the place of the keys."""
    path = str(tmp_path / "a.tar")
    pack(path, [("0.key", b"secret"), ("0.txt", b"a"), ("1.key", b"other"), ("1.txt", b"b")])
    with pytest.raises(DataError, match=r"a part 'key'(.|\n)*parts=\['txt'\]"):
        TarShards(path)
    with pytest.raises(DataError, match="a part 'key'"):
        TarShards(path, parts=["key"])
    assert TarShards(path, parts=["txt"]).read(np.array([1]))["key"].tolist() == ["1"]


def test_members_without_a_key_are_counted(tmp_path):
    path = pack(tmp_path / "a.tar", [("README", b"x"), ("._0000.jpg", b"y"), *members(2)])
    assert TarShards(path).describe()["skipped_members"] == 2
    with pytest.raises(UsageError, match="tar shards with records"):
        TarShards(pack(tmp_path / "b.tar", [("README", b"x")]))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")], "key 'a' again at 'a.cls'"),
        ([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3")], "key 'a' again at 'a.jpg'"),
        ([("a.jpg", b"1"), ("a.jpg", b"2")], "'jpg' of key 'a' twice"),
        ([("a.jpg", b"1"), ("a.cls", b"2"), ("b.jpg", b"3")], "key 'b' with jpg"),
    ],
)
def test_keys_that_come_apart_or_twice_or_miss_a_part(content, text, tmp_path):
    with pytest.raises(DataError) as error:
        TarShards(pack(tmp_path / "bad.tar", content))
    assert text in str(error.value)
    assert "bad.tar" in str(error.value)


def test_identity_is_of_content(tmp_path):
    (tmp_path / "x").mkdir()
    first = TarShards(pack(tmp_path / "a.tar", list(members()))).fingerprint()
    assert TarShards(pack(tmp_path / "x" / "b.tar", list(members()), "gnu", mtime=99)).fingerprint() == first
    changed = list(members())
    changed[3] = (changed[3][0], b"7")
    assert TarShards(pack(tmp_path / "c.tar", changed)).fingerprint() != first


def test_the_side_car_is_used_checked_and_made_anew(tmp_path):
    path = pack(tmp_path / "a.tar", list(members()))
    side = tmp_path / "a.tar.penstock-index.json"
    shards = TarShards(path)
    original = side.read_bytes()
    stamp = os.stat(side).st_mtime_ns
    again = TarShards(path)
    assert os.stat(side).st_mtime_ns == stamp
    assert again.fingerprint() == shards.fingerprint()
    for damage in (
        b"",
        b"junk",
        original[:-5],
        original.replace(b'"members":', b'"nembers":'),
        original[:-9] + b"x" + original[-8:],
        b"x\n{}",
    ):
        side.write_bytes(damage)
        assert TarShards(path).fingerprint() == shards.fingerprint()
        assert side.read_bytes() == original
    pack(path, list(members(9)))  # another size: only the user knows whether that was meant
    with pytest.raises(DataError, match="if you rewrote it on purpose, delete") as error:
        TarShards(path)
    assert str(path) in str(error.value)
    side.unlink()
    assert len(TarShards(path)) == 9


COLUMNS = {"starts": "<i8", "offsets": "<i8", "sizes": "<i8", "head_hashes": "<u8", "hashes": "<u8", "keys": "<i8",
           "record": "<i4", "part": "<i4"}  # fmt: skip


def taken_apart(side):
    """The line of JSON, the columns and the keys of a side-car."""
    import orjson

    line, _, rest = side.read_bytes().partition(b"\n")[2].partition(b"\n")
    head, at, columns = orjson.loads(line), 0, {}
    for name, kind in COLUMNS.items():
        count = head["records"] + 1 if name == "keys" else head["members"]
        columns[name] = np.frombuffer(rest, kind, count, at).copy()
        at += columns[name].nbytes
    return head, columns, rest[at:]


def put_together(side, head, columns, keys):
    import orjson

    from penstock.core.hashing import content_id

    body = orjson.dumps(head) + b"\n" + b"".join(c.tobytes() for c in columns.values()) + keys
    side.write_bytes(content_id([body]).encode() + b"\n" + body)


def test_a_forged_side_car_leads_nowhere(tmp_path):
    path = pack(tmp_path / "a.tar", list(members()))
    side = tmp_path / "a.tar.penstock-index.json"
    TarShards(path)
    head, columns, keys = taken_apart(side)
    good = side.read_bytes()
    put_together(side, head, columns, keys)
    assert side.read_bytes() == good
    forged = [("offsets", 10**15), ("sizes", -1), ("starts", -5), ("sizes", 2**40), ("keys", 10**9), ("record", 0),
              ("record", 10**6), ("record", -7), ("part", -1), ("part", 99), ("part", 0)]  # fmt: skip
    for column, value in forged:
        put_together(side, head, columns | {column: np.full_like(columns[column], value)}, keys)
        assert TarShards(path).read(np.array([0]))["cls"].tolist() == [b"0"]
        assert side.read_bytes() == good
    for field, value in (("members", 10**12), ("records", -1), ("key_bytes", "x"), ("parts", 5), ("total", None)):
        put_together(side, head | {field: value}, columns, keys)
        assert TarShards(path).read(np.array([0]))["cls"].tolist() == [b"0"]
        assert side.read_bytes() == good
    put_together(side, head, columns | {"hashes": np.full_like(columns["hashes"], 5)}, keys)
    with pytest.raises(BadRecords, match="hash differs"):
        TarShards(path).read(np.array([0]))


def test_a_side_car_of_the_first_version_is_read(tmp_path):
    import orjson

    from penstock.core.hashing import content_id

    listed = [*members(), ("README", b"no part"), ("folder/x.é.txt", b"1"), ("folder/x.cls", b"2")]
    path = pack(tmp_path / "a.tar", listed)
    side = tmp_path / "a.tar.penstock-index.json"
    first = TarShards(path, parts=["cls"])
    head, columns, _ = taken_apart(side)
    with tarfile.open(path) as tar:
        names = [os.fsencode(m.name).decode("latin-1") for m in tar]
    old = {"format": "penstock-tar-index-1", "total": head["total"], "names": names}
    old |= {name: columns[name].tolist() for name in ("starts", "offsets", "sizes", "head_hashes", "hashes")}
    body = orjson.dumps(old)
    side.write_bytes(content_id([body]).encode() + b"\n" + body)
    stamp = os.stat(side).st_mtime_ns
    again = TarShards(path, parts=["cls"])
    assert os.stat(side).st_mtime_ns == stamp and again.indexed and again.skipped == first.skipped == 1
    assert again.fingerprint() == first.fingerprint()
    assert again.locate(len(again) - 1) == first.locate(len(first) - 1)
    rows = np.arange(len(first))
    assert again.read(rows)["cls"].tolist() == first.read(rows)["cls"].tolist()


def test_where_side_cars_go(tmp_path):
    path = pack(tmp_path / "a.tar", list(members()))
    cache = tmp_path / "cache"
    cache.mkdir()
    TarShards(path, index=cache)
    assert [p.name.endswith(".penstock-index.json") for p in cache.iterdir()] == [True]
    assert TarShards(path, index=None).describe()["index"] == "in memory"
    assert not (tmp_path / "a.tar.penstock-index.json").exists()
    assert TarShards(path, index=tmp_path / "gone").describe()["index"] == "in memory"


def spans(path):
    """(header, payload, size, end) of each member."""
    with tarfile.open(path) as tar:
        return [(m.offset, m.offset_data, m.size, m.offset_data + -(-m.size // 512) * 512) for m in tar]


def damage_cut_at_boundary(data, header, payload, size, end):
    return data[:header] if header else data[:end]


def damage_cut_in_header(data, header, payload, size, end):
    return data[: header + 200]


def damage_flip_header(data, header, payload, size, end):
    return data[: header + 3] + bytes([data[header + 3] ^ 1]) + data[header + 4 :]


def damage_zero_header(data, header, payload, size, end):
    return data[:header] + bytes(512) + data[header + 512 :]


def damage_flip_payload(data, header, payload, size, end):
    at = payload + size // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damage_cut_in_payload(data, header, payload, size, end):
    return data[: payload + size // 2]


DAMAGES = [damage_cut_at_boundary, damage_cut_in_header, damage_flip_header, damage_zero_header, damage_flip_payload,
           damage_cut_in_payload]  # fmt: skip


def read_all(path, index):
    shards = TarShards(path, index=index)
    return shards.read(np.arange(len(shards)))


@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_eighteen_damages_are_noticed(damage, which, tmp_path):
    content = [(f"{i:04d}.bin", np.random.default_rng(i).bytes(1500)) for i in range(5)]
    path = pack(tmp_path / "a.tar", content, "ustar")
    read_all(path, "beside")
    good = path.read_bytes()
    bad = damage(good, *spans(path)[{"first": 0, "middle": 2, "last": 4}[which]])
    assert bad != good
    path.write_bytes(bad)
    with pytest.raises(DataError) as error:
        read_all(path, "beside")
    assert "a.tar" in str(error.value)
    if damage is damage_flip_payload:  # tar has no checksum of payloads: only an index can know
        assert "'payload'" not in str(error.value)
        assert "another payload" in str(error.value)
        return
    with pytest.raises(DataError, match=r"a\.tar"):
        read_all(path, None)


def test_damage_after_opening_is_noticed_by_the_read(tmp_path):
    path = pack(tmp_path / "a.tar", list(members()))
    shards = TarShards(path, index=None)
    header, payload, size, end = spans(path)[2]
    good = path.read_bytes()
    path.write_bytes(damage_cut_in_payload(good, header, payload, size, end))
    with pytest.raises(DataError, match="the file was truncated"):  # the shard is at fault, not one record
        shards.read(np.array([0, 1, 4]))
    for damage in (damage_flip_payload, damage_flip_header, damage_zero_header):
        path.write_bytes(damage(good, header, payload, size, end))
        with pytest.raises(BadRecords) as error:
            shards.read(np.array([0, 1, 4]))
        assert 1 in [e.row for e in error.value.errors]
        assert "record '0001'" in str([e.where for e in error.value.errors])
    path.write_bytes(good)
    shards.read(np.array([0, 1, 4]))


def test_threads_and_pickles_read_the_same(tmp_path):
    path = pack(tmp_path / "a.tar", list(members(40)))
    shards = pickle.loads(pickle.dumps(TarShards(path)))
    expected = shards.read(np.arange(40))["jpg"].tolist()
    wrong = []

    def work():
        for _ in range(5):
            if shards.read(np.arange(40))["jpg"].tolist() != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_written_but_the_side_car(tmp_path):
    path = pack(tmp_path / "a.tar", list(members()))
    TarShards(path).read(np.arange(6))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "a.tar.penstock-index.json"]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_archives_are_refused_by_name(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", f"w:{kind}") as tar:
        tar.addfile(tarfile.TarInfo("x.txt"), io.BytesIO(b""))
    with pytest.raises(DataError, match="an uncompressed tar archive"):
        TarShards(tmp_path / "a.tar")


def test_remote_shards(tmp_path):
    import fsspec

    path = pack(tmp_path / "a.tar", list(members()))
    memory = fsspec.filesystem("memory")
    with open(path, "rb") as source, memory.open("/tars/a.tar", "wb") as target:
        shutil.copyfileobj(source, target)
    shards = TarShards("memory://tars/a.tar")
    assert shards.describe()["index"] == "in memory"
    assert shards.read(np.array([5]))["cls"].tolist() == [b"5"]
    assert shards.fingerprint() == TarShards(path).fingerprint()
