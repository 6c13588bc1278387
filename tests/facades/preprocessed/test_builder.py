"""`DataLoaderBuilder`: real DataLoaders, the same batches however they are made, exact state, all problems at once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from penstock import PromptEngine, StateError, UsageError, create_collate_fn
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.plan.state import signed

RECORDS = [{"q": f"question {i}", "a": "yes " * (1 + i % 5)} for i in range(30)]

# Worker counts are tested on machines with fewer cores than that, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Squares(torch.utils.data.Dataset):
    """A user's own dataset, one row at a time."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"i": i, "square": torch.tensor([i * i])}


def x_of(record):
    return {"x": record["n"]}


def numbers(n):
    return [{"n": i} for i in range(n)]


def map_builder(n=23, batch=4, **calls):
    builder = DataLoaderBuilder().with_dataset(Squares(n)).with_batch_size(batch).with_shuffle().with_seed(3)
    for name, arguments in calls.items():
        getattr(builder, name)(*arguments) if isinstance(arguments, tuple) else getattr(builder, name)(**arguments)
    return builder


def stream_builder(n=23, batch=4, buffer_size=6, **calls):
    dataset = StreamingPreprocessedDataset(lambda: iter(numbers(n)), x_of, buffer_size, seed=3)
    builder = DataLoaderBuilder().with_dataset(dataset).with_batch_size(batch)
    for name, arguments in calls.items():
        getattr(builder, name)(*arguments)
    return builder


def listed(batches, name="i"):
    return [batch[name].tolist() for batch in batches]


BUILDERS = {"map": (map_builder, "i"), "stream": (stream_builder, "x")}
kinds = pytest.mark.parametrize("kind", BUILDERS)


def test_every_call_returns_the_builder():
    builder = DataLoaderBuilder()
    assert builder.with_dataset(Squares(5)) is builder
    assert builder.with_batch_size(2) is builder
    assert builder.with_distributed(0, 1) is builder
    assert builder.with_workers(2, pin_memory=True) is builder
    assert builder.with_collate(torch.utils.data.default_collate) is builder
    assert builder.with_shuffle() is builder
    assert builder.with_seed(1) is builder
    assert builder.with_drop_last() is builder
    assert builder.with_prefetch(2) is builder
    assert isinstance(builder.build(), torch.utils.data.DataLoader)


def test_the_document_example():
    engine = PromptEngine("bytes", "{q}? {a}", eos=0)
    train = PreprocessedDataset(hf_dataset=RECORDS, prompt_engine=engine, cache_enabled=True)
    loader = (
        DataLoaderBuilder()
        .with_dataset(train)
        .with_batch_size(8)
        .with_workers(8)
        .with_distributed(rank=0, world_size=1)
        .build()
    )
    batches = list(loader)
    assert [len(b["input_ids"]) for b in batches] == [8, 8, 8, 6] == [8] * (len(loader) - 1) + [6]
    want = create_collate_fn(pad_token_id=train.collate_fn.pad_token_id)(train.__getitems__(range(8)))
    assert all(torch.equal(batches[0][name], want[name]) for name in want)
    assert (batches[0]["labels"][batches[0]["attention_mask"] == 0] == -100).all()


@pytest.mark.parametrize("workers", [{"num": 0}, {"num": 1}, {"num": 4}, {"num": 2, "processes": True}])
def test_map_batches_do_not_depend_on_threads_or_processes(workers):
    want = [map_builder().build().batch_at(step)["i"].tolist() for step in range(12)]
    loader = map_builder(with_workers=workers, with_prefetch=(2,)).build()
    got = listed(loader) + listed(loader)
    assert got == want
    assert sorted(i for batch in got[:6] for i in batch) == list(range(23))
    assert got[:6] != got[6:]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_stream_batches_do_not_depend_on_workers(workers):
    want = listed(stream_builder().build(), "x")
    loader = stream_builder(with_workers=(workers,)).build()
    first, second = listed(loader, "x"), listed(loader, "x")
    assert first == want
    assert sorted(x for batch in second for x in batch) == list(range(23))
    assert second != first


@kinds
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [24, 25, 35])
def test_ranks_get_equal_counts_and_different_rows(kind, drop_last, n):
    make, name = BUILDERS[kind]
    ranks = []
    for rank in range(3):
        builder = make(n, with_distributed=(rank, 3))
        ranks.append(listed(builder.with_drop_last(drop_last).build(), name))
    assert len({len(rank) for rank in ranks}) == 1
    assert all(len({len(batch) for batch in step}) == 1 for step in zip(*ranks, strict=True))
    rows = Counter(i for rank in ranks for batch in rank for i in batch)
    if drop_last:
        assert set(rows.values()) == {1}
        assert len(rows) == n // 12 * 12
    else:
        assert set(rows) == set(range(n))
        assert sum(rows.values()) == -(-n // 3) * 3
    # Together they are the one global sequence.
    alone = listed(make(n, 12).with_drop_last(drop_last).build(), name)
    together = [[i for batch in step for i in batch] for step in zip(*ranks, strict=True)]
    assert [t[: len(a)] for t, a in zip(together, alone, strict=True)] == alone


@kinds
@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_exactly_before_every_batch(kind, workers):
    make, name = BUILDERS[kind]
    calls = {"with_workers": (workers,)} if workers else {}
    loader = make(**calls).build()
    states, whole = [], []
    for _ in range(2):
        run = iter(loader)
        while True:
            states.append(json.dumps(loader.state_dict()))
            batch = next(run, None)
            if batch is None:
                states.pop()
                break
            whole.append(batch[name].tolist())
    assert len(whole) == len(states) == 12
    assert max(map(len, states)) < 1024
    for at in range(0, 12, 5 if workers and kind == "stream" else 1):
        fresh = make(**calls).build()
        fresh.load_state_dict(json.loads(states[at]))
        assert iter(fresh) is not None  # an iterator that is never used changes nothing
        assert listed(fresh, name) == whole[at : 6 if at < 6 else 12]


@kinds
def test_resumes_with_other_ranks_workers_and_batch_size(kind):
    make, name = BUILDERS[kind]
    want = [i for batch in listed(make(48).build(), name) for i in batch]
    loader = make(48).build()
    seen = [i for batch in islice(loader, 3) for i in batch[name].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    ranks = [make(48, 2, with_distributed=(rank, 3), with_workers=(rank,)).build() for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(state)
    for step in islice(zip(*ranks, strict=True), 2):
        seen += [i for batch in step for i in batch[name].tolist()]
    states = [rank.state_dict() for rank in ranks]
    assert states[0] == states[1] == states[2]
    last = make(48, 5).build()
    last.load_state_dict(states[1])
    seen += [i for batch in last for i in batch[name].tolist()]
    assert seen == want


@kinds
def test_a_loop_left_early_begins_the_next_epoch(kind):
    make, name = BUILDERS[kind]
    whole = make().build()
    epochs = [listed(whole, name) for _ in range(3)]
    loader = make().build()
    assert [b[name].tolist() for b in islice(loader, 2)] == epochs[0][:2]
    assert listed(loader, name) == epochs[1]
    loader.set_epoch(0)
    assert listed(loader, name) == epochs[0]
    loader.set_epoch(2)
    assert listed(loader, name) == epochs[2]


@kinds
def test_set_epoch_keeps_a_restored_place(kind):
    make, name = BUILDERS[kind]
    loader = make().build()
    list(loader)
    assert len(list(islice(loader, 2))) == 2
    state = loader.state_dict()
    fresh = make().build()
    fresh.load_state_dict(state)
    fresh.set_epoch(1)
    whole = make().build()
    whole.set_epoch(1)
    assert listed(fresh, name) == listed(whole, name)[2:]


def test_skipped_records_shorten_their_own_batch_alone():
    def picky(record):
        return None if record["n"] % 8 < 5 else x_of(record)

    def build(engine, workers):
        dataset = StreamingPreprocessedDataset(numbers(40), engine)
        return DataLoaderBuilder().with_dataset(dataset).with_batch_size(4).with_workers(workers).build()

    want = [[x for x in batch if x % 8 >= 5] for batch in listed(build(x_of, 0), "x")]
    for workers in (0, 2):
        loader = build(picky, workers)
        assert listed(loader, "x") == [batch for batch in want if batch]
        assert loader.skipped == 25
    # A batch that was skipped as a whole is passed over by the state as well.
    loader = build(picky, 0)
    run = iter(loader)
    first = next(run)["x"].tolist()
    fresh = build(picky, 0)
    fresh.load_state_dict(loader.state_dict())
    assert [first, *listed(fresh, "x")] == [batch for batch in want if batch]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_of_known_length_has_one(drop_last):
    def build(records, rank):
        dataset = StreamingPreprocessedDataset(records, x_of)
        builder = DataLoaderBuilder().with_dataset(dataset).with_batch_size(4).with_distributed(rank, 2)
        return builder.with_drop_last(drop_last).build()

    for n in (8, 9, 23) if drop_last else (7, 8, 9, 23):
        for rank in range(2):
            loader = build(numbers(n), rank)
            assert len(loader) == len(list(loader))
    if drop_last:
        with pytest.raises(UsageError, match="at least one batch in the stream"):
            list(build(numbers(7), 0))
    with pytest.raises(TypeError, match="no length"):
        len(build(lambda: iter(numbers(9)), 0))


def test_no_threads_are_left_behind():
    before = threading.active_count()
    loader = map_builder(200, with_workers=(3,)).build()
    for _ in loader:
        break
    run = iter(loader)
    next(run)
    del run
    assert threading.active_count() <= before


def test_errors_of_the_dataset_come_through_with_the_record():
    dataset = PreprocessedDataset([*RECORDS, {"q": "no answer"}], PromptEngine("bytes", "{q}? {a}", eos=0))
    for workers in (0, 2):
        loader = DataLoaderBuilder().with_dataset(dataset).with_batch_size(8).with_workers(workers).build()
        with pytest.raises(Exception, match="record 30"):
            list(loader)


def test_other_collate_functions_and_arrays():
    rows = [(np.full(2, i), i) for i in range(5)]
    loader = DataLoaderBuilder().with_dataset(rows).with_batch_size(2).with_collate(list).build()
    assert [[i for _, i in batch] for batch in loader] == [[0, 1], [2, 3], [4]]
    loader = DataLoaderBuilder().with_dataset(rows).with_batch_size(5).build()
    ((arrays, indices),) = list(loader)
    assert arrays.shape == (5, 2)
    assert indices.tolist() == [0, 1, 2, 3, 4]


def test_a_foreign_stream_gets_torchs_own():
    loader = DataLoaderBuilder().with_dataset(_Foreign()).with_batch_size(2).build()
    assert type(loader) is torch.utils.data.DataLoader
    assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]


def test_all_problems_at_once():
    builder = (
        DataLoaderBuilder()
        .with_dataset(iter([1]))
        .with_batch_size(0)
        .with_distributed(rank=2, world_size=2)
        .with_workers(-1)
        .with_collate("pad")
        .with_shuffle("yes")
        .with_seed(1.5)
        .with_prefetch(0)
    )
    with pytest.raises(UsageError) as error:
        builder.build()
    text = str(error.value)
    assert "8 problems" in text
    for part in [
        "with_dataset: expected rows by number",
        "with_batch_size: expected batch_size to be an integer of at least 1, got 0",
        "with_distributed: expected rank from 0 to 1, got 2",
        "with_workers: expected num to be an integer of at least 0, got -1",
        "with_collate: expected a function",
        "with_shuffle: expected True or False, got 'yes'",
        "with_seed: expected seed to be an integer, got 1.5",
        "with_prefetch: expected batches to be an integer of at least 1, got 0",
    ]:
        assert part in text


class _Foreign(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(5))


def _stream(**options):
    return StreamingPreprocessedDataset(numbers(5), x_of, **options)


@pytest.mark.parametrize(
    ("builder", "text"),
    [
        (DataLoaderBuilder(), "2 problems(.|\n)*with_dataset: not called(.|\n)*with_batch_size: not called"),
        (DataLoaderBuilder().with_dataset([]).with_batch_size(1), "the dataset is empty"),
        (map_builder(5, 3, with_distributed=(0, 2), with_drop_last=()), "5 rows make no full batch of 3 on each of 2"),
        (map_builder(with_distributed=("0", 2)), "expected rank to be an integer, got '0'"),
        (map_builder(with_distributed=(0, 0)), "world_size of at least 1, got 0"),
        (map_builder(with_workers={"num": 0, "processes": True}), "processes=True with num=0"),
        (stream_builder(with_shuffle=()), r"StreamingPreprocessedDataset\(buffer_size=1000\)"),
        (
            DataLoaderBuilder().with_dataset(_Foreign()).with_batch_size(1).with_distributed(0, 2),
            "cannot be sharded among ranks",
        ),
        (
            DataLoaderBuilder().with_dataset(_stream(rank=1, world_size=2)).with_batch_size(1).with_distributed(0, 2),
            "rank 0 of 2, but the dataset has 1 of 2",
        ),
    ],
)
def test_each_problem_says_what_to_do(builder, text):
    with pytest.raises(UsageError, match=text):
        builder.build()


def test_states_that_do_not_fit_are_refused():
    with pytest.raises(StateError, match="this very pipeline"):
        map_builder(22).build().load_state_dict(map_builder(23).build().state_dict())
    loader = stream_builder().build()
    for wrong, text in [
        ({}, "a state that penstock saved"),
        (signed(loader.state_dict() | {"n": -1}), "'n'"),
        (signed(loader.state_dict() | {"seed": 9}), "seed=3, which decides the order"),
    ]:
        with pytest.raises(StateError, match=text):
            loader.load_state_dict(wrong)
