"""Batches of packs, which are made one by one as they are delivered, against the rows of the same packs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penstock as ps
from penstock.engine.batches import Batches
from penstock.steps.pack_layout import holes_between
from penstock.steps.pack_rows import PackRows
from tests.steps.test_pack import documents, store, tokens

LENGTHS = [90, 30, 200, 70, 51, 102, 4, 500, 33, 64, 65, 63, 1, 128] * 6
RNG = np.random.default_rng(0)
MASKS = [RNG.random(n) < 0.6 for n in LENGTHS]
KINDS: dict[str, dict[str, Any]] = {
    "next": {},
    "same": {"labels": "same"},
    "no labels": {"labels": None},
    "cut off": {"overlong": "truncate"},
    "static": {"static": True, "max_docs": 3},
    "concat": {"strategy": "concat"},
    "padded": {"max_docs": 1, "pad_id": 7},
}


def later(pipeline: ps.Pipeline) -> bool:
    """Whether batches of this pipeline are made as they are delivered."""
    loader = pipeline.to_numpy(threads=0)
    work = Batches(loader._plan, loader._ranges, loader.output, False, loader._stats)
    return all(isinstance(part.rows, PackRows) for part in work.read(0, 1))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_have_the_rows_of_their_packs(tmp_path: Path, kind: str, masked: bool) -> None:
    source = store(tmp_path, LENGTHS, MASKS if masked else None, shards=3)
    packed = source.pack(128, **KINDS[kind]).shuffle(seed=1)
    assert later(packed.batch(5))
    want = packed.rows()
    everything = want.read(np.arange(len(want)))
    for threads in (0, 2):
        at = 0
        for batch in packed.batch(5, remainder="short").to_numpy(threads=threads):
            rows = len(batch["input_ids"])
            for name, column in everything.items():
                assert np.array_equal(batch[name], column[at : at + rows]), name
            flat = batch["position_ids"].reshape(-1)
            assert np.array_equal(np.unique(batch["cu_seqlens"]), [*np.flatnonzero(flat == 0), flat.size])
            assert ("labels" in batch) == ("valid_labels" in batch) == (kind != "no labels")
            if "labels" in batch:
                assert batch["valid_labels"] == (batch["labels"] != -100).sum()
                assert batch["labels"].dtype == np.int64 and batch["labels"].flags.c_contiguous
            at += rows
        assert at == len(want)


def test_masked_labels_are_what_a_loop_gives(tmp_path: Path) -> None:
    learnt = {t for d, m in zip(documents(LENGTHS), MASKS, strict=True) for t in d[m].tolist()}
    ends = set(np.cumsum(LENGTHS).tolist())
    source = store(tmp_path, LENGTHS, MASKS, shards=2)
    for shift, labels in ((1, "next"), (0, "same")):
        for batch in source.pack(128, labels=labels).batch(4, remainder="short").to_numpy(threads=0):
            first = np.zeros(batch["input_ids"].size, bool)
            first[batch["cu_seqlens"][:-1]] = True
            ids, got = batch["input_ids"].reshape(-1).tolist(), batch["labels"].reshape(-1).tolist()
            for token, label, begins in zip(ids, got, first.tolist(), strict=True):
                none = token == 0 or (begins if shift == 0 else token in ends) or token + shift not in learnt
                assert label == (-100 if none else token + shift)


def test_frameworks_get_their_own_types(tmp_path: Path) -> None:
    packed = store(tmp_path, LENGTHS, shards=2).pack(128).shuffle(seed=1).batch(4)
    want = list(packed.to_numpy(threads=0))
    for got, ids in ((packed.to_torch(threads=0), torch.int64), (packed.to_torch(ids="int32"), torch.int32)):
        for a, b in zip(want, got, strict=True):
            assert list(a) == list(b) and b["input_ids"].dtype == b["labels"].dtype == ids
            assert all(b[k].is_contiguous() and np.array_equal(a[k], b[k].numpy()) for k in a)
            b["labels"].zero_()  # a batch is the trainer's: writing into it changes no other
    for a, b in zip(want, packed.to_jax(threads=0), strict=True):
        assert all(isinstance(v, jax.Array) and v.dtype == np.int32 for v in b.values())
        assert all(np.array_equal(a[k], b[k]) for k in a)


def test_batches_that_are_kept_stay_as_they_were(tmp_path: Path) -> None:
    packed = store(tmp_path, LENGTHS).pack(4096).repeat(3).batch(2)  # large enough for memory to be used again
    kept = list(packed.to_torch(threads=0))
    again = packed.to_torch(threads=0)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(kept, again, strict=True) for k in a)


def test_a_function_after_batch_gets_whole_columns() -> None:
    seen = []
    list(tokens(LENGTHS).pack(128).batch(4).map_batches(lambda c: seen.append(sorted(c)) or c).to_numpy(threads=0))
    assert set(map(tuple, seen)) == {("input_ids", "labels", "position_ids", "segment_ids")}


def test_ranks_share_a_step_and_count_its_labels(tmp_path: Path) -> None:
    packed = store(tmp_path, LENGTHS, MASKS, shards=2).pack(128).shuffle(seed=1)
    whole = list(packed.batch(6).to_numpy(threads=0))
    ranks = [list(packed.batch(6).shard(r, 3).to_numpy(threads=0)) for r in range(3)]
    for all_rows, *parts in zip(whole, *ranks, strict=True):
        assert np.array_equal(np.concatenate([p["labels"] for p in parts]), all_rows["labels"])
        assert {int(p["valid_labels"]) for p in parts} == {int(all_rows["valid_labels"])}


def test_damage_is_met_where_it_is(tmp_path: Path) -> None:
    """Pages are verified as they are read: batches before the damaged one come out, that one names the page."""
    lengths = [500] * 900
    source = store(tmp_path, lengths, shards=3)
    loader = source.pack(500).batch(2).to_numpy(threads=0)
    want = list(loader)
    path = tmp_path / "00002.tokens"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    loader = ps.open_store(tmp_path).pack(500).batch(2).to_numpy(threads=0)
    got = []
    with pytest.raises(ps.DataError, match=r"00002\.tokens, page \d+"):
        for batch in loader:
            got.append(batch)
    assert 0 < len(got) < len(want) and loader.step == len(got)
    assert all(np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(want, got, strict=False))


def test_holes_are_what_stretches_leave_free() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        rows, length = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        taken = rng.random(rows * length) < 0.5
        edges = [
            r * length + np.flatnonzero(np.diff(taken[r * length : (r + 1) * length].astype(int), prepend=0, append=0))
            for r in range(rows)
        ]
        flat = np.concatenate(edges)
        found = holes_between(flat[::2], flat[1::2], rows, length)
        free = np.zeros(rows * length, bool)
        for a, b in zip(found.begins, found.ends, strict=True):
            assert a < b and not free[a:b].any()
            free[a:b] = True
        assert np.array_equal(free, ~taken)
        for r in range(rows):
            for i in range(found.offsets[r], found.offsets[r + 1]):
                assert r * length <= found.begins[i] < found.ends[i] <= (r + 1) * length
