"""The bytes of a store are a promise: other releases and machines must be able to read them, and ids must not drift.

If this fails, a change has altered the format. If that was an accident, take the change back. If it was meant, raise
`layout.VERSION` and put the new hashes here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from penstock.core.columns import Ragged
from penstock.store.manifest import write_manifest
from penstock.store.reader import TokenStore
from penstock.store.writer import ShardInfo, ShardWriter

HASHES = {
    "00000.tokens": "d2e6edd1fc31fec0bde3f4428397ebe13dead996ff32e3df3c324060a825d97f",
    "00001.tokens": "b04eec397d6f9849164335c74f74ca9d5fc6f5213064c3217306cf21fef24a1a",
    "manifest.json": "e8f22568963761ff996201d045381522eebf29b9c3043c6732b6e67d9c6d1d51",
}
IDENT = "63e69ba548961257d7aa27c1b7c7adc9"


def test_a_small_store_is_byte_for_byte_the_known_one(tmp_path: Path) -> None:
    infos = []
    for k in range(2):
        with ShardWriter(tmp_path / f"{k:05d}.tokens", vocab_size=50_257, metadata={"part": k}) as shard:
            docs = [(np.arange(n * 40_000) * 7919 + k) % 50_257 for n in (0, 1, 2)]
            runs = Ragged.of([[1, 2, 3], [], [4 + k]], np.int32)
            shard.add(Ragged.of(docs, np.int64), {"runs": runs, "source": np.array([3, 1, 2], np.uint16)})
        infos.append(shard.finish())
    tokenizer = {"kind": "test", "sha256": "00ff", "vocab_size": 50_257}
    manifest = write_manifest(tmp_path, infos, tokenizer=tokenizer, eos_id=50_256, tool="golden")
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(tmp_path.iterdir())}
    assert found == HASHES
    assert manifest.id == IDENT
    assert TokenStore(tmp_path).read(np.array([5]))["runs"].tolist() == [[5]]


GROUPS = {
    "manifest.json": "a39657873372f0891a261e9cd467cc2edd737a59c49489fbee163a5f2990e78b",
    "shards-bad2df366775dda2dd9ddbaca034115a.index": "2fa1e8bb90ffe821bb145c202f317bdb4b34abc55e05f72ce7d284da671714d6",
}
GROUPS_IDENT = "0c97ebe3f0f187f69a24ccbe47887ef3"


def test_a_list_of_many_shards_is_byte_for_byte_the_known_one(tmp_path: Path) -> None:
    infos = [
        ShardInfo(f"{k:05d}.tokens", 4096 + k, k % 7, k * 11, f"{k * 2**100 + k:032x}", "<u2", 50_257)
        for k in range(1500)
    ]
    bases = {"line_bases": {"shards": [9, 1200], "lines": [1000, 0]}}
    manifest = write_manifest(tmp_path, infos, tokenizer={"kind": "test"}, eos_id=3, metadata=bases, tool="golden")
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(tmp_path.iterdir())}
    assert found == GROUPS
    assert manifest.id == GROUPS_IDENT
