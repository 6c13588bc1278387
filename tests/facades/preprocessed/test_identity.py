"""Fingerprints and states know what decides the rows: records, engine, tokenizer, schema and skip policy."""

from __future__ import annotations

import json

import pytest

from penstock import DataLoaderBuilder, OutputSchema, PromptEngine, StateError
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from tokenizers import Tokenizer, models, pre_tokenizers

RECORDS = [{"q": f"question {i}", "a": "yes"} for i in range(12)]
KINDS = [PreprocessedDataset, StreamingPreprocessedDataset]


def words(*names):
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(("?", *names))}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def engine(tokenizer="bytes", template="{q}? {a}", **options):
    return PromptEngine(tokenizer, template, **({"eos": 0} | options))


CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
ENGINES = {
    "plain": engine(),
    "tokenizer": engine(words("question", "yes")),
    "vocabulary": engine(words("yes", "question")),
    "eos": engine(eos=1),
    "no eos": engine(eos=False),
    "template": engine(template="{q}! {a}"),
    "schema": engine(schema=OutputSchema({"input_ids": "int32", "labels": "int64"})),
    "names": engine(schema=OutputSchema({"labels": "int64"})),
    "mask": engine(mask="none"),
    "max_length": engine(max_length=50),
    "truncation": engine(max_length=50, truncation="right"),
    "system": engine(system="Be brief."),
    "specials": engine(specials="allow"),
    "boundary": engine(boundary="error"),
    "on_error": engine(on_error="skip"),
    "chat": engine(chat_template=CHAT, eos=None),
    "turn": engine(chat_template=CHAT, turn="whole", eos=None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_choice_that_decides_the_rows_is_in_the_fingerprint(kind):
    prints = {name: kind(RECORDS, made).fingerprint() for name, made in ENGINES.items()}
    prints["skip_errors"] = kind(RECORDS, engine(), skip_errors=True).fingerprint()
    prints["records"] = kind([*RECORDS[:-1], {"q": "another", "a": "yes"}], engine()).fingerprint()
    assert len(set(prints.values())) == len(prints)
    assert kind(list(RECORDS), engine()).fingerprint() == prints["plain"]


def used(dataset):
    rows = iter(dataset)
    next(rows)
    return json.loads(json.dumps(dataset.state_dict()))


@pytest.mark.parametrize("other", [name for name in ENGINES if name not in ("plain", "chat", "turn")])
def test_a_streams_state_is_of_its_engine(other):
    state = used(StreamingPreprocessedDataset(RECORDS, engine()))
    with pytest.raises(StateError, match=r"engine=\w+, which decides the rows(.|\n)*schema, skip policy"):
        StreamingPreprocessedDataset(RECORDS, ENGINES[other]).load_state_dict(state)


def test_a_streams_state_is_of_its_records():
    state = used(StreamingPreprocessedDataset(RECORDS, engine()))
    with pytest.raises(StateError, match=r"records=\w+, which decides the rows"):
        StreamingPreprocessedDataset(RECORDS * 40, engine()).load_state_dict(state)
    # Of an iterable nobody knows what it gives; the engine is checked all the same.
    unread = used(StreamingPreprocessedDataset(lambda: iter(RECORDS), engine()))
    assert "records" not in unread
    StreamingPreprocessedDataset(lambda: iter(RECORDS * 40), engine()).load_state_dict(unread)
    with pytest.raises(StateError, match="engine="):
        StreamingPreprocessedDataset(lambda: iter(RECORDS), engine(eos=1)).load_state_dict(unread)


def test_a_state_without_identity_is_taken():
    old = {"penstock_stream": 1, "seed": 0, "buffer_size": 0, "epoch": 0, "given": [[1, [7]]]}
    dataset = StreamingPreprocessedDataset(RECORDS, engine())
    dataset.load_state_dict(old)
    assert len(list(dataset)) == 5


def test_what_a_function_gathers_as_it_runs_is_not_what_it_is():
    def make():
        seen = []
        return StreamingPreprocessedDataset(RECORDS, lambda record: seen.append(record["q"]) or {"x": record["q"]})

    state = used(make())
    again = make()
    again.load_state_dict(state)
    assert [row["x"] for row in again] == [record["q"] for record in RECORDS[1:]]


def test_a_builders_state_is_of_its_tokenizer():
    def loader(tokenizer):
        dataset = PreprocessedDataset(RECORDS, engine(tokenizer))
        return DataLoaderBuilder().with_dataset(dataset).with_batch_size(2).build()

    first = loader("bytes")
    next(iter(first))
    state = first.state_dict()
    loader("bytes").load_state_dict(state)
    with pytest.raises(StateError):
        loader(words("question", "yes")).load_state_dict(state)
