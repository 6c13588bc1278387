"""`StreamingPreprocessedDataset` in real worker processes: resuming once, states, epochs, self-sharding streams."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from penstock import PromptEngine, StateError, UsageError
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.torch_data.worker_state import WorkerState

DataLoader = torch.utils.data.DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata of torch
]


def numbers(n):
    return [{"n": i} for i in range(n)]


def n_of(record):
    return {"x": record["n"]}


def not_thirds(record):
    return None if record["n"] % 3 == 0 else n_of(record)


def make(n=12, engine=n_of, buffer_size=0, **options):
    return StreamingPreprocessedDataset(numbers(n), engine, buffer_size, **({"rank": 0, "world_size": 1} | options))


def batches(loader):
    return [[int(x) for x in batch["x"]] for batch in loader]


def flat(loader):
    return sorted(x for batch in batches(loader) for x in batch)


def state_after_four(**options):
    dataset = make(**options)
    rows = iter(dataset)
    for _ in range(4):
        next(rows)
    return json.loads(json.dumps(dataset.state_dict()))


# The pass after a restore, and those after it.


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_only_the_first_pass_after_a_restore_begins_in_the_middle(workers, persistent):
    dataset = make()
    dataset.load_state_dict(state_after_four())
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, persistent_workers=persistent and workers > 0)
    assert [flat(loader) for _ in range(3)] == [list(range(4, 12)), list(range(12)), list(range(12))]


@pytest.mark.parametrize("counts", [(2, 2), (2, 3), (3, 1)])
def test_the_first_pass_is_known_by_more_than_torchs_seed(counts):
    """Whoever seeds torch before each pass, or takes other workers for the next one, does not go on twice."""
    dataset = make()
    dataset.load_state_dict(state_after_four())
    got = []
    for workers in counts:
        torch.manual_seed(0)
        got.append(flat(DataLoader(dataset, batch_size=2, num_workers=workers)))
    assert got == [list(range(4, 12)), list(range(12))]


def test_a_state_by_count_is_of_the_pass_under_way():
    dataset = make(24)
    dataset.load_state_dict(state_after_four(n=24))
    loader = DataLoader(dataset, batch_size=2, num_workers=2)
    for expected in (list(range(4, 24)), list(range(24))):
        got = []
        for done, batch in enumerate(loader, 1):
            got += [int(x) for x in batch["x"]]
            state = dataset.state_after(done, batch_size=2, num_workers=2)
            other = make(24)
            other.load_state_dict(state)
            assert sorted(got + [row["x"] for row in other]) == expected


def test_workers_that_live_on_cannot_learn_of_a_restore():
    dataset = make()
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True)
    assert flat(loader) == list(range(12))
    dataset.load_state_dict(state_after_four())
    with pytest.raises(UsageError, match=r"load_state_dict before(.|\n)*persistent_workers"):
        flat(loader)
    assert flat(DataLoader(dataset, batch_size=2, num_workers=2)) == list(range(4, 12))


@pytest.mark.parametrize("context", [None, "spawn"])
def test_an_epoch_reaches_workers_that_live_on(context):
    dataset = make(30, buffer_size=30)
    loader = DataLoader(dataset, batch_size=5, num_workers=2, persistent_workers=True, multiprocessing_context=context)
    for epoch in (0, 3, 1):
        dataset.set_epoch(epoch)
        fresh = make(30, buffer_size=30)
        fresh.set_epoch(epoch)
        assert batches(loader) == batches(DataLoader(fresh, batch_size=5, num_workers=2))


def test_a_new_epoch_gives_up_the_place_in_the_old_one():
    dataset = make()
    dataset.load_state_dict(state_after_four())
    dataset.set_epoch(0)  # the same: the place is kept
    dataset.set_epoch(1)
    assert dataset.state_dict()["given"] == dataset.state_after(0, batch_size=2)["given"] == []
    assert flat(DataLoader(dataset, batch_size=2, num_workers=2)) == list(range(12))
    dataset.set_epoch(0)
    assert [row["x"] for row in dataset] == list(range(12))


def tell_place(dataset, answers):
    os.environ.pop("RANK")
    os.environ.pop("WORLD_SIZE")
    answers.put((dataset.place(), [row["x"] for row in dataset]))


def test_spawned_workers_have_the_rank_of_the_process_that_made_them(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=tell_place, args=(StreamingPreprocessedDataset(numbers(6), n_of), answers))
    child.start()
    try:
        assert answers.get(timeout=60) == ((1, 2), [1, 3, 5])
    finally:
        child.join()


# States in and beside workers.


@pytest.mark.parametrize("workers", [1, 2])
def test_the_main_process_says_that_it_cannot_know(workers):
    dataset = make()
    loader = iter(DataLoader(dataset, batch_size=2, num_workers=workers))
    next(loader)
    with pytest.raises(StateError, match=rf"{workers} DataLoader worker(.|\n)*state_after\(batches"):
        dataset.state_dict()
    dataset.set_epoch(1)
    assert dataset.state_dict()["given"] == []


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("engine", [n_of, not_thirds])
@pytest.mark.parametrize("persistent", [False, True])
def test_torchdatas_stateful_loader_resumes_exactly(workers, engine, persistent):
    def loader():
        dataset = make(40, engine, buffer_size=7)
        return StatefulDataLoader(
            dataset, batch_size=3, num_workers=workers, persistent_workers=persistent and workers > 0
        )

    whole = loader()
    want = batches(whole)
    for done in (0, 1, 3, 4, len(want)):
        first = loader()
        rows = iter(first)
        for _ in range(done):
            next(rows)
        state = json.loads(json.dumps(first.state_dict()))
        again = loader()
        again.load_state_dict(state)
        got = [batches(again) for _ in range(2)]
        assert got == [want[done:], want]
        del rows


def test_the_stateful_loader_in_a_later_pass_of_lasting_workers():
    dataset = make(20)
    loader = StatefulDataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True)
    want = batches(loader)
    rows = iter(loader)
    assert [[int(x) for x in next(rows)["x"]] for _ in range(3)] == want[:3]
    state = loader.state_dict()
    again = StatefulDataLoader(make(20), batch_size=2, num_workers=2)
    again.load_state_dict(state)
    assert batches(again) == want[3:]


def as_worker(worker, workers, act):
    info = torch.utils.data._utils.worker
    info._worker_info = info.WorkerInfo(id=worker, num_workers=workers, seed=worker, dataset=None)
    try:
        return act()
    finally:
        info._worker_info = None


def test_a_workers_state_is_for_that_worker():
    def begun():
        dataset = make()
        rows = iter(dataset)
        next(rows)
        return dataset.state_dict()

    state = as_worker(1, 2, begun)
    for where in ((0, 2), (1, 3)):
        with pytest.raises(StateError, match=rf"worker {where[0]} of {where[1]}(.|\n)*worker 1 of 2"):
            as_worker(*where, lambda: make().load_state_dict(state))
    with pytest.raises(StateError, match=r"the full stream(.|\n)*worker 1 of 2(.|\n)*StatefulDataLoader"):
        make().load_state_dict(state)

    def rest():
        dataset = make()
        dataset.load_state_dict(state)
        return [[row["x"] for row in dataset] for _ in range(2)]

    assert as_worker(1, 2, rest) == [[3, 5, 7, 9, 11], [1, 3, 5, 7, 9, 11]]


def test_a_worker_that_was_not_there_before_does_not_take_up_the_place():
    """Whichever worker of the next iteration starts first, with the same seed."""
    state = WorkerState()
    state.restore(0)
    assert [as_worker(w, 2, state.start_iteration) for w in range(2)] == [True, True]
    assert [as_worker(w, 3, state.start_iteration) for w in (2, 0, 1)] == [False, False, False]


# Ranks whose records are skipped.


def none_for_some(record):
    return None if record["n"] in (0, 2, 4) else n_of(record)


def test_a_rank_that_may_skip_has_a_state_of_its_own():
    ranks = [make(20, none_for_some, rank=r, world_size=2) for r in range(2)]
    given = []
    for dataset in ranks:
        rows = iter(dataset)
        given += [next(rows)["x"] for _ in range(3)]
    states = [json.loads(json.dumps(dataset.state_dict())) for dataset in ranks]
    rest = []
    for rank, state in enumerate(states):
        again = make(20, none_for_some, rank=rank, world_size=2)
        again.load_state_dict(state)
        rest += [row["x"] for row in again]
    assert sorted(given + rest) == [n for n in range(20) if n not in (0, 2, 4)]
    for rank, world in ((1, 2), (0, 1), (0, 3)):
        with pytest.raises(StateError, match=rf"rank {rank} of {world}(.|\n)*rank 0 of 2(.|\n)*DataLoaderBuilder"):
            make(20, none_for_some, rank=rank, world_size=world).load_state_dict(states[0])


def test_a_ranks_own_state_stays_its_own_when_it_is_saved_again():
    dataset = make(20, none_for_some, rank=0, world_size=2)
    next(iter(dataset))
    again = make(20, none_for_some, rank=0, world_size=2)
    again.load_state_dict(dataset.state_dict())
    for state in (again.state_dict(), again.state_after(0, batch_size=2), again.state_after(1, batch_size=2)):
        assert state["rank"] == [0, 2]


def test_ranks_that_cannot_skip_share_one_state():
    records = [{"q": str(i), "a": "yes"} for i in range(20)]

    def engine(rank, world):
        return StreamingPreprocessedDataset(
            records, PromptEngine("bytes", "{q}? {a}", eos=0), rank=rank, world_size=world
        )

    states = []
    for rank in range(2):
        dataset = engine(rank, 2)
        rows = iter(dataset)
        for _ in range(3):
            next(rows)
        states.append(dataset.state_dict())
    assert states[0] == states[1]
    rest = []
    for rank in range(3):
        other = engine(rank, 3)
        other.load_state_dict(states[0])
        rest += [bytes(row["input_ids"].tolist()).split(b"?")[0] for row in other]
    assert sorted(int(q) for q in rest) == list(range(6, 20))


def test_a_state_by_count_is_refused_once_a_record_was_skipped():
    dataset = make(12, not_thirds)
    assert len(flat(DataLoader(dataset, batch_size=2, num_workers=2))) == 8
    with pytest.raises(StateError, match=r"no skipped records(.|\n)*4 skipped(.|\n)*DataLoaderBuilder"):
        dataset.state_after(2, batch_size=2, num_workers=2)


# Streams that know of workers.


class SharesItself(torch.utils.data.IterableDataset):
    """Gives each DataLoader worker its part, as torch's own documentation shows."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(start, self.n, step):
            info = torch.utils.data.get_worker_info()
            yield {"n": i, "seen": info is not None}


def seeing(record):
    assert not record["seen"]
    return n_of(record) | {"inside": torch.utils.data.get_worker_info() is not None}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_shares_itself_over_workers_loses_nothing(workers):
    dataset = StreamingPreprocessedDataset(SharesItself(12), seeing, rank=0, world_size=1)
    rows = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert sorted(row["x"] for row in rows) == list(range(12))
    assert all(row["inside"] is (workers > 0) for row in rows)  # the engine still sees where it runs


# Reasons for skipped records.


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns of it where an earlier test has started it
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
def test_the_ledger_has_the_reasons_of_all_workers(workers, context):
    dataset = make(12, not_thirds)
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, multiprocessing_context=context)
    assert len(flat(loader)) == 8
    ledger = dataset.ledger
    assert (ledger.total, dataset.skipped, sum(ledger.by_reason.values())) == (4, 4, 4)
    assert [entry.record for entry in ledger.entries] == [0, 3, 6, 9]
    assert dict(ledger.by_reason) == {"a record that the prompt engine keeps": 4}
    assert "record 3" in str(ledger.entries[1])


def none_at_all(record):
    return None


def test_skipped_records_that_are_not_listed_are_counted():
    dataset = make(3000, none_at_all)
    assert list(dataset) == []
    ledger = dataset.ledger
    assert ledger.total == dataset.skipped == 3000
    assert 0 < len(ledger.entries) < 3000
    assert any("not listed" in reason for reason in ledger.by_reason)
