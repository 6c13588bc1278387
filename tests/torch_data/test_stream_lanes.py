"""Hugging Face streams of several shards: each worker opens its own, and the rows, order and states stay the same."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import Any

import datasets
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as ps
from penstock.sources.hf_stream import MAX_LANES, lanes_of

DataLoader = torch.utils.data.DataLoader
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata of torch
]
EVEN, UNEVEN = (5,) * 8, (7, 0, 13, 1, 4, 9, 2, 6)


def records(shards: list[tuple[int, int]]) -> Any:
    for number, size in shards:
        for i in range(size):
            yield {"n": 100 * number + i, "shard": number, "process": os.getpid()}


def hf(sizes: tuple[int, ...]) -> Any:
    return datasets.IterableDataset.from_generator(records, gen_kwargs={"shards": list(enumerate(sizes))})


def numbers(sizes: tuple[int, ...]) -> list[int]:
    return sorted(100 * number + i for number, size in enumerate(sizes) for i in range(size))


def row(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": record["n"], "shard": record["shard"], "process": record["process"]}


def not_thirds(record: dict[str, Any]) -> dict[str, Any] | None:
    return row(record) if record["n"] % 3 else None


def dataset(sizes: tuple[int, ...], engine: Any = row, **options: Any) -> ps.StreamingPreprocessedDataset:
    return ps.StreamingPreprocessedDataset(hf(sizes), engine, **({"rank": 0, "world_size": 1} | options))


def built(sizes: tuple[int, ...], workers: int, batch: int = 4, persistent: bool = False, **options: Any) -> Any:
    builder = ps.DataLoaderBuilder().with_dataset(dataset(sizes, **options)).with_batch_size(batch)
    return builder.with_workers(workers, persistent_workers=persistent).build()


def listed(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [x for batch in batches for x in batch]


def test_lanes_take_turns() -> None:
    made = dataset((2, 0, 3))
    assert made.lanes == 3
    assert [each["x"] for each in made] == [0, 200, 1, 201, 202]
    assert [position for position, _ in made.elements(0, 0)] == [0, 2, 3, 5, 8]
    assert [position for position, _ in made.elements(4, 0)] == [5, 8]


@pytest.mark.parametrize(("sizes", "buffer_size"), [(EVEN, 0), (UNEVEN, 12)])
def test_every_row_once_for_any_number_of_workers_and_ranks(sizes: tuple[int, ...], buffer_size: int) -> None:
    for workers, world in ((0, 1), (3, 1), (4, 1), (0, 3), (2, 2)):
        got: list[int] = []
        for rank in range(world):
            made = dataset(sizes, buffer_size=buffer_size, rank=rank, world_size=world)
            got += flat(listed(DataLoader(made, batch_size=3, num_workers=workers)))
        assert sorted(got) == numbers(sizes), (workers, world)


@pytest.mark.parametrize("workers", [2, 4])
def test_a_worker_opens_only_its_own_shards(workers: int) -> None:
    rows = list(DataLoader(dataset(EVEN), batch_size=None, num_workers=workers))
    assert len({r["process"] for r in rows}) == workers
    assert len({(r["process"], r["shard"]) for r in rows}) == len(EVEN)


def test_ranks_open_only_their_own_shards() -> None:
    shards = [{r["shard"] for r in dataset(UNEVEN, rank=rank, world_size=2)} for rank in range(2)]
    assert shards[0] and shards[1] and not shards[0] & shards[1]
    for workers in (2, 4):
        parts = DataLoader(dataset(EVEN, rank=1, world_size=2), batch_size=None, num_workers=workers)
        seen = {(r["process"], r["shard"]) for r in parts}
        assert (len(seen), len({process for process, _ in seen})) == (4, workers)


def test_a_number_of_workers_that_does_not_divide_the_shards_is_named(caplog: pytest.LogCaptureFixture) -> None:
    made = dataset(EVEN, rank=0, world_size=3)
    with caplog.at_level("WARNING", "penstock"):
        next(iter(made))
    assert "each of 3 readers (workers x ranks) reads 8 of the 8 lanes" in caplog.text


@pytest.mark.parametrize(
    ("sizes", "options"), [(EVEN, {}), (UNEVEN, {"buffer_size": 12}), (UNEVEN, {"engine": not_thirds})]
)
def test_batches_of_the_builder_do_not_depend_on_workers(sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    want = [listed(loader) for loader in [built(sizes, 0, **options)] for _ in range(2)]
    for workers in (2, 9) if not options else (3,):
        loader = built(sizes, workers, persistent=workers == 3, **options)
        assert [listed(loader) for _ in range(2)] == want, workers
    kept = [n for n in numbers(sizes) if options.get("engine") is not not_thirds or n % 3]
    assert sorted(flat(want[0])) == kept


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_worker_of_the_builder_opens_only_its_own_shards(workers: int) -> None:
    seen = set()
    for batch in built(EVEN, workers):
        seen |= set(zip(batch["process"].tolist(), batch["shard"].tolist(), strict=True))
    assert (len(seen), len({process for process, _ in seen})) == (len(EVEN), workers)


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
def test_ranks_of_the_builder_have_equal_batches(sizes: tuple[int, ...]) -> None:
    want = listed(built(sizes, 0, batch=6))
    for workers in (0, 2):
        parts = [listed(built(sizes, workers, batch=3, rank=rank, world_size=2)) for rank in range(2)]
        assert [one + two for one, two in zip(*parts, strict=True)] == want, workers


@pytest.mark.parametrize("engine", [row, not_thirds])
def test_the_builder_resumes_exactly_with_other_workers(engine: Any) -> None:
    loader = built(UNEVEN, 2, engine=engine, buffer_size=5)
    states, want = [loader.state_dict()], []
    for batch in loader:
        want.append(batch["x"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    for at, state in enumerate(states):
        for workers in (0, 3) if at % 5 == 0 else (0,):
            fresh = built(UNEVEN, workers, engine=engine, buffer_size=5)
            fresh.load_state_dict(state)
            assert listed(fresh) == want[at:], (at, workers)


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_torchdata_resumes_exactly(workers: int) -> None:
    def loader() -> Any:
        return StatefulDataLoader(dataset(UNEVEN, not_thirds), batch_size=3, num_workers=workers)

    want = listed(loader())
    for taken in (1, 4, len(want) - 1):
        first = loader()
        for _ in islice(first, taken):
            state = first.state_dict()
        again = loader()
        again.load_state_dict(json.loads(json.dumps(state)))
        assert listed(again) == want[taken:]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_state_by_count_resumes_with_other_workers_or_is_refused(workers: int) -> None:
    for sizes in (EVEN, UNEVEN):
        made = dataset(sizes)
        got: list[int] = []
        refused = 0
        for done, batch in enumerate(DataLoader(made, batch_size=2, num_workers=workers), 1):
            got += batch["x"].tolist()
            try:
                state = made.state_after(done, batch_size=2, num_workers=workers)
            except ps.StateError:
                refused += 1
                continue
            for other in (0, 3) if done == 5 else (0,):
                fresh = dataset(sizes)
                fresh.load_state_dict(state)
                rest = flat(listed(DataLoader(fresh, batch_size=2, num_workers=other)))
                assert sorted(got + rest) == numbers(sizes)
        assert sorted(got) == numbers(sizes)
        assert refused > 0 if sizes == UNEVEN else refused <= workers + 3


def test_a_state_from_before_lanes_goes_on_in_its_own_order() -> None:
    made = dataset(UNEVEN)
    state = made.state_dict()
    assert state["lanes"] == 8
    del state["lanes"], state["check"]  # as earlier versions wrote it
    state["given"] = [[1, [5]]]
    made.load_state_dict(state)
    assert made.lanes == 1
    assert [r["x"] for r in made] == [r["n"] for r in hf(UNEVEN)][5:]
    loader = built(UNEVEN, 2, persistent=True)
    old = {name: value for name, value in loader.state_dict().items() if name not in ("lanes", "check")} | {"n": 8}
    list(loader)
    loader.load_state_dict(old)
    assert flat(listed(loader)) == [r["n"] for r in hf(UNEVEN)][8:]
    with pytest.raises(ps.StateError, match="lanes=8, which decides the order"):
        dataset(UNEVEN).load_state_dict(state | {"lanes": 3})


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.take(11),
        lambda s: s.skip(9),
        lambda s: s.map(lambda r, i: {"n": r["n"] + i}, with_indices=True),
        lambda s: s.map(
            lambda r: {"n": [sum(r["n"])]}, batched=True, batch_size=4, remove_columns=["shard", "process"]
        ),
        lambda s: datasets.interleave_datasets([s, s.take(3)]),
    ],
)
def test_a_stream_whose_rows_depend_on_each_other_is_read_in_one_piece(change: Any) -> None:
    stream = change(hf(UNEVEN))
    assert lanes_of(stream) == 1
    made = ps.StreamingPreprocessedDataset(stream, lambda r: {"x": r["n"]}, rank=0, world_size=1)
    got = flat(listed(DataLoader(made, batch_size=2, num_workers=2)))
    assert sorted(got) == sorted(r["n"] for r in stream)


@pytest.mark.parametrize(
    "change",
    [lambda s: s.map(lambda r: r), lambda s: s.filter(lambda r: r["n"] % 2), lambda s: s.shuffle(3, buffer_size=4)],
)
def test_steps_of_single_records_keep_the_lanes(change: Any) -> None:
    stream = change(hf(UNEVEN))
    assert lanes_of(stream) == 8
    made = ps.StreamingPreprocessedDataset(stream, row, rank=0, world_size=1)
    for epoch in (0, 1):
        made.set_epoch(epoch)
        got = flat(listed(DataLoader(made, batch_size=2, num_workers=2)))
        assert sorted(got) == sorted(r["n"] for r in stream)


def test_many_shards_share_lanes() -> None:
    sizes = (1,) * 50
    made = dataset(sizes)
    assert made.lanes == MAX_LANES
    assert sorted(r["x"] for r in made) == numbers(sizes)
