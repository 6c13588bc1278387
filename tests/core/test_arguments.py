"""Wrong arguments answer with the verb's own name, the nearest real argument, and what to write here."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

import penstock as ps
from penstock.core import arguments

ROWS = ps.from_arrays({"x": range(6)})
TEXTS = ps.from_texts(["one", "two"])
TOKENS = ps.open_tokens(range(9))
BATCHES = ROWS.batch(2)

WRONG: list[tuple[Any, dict[str, Any], str, str]] = [
    (ROWS.batch, {"drop_last": True}, ".batch()", 'remainder="drop"'),
    (ROWS.batch, {"drop_last": False}, ".batch()", 'remainder="short" for drop_last=False'),
    (ROWS.batch, {"batch_size": 8}, ".batch()", "size=8"),
    (BATCHES.to_torch, {"num_workers": 4}, ".to_torch()", "threads=4"),
    (BATCHES.to_torch, {"num_workers": 4}, ".to_torch()", "workers=4 for child processes"),
    (BATCHES.to_torch, {"prefetch_factor": 2}, ".to_torch()", "prefetch=2"),
    (BATCHES.to_torch, {"pin_memory_device": "cuda"}, ".to_torch()", "device='cuda', with pin_memory=True"),
    (BATCHES.to_torch, {"shuffle": True}, ".to_torch()", ".shuffle(seed=7)"),
    (BATCHES.to_torch, {"seed": 3}, ".to_torch()", "seed= is an argument of .shuffle()"),
    (BATCHES.to_numpy, {"drop_last": True}, ".to_numpy()", '.batch(n, remainder="drop")'),
    (BATCHES.to_jax, {"prefech": 2}, ".to_jax()", "prefetch=2"),
    (ROWS.shuffle, {"buffer_size": 1000}, ".shuffle()", "all rows are shuffled without a buffer"),
    (ROWS.shuffle, {"sed": 3}, ".shuffle()", "seed=3"),
    (ROWS.map, {"function": dict, "batched": True}, ".map()", ".map_batches(function)"),
    (ROWS.map, {"function": dict, "num_proc": 8}, ".map()", ".to_torch(threads=8)"),
    (ROWS.repeat, {"count": 2}, ".repeat()", "times=2"),
    (ROWS.take, {"n": 3}, ".take()", "count=3"),
    (ROWS.shard, {"num_shards": 4, "index": 1}, ".shard()", "world=4; rank=1"),
    (TOKENS.windows, {"seq_len": 4}, ".windows()", "length=4"),
    (TOKENS.pad, {"max_length": 4}, ".pad()", "to=4, truncate=True"),
    (TEXTS.tokenize, {"tokenizer": "bytes", "text_column": "body"}, ".tokenize()", "field='body'"),
    (TEXTS.tokenize, {"tokenizer": "bytes", "num_proc": 2}, ".tokenize()", "threads=2"),
    (ps.read_text, {"paths": "x", "streaming": True}, "read_text()", "leave it out"),
    (ps.read_jsonl, {"data_files": "x.jsonl"}, "read_jsonl()", "the path is the first argument: 'x.jsonl'"),
    (ps.read_parquet, {"paths": "x", "colums": ["a"]}, "read_parquet()", "columns=['a']"),
    (ps.mix, {"pipelines": [], "probabilities": [0.5]}, "mix()", "weights=[0.5]"),
    (ps.open_store, {"path": "x", "verfy": "off"}, "open_store()", "verify='off'"),
    (ps.prepare_prompts, {"source": [], "engine": 0, "out": "x", "restrt": True}, "prepare_prompts()", "restart=True"),
]


@pytest.mark.parametrize(("call", "named", "verb", "fix"), WRONG)
def test_a_wrong_argument_says_what_to_write(call: Any, named: dict[str, Any], verb: str, fix: str) -> None:
    with pytest.raises(ps.ArgumentError) as caught:
        call(**named)
    error = caught.value
    assert isinstance(error, ps.UsageError) and isinstance(error, TypeError)
    assert error.expected.startswith(f"the arguments of {verb}: "), error
    assert fix in error.fix, error
    assert error.got == ", ".join(f"{k}={v!r}" for k, v in named.items() if k not in inspect.signature(call).parameters)


def test_the_full_text() -> None:
    with pytest.raises(TypeError) as caught:
        ROWS.batch(batch_size=8)  # type: ignore[call-arg]
    assert str(caught.value).splitlines() == [
        "expected the arguments of .batch(): size, per_rank, remainder, balance",
        "  got:   batch_size=8",
        "  fix:   size=8: .batch(8)",
    ]


def test_too_many_positional_arguments_are_named() -> None:
    with pytest.raises(ps.ArgumentError) as caught:
        ROWS.shuffle(7, 64, 4)  # type: ignore[misc]
    assert caught.value.expected == "at most 1 positional argument in .shuffle(seed=0, block=None, window=None)"
    assert caught.value.fix == ".shuffle(7, block=64, window=4)"


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ps.ArgumentError, match=r"windows\(length, stride=None\)(.|\n)*no length(.|\n)*length=\.\.\."):
        TOKENS.windows()  # type: ignore[call-arg]


def test_an_argument_given_twice_is_named() -> None:
    with pytest.raises(ps.ArgumentError, match="multiple values for argument 'size'"):
        ROWS.batch(2, size=3)  # type: ignore[misc]


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ps.ArgumentError) as caught:
        ROWS.batch(nonsense="x" * 1000)  # type: ignore[call-arg]
    assert len(str(caught.value)) < 300


def test_type_errors_from_inside_stay_as_they_are() -> None:
    @arguments.explained
    def verb(x: Any) -> int:
        return len(x)

    with pytest.raises(TypeError, match="has no len") as caught:
        verb(3)
    assert not isinstance(caught.value, ps.ArgumentError)


def test_signatures_docstrings_and_pickles_stay() -> None:
    assert list(inspect.signature(ROWS.take).parameters) == ["count"]
    assert ps.Pipeline.take.__module__ == "penstock.pipeline" and "first `count` rows" in str(ps.Pipeline.take.__doc__)
    assert pickle.loads(pickle.dumps(ps.read_text)) is ps.read_text


def places() -> list[tuple[str, str, str]]:
    ps.read_text  # noqa: B018 (registers the readers)
    return [
        (name, verb, text)
        for name, wheres in arguments.SYNONYMS.items()
        for where, text in wheres.items()
        for verb in where.split()
    ]


@pytest.mark.parametrize(("name", "verb", "text"), places())
def test_the_table_names_real_verbs_and_arguments(name: str, verb: str, text: str) -> None:
    function = arguments._functions[verb]
    parameters = inspect.signature(function).parameters
    assert name not in parameters, "a real argument needs no synonym"
    first = re.match(r"(\w+)=", text)
    assert first is None or first[1] in parameters
    if first is None:
        assert re.match(r"leave it out|use |put |return |the path|\.\w+\(", text)


def test_iterating_a_pipeline_names_the_outputs() -> None:
    with pytest.raises(ps.ArgumentError, match=r"an output(.|\n)*\.to_numpy\(\)(.|\n)*\.to_torch\(\), \.to_jax\(\)"):
        list(BATCHES)  # type: ignore[call-overload]
