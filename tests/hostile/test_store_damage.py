"""Damage and lies in a token store: each is noticed, named, and costs no memory."""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from penstock.core.columns import Ragged
from penstock.core.errors import StoreError
from penstock.store import layout
from penstock.store.manifest import write_manifest
from penstock.store.reader import TokenStore
from penstock.store.verify import verify
from penstock.store.writer import ShardInfo, ShardWriter


def write(path: Path, seed: int, documents: int = 40) -> ShardInfo:
    rng = np.random.default_rng(seed)
    docs = Ragged.of([rng.integers(0, 50_000, n) for n in rng.integers(0, 2000, documents)], np.int64)
    columns = {"source": rng.integers(0, 9, documents).astype(np.uint16), "runs": docs.take(np.arange(documents))}
    with ShardWriter(path, vocab_size=50_000, metadata={"seed": seed}, page_bytes=4096) as shard:
        shard.add(docs, columns)
    return shard.finish()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "store"
    folder.mkdir()
    write_manifest(folder, [write(folder / f"{k:05d}.tokens", k) for k in range(3)], tokenizer={"name": "t"})
    return folder


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "store")
    return tmp_path / "store"


def use_everything(folder: Path) -> None:
    """What a training run would do, all of it."""
    with TokenStore(folder) as opened:
        opened.read(np.arange(len(opened)))
        opened.gather(np.arange(0, opened.n_tokens - 64, 64), 64)
        opened.documents_at(np.arange(0, opened.n_tokens, 100))


def flip(path: Path, byte: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ (1 << bit)]))


def test_the_undamaged_store_passes(store: Path) -> None:
    use_everything(store)
    assert verify(store).ok


def places() -> Iterator[tuple[str, int, int]]:
    rng = random.Random(5)
    for _ in range(120):
        yield rng.choice(["00000.tokens", "00001.tokens", "00002.tokens"]), rng.randrange(1 << 30), rng.randrange(8)
    for _ in range(40):
        yield "manifest.json", rng.randrange(1 << 30), rng.randrange(8)
    for back in range(1, 65):  # every byte of a footer
        yield "00001.tokens", -back, back % 8


def test_every_flipped_bit_is_noticed_before_a_batch_leaves_and_by_verify(store: Path) -> None:
    for name, place, bit in places():
        path = store / name
        byte = place % path.stat().st_size
        flip(path, byte, bit)
        with pytest.raises(StoreError) as caught:
            use_everything(store)
        assert name in caught.value.where, (name, byte, bit)
        assert caught.value.fix
        report = verify(store)
        assert not report.ok, (name, byte, bit)
        assert any(name in problem.where for problem in report.problems)
        flip(path, byte, bit)
    use_everything(store)


def test_the_error_names_shard_page_and_section(store: Path) -> None:
    flip(store / "00001.tokens", 3 * 4096 + 17, 2)
    with pytest.raises(StoreError) as caught:
        use_everything(store)
    assert caught.value.where.startswith(str(store / "00001.tokens") + ", page 3 of ")
    assert caught.value.where.endswith("(tokens)")
    assert caught.value.expected.startswith("page 3 with checksum ")
    assert "bytes 12288 to 16384 have changed" in caught.value.got
    assert "penstock verify" in caught.value.fix


def test_damage_elsewhere_does_not_stop_a_batch_that_does_not_touch_it(store: Path) -> None:
    whole = TokenStore(store)
    flip(store / "00002.tokens", 5000, 0)
    opened = TokenStore(store)
    assert (opened.gather(np.array([0]), 100) == whole.gather(np.array([0]), 100)).all()
    start = int(opened.bounds[2])
    with pytest.raises(StoreError, match="page 1 "):
        opened.gather(np.array([0, start]), 500)
    with pytest.raises(StoreError, match="page 1 "):  # and it is noticed every time
        opened.gather(np.array([start]), 500)
    with pytest.raises(StoreError, match="page 1 "):  # also by a row that comes over from the shard before
        opened.gather(np.array([start - 10]), 500)
    with pytest.raises(StoreError, match="page 1 "):
        TokenStore(store, verify="open")
    assert TokenStore(store, verify="off").gather(np.array([start]), 500).shape == (1, 500)


@pytest.mark.parametrize("name", ["store", "store/00001.tokens"])
@pytest.mark.parametrize("page", [2, 3])
def test_a_window_over_two_pages_has_both_verified(tmp_path: Path, store: Path, name: str, page: int) -> None:
    """One of the two was seen before, in either order, in one shard and among several."""
    flip(store / "00001.tokens", page * 4096 + 2000, 1)
    opened = TokenStore(tmp_path / name)
    base = int(opened.bounds[-3]) if name == "store" else 0
    seam = base + 2 * 4096 // 2  # the token at which page 3 begins: tokens begin with page 1
    sound = seam - 1500 if page == 3 else seam + 500
    others = np.array([0, 10])  # in the first shard of several
    opened.gather(np.array([sound, *others]), 8)
    with pytest.raises(StoreError, match=f"page {page} "):
        opened.gather(np.array([seam - 4, *others]), 8)


def test_every_bit_of_the_tail_counts(store: Path) -> None:
    path = store / "00000.tokens"
    size = path.stat().st_size
    body = TokenStore(path)._shards[0].body_bytes
    for byte in range(body, size - 64, 3):
        flip(path, byte, byte % 8)
        for opened in (store, path):
            with pytest.raises(StoreError, match="a tail with root hash"):
                TokenStore(opened).gather(np.array([0]), 8)
        flip(path, byte, byte % 8)


def test_a_footer_that_lies_about_sizes(tmp_path: Path) -> None:
    write(tmp_path / "a.tokens", 1)
    data = (tmp_path / "a.tokens").read_bytes()
    good = list(struct.unpack("<8sIIQQQ16s", data[-64:-8]))
    for field, value in ((2, 4095), (2, 2**31), (3, len(data) + 1), (4, 2**63), (4, 0), (5, 2**60), (5, 0), (1, 9)):
        bad = [*good[:field], value, *good[field + 1 :]]
        front = struct.pack("<8sIIQQQ16s", *bad)
        (tmp_path / "a.tokens").write_bytes(data[:-64] + front + xxhash.xxh3_64_digest(front))
        with pytest.raises(StoreError, match=r"a file of|sizes in the footer|format version"):
            TokenStore(tmp_path / "a.tokens")


def test_a_damaged_superblock_is_noticed_every_time(store: Path) -> None:
    flip(store / "00000.tokens", 100, 3)
    opened = TokenStore(store)
    for _ in range(3):
        with pytest.raises(StoreError, match="page 0 "):
            opened.gather(np.array([5000]), 8)


def test_verify_lists_all_damage(store: Path) -> None:
    flip(store / "00000.tokens", 5000, 1)
    flip(store / "00000.tokens", 20000, 1)
    flip(store / "00002.tokens", 9000, 1)
    report = verify(store)
    assert [p.where.split(",")[0][-12:] for p in report.problems] == ["00000.tokens", "00000.tokens", "00002.tokens"]
    assert report.shards == 1
    with pytest.raises(StoreError):
        report.raise_first()


def test_truncation_at_many_lengths(store: Path) -> None:
    for name in ("00001.tokens", "manifest.json"):
        data = (store / name).read_bytes()
        cuts = [0, 1, 63, 64, 4095, 4096, 4160, len(data) // 2, len(data) - 65, len(data) - 64, len(data) - 1]
        for cut in (c for c in cuts if c < len(data)):
            (store / name).write_bytes(data[:cut])
            with pytest.raises(StoreError, match=name):
                use_everything(store)
            assert not verify(store).ok
            if name != "manifest.json":
                with pytest.raises(StoreError, match=name):
                    TokenStore(store / name)
        (store / name).write_bytes(data + b"\0")
        with pytest.raises(StoreError, match=name):
            use_everything(store)
        (store / name).write_bytes(data)


def test_missing_and_extra_shards(store: Path) -> None:
    first, away = store / "00000.tokens", store / "away"
    first.rename(away)
    with pytest.raises(StoreError, match=r"every shard the manifest lists[\s\S]*00000.tokens[\s\S]*copy the missing"):
        use_everything(store)
    assert "00000.tokens" in verify(store).problems[0].where
    away.rename(first)
    write(store / "extra.tokens", 9)
    assert verify(store).extras == ["extra.tokens"]


def test_swapped_shards(store: Path, tmp_path: Path) -> None:
    (store / "00002.tokens").replace(store / "00001.tokens")
    with pytest.raises(StoreError, match=r"bytes, as the manifest says[\s\S]*00001.tokens"):
        use_everything(store)
    infos = []
    for k in range(2):  # two of one size
        with ShardWriter(tmp_path / f"{k}.tokens", vocab_size=9) as shard:
            shard.add([[1, 2, k]])
        infos.append(shard.finish())
    write_manifest(tmp_path, infos)
    for a, b in (("0.tokens", "x"), ("1.tokens", "0.tokens"), ("x", "1.tokens")):
        (tmp_path / a).rename(tmp_path / b)
    with pytest.raises(StoreError, match="another one under this name") as caught:
        TokenStore(tmp_path).read(np.array([0]))
    assert caught.value.where.endswith("0.tokens")
    assert "may not be swapped" in caught.value.fix


def forge(path: Path, change: dict[str, object]) -> None:
    """Rewrites a shard's header and every checksum over it, as an attacker can."""
    data = path.read_bytes()
    magic, version, page, _, body, pages, _ = struct.unpack("<8sIIQQQ16s", data[-64:-8])
    tail = data[body:-64]
    header = {**json.loads(tail[8 * pages :]), **change}
    tail = tail[: 8 * pages] + layout.canonical_json(header)
    front = struct.pack(
        "<8sIIQQQ16s", magic, version, page, body + len(tail) + 64, body, pages, xxhash.xxh3_128_digest(tail)
    )
    path.write_bytes(data[:body] + tail + front + xxhash.xxh3_64_digest(front))


LIES: list[dict[str, object]] = [
    {"tokens": 2**62},
    {"documents": 2**62},
    {"documents": -1},
    {"tokens": 1.5},
    {"tokens": True},
    {"dtype": "|O"},
    {"dtype": "<f8"},
    {"columns": [{"name": "x", "dtype": "|O", "ragged": False, "shape": []}]},
    {"columns": [{"name": "x", "dtype": "<u2", "ragged": False, "shape": [2**62, 2**62]}]},
    {"columns": None},
    {"metadata": []},
    {"ragged_items": {"runs": 2**60}},
    {"ragged_items": {}},
    {"vocab_size": "many"},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_lies_with_right_checksums_are_refused_without_memory(tmp_path: Path, lie: dict[str, object]) -> None:
    write(tmp_path / "a.tokens", 1)
    forge(tmp_path / "a.tokens", lie)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreError, match=r"a\.tokens"):
        use_everything(tmp_path / "a.tokens")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    assert not verify(tmp_path / "a.tokens").ok


def test_a_forged_document_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    with ShardWriter(path, vocab_size=9) as shard:
        shard.add([[1, 2], [3], [4]])
    data = bytearray(path.read_bytes())
    data[8192:8208] = np.array([0, 2**31, 3, 4], "<u4").tobytes()
    pages = np.array([xxhash.xxh3_64_intdigest(bytes(data[:12288]))], "<u8")
    header = TokenStore(path)._shards[0].header
    tail, _ = layout.pack_tail(header, pages, 12288)
    path.write_bytes(bytes(data[:12288]) + tail)
    for wrong in (0, 1):
        with pytest.raises(StoreError, match="non-decreasing offsets in"):
            TokenStore(path).read(np.array([wrong]))
    with pytest.raises(StoreError, match=r"offsets\[1\] > offsets\[2\]"):
        verify(path).raise_first()


def test_a_false_vocabulary_is_found_by_verify(tmp_path: Path) -> None:
    write(tmp_path / "a.tokens", 1)
    forge(tmp_path / "a.tokens", {"vocab_size": 49_000})
    with pytest.raises(StoreError, match="ids below the vocabulary of 49000"):
        verify(tmp_path / "a.tokens").raise_first()


@pytest.mark.parametrize("name", ["../x.tokens", "/etc/passwd", "a/b", "C:\\x", "..", "a\0b"])
def test_a_manifest_cannot_name_files_elsewhere(store: Path, name: str) -> None:
    plain = json.loads((store / "manifest.json").read_text())
    plain["shards"][0]["name"] = name
    rewrite(store, plain)
    with pytest.raises(StoreError, match="an intact manifest"):
        TokenStore(store)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", "[" * 100_000, '{"format":"penstock-store"}', '{"a":' * 5000, "\xff", "9" * 5000]
)
def test_a_manifest_that_is_none(store: Path, text: str) -> None:
    (store / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=r"manifest\.json"):
        TokenStore(store)


def test_a_manifest_of_another_version_says_so(store: Path) -> None:
    plain = json.loads((store / "manifest.json").read_text())
    rewrite(store, {**plain, "version": 2})
    with pytest.raises(StoreError, match=r"store format version 1\n.*version 2"):
        TokenStore(store)


def test_a_manifest_with_wrong_totals_is_refused(store: Path) -> None:
    plain = json.loads((store / "manifest.json").read_text())
    plain["shards"][0]["tokens"] += 1
    rewrite(store, plain)
    with pytest.raises(StoreError, match="id or totals differ"):
        TokenStore(store)


def rewrite(folder: Path, plain: dict[str, object]) -> None:
    plain.pop("checksum", None)
    sealed = {**plain, "checksum": xxhash.xxh3_128_hexdigest(layout.canonical_json(plain))}
    (folder / "manifest.json").write_text(json.dumps(sealed, sort_keys=True, indent=1) + "\n")
