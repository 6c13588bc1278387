"""The law on packs, buckets and token budgets: any restore point, any world, any threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import penstock as ps
from penstock import Pipeline
from penstock.core.columns import Columns
from penstock.plan.build import build
from penstock.steps.limit import Repeat
from penstock.testing import assert_elastic, assert_exact_resume
from penstock.testing.resume import assert_same_batches, batches

LENGTHS = np.random.default_rng(5).integers(0, 60, 170)
TOKENS = (np.arange(LENGTHS.sum()) * 7919 % 251).astype(np.uint16)
PER_STEP = ("cu_seqlens", "max_seqlen")  # of a rank's own rows
WORLDS, THREADS = (1, 2, 3, 4), (0, 1, 2)


def tokens() -> Pipeline:
    return ps.open_tokens(TOKENS, np.concatenate([[0], np.cumsum(LENGTHS)]), 251)


def odd_rows(record: dict) -> bool:
    return bool(record["input_ids"][0] % 3)


PACKED: dict[str, Callable[[int], Pipeline]] = {
    "pack": lambda b: tokens().pack(32).batch(b),
    "pack, shuffled": lambda b: tokens().pack(32, max_docs=4).shuffle(seed=3).batch(b),
    "pack, concat": lambda b: tokens().pack(24, strategy="concat").shuffle(seed=3).batch(b),
    "pack, static, short": lambda b: (
        tokens().pack(32, static=True, max_docs=3).shuffle(seed=1).batch(b, remainder="pad")
    ),
    "pack, repeated and cut": lambda b: tokens().pack(32).shuffle(seed=3).repeat(2).skip(3).batch(b),
    "pack, long pieces": lambda b: tokens().pack(64).shuffle(seed=3).batch(b, remainder="short"),
    "pack, long pieces, repeated": lambda b: (
        tokens().pack(64, labels="same").shuffle(seed=3).repeat(2).skip(3).batch(b)
    ),
    "pack, filtered": lambda b: tokens().pack(32).shuffle(seed=3).filter(odd_rows).batch(b),
    "packs mixed": lambda b: ps.mix([tokens().pack(32), tokens().pack(32).shuffle(seed=2)], [0.3, 0.7]).batch(b),
}
PLANNED: dict[str, Callable[[bool], Pipeline]] = {
    "buckets": lambda e: tokens().shuffle(seed=1).bucket([16, 32], 6, remainder="short", balance=e),
    "buckets, dropped": lambda e: tokens().shuffle(seed=1).bucket([16, 32], sizes=[8, 5, 3], balance=e),
    "buckets, padded": lambda e: tokens().shuffle(seed=1).bucket([16, 32], 6, remainder="pad", balance=e),
    "budget": lambda e: tokens().shuffle(seed=1).batch_tokens(256, multiple=8, balance=e),
    "budget, static": lambda e: tokens().shuffle(seed=1).batch_tokens(256, shapes=[16, 64], static=True, balance=e),
    "budget, one row a step": lambda e: tokens().shuffle(seed=1).batch_tokens(64, max_rows=1, balance=e),
    "budget, in order": lambda e: tokens().batch_tokens(256, max_rows=5, balance=e),
}


@pytest.mark.parametrize("name", PACKED)
def test_the_order_does_not_depend_on_how_many_rows_are_planned_at_once(name: str) -> None:
    """Also over many passes of a small source, which are planned in one call."""
    source = PACKED[name](8).definition
    steps = [step for step in source.steps if step.batch is None]
    more = [] if build(source).root.size is None else [Repeat(40)]
    root = build(replace(source, steps=(*steps, *more))).root
    many = root.pick(np.arange(4000), 0)
    for start in range(0, 4000, 250):
        some = root.pick(np.arange(start, start + 9), 0)
        assert np.array_equal(some.record, many.record[start : start + 9])


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", [*PACKED, *PLANNED])
def test_every_saved_state_gives_the_whole_remainder(name: str, threads: int) -> None:
    make = (lambda: PACKED[name](8)) if name in PACKED else (lambda: PLANNED[name](False))
    assert_exact_resume(make, most=12, threads=threads)


def by_rows(parts: list[Columns]) -> list[Columns]:
    """Batches of one rank or joined ones, without what is counted per rank."""
    return [{k: v for k, v in part.items() if k not in PER_STEP} for part in parts]


def packed(name: str, batch: int, world: int, count: int, state: object = None, threads: int = 0) -> list[Columns]:
    """Global batches; the count of labels must be the same on every rank."""
    ranks = []
    for rank in range(world):
        loader = PACKED[name](batch).shard(rank, world).to_numpy(threads=threads)
        if state is not None:
            loader.load_state_dict(state)
        ranks.append(by_rows(batches(loader, count)))
    out = []
    for parts in zip(*ranks, strict=True):
        (labels,) = {int(p.pop("valid_labels")) for p in parts}
        joined = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        assert labels == (joined["labels"] != -100).sum()
        out.append(joined)
    return out


@pytest.mark.parametrize("name", PACKED)
def test_packs_do_not_depend_on_world_threads_or_batch(name: str) -> None:
    want = packed(name, 12, 1, 7)
    for world in WORLDS:
        for threads in THREADS:
            got = packed(name, 12, world, 7, threads=threads)
            assert_same_batches(want, got, f"world={world}, threads={threads}")
    loader = PACKED[name](12).to_numpy(threads=0)
    batches(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = {k: np.concatenate([b[k] for b in want[3:]]) for k in want[0]}
    for world in WORLDS:
        rows = 3 if world == 3 else 4
        after = packed(name, rows, world, 4, state)
        for i, batch in enumerate(after):
            for k, v in batch.items():
                assert np.array_equal(v, rest[k][rows * i : rows * i + rows]), (world, i, k)


def real(batch: Columns, ordered: bool) -> list[tuple[int, ...]]:
    """Rows that count, as plain data."""
    rows = [
        tuple(np.concatenate([batch[k][i] for k in ("input_ids", "labels", "attention_mask")]).tolist())
        for i in np.flatnonzero(batch["valid"])
    ]
    return rows if ordered else sorted(rows)


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("name", PLANNED)
def test_planned_steps_do_not_depend_on_world_or_threads(name: str, balance: bool) -> None:
    want = list(PLANNED[name](balance).to_numpy(threads=0))
    loader = PLANNED[name](balance).to_numpy(threads=0)
    batches(loader, len(want) // 2)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["n"] == len(want) // 2
    for world in WORLDS:
        for threads, saved in ((0, None), (2, None), (0, state)):
            ranks = []
            for rank in range(world):
                run = PLANNED[name](balance).shard(rank, world).to_numpy(threads=threads)
                if saved is not None:
                    run.load_state_dict(saved)
                ranks.append(list(run))
            steps = want if saved is None else want[saved["step"] :]
            assert {len(r) for r in ranks} == {len(steps)}
            for whole, parts in zip(steps, zip(*ranks, strict=True), strict=True):
                assert {int(p["valid_labels"]) for p in parts} == {int(whole["valid_labels"])}
                got = [row for p in parts for row in real(p, ordered=True)]
                assert (sorted(got) if balance else got) == real(whole, ordered=not balance)


def test_global_batches_of_a_share_that_divides_are_the_batch_itself() -> None:
    make = lambda: tokens().shuffle(seed=1).bucket([16, 32], sizes=[8, 4, 4])  # noqa: E731
    want = [{k: v for k, v in b.items() if k != "valid_labels"} for b in make().to_numpy(threads=0)]
    for world in (2, 4):
        drop = lambda c: {k: v for k, v in c.items() if k != "valid_labels"}  # noqa: E731
        ranks = [[drop(b) for b in make().shard(r, world).to_numpy(threads=0)] for r in range(world)]
        got = [{k: np.concatenate([p[k] for p in parts]) for k in parts[0]} for parts in zip(*ranks, strict=True)]
        assert_same_batches(want, got, f"world={world}")


def test_fingerprints_name_what_decides_the_batches() -> None:
    prints = {name: make(False).fingerprint() for name, make in PLANNED.items()}
    prints |= {name: make(8).fingerprint() for name, make in PACKED.items()}
    assert len(set(prints.values())) == len(prints)
    assert PLANNED["budget"](False).fingerprint() == PLANNED["budget"](True).shard(1, 2).fingerprint()


def test_the_public_assertions_take_packed_rows() -> None:
    assert_elastic(PACKED["pack, shuffled"], batch=12, worlds=WORLDS, threads=THREADS, other_batch=4)
