"""Wrong arguments answer with the verb's own name, the nearest real argument, and what to write here."""

from __future__ import annotations

import inspect
import pickle
import re
from enum import Enum
from typing import Any

import pandas as pd
import pyarrow as pa
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
    (ROWS.decode_audio, {"seconds": 2.5}, ".decode_audio()", "duration=2.5"),
    (ROWS.decode_audio, {"hop_length": 320, "num_mel_bins": 128}, ".decode_audio()", "hop=320; n_mels=128"),
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
    verb = ".shuffle(seed=0, block=None, window=None, lanes=None)"
    assert caught.value.expected == f"at most 1 positional argument in {verb}"
    assert caught.value.fix == ".shuffle(7, block=64, window=4)"


def test_a_missing_argument_is_named() -> None:
    words = r"windows\(length, stride=None, columns=\(\)\)(.|\n)*no length(.|\n)*length=\.\.\."
    with pytest.raises(ps.ArgumentError, match=words):
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
    assert ps.Pipeline.take.__module__ == "penstock.pipeline.order"
    assert "first `count` rows" in str(ps.Pipeline.take.__doc__)
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


def public() -> list[str]:
    values = {name: getattr(ps, name) for name in ps.__all__ if name != "__version__"}
    plain = {name: v for name, v in values.items() if not (isinstance(v, type) and issubclass(v, BaseException | Enum))}
    return sorted(name for name, value in plain.items() if callable(value))


@pytest.mark.parametrize("name", public())
def test_every_public_name_explains_wrong_arguments(name: str) -> None:
    call = getattr(ps, name)
    parameters = inspect.signature(call).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        pytest.skip("takes any name")
    with pytest.raises(ps.ArgumentError) as caught:
        call(nonsense_of_no_one=1)
    own = f"the arguments of {call.__name__}(): "  # another name of an alias
    assert caught.value.expected.startswith((own, f"a setting of {name}"))
    for real in parameters:
        if len(real) > 4 and real + "x" not in parameters:
            with pytest.raises(ps.ArgumentError) as caught:
                call(**{real + "x": 1})
            assert f"{real}=1" in caught.value.fix or repr(real) in caught.value.fix or name in arguments._functions


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ps.GPTDatasetV1("a", "bytes", allowed_special=set()), "GPTDatasetV1(): txt, tokenizer, max_length"),
        (lambda: ps.PreprocessedDataset(cache_dir="x"), "arguments of PreprocessedDataset(): "),
        (lambda: ps.create_dataset("gpt_v1", "a", "bytes", maxlength=4), "max_length=4"),
        (lambda: ps.DataLoaderBuilder([1]), "at most 0 positional arguments in DataLoaderBuilder()"),
        (lambda: ps.read_images(3), "a path"),
        (lambda: ps.read_audio([3]), "a path"),
    ],
)
def test_calls_of_other_libraries_are_answered(call: Any, text: str) -> None:
    with pytest.raises(ps.ArgumentError) as caught:
        call()
    assert text in str(caught.value)


def test_what_is_no_path_is_named() -> None:
    readers = [ps.read_text, ps.read_jsonl, ps.read_parquet, ps.read_tar, ps.open_store, ps.open_megatron, ps.read_mds]
    for reader in readers:
        for wrong in (3, None, [3], [None], 2.5):
            with pytest.raises(ps.PenstockError, match=rf"a path.* of {reader.__name__}\(\)") as caught:
                reader(wrong)  # type: ignore[operator]
            assert isinstance(caught.value, TypeError)
    for reader in (*readers, ps.read_images, ps.read_audio):  # a table is iterated as the names of its columns
        for table in ({"train": "x"}, pd.DataFrame({"text": ["a"]}), pa.table({"text": ["a"]})):
            with pytest.raises(
                ps.PenstockError, match=rf"a path.* of {reader.__name__}\(\)(.|\n)*from_records\("
            ) as caught:
                reader(table)  # type: ignore[operator]
            assert isinstance(caught.value, TypeError)
    with pytest.raises(ps.FileMissing, match="'missing.txt'"):
        ps.read_text(name for name in ["missing.txt"])  # type: ignore[arg-type]
    for wrong in (3, None, [3]):
        with pytest.raises(ps.PenstockError, match=r"a path.* of TransformerDataset\(\)"):
            ps.TransformerDataset(wrong, "bytes", 4)  # type: ignore[arg-type]
    with pytest.raises(ps.PenstockError, match="at least one path"):
        ps.TransformerDataset([], "bytes", 4)
    with pytest.raises(ps.PenstockError, match=r"a path for out= of prepare\(\)"):
        ps.prepare(ps.from_texts(["a"]), "bytes", 3)  # type: ignore[arg-type]
