"""`.shuffle(lanes=)`: the rows of a step are the same for every world, and each rank reads blocks of its own."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.order.lanes import fleet_amplification
from penstock.sources.exclude import Without
from penstock.sources.parquet import ParquetFiles
from penstock.sources.tar import TarShards
from penstock.steps.shuffle import Shuffled
from penstock.testing import assert_exact_resume, global_batches
from tests.steps.test_pack import tokens


def numbers(n: int) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n)})


def rank_records(pipeline: ps.Pipeline, world: int) -> list[list[np.ndarray]]:
    """The record numbers of every step of an epoch, on each rank."""
    return [list(pipeline.shard(rank, world).to_numpy(threads=0).records()) for rank in range(world)]


def amplification(pipeline: ps.Pipeline, world: int, block_of: np.ndarray) -> float:
    touched = [np.unique(block_of[np.concatenate(steps)]).size for steps in rank_records(pipeline, world)]
    return sum(touched) / np.unique(block_of).size


def archive(path: Path, first: int, count: int) -> None:
    with tarfile.open(path, "w") as tar:
        for n in range(first, first + count):
            info = tarfile.TarInfo(f"{n:06}.cls")
            data = str(n).encode()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def shards(folder: Path, sizes: list[int]) -> str:
    folder.mkdir()
    for i, size in enumerate(sizes):
        archive(folder / f"{i:03}.tar", sum(sizes[:i]), size)
    return str(folder / "*.tar")


@pytest.mark.parametrize("world", [1, 3, 8])
def test_each_rank_reads_its_own_blocks(world: int) -> None:
    lanes, block = 24, 16
    n = lanes * block * 100 + 333
    pipeline = numbers(n).shuffle(seed=1, lanes=lanes, block=block, window=4).batch(48, remainder="short")
    found = amplification(pipeline, world, np.arange(n) // block)
    formula = 1 + (world - gcd(world, lanes)) / lanes
    assert abs(found / formula - 1) < 0.01
    assert fleet_amplification(world, lanes, 48) == formula
    plain = numbers(n).shuffle(seed=1, block=block, window=4).batch(48, remainder="short")
    assert amplification(plain, world, np.arange(n) // block) > 0.85 * world  # without lanes every rank reads all


def test_every_row_once_per_epoch_and_another_order_each() -> None:
    loader = numbers(501).shuffle(seed=1, lanes=8, block=4, window=2).batch(10, remainder="short").to_numpy()
    first, second = (np.concatenate([b["x"] for b in loader]) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(501))
    assert (first == second).sum() < 20


@pytest.mark.parametrize("engine", [{"threads": 2}, {"workers": 1}])
def test_ranks_make_the_same_batches_in_threads_and_child_processes(engine: dict[str, Any]) -> None:
    make = lambda: numbers(300).shuffle(seed=3, lanes=8, block=4, window=2).batch(24)  # noqa: E731
    want = global_batches(make, 1, 8, threads=0)
    got = global_batches(make, 2, 8, **engine)
    assert [b["x"].tolist() for b in got] == [b["x"].tolist() for b in want]


def test_lanes_block_and_window_are_in_the_fingerprint_and_a_state_of_others_is_refused() -> None:
    make = lambda **changed: (  # noqa: E731
        numbers(300).shuffle(**{"seed": 3, "lanes": 8, "block": 4, "window": 2, **changed}).batch(24)
    )
    state = make().to_numpy().state_dict()
    for changed in ({"lanes": 4}, {"block": 8}, {"window": 3}, {"lanes": None}):
        assert make(**changed).fingerprint() != make().fingerprint()
        with pytest.raises(ps.StateError, match="shuffle"):
            make(**changed).to_numpy().load_state_dict(state)
    make().shard(1, 2).to_numpy().load_state_dict(state)


def test_a_shuffle_without_lanes_has_the_specification_it_always_had() -> None:
    step = numbers(3).shuffle(seed=3, block=4).definition.steps[0]
    assert step.spec() == {"seed": 3, "block": 4, "window": None}


def test_why_and_row_numbers_are_those_of_the_ranks_own_rows() -> None:
    for whole in (False, True):
        pipeline = numbers(300).shuffle(seed=3, lanes=8, block=4, window=2).batch(24)
        pipeline = pipeline.map_batches(dict, whole=True) if whole else pipeline
        for rank in range(3):
            loader = pipeline.shard(rank, 3).to_numpy(threads=0)
            for step in (0, 7):
                batch = loader.batch_at(step)["x"]
                why = [loader.why(step, row) for row in range(8)]
                assert [w["record"] for w in why] == batch.tolist()
                assert [w["n"] for w in why] == loader.row_numbers(step).tolist()
                with pytest.raises(ps.UsageError, match="a row of the batch"):
                    loader.why(step, 8)


@pytest.mark.parametrize("remainder", ["short", "pad"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_nothing_is_lost_or_doubled_at_an_epochs_end(world: int, remainder: Any) -> None:
    pipeline = numbers(103).shuffle(seed=3, lanes=8, block=4, window=2).batch(12, remainder=remainder)
    ranks = [list(pipeline.shard(rank, world).to_numpy(threads=0)) for rank in range(world)]
    real = [b["x"][b.get("valid", b["x"] >= 0)] for batches in ranks for b in batches]
    assert sorted(np.concatenate(real)) == list(range(103))
    if remainder == "pad":
        assert {len(b["x"]) for batches in ranks for b in batches} == {12 // world}


def step_rows(pipeline: ps.Pipeline, world: int) -> Iterator[Counter[tuple[int, ...]]]:
    ranks = [list(pipeline.shard(rank, world).to_numpy(threads=0)) for rank in range(world)]
    for parts in zip(*ranks, strict=True):
        assert len({int(p["valid_labels"]) for p in parts}) == 1
        assert sum(int((p["labels"] != -100).sum()) for p in parts) == int(parts[0]["valid_labels"])
        yield Counter(tuple(row.tolist()) for part in parts for row in part["input_ids"])


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_packs_are_assigned_by_lane_and_their_labels_counted(strategy: Any) -> None:
    lengths = (np.random.default_rng(1).integers(1, 60, 900)).tolist()
    pipeline = tokens(lengths).pack(64, strategy=strategy).shuffle(seed=2, lanes=4, block=8, window=2).batch(12)
    want = list(step_rows(pipeline, 1))
    for world in (2, 3, 4):
        assert list(step_rows(pipeline, world)) == want
    assert_exact_resume(lambda: pipeline, most=8)
    node = pipeline.shard(0, 2).to_numpy()._plan.root
    assert isinstance(node, Shuffled)
    assert node.blocks is not None


def test_a_mixture_keeps_the_lanes_of_each_source_on_their_ranks() -> None:
    lanes, block, n = 16, 8, 16 * 8 * 40
    sources = [numbers(n).shuffle(seed=s, lanes=lanes, block=block, window=2) for s in (1, 2)]
    mixed = ps.mix([*sources, numbers(n).shuffle(seed=3)], [0.5, 0.25, 0.25]).take(2 * n).batch(64)
    touched, all_blocks = 0, 0
    for source in range(2):
        seen: list[set[int]] = []
        for rank in range(4):
            loader = mixed.shard(rank, 4).to_numpy(threads=0)
            work = loader._work()
            picks = [work.order(step) for step in range(len(loader))]
            seen.append(
                {int(r) // block for p in picks for r, k in zip(p.record, p.column("leaf"), strict=True) if k == source}
            )
        touched, all_blocks = touched + sum(map(len, seen)), all_blocks + len(set.union(*seen))
    assert touched / all_blocks < 2.2  # without lanes: 3.6, as 8 rows are drawn for 4 ranks


def test_tar_shards_are_the_blocks_of_lanes(tmp_path: Path) -> None:
    sizes = [13, 7, 20, 11] * 30
    source = ps.read_tar(shards(tmp_path / "a", sizes))
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    pipeline = source.decode_parts().shuffle(seed=5, lanes=4, window=2).batch(16, remainder="short")
    assert amplification(pipeline, 2, shard_of) < 1.04
    assert amplification(source.shuffle(seed=5).batch(16), 2, shard_of) > 1.9
    got = np.concatenate([b["cls"] for b in pipeline.shard(0, 1).to_numpy()])
    assert sorted(got) == list(range(sum(sizes)))
    pieces = source.shuffle(seed=5, lanes=4, block=5, window=2).batch(16, remainder="short")
    got = np.concatenate([np.concatenate(steps) for steps in rank_records(pieces, 2)])
    assert sorted(got) == list(range(sum(sizes)))


def test_the_same_records_in_other_shards_are_another_order_and_the_fingerprint_says_so(tmp_path: Path) -> None:
    one, other = (ps.read_tar(shards(tmp_path / name, sizes)) for name, sizes in (("a", [30, 30]), ("b", [20, 40])))
    assert one.shuffle(seed=1).fingerprint() == other.shuffle(seed=1).fingerprint()
    lanes = [source.shuffle(seed=1, lanes=2, window=1).batch(4) for source in (one, other)]
    assert lanes[0].fingerprint() != lanes[1].fingerprint()
    with pytest.raises(ps.StateError, match="blocks"):
        lanes[1].to_numpy().load_state_dict(json.loads(json.dumps(lanes[0].to_numpy().state_dict())))


def test_excluded_records_leave_the_blocks_smaller(tmp_path: Path) -> None:
    source = TarShards(shards(tmp_path / "a", [4, 3, 5]))
    assert source.block_sizes().tolist() == [4, 3, 5]
    assert Without(source, np.array([0, 4, 5, 6, 11])).block_sizes().tolist() == [3, 0, 4]


def test_row_groups_are_the_blocks_of_lanes(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for i in range(4):
        pq.write_table(pa.table({"x": np.arange(i * 600, i * 600 + 600)}), tmp_path / f"{i}.parquet", row_group_size=50)
    source = ps.read_parquet(str(tmp_path / "*.parquet"))
    group_of = np.arange(2400) // 50
    pipeline = source.map(dict).shuffle(seed=5, lanes=4, window=1).batch(16, remainder="short")
    assert amplification(pipeline, 2, group_of) == 1
    assert sorted(np.concatenate([b["x"] for b in pipeline.shard(0, 1).to_numpy()])) == list(range(2400))
    cut = source.take(2390).shuffle(seed=5, lanes=4, block=50, window=1).batch(16, remainder="short")
    assert amplification(cut, 2, group_of[:2390]) < 1.1  # rows were cut off: blocks of 50 rows instead


class CountedParquet(ParquetFiles):
    """Counts the row groups that are decoded."""

    decoded = 0

    def _decode(self, group: int, *more: Any) -> Any:
        self.decoded += 1
        return super()._decode(group, *more)


def test_each_rank_decodes_its_row_groups_once(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": np.arange(6400)}), tmp_path / "a.parquet", row_group_size=50)
    decoded = 0
    for rank in range(2):
        source = CountedParquet(str(tmp_path / "a.parquet"))
        loader = ps.Pipeline(source).shuffle(seed=5, lanes=32, window=2).batch(64).shard(rank, 2).to_numpy(threads=0)
        rows = sum(len(b["x"]) for b in loader)
        decoded += source.decoded
    assert rows == 3200
    assert decoded == 128


def test_what_cannot_be_combined_is_refused() -> None:
    documents = tokens([5, 9, 3] * 20)
    with pytest.raises(ps.UsageError, match="one rule that assigns the rows of a step to ranks"):
        documents.pack(16).shuffle(seed=1, lanes=2).batch(2, balance=True).to_numpy()
    with pytest.raises(ps.UsageError, match="without block and lanes before .bucket"):
        documents.shuffle(seed=1, lanes=2).bucket([4, 8], 2).to_numpy()
    for wrong in ({"lanes": 0}, {"lanes": True}, {"lanes": 2.5}, {"block": 0}, {"window": -1}, {"lanes": 1 << 17}):
        with pytest.raises(ps.UsageError, match=f"{next(iter(wrong))}= in .shuffle"):
            numbers(10).shuffle(**{"lanes": 2, **wrong})


class Counted:
    """Numbers whose reads are recorded."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.reads: list[np.ndarray] = []

    def __len__(self) -> int:
        return self.n

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        self.reads.append(indices)
        return {"x": indices.copy()}

    def fingerprint(self) -> str:
        return f"counted {self.n}"

    def describe(self) -> dict[str, Any]:
        return {"kind": "counted"}

    def locate(self, index: int) -> dict[str, Any]:
        return {"row": index}


def odd(columns: dict) -> np.ndarray:
    return columns["x"] % 2 == 1


def fails_sometimes(record: dict) -> dict:
    if record["x"] % 3 == 1:
        raise ValueError("a bad record")
    return record


LANES: dict[str, Any] = {"seed": 7, "lanes": 16, "block": 16, "window": 2}
REJECTING: dict[str, Any] = {
    "filter after": lambda s: ps.Pipeline(s).shuffle(**LANES).filter(odd, batched=True),
    "filter after repeat": lambda s: ps.Pipeline(s).shuffle(**LANES).repeat(1).filter(odd, batched=True),
    "filter before": lambda s: ps.Pipeline(s).filter(odd, batched=True).shuffle(**LANES),
    "errors": lambda s: ps.Pipeline(s).map(fails_sometimes).shuffle(**LANES).skip_errors(),
}


@pytest.mark.parametrize("name", REJECTING)
def test_rejected_rows_are_replaced_from_blocks_that_the_rank_reads_anyway(name: str) -> None:
    n, touched = 16 * 16 * 8, 0
    for rank in range(2):
        source = Counted(n)
        rows = [b["x"] for b in REJECTING[name](source).batch(32).shard(rank, 2).to_numpy(threads=0)]
        assert (np.concatenate(rows) % (3 if name == "errors" else 2) != (1 if name == "errors" else 0)).all()
        touched += np.unique(np.concatenate(source.reads) // 16).size
    assert touched / (n // 16) < 1.02


def test_duplicates_are_replaced_from_the_same_block() -> None:
    n = 16 * 16 * 8
    texts = [str(i // 2 * 2) for i in range(n)]  # every second text is the one before it
    pipeline = ps.from_texts(texts).dedup().shuffle(**LANES).batch(32)
    touched = 0
    for rank in range(2):
        loader = pipeline.shard(rank, 2).to_numpy(threads=0)
        work = loader._work()
        used = np.concatenate([work.rows(step).record for step in range(0, len(loader), 8)])
        planned = np.concatenate([work.order(step).record for step in range(0, len(loader), 8)])
        touched += len(used)
        assert (used // 16 == planned // 16).all()
        assert (used % 2 == 0).all()
    assert touched


def test_replacements_in_a_mixture_are_near_too() -> None:
    near, anywhere = (Counted(16 * 16 * 20) for _ in range(2))
    for source, lanes in ((near, LANES), (anywhere, {"seed": 7, "block": 16, "window": 32})):
        other = numbers(64).shuffle(**lanes)
        mixed = ps.mix([ps.Pipeline(source).shuffle(**lanes), other], [3, 1]).filter(odd, batched=True).batch(32)
        loader = mixed.to_numpy(threads=0)
        for step in range(10):
            loader.batch_at(step)
    blocks = [np.unique(np.concatenate(source.reads) // 16).size for source in (near, anywhere)]
    assert blocks[0] <= 32 < blocks[1]


def test_replacements_stay_inside_what_take_and_skip_keep() -> None:
    shuffled = numbers(400).shuffle(**LANES)
    kept = {int(row["x"]) for row in shuffled.take(100).peek(100)}
    got = shuffled.take(100).filter(odd, batched=True).batch(10).to_numpy(threads=0)
    assert {int(x) for b in got for x in b["x"]} <= kept
    few = numbers(400).skip(10).take(50).filter(odd, batched=True).shuffle(**LANES).batch(10).to_numpy(threads=0)
    assert {int(x) for b in few for x in b["x"]} <= set(range(10, 60))


def test_a_block_without_an_accepted_record_is_refilled_from_others() -> None:
    rows = numbers(400).shuffle(seed=1, lanes=2, block=100, window=1).filter(lambda r: r["x"] >= 350).batch(50)
    assert all((b["x"] >= 350).all() for b in rows.to_numpy(threads=0))
