"""Damage and lies in the list of shards of a large store: each is noticed before an entry is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from penstock.core.errors import PenstockError, StoreError, UsageError
from penstock.store import layout, manifest, shard_groups
from penstock.store.manifest import read_manifest
from penstock.store.reader import TokenStore
from penstock.store.shard_groups import GroupedShards, encode_groups
from penstock.store.verify import verify
from penstock.store.writer import ShardInfo
from tests.hostile.fuzzing import fuzz
from tests.store.many_shards import everything, index_of, kinds, make


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, ShardInfo]]:
    return kinds(tmp_path_factory.mktemp("shards"))


def use(folder: Path) -> list[Any]:
    with TokenStore(folder) as store:
        store.bounds  # noqa: B018 - reads every group
        names = [shard.name for shard in store.manifest.shards]
        return [names, everything(store)]


def test_any_damage_to_the_index_or_manifest_is_refused(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    folder = make(tmp_path / "s", shards, 12, listed=3, group=5)
    for path in (index_of(folder), folder / "manifest.json"):
        sound = path.read_bytes()

        def read(data: bytes, path: Path = path) -> list[Any]:
            path.write_bytes(data)
            return use(folder)

        counts = fuzz(read, sound, 400, seed=1, checked=True)
        assert counts["refused"] == 400, (path, counts)
        path.write_bytes(sound)


def test_damage_to_one_group_is_found_when_it_is_used_and_by_verify(
    tmp_path: Path, shards: list[tuple[Path, ShardInfo]]
) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    assert verify(folder).ok
    index = index_of(folder)
    data = bytearray(index.read_bytes())
    second = read_manifest(folder).shards
    assert isinstance(second, GroupedShards)
    at = int(second._starts[1]) + 100
    data[at] ^= 4
    index.write_bytes(data)
    store = TokenStore(folder)
    store.gather(np.array([0, store.n_tokens - 3]), 3)
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            store.gather(np.array([int(second._group_tokens[1]) + 1]), 3)
        assert caught.value.where.startswith(f"{index}, group 1 of 4 (bytes ")
        assert "penstock verify" in caught.value.fix
    with pytest.raises(StoreError, match="group 1 of 4"):
        store.bounds  # noqa: B018
    report = verify(folder)
    assert (len(report.problems), report.shards) == (1, 30), "one problem, and the other groups were verified"
    index.write_bytes(data[:-1])
    with pytest.raises(StoreError, match=r"bytes, as the manifest says[\s\S]*\.index"):
        TokenStore(folder)
    index.unlink()
    with pytest.raises(StoreError, match=r"the list of shards that the manifest names[\s\S]*\.index"):
        TokenStore(folder)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest as somebody would who knows how its checksum is made."""
    plain = json.loads((folder / "manifest.json").read_text())
    plain.pop("checksum")
    change(plain)
    sealed = {**plain, "checksum": xxhash.xxh3_128_hexdigest(layout.canonical_json(plain))}
    (folder / "manifest.json").write_bytes(layout.canonical_json(sealed) + b"\n")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shards", 1 << 60), ("shards", 41), ("shards", 29), ("shards", 0), ("shards", -1), ("shards", True),
        ("shards", 31.0), ("group_shards", 0), ("group_shards", 1 << 40), ("group_shards", None), ("group_shards", 11),
        ("name", "../x"), ("name", ""), ("name", None), ("name", ["a"]), ("groups", []), ("groups", None),
        ("groups", [[1, 2, 3]]), ("groups", {"a": 1}),
    ],
)  # fmt: skip
def test_lies_about_the_index(tmp_path: Path, shards: list[tuple[Path, ShardInfo]], key: str, value: Any) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    rewrite(folder, lambda plain: plain["index"].update({key: value}))
    with pytest.raises(StoreError, match=r"an intact manifest|a group that agrees with the manifest"):
        use(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", 1 << 62), ("size", 1 << 30), ("size", 0), ("size", "9"), ("tokens", 1 << 62), ("tokens", -1),
        ("tokens", 1), ("documents", 1), ("bytes", 1), ("hash", "0" * 31), ("hash", "g" * 32), ("hash", 7),
        ("hash", "A" * 32),
    ],
)  # fmt: skip
def test_lies_about_a_group(tmp_path: Path, shards: list[tuple[Path, ShardInfo]], key: str, value: Any) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    rewrite(folder, lambda plain: plain["index"]["groups"][2].update({key: value}))
    with pytest.raises(StoreError, match=r"an intact manifest|bytes, as the manifest says"):
        TokenStore(folder)


def forge(folder: Path, change: Callable[[list[bytearray]], None], fix: Callable[[dict[str, Any]], None]) -> None:
    """Replaces groups by others, with the right hashes and sizes in the manifest."""
    index = index_of(folder)
    data, groups, at = index.read_bytes(), [], 0
    for group in json.loads((folder / "manifest.json").read_text())["index"]["groups"]:
        groups.append(bytearray(data[at : at + group["size"]]))
        at += group["size"]
    change(groups)
    index.write_bytes(b"".join(groups))

    def seal(plain: dict[str, Any]) -> None:
        for said, group in zip(plain["index"]["groups"], groups, strict=True):
            said["hash"], said["size"] = xxhash.xxh3_128_hexdigest(group), len(group)
        fix(plain)

    rewrite(folder, seal)


def put(group: bytearray, at: int, value: int, size: int = 8) -> None:
    group[at : at + size] = value.to_bytes(size, "little")


FORGED: dict[str, Callable[[list[bytearray]], None]] = {
    "tokens that do not add up": lambda groups: put(groups[1], 8, 1 << 20),
    "tokens that overflow": lambda groups: (put(groups[1], 8, (1 << 63)), put(groups[1], 16, (1 << 63)))[0],
    "documents that do not add up": lambda groups: put(groups[1], 80 + 16, 5000),
    "bytes that do not add up": lambda groups: put(groups[1], 160, 1),
    "names past the end": lambda groups: put(groups[1], 480 + 36, 1 << 31, 4),
    "names in another order": lambda groups: put(groups[1], 480 + 8, 0, 4),
    "a name in another folder": lambda groups: groups[1].__setitem__(slice(520, 521), b"/"),
    "a name that is not text": lambda groups: groups[1].__setitem__(slice(520, 521), b"\xff"),
    "too many names": lambda groups: groups[1].extend(b"abc"),
    "another root": lambda groups: put(groups[1], 320, 7),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_group_with_the_right_hash(tmp_path: Path, shards: list[tuple[Path, ShardInfo]], what: str) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    forge(folder, FORGED[what], lambda plain: None)
    store = TokenStore(folder)
    assert store.gather(np.array([0]), 5).shape == (1, 5)
    with pytest.raises(StoreError) as caught:
        store.read(np.arange(len(store)))
    if what != "another root":  # noticed before a shard is opened by what the group says
        assert ".index, group 1 of 4" in caught.value.where
    assert not verify(folder).ok


def test_verify_checks_the_id_and_the_names(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    kept = {path: path.read_bytes() for path in (index_of(folder), folder / "manifest.json")}

    rewrite(folder, lambda plain: plain.update(id="0" * 32))
    TokenStore(folder)
    assert [p.expected for p in verify(folder).problems] == ["the shards of the store " + "0" * 32]

    for path, data in kept.items():
        path.write_bytes(data)

    def same_name(groups: list[bytearray]) -> None:  # shards 0 and 37 have the same bytes
        groups[3][520 : 520 + 17 * 10] = groups[3][520 : 520 + 17 * 7] + groups[0][520 : 520 + 17] + groups[3][656:]

    forge(folder, same_name, lambda plain: None)
    assert "different shard names" in [p.expected for p in verify(folder).problems]


def test_other_releases_say_which_version_it_is(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    rewrite(folder, lambda plain: plain.update(version=3))
    with pytest.raises(StoreError, match=r"store format version 2\n.*version 3"):
        TokenStore(folder)


def test_a_list_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ShardInfo("a.tokens", 4096, 2, 5, "00" * 16, "<u2", 10)
    monkeypatch.setattr(shard_groups, "MAX_SHARDS", 2)
    with pytest.raises(UsageError, match="at most 2 shards"):
        encode_groups([entry] * 3)
    with pytest.raises(UsageError, match="32 hexadecimal digits"):
        encode_groups([ShardInfo("a.tokens", 4096, 2, 5, "00", "<u2", 10)])


def test_a_store_in_a_folder_that_moves(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    expected = use(folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert use(tmp_path / "copy") == expected
    assert use(tmp_path / "copy" / "manifest.json") == expected
    (tmp_path / "copy" / index_of(folder).name).unlink()
    with pytest.raises(PenstockError):
        use(tmp_path / "copy")


def test_wrong_bytes_from_a_network_are_read_again_once(tmp_path: Path, shards: list[tuple[Path, ShardInfo]]) -> None:
    folder = make(tmp_path / "s", shards, 40, listed=3, group=10)
    sound, calls = index_of(folder).read_bytes(), []

    def read(wrong: int) -> manifest.ReadRanges:
        def ranges(name: str, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
            calls.append((name, list(wanted)))
            found = [sound[a:b] for a, b in wanted]
            return [block[:-1] + b"?" for block in found] if len(calls) <= wrong else found

        return ranges

    data = (folder / "manifest.json").read_bytes()
    once = manifest.decode_manifest(data, "s3://bucket/s/manifest.json", read(1))
    assert [entry.name for entry in once.shards] == [entry.name for entry in read_manifest(folder).shards]
    assert [len(wanted) for _, wanted in calls] == [1, 1, 1, 1, 1]
    calls.clear()
    always = manifest.decode_manifest(data, "s3://bucket/s/manifest.json", read(1000))
    with pytest.raises(StoreError, match=r"s3://bucket/s/shards-[0-9a-f]{32}\.index, group 3 of 4"):
        always.shards[-1]
    assert len(calls) == 2
