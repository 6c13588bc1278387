"""`PreprocessedDataset`: any records, a bounded cache, positions that keep, errors that name the record."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch

from penstock import PromptEngine, RecordError, UsageError, UserCodeError, create_collate_fn, from_arrays
from penstock.core import hashing
from penstock.core.errors import DataError
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.create import create_preprocessed_dataset
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.sources.arrow_content import content_parts
from penstock.sources.base import Source
from penstock.sources.hf import HFDataset

RECORDS = [{"q": f"question {i}", "a": "yes " * (1 + i % 5)} for i in range(30)]


def engine(**options):
    return PromptEngine("bytes", "{q}? {a}", eos=0, **options)


def ids(row):
    return row["input_ids"].tolist()


def doubled(record):
    return {"x": np.arange(record["n"]), "n": record["n"]}


def numbers(count):
    return [{"n": i} for i in range(count)]


@pytest.mark.parametrize("kind", ["hf", "hf_selected", "list", "tuple", "jsonl", "json", "pipeline"])
def test_any_records_give_the_same_rows(kind, tmp_path):
    want = [ids(engine()(record)) for record in RECORDS]
    if kind == "jsonl":
        given = tmp_path / "a.jsonl"
        given.write_text("".join(json.dumps(r) + "\n" for r in RECORDS))
    elif kind == "json":
        given = str(tmp_path / "a.json")
        (tmp_path / "a.json").write_text(json.dumps(RECORDS))
    elif kind == "pipeline":
        given = from_arrays({name: [r[name] for r in RECORDS] for name in RECORDS[0]})
    elif kind == "hf_selected":
        given = datasets.Dataset.from_list(RECORDS[::-1]).select(range(29, -1, -1))
    else:
        given = {"hf": datasets.Dataset.from_list, "list": list, "tuple": tuple}[kind](RECORDS)
    dataset = PreprocessedDataset(hf_dataset=given, prompt_engine=engine(), cache_enabled=True)
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert len(dataset) == 30
    assert [ids(dataset[i]) for i in range(30)] == want
    assert [ids(row) for row in dataset.__getitems__([3, 3, 29, 0])] == [want[i] for i in (3, 3, 29, 0)]


def test_json_lines_need_not_all_have_the_same_fields(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": 2, "more": [1]}\n')
    assert PreprocessedDataset(path, dict)[1] == {"n": 2, "more": [1]}


def test_negative_numbers_slices_lists_and_iteration():
    dataset = PreprocessedDataset(numbers(10), doubled)
    assert dataset[-1]["n"] == dataset[9]["n"] == dataset[np.int64(9)]["n"] == dataset[torch.tensor(9)]["n"] == 9
    assert [row["n"] for row in dataset[2:8:3]] == [2, 5]
    assert [row["n"] for row in dataset[::-1]] == list(range(9, -1, -1))
    assert [row["n"] for row in dataset[[1, -1]]] == [1, 9]
    assert [row["n"] for row in dataset] == list(range(10))
    for wrong in (10, -11):
        with pytest.raises(IndexError, match=f"row {wrong} of 10"):
            dataset[wrong]
    with pytest.raises(TypeError, match="not str"):
        dataset["n"]


def test_a_row_is_made_once_and_select_shares_it():
    calls = []

    def counted(record):
        calls.append(record["n"])
        return doubled(record)

    dataset = PreprocessedDataset(numbers(10), counted)
    part = dataset.select([7, -1, 7])
    assert [row["n"] for row in part] == [7, 9, 7]
    assert calls == [7, 9]
    assert [dataset[i]["n"] for i in (7, 9)] == [7, 9]
    assert [row["n"] for row in part.select([1])] == [9]
    assert part[1:].select(np.array([0]))[0]["n"] == 9
    assert calls == [7, 9]


def test_without_a_cache_every_row_is_made_anew():
    calls = []
    dataset = PreprocessedDataset(numbers(3), lambda r: calls.append(r["n"]) or doubled(r), cache_enabled=False)
    assert [dataset[1]["n"], dataset[1]["n"]] == [1, 1]
    assert (calls, dataset.cached_bytes) == ([1, 1], 0)


def test_the_cache_keeps_to_its_bytes_and_what_it_holds_stays():
    calls = []
    dataset = PreprocessedDataset(
        [{"n": 100} for _ in range(50)], lambda r: calls.append(1) or doubled(r), cache_bytes=10_000
    )
    for _ in range(2):
        dataset.__getitems__(range(50))
    assert 5_000 < dataset.cached_bytes <= 10_000
    kept = 100 - len(calls)
    assert kept * 800 <= dataset.cached_bytes  # each kept row holds 100 numbers of 8 bytes
    assert kept >= 5


def test_nobody_can_spoil_what_is_kept():
    dataset = PreprocessedDataset([{"n": 3}], lambda r: {"x": np.arange(3), "l": [1, [2]], "t": torch.ones(2)})
    for _ in range(2):
        row = dataset[0]
        row["x"][:] = 9
        row["l"][1].append(9)
        row["t"][:] = 9
        row["new"] = 1
    assert dataset[0]["x"].tolist() == [0, 1, 2]
    assert dataset[0]["l"] == [1, [2]]
    assert dataset[0]["t"].tolist() == [1, 1]
    assert "new" not in dataset[0]


def test_an_engine_may_use_its_memory_again():
    memory = np.zeros(1, np.int64)

    def reusing(record):
        memory[0] = record["n"]
        return {"x": memory}

    dataset = PreprocessedDataset(numbers(3), reusing)
    assert [dataset[i]["x"].tolist() for i in (0, 1, 2, 0, 1)] == [[0], [1], [2], [0], [1]]


def only_even(record):
    return {"n": record["n"]} if record["n"] % 2 == 0 else None


def test_a_skipped_record_keeps_its_position():
    dataset = PreprocessedDataset(numbers(20), only_even)
    rows = [row["n"] for row in dataset]
    assert rows[::2] == list(range(0, 20, 2))
    assert all(n % 2 == 0 for n in rows)
    assert len(set(rows[1::2])) > 1
    assert dataset.skipped == 10
    assert [row["n"] for row in dataset] == rows
    assert dataset.skipped == 10  # each record once, however often it is met
    assert dataset.ledger.entries[0].record == 1
    # From any place and in any order, and in a copy with a cold cache, the same.
    other = pickle.loads(pickle.dumps(dataset))
    assert [other[i]["n"] for i in range(19, -1, -1)] == rows[::-1]


def test_spares_come_from_the_selection_alone():
    dataset = PreprocessedDataset(numbers(100), only_even)
    train, held_out = dataset.select(range(80)), dataset.select(range(80, 100))
    assert {row["n"] for row in train} == set(range(0, 80, 2))
    assert {row["n"] for row in held_out} == set(range(80, 100, 2))


def test_an_engine_that_keeps_nothing_is_an_error():
    dataset = PreprocessedDataset(numbers(5), lambda record: None)
    with pytest.raises(DataError, match=r"none among 5 tried for one row; 5 skipped in all\n  where: row 2: record 2"):
        dataset[2]


def test_errors_name_the_record(tmp_path):
    bad = [*RECORDS[:4], {"q": "no answer"}]
    with pytest.raises(RecordError, match="record 4"):
        PreprocessedDataset(bad, engine())[4]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in bad))
    with pytest.raises(RecordError, match=r"a\.jsonl, line 5"):
        PreprocessedDataset(path, engine()).__getitems__([0, 4])

    def fails(record):
        return {"x": record["m"]}

    with pytest.raises(UserCodeError, match=r"fails to make a row(.|\n)*KeyError: 'm'(.|\n)*where: record 1") as error:
        PreprocessedDataset(numbers(3), fails)[1]
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(UserCodeError, match=r"a dict, or None to skip the record(.|\n)*list(.|\n)*record 0"):
        PreprocessedDataset(numbers(3), lambda record: [1])[0]


def test_a_damaged_line_is_named_and_can_be_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 0}\n{"n": \n{"n": 2}\n')
    with pytest.raises(RecordError, match=r"a\.jsonl, line 2"):
        PreprocessedDataset(path, dict)[1]
    dataset = PreprocessedDataset(path, dict, skip_errors=True)
    assert [row["n"] for row in dataset.__getitems__([0, 1, 2])][::2] == [0, 2]
    assert dataset.skipped == 1
    assert "line 2" in dataset.ledger.entries[0].file


@pytest.mark.parametrize("collate", [None, "ours"])
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_dataloaders_take_it(collate, workers):
    if collate is None:
        dataset = PreprocessedDataset(numbers(10), lambda r: {"x": np.full(3, r["n"])})
        loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers)
        got = [row[0].item() for batch in loader for row in batch["x"]]
        assert got == list(range(10))
    else:
        dataset = PreprocessedDataset(RECORDS, engine())
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=7, num_workers=workers, collate_fn=create_collate_fn(pad_token_id=0)
        )
        rows = [row[mask.bool()] for b in loader for row, mask in zip(b["input_ids"], b["attention_mask"], strict=True)]
        assert [row.tolist() for row in rows] == [ids(dataset[i]) for i in range(30)]


def test_a_pickled_copy_takes_no_cache_along():
    dataset = PreprocessedDataset([{"n": 10_000} for _ in range(20)], doubled)
    dataset.__getitems__(range(20))
    assert dataset.cached_bytes > 20 * 80_000
    text = pickle.dumps(dataset)
    assert len(text) < 5_000
    assert pickle.loads(text)[3]["x"].tolist() == list(range(10_000))


def test_many_threads_get_right_rows():
    dataset = PreprocessedDataset(numbers(200), only_even, cache_bytes=20_000)
    want = [row["n"] for row in PreprocessedDataset(numbers(200), only_even)]
    wrong = []

    def read(seed):
        order = np.random.default_rng(seed).permutation(200)
        for chunk in np.array_split(order, 20):
            rows = dataset.__getitems__(chunk)
            wrong.extend(1 for i, row in zip(chunk, rows, strict=True) if row["n"] != want[i])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert dataset.skipped == 100
    assert dataset.cached_bytes <= 20_000


def test_fingerprints_tell_data_selection_and_engine_apart():
    base = PreprocessedDataset(RECORDS, engine())
    assert base.fingerprint() == PreprocessedDataset(list(RECORDS), engine()).fingerprint()
    before = base.fingerprint()
    base[0]
    assert base.fingerprint() == before
    others = [
        PreprocessedDataset(RECORDS[:-1], engine()),
        PreprocessedDataset(RECORDS, engine(mask="none")),
        base.select(range(29, -1, -1)),
    ]
    assert len({before, *(other.fingerprint() for other in others)}) == 4


def test_the_factory_picks_and_explains():
    assert isinstance(create_preprocessed_dataset(RECORDS, engine()), PreprocessedDataset)
    stream = datasets.Dataset.from_list(RECORDS).to_iterable_dataset()
    made = create_preprocessed_dataset(stream, engine(), streaming=True, buffer_size=5)
    assert isinstance(made, StreamingPreprocessedDataset)
    for unsized in (stream, iter(RECORDS)):
        with pytest.raises(UsageError, match=r"read by number when streaming=False(.|\n)*fix:   pass streaming=True"):
            create_preprocessed_dataset(unsized, engine())
    with pytest.raises(UsageError, match=r"got:   buffer_size(.|\n)*buffer_size go with streaming=True"):
        create_preprocessed_dataset(RECORDS, engine(), buffer_size=4)
    with pytest.raises(UsageError, match="one split of a dataset"):
        create_preprocessed_dataset(datasets.DatasetDict(train=datasets.Dataset.from_list(RECORDS)), engine())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], dict), "at least one record"),
        ((RECORDS, "alpaca"), "prompt_engine= a PromptEngine or a function"),
        ((RECORDS, dict, True, -1), "cache_bytes of 0 or more"),
        ((iter(RECORDS), dict), "records that can be read by number"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(UsageError, match=text):
        PreprocessedDataset(*arguments)


# The HF source itself.


def test_the_hf_source_reads_as_datasets_does():
    table = datasets.Dataset.from_dict(
        {
            "t": [f"text {i}" for i in range(50)],
            "ids": [list(range(i % 7)) for i in range(50)],
            "x": [i / 2 for i in range(50)],
            "chat": [[{"role": "user", "content": str(i)}] for i in range(50)],
        }
    )
    for dataset in (
        table,
        table.shuffle(seed=3),
        table.select(range(10, 30)),
        datasets.concatenate_datasets([table] * 3),
    ):
        source = HFDataset(dataset)
        assert isinstance(source, Source)
        order = np.random.default_rng(0).integers(0, len(dataset), 40)
        got = source.read(order)
        want = dataset[order.tolist()]
        assert {name: list(got[name].tolist()) for name in got} == {k: list(v) for k, v in want.items()}
        assert source.locate(int(order[0]))["record"] == order[0]
    assert len(HFDataset(table).read(np.empty(0, np.int64))["t"]) == 0
    assert HFDataset(table.with_format("numpy", columns=["x"])).columns == ["x"]
    assert pickle.loads(pickle.dumps(HFDataset(table))).read(np.array([7]))["x"].tolist() == [3.5]


def test_the_hf_fingerprint_is_of_content():
    rows = [{"t": "ab", "s": "x", "n": [1, 2], "d": {"k": None}}, {"t": None, "s": "yz", "n": [], "d": {"k": "v"}}] * 5
    base = HFDataset(datasets.Dataset.from_list(rows)).fingerprint()
    pieces = datasets.concatenate_datasets([datasets.Dataset.from_list(rows[:3]), datasets.Dataset.from_list(rows[3:])])
    assert HFDataset(pieces).fingerprint() == base
    padded = datasets.Dataset.from_list([rows[0], *rows, rows[0]])
    assert HFDataset(padded.select(range(1, 11))).fingerprint() == base
    assert HFDataset(padded.select([*range(1, 6), *range(6, 11)])).fingerprint() == base
    for changed in (rows[::-1], rows[:-1], [*rows[:-1], {**rows[1], "d": {"k": "w"}}]):
        assert HFDataset(datasets.Dataset.from_list(changed)).fingerprint() != base


@pytest.mark.parametrize("values", [["ab", "c", "def"], [[1], [], [2, 3]], [["x"], ["yz", "w"], []], [{"k": "v"}] * 3])
def test_pieces_of_arrow_memory_hash_as_what_they_hold(values):
    piece, copy = pa.array([values[0], *values, values[0]]).slice(1, 3), pa.array(values)
    assert piece.offset == 1
    assert hashing.content_id(content_parts(piece)) == hashing.content_id(content_parts(copy))
    assert hashing.content_id(content_parts(piece)) != hashing.content_id(
        content_parts(pa.array([*values[:2], values[0], values[1]]))
    )


def test_the_hf_source_names_bad_rows_and_refuses_what_it_would_drop():
    holes = datasets.Dataset.from_dict({"x": [1, None, 3, None]})
    with pytest.raises(DataError, match=r"a value in column 'x'(.|\n)*record 3(.|\n)*and 1 more"):
        HFDataset(holes).read(np.array([3, 0, 1]))
    plain = datasets.Dataset.from_dict({"x": [1]})
    with pytest.raises(UsageError, match="without a transform"):
        HFDataset(plain.with_transform(lambda batch: batch))
    with pytest.raises(UsageError, match="read by number"):
        HFDataset(plain.to_iterable_dataset())
    with pytest.raises(UsageError, match=r"choose one: dataset\['train'\]"):
        HFDataset(datasets.DatasetDict(train=plain))


def test_rows_as_tensors() -> None:
    records = [{"n": i} for i in range(4)]

    def engine(record: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": np.array([record["n"], 1]), "labels": [record["n"], -100], "text": "t", "w": 0.5}

    arrays = PreprocessedDataset(records, engine)
    tensors = create_preprocessed_dataset(records, engine, return_tensors="pt")
    for row, plain in zip(tensors.select([3, 0]), arrays.select([3, 0]), strict=True):
        assert (type(row["input_ids"]), type(row["labels"])) == (torch.Tensor, torch.Tensor)
        assert {k: getattr(v, "tolist", lambda v=v: v)() for k, v in row.items()} == plain | {
            "input_ids": plain["input_ids"].tolist()
        }
    tensors[0]["input_ids"][:] = 9
    assert tensors[0]["input_ids"].tolist() == [0, 1], "the cache is not changed"
    loader = DataLoaderBuilder().with_dataset(tensors).with_batch_size(3).build()
    assert (loader.batch_size, next(iter(loader))["input_ids"].shape) == (3, (3, 2))
    with pytest.raises(UsageError, match="return_tensors"):
        PreprocessedDataset(records, engine, return_tensors="tf")  # type: ignore[arg-type]
