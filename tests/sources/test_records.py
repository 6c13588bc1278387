"""Records of anything: what fails to be read is named and can be skipped; what is not records is refused."""

from __future__ import annotations

import json
import pathlib

import datasets
import pandas as pd
import pyarrow as pa
import pytest

from penstock import LimitError, PromptEngine, RecordError, UsageError, UserCodeError, from_arrays
from penstock.core.limits import LIMITS
from penstock.facades.preprocessed.create import create_preprocessed_dataset
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.sources.records import data_kind, records_of


def numbers(count):
    return [{"n": i} for i in range(count)]


def n_of(record):
    return {"x": record["n"]}


class Broken:
    """A sequence of which one record cannot be read."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 2:
            raise ValueError("bad sector")
        return {"n": i}


def transformed():
    def decode(batch):
        if 2 in batch["n"]:
            raise ValueError("bad sector")
        return batch

    return datasets.Dataset.from_list(numbers(6)).with_transform(decode)


@pytest.mark.parametrize("records", [Broken, transformed])
def test_a_record_that_cannot_be_read_is_named(records):
    for dataset in (PreprocessedDataset(records(), n_of), StreamingPreprocessedDataset(records(), n_of)):
        with pytest.raises(
            UserCodeError, match=r"to be read\n  got:   ValueError: bad sector\n  where: record 2\n.*skip_errors"
        ) as error:
            list(dataset)
        assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.parametrize("records", [Broken, transformed])
def test_and_can_be_skipped(records):
    stream = StreamingPreprocessedDataset(records(), n_of, skip_errors=True)
    assert [row["x"] for row in stream] == [0, 1, 3, 4, 5]
    dataset = PreprocessedDataset(records(), n_of, skip_errors=True)
    rows = dataset.__getitems__(range(6))
    assert [row["x"] for i, row in enumerate(rows) if i != 2] == [0, 1, 3, 4, 5]
    for ledger in (stream.ledger, dataset.ledger):
        assert [(e.file, e.detail) for e in ledger.entries] == [("record 2", "ValueError: bad sector")]


def doubled(row):
    if row["n"] == 2:
        raise ValueError("no two")
    return {"n": 2 * row["n"]}


def test_one_bad_record_of_a_pipeline_does_not_take_its_batch_along():
    pipeline = from_arrays({"n": list(range(6))}).map(doubled)
    dataset = PreprocessedDataset(pipeline, n_of, skip_errors=True)
    rows = dataset.__getitems__([0, 1, 2, 3])
    assert [int(rows[i]["x"]) for i in (0, 1, 3)] == [0, 2, 6]
    assert dataset.skipped == 1
    stream = StreamingPreprocessedDataset(pipeline, n_of, skip_errors=True)
    rows = stream.rows([(i, i) for i in range(4)])
    assert [None if row is None else int(row["x"]) for row in rows] == [0, 2, None, 6]


@pytest.mark.parametrize("table", [pd.DataFrame({"n": [1, 2]}), pa.table({"n": [1, 2]})])
def test_tables_are_records(table):
    for streaming in (False, True):
        dataset = create_preprocessed_dataset(table, n_of, streaming=streaming)
        assert [int(row["x"]) for row in dataset] == [1, 2]


def test_a_list_of_paths_is_files(tmp_path):
    paths = [tmp_path / f"{i}.jsonl" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_text(f'{{"n": {2 * i}}}\n{{"n": {2 * i + 1}}}\n')
    for given in (paths, tuple(map(str, paths)), [str(paths[0]), *paths[1:]]):
        for streaming in (False, True):
            dataset = create_preprocessed_dataset(given, n_of, streaming=streaming)
            assert [row["x"] for row in dataset] == list(range(6))
    texts = ["first text", "second.jsonl is a name in a text, too"]
    assert [row["t"] for row in PreprocessedDataset(texts, lambda text: {"t": text})] == texts


def test_a_json_array_has_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(numbers(100)))
    assert len(records_of(path)) == 100
    monkeypatch.setattr("penstock.sources.json_records.LIMITS", LIMITS.__class__(record_bytes=500))
    with pytest.raises(LimitError, match=r"at most 500 bytes(.|\n)*one record a line"):
        records_of(path)
    path.write_text(json.dumps(numbers(10)))
    assert len(records_of(pathlib.Path(path))) == 10


def test_json_lines_have_a_depth(tmp_path):
    path = tmp_path / "a.jsonl"
    deep = LIMITS.json_depth + 1
    path.write_text('{"n": 0}\n{"n": ' + "[" * deep + "]" * deep + "}\n")
    with pytest.raises(RecordError, match=rf"at most {LIMITS.json_depth} levels(.|\n)*line 2"):
        PreprocessedDataset(path, n_of)[1]
    assert [row["x"] for row in StreamingPreprocessedDataset(path, n_of, skip_errors=True)] == [0]


# Skips: counted over workers, and explained.


def engine():
    return PromptEngine("bytes", "{q}? {a}", eos=0, max_length=8, on_error="skip")


RECORDS = [{"q": "x", "a": "yes"} if i % 3 else {"q": "x", "a": "much too long"} for i in range(12)]


@pytest.mark.parametrize("kind", [PreprocessedDataset, StreamingPreprocessedDataset])
def test_a_prompt_engines_reasons_are_in_the_ledger(kind):
    dataset = kind(RECORDS, engine())
    assert len(list(dataset)) == (12 if kind is PreprocessedDataset else 8)
    assert dataset.ledger.by_reason == {"a record of at most 8 tokens": 4}
    assert {entry.detail for entry in dataset.ledger.entries} == {"17"}


def none_for_odd(record):
    return None if record["n"] % 2 else n_of(record)


def test_what_workers_skip_is_counted_once_and_can_be_explained():
    from torch.utils.data import DataLoader

    dataset = PreprocessedDataset(numbers(20), none_for_odd)
    loader = DataLoader(dataset.select(range(10)), batch_size=2, num_workers=2)
    for _ in range(2):
        assert len(list(loader)) == 5
    assert dataset.skipped == 5
    assert [entry.record for entry in dataset.ledger.entries] == [1, 3, 5, 7, 9]
    assert dataset.skipped == dataset.ledger.total == 5
    prompted = PreprocessedDataset(RECORDS, engine())
    list(DataLoader(prompted, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    assert prompted.skipped == 4
    assert prompted.ledger.by_reason == {"a record of at most 8 tokens": 4}


def test_the_error_for_want_of_good_records_says_why():
    from penstock.core.errors import DataError

    with pytest.raises(DataError, match=r"none among 3 tried(.|\n)*not a record of at most 8 tokens: 3"):
        PreprocessedDataset([RECORDS[0]] * 3, engine())[0]


# What the data is: decided once, for every adapter.


class Streamed:
    def __iter__(self):
        return iter([{"n": 0}])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("a.jsonl", "paths"),
        ([pathlib.Path("a")], "paths"),
        (numbers(2), "sequence"),
        (["a text"], "sequence"),
        ([], "sequence"),
        (Broken(), "sequence"),
        (from_arrays({"n": [1]}), "pipeline"),
        (from_arrays({"n": [1]}).definition.origin, "source"),
        (datasets.Dataset.from_list(numbers(2)), "hf"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_list(numbers(2))}), "hf splits"),
        (datasets.Dataset.from_list(numbers(2)).to_iterable_dataset(), "hf stream"),
        (pd.DataFrame({"n": [1]}), "table"),
        ({"n": [1]}, "mapping"),
        (iter([]), "iterator"),
        (Streamed(), "stream"),
        (lambda: iter([]), "stream"),
        ({"a", "b"}, "other"),
        (b"bytes", "other"),
        (5, "other"),
    ],
)
def test_kinds_of_data(data, kind):
    assert data_kind(data) == kind


def test_a_set_has_no_order_and_is_refused():
    with pytest.raises(UsageError, match="got:   set"):
        StreamingPreprocessedDataset({"a", "b"}, lambda text: {"t": text})


def test_files_of_records(tmp_path):
    import gzip

    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    assert records_of(tmp_path / "a.parquet").read([1, 0]) == [{"n": 2}, {"n": 1}]
    (tmp_path / "dump.txt").write_text('{"n": 1}\n{"other": 2}\n')
    assert records_of(tmp_path / "dump.txt").read([0, 1]) == [{"n": 1}, {"other": 2}]
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf [{"n": 1}]'))
    assert records_of(tmp_path / "a.json.gz").read([0]) == [{"n": 1}]
    datasets.Dataset.from_list(numbers(2)).save_to_disk(tmp_path / "saved")
    assert records_of(tmp_path / "saved").read([1]) == [{"n": 1}]
    (tmp_path / "prose.txt").write_text("Once upon a time")
    with pytest.raises(UsageError, match=r"named fields(.|\n)*text files(.|\n)*prose.txt(.|\n)*read_text"):
        records_of(tmp_path / "prose.txt")
    with pytest.raises(UsageError, match=r"2 files, an array among them"):
        (tmp_path / "b.json").write_text("[]")
        (tmp_path / "c.json").write_text('{"n": 1}\n')
        records_of([tmp_path / "b.json", tmp_path / "c.json"])


def test_bad_records_of_any_data_can_be_skipped_by_a_preparation(tmp_path):
    from penstock import prepare_prompts

    engine = PromptEngine("bytes", "{n}", eos=0)
    data = Broken()
    with pytest.raises(RecordError, match=r"bad sector"):
        prepare_prompts(data, engine, tmp_path / "raise")
    made = prepare_prompts(data, engine, tmp_path / "skip", on_error="skip")
    assert (made.documents, made.skipped) == (5, 1)


FINGERPRINTS = {
    "list": "330551afc6d20c080adebc78d4d302f8",
    "jsonl": "17765e08ce64c7296124d3c58367567e",
    "hf": "55a0364c831add8705fecf2a3d993c77",
    "pipeline": "rows:af1364904a5be18296b13e56449718ab",
    "object": "tests.sources.test_records.Broken:6",
    "texts of a list": "34c19ebb0bd51e59464334f625b288df",
    "texts of jsonl": "563b5bf3be083da0e9589d58c18a307e",
    "texts of hf": "34c19ebb0bd51e59464334f625b288df",
    "texts of a source": "records:53a271117a5a4597c25c8e7026b1efda",
    "source of a list": "330551afc6d20c080adebc78d4d302f8",
    "source of texts": "a1ea453df73a6beef590b73e927c62d3",
}


def test_fingerprints_are_what_they_were(tmp_path):
    """Saved states and caches hold these: of each input, by the adapter that made them in version 0.x."""
    from penstock.sources.record_source import RecordSource
    from penstock.sources.record_texts import record_texts

    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n')
    hf = datasets.Dataset.from_list([{"n": 1}])
    pipeline = from_arrays({"n": [1]})
    found = {
        "list": records_of([{"n": 1}]).fingerprint(),
        "jsonl": records_of(path).fingerprint(),
        "hf": records_of(hf).fingerprint(),
        "pipeline": records_of(pipeline).fingerprint(),
        "object": records_of(Broken()).fingerprint(),
        "texts of a list": record_texts([{"n": 1}]).fingerprint(),
        "texts of jsonl": record_texts(path).fingerprint(),
        "texts of hf": record_texts(hf).fingerprint(),
        "texts of a source": record_texts(pipeline.definition.origin).fingerprint(),
        "source of a list": RecordSource([{"n": 1}]).fingerprint(),
        "source of texts": RecordSource(["one"]).fingerprint(),
    }
    assert found == FINGERPRINTS
