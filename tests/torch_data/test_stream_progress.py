"""Consumed stream positions, in layers: compared with a plain set, and small whatever the runs."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import StateError
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.torch_data.stream_progress import Layer, from_json, numbered, remaining, simplified, to_json

LAYERS = st.lists(
    st.builds(Layer, st.integers(1, 4), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 9)),
    max_size=6,
)


def apply(layers, places):
    """The positions that are left, one layer after the other, by the definition."""
    for layer in layers:
        readers = layer.world * len(layer.rounds)
        kept = []
        for i, place in enumerate(places, layer.start):
            if i // readers >= layer.rounds[i % readers // layer.world]:
                kept.append(place)
        places = kept
    return places


@settings(max_examples=300, deadline=None)
@given(layers=LAYERS)
def test_simplified_layers_leave_the_same_positions(layers):
    n = 400
    want = apply(layers, list(range(n)))
    begin, rest = simplified(layers)
    assert apply(rest, list(range(begin, n))) == want
    assert [p for p, wanted in zip(range(begin, n), remaining(rest), strict=False) if wanted] == want
    assert all(not each.has(0) and each.total() for each in rest)  # nothing in it that could be shorter
    again = from_json(json.loads(json.dumps(to_json(layers))), "")
    assert simplified(again) == (begin, rest)


@given(layer=LAYERS.filter(bool).map(lambda layers: layers[0]))
def test_counts_and_gaps_of_a_layer(layer):
    consumed = [layer.has(i) for i in range(200)]
    assert [layer.before(i) for i in range(200)] == [sum(consumed[:i]) for i in range(200)]
    assert layer.total() == sum(consumed)
    gaps = [i for i, has in enumerate(consumed) if not has]
    assert [layer.gap(i) for i in range(20)] == gaps[:20]


def test_complete_runs_are_one_number():
    assert to_json([Layer(3, [4]), Layer(2, [5, 5]), Layer(1, [0])]) == [[1, [32]]]
    assert to_json([Layer(2, [3, 2])]) == [[1, [10]]]  # the first worker a round further is a complete run too
    assert to_json([Layer(1, [0, 0])]) == []
    assert to_json([Layer(1, [2, 0]), Layer(1, [9])]) == [[1, [11]]]  # gaps that were filled are gone


def numbers(n):
    return [{"n": i} for i in range(n)]


def left(dataset):
    """What is left of a restored stream."""
    start, layers = simplified(dataset._base)
    return (placed for _, placed in numbered(dataset.elements(start, 0), start, layers))


def n_of(record):
    return {"x": record["n"]}


@pytest.mark.parametrize(("batch_size", "batches"), [(2, 1), (5, 3), (1, 3)])
def test_an_epoch_resumed_hundreds_of_times_in_the_middle_of_a_turn(batch_size, batches):
    """Two workers; every run is stopped after an odd number of batches."""
    n, state, got, longest = 600, None, [], 0
    while True:
        dataset = StreamingPreprocessedDataset(numbers(n), n_of, 9, rank=0, world_size=1)
        if state is not None:
            dataset.load_state_dict(state)
        placed = [int(dataset.rows([p])[0]["x"]) for p in left(dataset)]
        if not placed:
            break
        turns = [placed[0::2], placed[1::2]]
        for batch in range(batches):
            start = batch_size * (batch // 2)
            got += turns[batch % 2][start : start + batch_size]
        state = json.loads(json.dumps(dataset.state_after(batches, batch_size=batch_size, num_workers=2)))
        longest = max(longest, len(json.dumps(state)))
    assert sorted(got) == list(range(n))
    assert longest < 400


def test_as_many_runs_as_it_takes_with_large_batches():
    """Runs of one batch of 64 by one of four workers leave gaps for many runs, which never grow to many layers."""
    dataset = StreamingPreprocessedDataset(lambda: ({"n": i} for i in range(10**9)), n_of, rank=0, world_size=1)
    layers = 0
    for _ in range(150):
        state = dataset.state_after(1, batch_size=64, num_workers=4)
        dataset.load_state_dict(json.loads(json.dumps(state)))
        layers = max(layers, len(state["given"]))
    rest = [placed[0] for placed in islice(left(dataset), 2000)]
    seen = set(range(rest[-1])) - set(rest)
    assert 2 < layers < 20
    assert len(seen) == 150 * 64


@pytest.mark.parametrize(
    "wrong",
    [
        "x",
        None,
        [None],
        [[0, [1]]],
        [[1, []]],
        [[1, [-1]]],
        [[1, [True]]],
        [[1, [1.0]]],
        [[1, [1], -1]],
        [[1, [1], 0, 0]],
        [[1, [1 << 62]]],
        [[1, [0] * 1000]] * 66,
    ],
)
def test_hostile_states_are_refused(wrong):
    with pytest.raises(StateError, match="consumed positions"):
        from_json(wrong, "fix it")


def test_absurd_numbers_cost_nothing():
    layers = from_json([[2**61, [2**61, 0, 5]], [3, [2**61, 2**60]]], "")
    begin, rest = simplified(layers)
    assert begin > 0 and len(rest) <= 2
