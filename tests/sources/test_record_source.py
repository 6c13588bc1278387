"""Datasets with `len` and `[i]`, and lists of records."""

from __future__ import annotations

import dataclasses
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.testing import assert_elastic, assert_exact_resume

Point = namedtuple("Point", ["x", "label"])


@dataclasses.dataclass
class Sample:
    x: float
    label: int


class Dataset(torch.utils.data.Dataset):
    """Records of any shape."""

    def __init__(self, make, size: int = 60) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int):
        return self.make(i)


SHAPES = {
    "dict": lambda i: {"x": i / 2, "label": i},
    "named tuple": lambda i: Point(i / 2, i),
    "dataclass": lambda i: Sample(i / 2, i),
    "tensors": lambda i: {"x": torch.tensor(i / 2, dtype=torch.float64), "label": torch.tensor(i)},
    "numpy": lambda i: {"x": np.float64(i / 2), "label": np.int64(i)},
    "tuple": lambda i: (i / 2, i),
    "list": lambda i: [i / 2, i],
    "tuple of tensors": lambda i: (torch.tensor(i / 2, dtype=torch.float64), torch.tensor(i)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_record(shape: str) -> None:
    names = ["x", "label"] if shape in ("tuple", "list", "tuple of tensors") else None
    pipeline = ps.from_dataset(Dataset(SHAPES[shape]), names)
    columns = pipeline.rows().read(np.array([5, 2]))
    assert columns["x"].tolist() == [2.5, 1.0] and columns["x"].dtype == np.float64
    assert columns["label"].tolist() == [5, 2] and columns["label"].dtype == np.int64
    assert pipeline.definition.fingerprint() == ps.from_dataset(Dataset(SHAPES[shape]), names).definition.fingerprint()
    other = ps.from_dataset(Dataset(SHAPES[shape], 59), names)
    assert pipeline.definition.fingerprint() != other.definition.fingerprint()
    assert_exact_resume(lambda: pipeline.shuffle(seed=1).batch(16), epochs=1)


def test_real_torch_datasets() -> None:
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    images, labels = torch.arange(40 * 12, dtype=torch.float32).reshape(40, 3, 2, 2), torch.arange(40)
    tensors = TensorDataset(images, labels)
    batch = ps.from_dataset(tensors, ["image", "label"]).shuffle(seed=2).batch(8).to_torch().batch_at(1)
    assert batch["image"].shape == (8, 3, 2, 2) and batch["image"].dtype == torch.float32
    for image, label in zip(batch["image"], batch["label"], strict=True):
        assert torch.equal(image, images[int(label)])
    assert ps.from_dataset(tensors).peek(1)[0].keys() == {"0", "1"}
    joined = ConcatDataset([Subset(tensors, [3, 5]), tensors])
    assert [int(row["label"]) for row in ps.from_dataset(joined, ["image", "label"]).peek(3)] == [3, 5, 0]


class Chunked(Dataset):
    """Reads many records in one call, and counts the calls."""

    def __init__(self, make, size: int = 60) -> None:
        super().__init__(make, size)
        self.calls: list[int] = []

    def __getitems__(self, numbers: list[int]):
        self.calls.append(len(numbers))
        return [self.make(i) for i in numbers]


def test_many_records_in_one_call() -> None:
    dataset = Chunked(SHAPES["dict"])
    rows = ps.from_dataset(dataset, version="1").shuffle(seed=3).batch(20).to_numpy(threads=0)
    one_by_one = ps.from_dataset(Dataset(SHAPES["dict"]), version="1").shuffle(seed=3).batch(20).to_numpy(threads=0)
    assert [batch["x"].tolist() for batch in rows] == [batch["x"].tolist() for batch in one_by_one]
    assert sum(dataset.calls) == 60 and len(dataset.calls) <= 3

    def often_bad(i: int) -> dict:
        return {"x": 1 // (i % 7)}

    skipping = ps.from_dataset(Chunked(often_bad), version="1", on_error="skip").batch(10).to_numpy(threads=0)
    assert len(list(skipping)) == 6 and len(skipping.ledger) >= 9
    with pytest.raises(ps.PenstockError, match="record 14 of Chunked"):
        ps.from_dataset(Chunked(often_bad), version="1").skip(8).batch(10).to_numpy(threads=0).batch_at(0)
    wrong = Chunked(SHAPES["dict"])
    wrong.__class__ = type("Wrong", (Chunked,), {"__getitems__": lambda self, numbers: {"x": numbers}})
    with pytest.raises(ps.UsageError, match=r"(?s)a list of 10 records from __getitems__.*got:   dict"):
        ps.from_dataset(wrong, version="1").batch(10).to_numpy(threads=0).batch_at(0)


def ragged(i: int) -> dict:
    return {"ids": list(range(i % 4)) or [0], "vector": np.full(3, i, np.float32), "tokens": torch.arange(i % 3 + 1)}


def test_the_law() -> None:
    def make(batch: int) -> ps.Pipeline:
        return ps.from_dataset(Dataset(ragged), ["ids", "vector"]).shuffle(seed=7).batch(batch)

    assert_exact_resume(lambda: make(8))
    assert_elastic(make, batch=12, worlds=(1, 2, 3, 4), threads=(0, 1, 2), other_batch=8)
    columns = ps.from_dataset(Dataset(ragged)).rows().read(np.array([0, 4]))  # rows of equal length are still ragged
    assert isinstance(columns["ids"], ps.Ragged) and columns["vector"].shape == (2, 3)
    columns = ps.from_dataset(Dataset(ragged)).rows().read(np.array([0, 5]))
    assert columns["tokens"].tolist() == [[0], [0, 1, 2]]


def odd(i: int):
    if i % 7 == 3:
        raise ValueError("bad sector")
    return {3: {"y": 1}, 4: {"x": "text"}, 5: {"x": None}, 6: {"x": [1, 2]}}.get(i % 10, {"x": i})


def test_bad_records_are_named_and_skipped() -> None:
    pipeline = ps.from_dataset(Dataset(odd))
    with pytest.raises(ps.BadRecords) as caught:
        pipeline.rows().read(np.array([0, 3, 4, 5, 6, 13]))
    texts = [f"{e.row} {e.where}: {e.expected}, got {e.got}" for e in caught.value.errors]
    assert texts[0].startswith("1 record 3 of Dataset: a record, got ValueError: bad sector")
    assert "2 record 4 of Dataset: a number (int64) in field 'x', as in the first record, got <U4" in texts[1]
    assert "record 5" in texts[2] and "got object" in texts[2] and "shape (2,)" in texts[3]
    assert "the fields of the first record: 'x', got 'y'" in texts[4]
    good = {i for i in range(60) if i % 7 != 3 and i % 10 not in (3, 4, 5, 6)}
    loader = ps.from_dataset(Dataset(odd), on_error="skip").shuffle(seed=1).batch(10).to_numpy()
    assert {int(x) for batch in loader for x in batch["x"]} <= good
    assert_exact_resume(lambda: ps.from_dataset(Dataset(odd), on_error="skip").shuffle(seed=1).batch(10), epochs=1)


def test_integers_fit_a_column_of_floats_and_not_the_other_way() -> None:
    floats = ps.from_dataset([{"x": 0.5}, {"x": 3}])
    assert floats.rows().read(np.array([1]))["x"].dtype == np.float64
    with pytest.raises(ps.BadRecords, match=r"a number \(int64\) in field 'x'(.|\n)*float64"):
        ps.from_dataset([{"x": 3}, {"x": 0.5}]).rows().read(np.array([1]))


def test_a_tensor_with_a_gradient_is_a_bad_record() -> None:
    with pytest.raises(ps.RecordError, match=r"an array in 'x' that NumPy can read(.|\n)*RuntimeError"):
        ps.from_dataset(Dataset(lambda i: {"x": torch.ones(2, requires_grad=True)}))


def test_identity() -> None:
    class Counting(Dataset):
        def __getitem__(self, i: int):
            self.read = getattr(self, "read", 0) + 1
            return super().__getitem__(i)

    one = Counting(SHAPES["tuple"])
    named = ps.from_dataset(one, ["x", "y"], version="1")
    named.definition.fingerprint()
    assert one.read == 1
    same = ps.from_dataset(Counting(SHAPES["tuple"]), ["x", "y"], version="1")
    assert same.definition.fingerprint() == named.definition.fingerprint()
    assert ps.from_dataset(one, ["x", "z"], version="1").definition.fingerprint() != named.definition.fingerprint()
    image = {"image": np.arange(12, dtype=np.uint8).reshape(2, 6)[:, ::2], "raw": b"\xff"}
    first = ps.from_dataset([image]).definition.fingerprint()
    assert first != ps.from_dataset([{**image, "raw": b"\xfe"}]).definition.fingerprint()
    with pytest.raises(ps.UsageError, match="fingerprint = 'version 1'"):
        ps.from_dataset([{"x": threading.Lock()}]).definition.fingerprint()


def test_lists_of_records() -> None:
    rows = ps.from_records([{"t": "a", "n": 1}, {"n": 2.5}, {"n": True, "t": "c", "more": [1]}])
    columns = rows.rows().read(np.array([0, 1, 2]))
    assert columns["n"].tolist() == [1.0, 2.5, 1.0] and columns["t"].tolist() == ["a", None, "c"]
    assert columns["more"].tolist() == [None, None, [1]]
    assert ps.from_records([(1, 2)], ["a", "b"]).peek() == [{"a": 1, "b": 2}]
    assert ps.from_records(Point(i, i) for i in range(3)).peek(1) == [{"x": 0, "label": 0}]
    assert ps.from_records(["one", "two"]).peek(1) == [{"text": "one"}]
    assert_exact_resume(lambda: ps.from_records([{"n": i, "t": str(i)} for i in range(30)]).shuffle(seed=1).batch(7))


@pytest.mark.parametrize(("records", "text"), [
    ([], "at least one record"),
    ([{"n": 1}, {}], r"as in record 0\n  got:   no such field\n  where: record 1"),
    ([{"n": None}, {"n": 1}], r"as in record 1\n  got:   None\n  where: record 0"),
    ({"n": [1]}, r"from_arrays\(columns\)"),
    ([{"n": 1}, None], r"got:   NoneType\n  where: record 1"),
    ("a.csv", r"got:   a path"),
    (5, "got:   int"),
    (lambda: iter([]), "got:   function"),
])  # fmt: skip
def test_what_is_no_list_of_records_is_refused(records, text: str) -> None:
    with pytest.raises(ps.UsageError, match=text):
        ps.from_records(records)


@pytest.mark.parametrize(("call", "text"), [
    (lambda: ps.from_dataset([]), "at least one record"),
    (lambda: ps.from_dataset(Path("a")), "got:   a path"),
    (lambda: ps.from_dataset(iter([1])), "__len__ and __getitem__"),
    (lambda: ps.from_dataset([(1, 2)], ["a"]), r"1 items in each record: a\n  got:   2 items"),
    (lambda: ps.from_dataset([(1, 2)], ["a", "a"]), "different names"),
    (lambda: ps.from_dataset([{"a": 1}], ["b"]), "a field 'b'"),
    (lambda: ps.from_dataset([{"a": 1}], colums=["a"]), r"columns=\['a'\]"),
])  # fmt: skip
def test_wrong_arguments(call, text: str) -> None:
    with pytest.raises(ps.PenstockError, match=text):
        call()


def test_what_can_only_be_iterated_is_sent_to_from_stream() -> None:
    class Rows:
        def __iter__(self) -> Iterator[dict[str, int]]:
            yield {"x": 1}

    with pytest.raises(ps.UsageError, match=r"(?s)Rows, which can only be iterated.*from_stream"):
        ps.from_dataset(Rows())
    assert ps.from_stream(Rows()).peek() == [{"x": 1}]


def test_records_of_one_value_have_a_name() -> None:
    """They were called "0"."""
    from PIL import Image

    picture = Image.new("RGB", (2, 2))
    for values, name in [([np.zeros(3)] * 2, "data"), ([1, 2], "data"), (["a"], "text"), ([b"a"], "bytes"),
                         ([picture], "image")]:  # fmt: skip
        assert list(ps.from_dataset(values).peek(1)[0]) == [name]
        assert list(ps.from_dataset(values, ["x"]).peek(1)[0]) == ["x"]
