"""`StreamingPreprocessedDataset`: every record once whatever the readers, and exact resumption from a few numbers."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from itertools import count, islice

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import PromptEngine, StateError, UsageError, UserCodeError
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.order.shuffle_buffer import held_before, shuffled, slots
from penstock.plan.state import signed

DataLoader = torch.utils.data.DataLoader

# The counts of the promise are tested on machines with fewer cores than that, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def numbers(n):
    return [{"n": i} for i in range(n)]


def n_of(record):
    return {"x": record["n"]}


class Stream:
    """An iterable without length that can be begun again."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(numbers(self.n)) if self.n is not None else ({"n": i} for i in count())


def sources(n):
    return {
        "list": numbers(n),
        "iterable": Stream(n),
        "function": lambda: iter(numbers(n)),
        "hf_map": datasets.Dataset.from_list(numbers(n)),
        "hf_stream": datasets.Dataset.from_list(numbers(n)).to_iterable_dataset(num_shards=min(n, 3)),
    }


def xs(rows):
    return [int(row["x"]) for row in rows]


# The order.


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 120), size=st.integers(0, 150), start=st.integers(0, 130), key=st.integers(0, 99))
def test_the_local_shuffle_is_a_function_of_position(n, size, start, key):
    def begin(at):
        return iter(range(at, n))

    whole = list(shuffled(begin, 0, size, key))
    assert [p for p, _ in whole] == list(range(n))
    assert sorted(e for _, e in whole) == list(range(n))
    assert all(e - p < max(1, size) for p, e in whole)
    assert list(shuffled(begin, start, size, key)) == whole[start:]


def test_what_is_left_at_the_end_comes_in_an_order_of_the_key():
    ends = [[e for _, e in shuffled(lambda at: iter(range(at, 40)), 0, 100, key)] for key in range(4)]
    assert len({tuple(end) for end in ends}) == 4  # shorter than the buffer: the end is all there is
    assert all(end != list(range(40)) for end in ends)


def test_what_the_buffer_holds_is_found_by_looking_back():
    size, key = 50, 4
    held = list(range(size))
    for p, slot in enumerate(slots(0, 1500, size, key).tolist()):
        if p % 97 == 0:
            assert held_before(p, size, key).tolist() == held
        held[slot] = p + size


def test_shuffling_mixes():
    got = np.array([e for _, e in shuffled(lambda at: iter(range(at, 20_000)), 0, 1000, 1)])
    moved = got - np.arange(20_000)
    assert 500 < np.abs(moved[2000:-2000]).mean() < 1500
    assert np.corrcoef(got[5000:6000], np.arange(1000))[0, 1] < 0.6


# Every record once.


@pytest.mark.parametrize("kind", ["list", "iterable", "function", "hf_map", "hf_stream"])
@pytest.mark.parametrize("buffer_size", [0, 6])
def test_17_records_over_5_workers_and_3_ranks(kind, buffer_size):
    seen = Counter()
    for rank in range(3):
        dataset = StreamingPreprocessedDataset(
            hf_iterable=sources(17)[kind], prompt_engine=n_of, buffer_size=buffer_size, rank=rank, world_size=3
        )
        assert isinstance(dataset, torch.utils.data.IterableDataset)
        seen.update(int(x) for batch in DataLoader(dataset, batch_size=2, num_workers=5) for x in batch["x"])
    assert seen == Counter(range(17))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 60), workers=st.integers(1, 6), world=st.integers(1, 5), size=st.integers(0, 20))
def test_no_loss_and_no_overlap_for_any_counts(n, workers, world, size):
    seen = []
    for rank in range(world):
        for worker in range(workers):
            info = torch.utils.data._utils.worker
            info._worker_info = info.WorkerInfo(id=worker, num_workers=workers, seed=0, dataset=None)
            try:
                seen += xs(StreamingPreprocessedDataset(numbers(n), n_of, size, rank=rank, world_size=world))
            finally:
                info._worker_info = None
    assert sorted(seen) == list(range(n))


def test_all_kinds_of_streams_have_the_same_order():
    orders = [xs(StreamingPreprocessedDataset(s, n_of, 7, seed=3)) for k, s in sources(40).items() if k != "hf_stream"]
    assert all(order == orders[0] for order in orders)
    assert orders[0] != list(range(40))
    assert sorted(orders[0]) == list(range(40))


def test_seed_and_epoch_change_the_order_and_nothing_else():
    def order(seed, epoch):
        dataset = StreamingPreprocessedDataset(numbers(50), n_of, 20, seed=seed)
        dataset.set_epoch(epoch)
        return tuple(xs(dataset))

    orders = {order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert all(sorted(o) == list(range(50)) for o in orders)
    assert order(1, 2) in orders


def test_an_hf_streams_own_shuffle_follows_the_epoch():
    stream = datasets.Dataset.from_list(numbers(30)).to_iterable_dataset().shuffle(seed=1, buffer_size=10)
    dataset = StreamingPreprocessedDataset(stream, n_of)
    first = xs(dataset)
    assert xs(dataset) == first
    dataset.set_epoch(1)
    assert xs(dataset) != first


def test_a_stream_split_by_node_is_not_split_again(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    from datasets.distributed import split_dataset_by_node

    stream = datasets.Dataset.from_list(numbers(20)).to_iterable_dataset(num_shards=2)
    seen = [xs(StreamingPreprocessedDataset(split_dataset_by_node(stream, r, 2), n_of)) for r in range(2)]
    assert sorted(seen[0] + seen[1]) == list(range(20))
    assert xs(StreamingPreprocessedDataset(numbers(6), n_of)) == [1, 3, 5]  # the launcher's rank is found


def test_a_length_is_known_where_the_records_are():
    lengths = [len(StreamingPreprocessedDataset(numbers(17), n_of, rank=r, world_size=3)) for r in range(3)]
    assert lengths == [6, 6, 5]
    with pytest.raises(TypeError, match="no length"):
        len(StreamingPreprocessedDataset(Stream(17), n_of))


def test_endless_streams():
    dataset = StreamingPreprocessedDataset(Stream(None), n_of, 100, seed=1, rank=1, world_size=2)
    first = xs(islice(dataset, 500))
    assert len(set(first)) == 500
    list(islice(dataset, 200))
    state = dataset.state_dict()
    other = StreamingPreprocessedDataset(Stream(None), n_of, 100, seed=1, rank=1, world_size=2)
    other.load_state_dict(state)
    assert xs(islice(other, 300)) == first[200:]


# Resuming.


@pytest.mark.parametrize("kind", ["list", "iterable", "hf_stream"])
@pytest.mark.parametrize("buffer_size", [0, 7, 100])
def test_resumes_exactly_before_every_row(kind, buffer_size):
    def make():
        return StreamingPreprocessedDataset(sources(40)[kind], n_of, buffer_size, seed=5)

    dataset = make()
    dataset.set_epoch(2)
    states, whole = [json.dumps(dataset.state_dict())], []
    for row in dataset:
        whole.append(int(row["x"]))
        states.append(json.dumps(dataset.state_dict()))
    assert max(map(len, states)) < 200
    for at, text in enumerate(states):
        again = make()
        again.load_state_dict(json.loads(text))
        assert xs(again) == whole[at:]
        assert xs(again) == whole  # only the first pass after a restore begins in the middle


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 80),
    size=st.integers(0, 12),
    layout=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_by_count_over_changing_workers_and_ranks(n, size, layout):
    """Several runs, each with its own ranks, workers and number of batches of 3; what is left comes once at the end."""
    state, given = None, []
    for world, workers, batches in layout:
        datasets_ = [
            StreamingPreprocessedDataset(numbers(n), n_of, size, rank=r, world_size=world) for r in range(world)
        ]
        states = []
        for dataset in datasets_:
            if state is not None:
                dataset.load_state_dict(state)
            # What each worker of a torch DataLoader would give: batches of 3 in turn, from its own copy.
            own = [_worker_rows(dataset, w, workers) for w in range(workers)]
            for batch in range(batches):
                given += own[batch % workers][3 * (batch // workers) : 3 * (batch // workers) + 3]
            states.append(dataset.state_after(batches, batch_size=3, num_workers=workers))
        assert all(s == states[0] for s in states)
        state = json.loads(json.dumps(states[0]))
    last = StreamingPreprocessedDataset(numbers(n), n_of, size, rank=0, world_size=1)
    last.load_state_dict(state)
    assert sorted(given + xs(last)) == list(range(n))


def _worker_rows(dataset, worker, workers):
    info = torch.utils.data._utils.worker
    info._worker_info = info.WorkerInfo(id=worker, num_workers=workers, seed=0, dataset=None)
    try:
        return xs(pickle.loads(pickle.dumps(dataset)))
    finally:
        info._worker_info = None


def test_by_count_with_real_workers():
    dataset = StreamingPreprocessedDataset(Stream(50), n_of, 8, seed=2, rank=0, world_size=1)
    batches = [xs({"x": x} for x in b["x"]) for b in DataLoader(dataset, batch_size=4, num_workers=3)]
    for done in (5, 6):
        taken = [x for batch in batches[:done] for x in batch]
        state = dataset.state_after(done, batch_size=4, num_workers=3)
        for workers in (0, 2, 3):
            other = StreamingPreprocessedDataset(Stream(50), n_of, 8, seed=2, rank=0, world_size=1)
            other.load_state_dict(state)
            rest = [xs({"x": x} for x in b["x"]) for b in DataLoader(other, batch_size=4, num_workers=workers)]
            assert sorted(taken + [x for batch in rest for x in batch]) == list(range(50))
            if (done, workers) == (6, 3):  # after whole turns the batches are the same as well
                assert rest == batches[6:]


def test_resuming_makes_no_row_twice():
    made = []
    dataset = StreamingPreprocessedDataset(Stream(100), lambda r: made.append(r["n"]) or n_of(r), 10)
    list(islice(dataset, 90))
    state = dataset.state_dict()
    made.clear()
    dataset.load_state_dict(state)
    assert len(list(dataset)) == len(made) == 10


# Skips and errors.


def picky(record):
    if record["n"] % 5 == 0:
        raise ValueError(f"no {record['n']}")
    return None if record["n"] % 7 == 0 else n_of(record)


@pytest.mark.parametrize("workers", [0, 3])
def test_skipped_records_are_left_out_and_counted(workers):
    dataset = StreamingPreprocessedDataset(numbers(35), picky, 4, skip_errors=True)
    got = sorted(int(x) for x in DataLoader(dataset, batch_size=None, num_workers=workers) for x in [x["x"]])
    assert got == [i for i in range(35) if i % 5 and i % 7]
    assert dataset.skipped == 11
    if not workers:
        assert dataset.ledger.total == 11
        assert sum(dataset.ledger.by_reason.values()) == 11
        assert any(entry.file == "record 5" for entry in dataset.ledger.entries)


def test_resuming_over_skips():
    def make():
        return StreamingPreprocessedDataset(Stream(60), picky, 9, skip_errors=True)

    dataset = make()
    states, whole = [dataset.state_dict()], []
    for row in dataset:
        whole.append(row["x"])
        states.append(dataset.state_dict())
    for at, state in enumerate(states):
        again = make()
        again.load_state_dict(state)
        assert xs(again) == whole[at:]


def test_errors_name_the_record():
    with pytest.raises(
        UserCodeError, match=r"picky to make a row(.|\n)*ValueError: no 0(.|\n)*record 0(.|\n)*skip_errors"
    ):
        list(StreamingPreprocessedDataset(numbers(3), picky))
    with pytest.raises(UserCodeError, match=r"where: position 5 of the stream"):
        list(StreamingPreprocessedDataset(lambda: iter([{"n": 1}] * 5 + [{"n": 5}]), picky))

    def broken():
        yield {"n": 1}
        raise OSError("connection lost")

    with pytest.raises(UserCodeError, match=r"OSError: connection lost(.|\n)*record 1 of the stream"):
        list(StreamingPreprocessedDataset(broken, n_of, skip_errors=True))


def test_json_lines_stream_and_a_damaged_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {i}}}\n' if i != 4 else "{\n" for i in range(8)))
    dataset = StreamingPreprocessedDataset(path, n_of, skip_errors=True)
    assert xs(dataset) == [0, 1, 2, 3, 5, 6, 7]
    assert "line 5" in dataset.ledger.entries[0].file


def test_a_prompt_engine_in_spawned_workers():
    records = [{"q": str(i), "a": "yes"} for i in range(9)]
    dataset = StreamingPreprocessedDataset(records, PromptEngine("bytes", "{q}? {a}", eos=0), rank=0, world_size=1)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [bytes(row["input_ids"].tolist()) for row in loader] == [f"{i}? yes".encode() + b"\0" for i in range(9)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hf_iterable": iter([])}, r"read again(.|\n)*list_iterator(.|\n)*not make_records\(\)"),
        ({"hf_iterable": 5}, "hf_iterable= a datasets.IterableDataset"),
        ({"buffer_size": -1}, "buffer_size of 0 or more"),
        ({"rank": 1}, "both rank and world_size"),
        ({"rank": 2, "world_size": 2}, "a rank from 0 to 1"),
        ({"prompt_engine": None}, "prompt_engine= a PromptEngine"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(UsageError, match=text):
        StreamingPreprocessedDataset(**({"hf_iterable": numbers(3), "prompt_engine": n_of} | arguments))


def test_states_that_do_not_fit_are_refused():
    dataset = StreamingPreprocessedDataset(numbers(9), n_of, 3, seed=1)
    state = dataset.state_dict()
    for wrong, text in [
        ({}, "a state that penstock saved"),
        (state | {"seed": 2}, r"seed=1, which decides the order(.|\n)*seed=2"),
        (state | {"buffer_size": 0}, "buffer_size=3"),
        (state | {"given": [[0, [1]]]}, "consumed positions"),
        (state | {"given": "x"}, "consumed positions"),
        (state | {"given": [[1, [-1]]]}, "consumed positions"),
        (state | {"epoch": None}, "'epoch'"),
    ]:
        with pytest.raises(StateError, match=text):
            dataset.load_state_dict(signed(wrong) if wrong else wrong)
