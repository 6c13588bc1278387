"""Names of other libraries, columns that are not read, and rows by number: the error says what to write."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

import penstock as ps
from penstock.pipeline.other_names import COUNTERPARTS, NoSuchVerb


def test_a_counterpart_names_only_what_there_is() -> None:
    pipeline = ps.from_arrays({"x": range(4)})
    loader = pipeline.batch(2).to_numpy(threads=0)
    there = {*dir(pipeline), *dir(loader), *dir(ps), "push_to_hub", "to_pandas", "index"}
    for name, text in COUNTERPARTS.items():
        assert not hasattr(type(pipeline), name), f"{name} is a verb now"
        for verb in re.findall(r"\.([a-z_]+)\(", text):
            assert verb in there, f"{name}: {text}"


def test_an_unknown_name_is_an_attribute_error_that_says_what_to_write() -> None:
    pipeline = ps.from_arrays({"x": range(4)})
    with pytest.raises(NoSuchVerb, match=r"\.split\(\{"):
        pipeline.train_test_split(0.1)
    with pytest.raises(AttributeError, match=r"\.shuffle\(\)"):
        pipeline.shufle(seed=1)
    with pytest.raises(ps.PenstockError, match=r"rows\(\)\[n\]"):
        pipeline[3]
    with pytest.raises(AttributeError, match=r"\.select\('x'\)"):
        pipeline["x"]
    with pytest.raises(AttributeError, match="_private") as caught:
        pipeline._private  # noqa: B018
    assert not isinstance(caught.value, NoSuchVerb)
    assert not hasattr(pipeline, "to_pandas")
    assert pickle.loads(pickle.dumps(pipeline)) == copy.deepcopy(pipeline) == pipeline


def test_split_and_epochs_by_other_peoples_arguments() -> None:
    pipeline = ps.from_arrays({"x": range(4)})
    for call in (
        lambda: pipeline.split(0.8, 0.2),
        lambda: pipeline.split(train=0.8, test=0.2),
    ):
        with pytest.raises(ps.PenstockError) as caught:
            call()
        assert str(caught.value).count('.split({"train": 0.9, "val": 0.1})') == 1
    with pytest.raises(ps.PenstockError, match=r"for epoch in range\(2\)"):
        pipeline.batch(2).to_numpy(epochs=2)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_field_that_is_not_read_is_named_with_the_argument_that_reads_it(tmp_path: Path, on_error: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"t{i}", "label": i}) + "\n" for i in range(4)))
    pipeline = ps.read_jsonl(path, on_error=on_error)
    hint = r"read_jsonl\(\.\.\., field=None\)"
    with pytest.raises(ps.PenstockError, match=hint):
        pipeline.shuffle(seed=1).select("label").peek()
    with pytest.raises(ps.PenstockError, match=hint):
        pipeline.filter(lambda row: row["label"] > 1).peek()
    with pytest.raises(ps.PenstockError, match=hint):
        pipeline.take(3).map(lambda row: {"n": row["label"]}).peek()
    with pytest.raises(ps.PenstockError) as caught:
        ps.read_jsonl(path, field=None).map(lambda row: {"n": row["lable"]}).peek()
    assert "field=None" not in str(caught.value)


def test_rows_are_a_sequence_of_dicts() -> None:
    rows = ps.from_arrays({"x": range(200)}).shuffle(seed=3).filter(lambda row: row["x"] % 3 > 0).rows()
    expected = [int(x) for x in rows.read(range(200))["x"]]
    assert [int(row["x"]) for row in rows] == expected
    assert [int(row["x"]) for row in rows[190:10:-7]] == expected[190:10:-7]
    assert [int(rows[n]["x"]) for n in (0, 5, -1)] == [expected[n] for n in (0, 5, -1)]
    for number in (200, -201):
        with pytest.raises(IndexError):
            rows[number]
    endless = ps.from_arrays({"x": range(3)}).repeat().rows()
    assert [int(endless[n]["x"]) for n in (0, 4, 3_000_001)] == [0, 1, 1]
    with pytest.raises(TypeError, match="take"):
        endless[-1]
    assert [int(row["x"]) for row, _ in zip(endless, range(70), strict=False)] == [n % 3 for n in range(70)]


def names_of_other_libraries() -> set[str]:
    """The methods that people know from the objects which a pipeline stands for."""
    import datasets
    import webdataset

    from tests.docs.test_coming_from import BY_HAND

    found = {name for name in " ".join(BY_HAND[kind] for kind in ("tf.data", "lhotse")).split() if name.islower()}
    for kind in (datasets.Dataset, datasets.IterableDataset, webdataset.WebDataset):
        found |= {name for name in dir(kind) if not name.startswith("_")}
    found |= {"collect", "limit", "where", "with_columns", "group_by", "explode", "random_split", "persist", "chain"}
    return {name for name in found if not hasattr(ps.Pipeline, name)}


def test_no_name_of_another_library_is_answered_with_a_guess() -> None:
    """`.count` was answered with `.concat()`, `.save` with `.sample()`."""
    pipeline = ps.from_arrays({"x": range(4)})
    wrong = {}
    for name in names_of_other_libraries() - set(COUNTERPARTS):
        with pytest.raises(NoSuchVerb) as caught:
            getattr(pipeline, name)
        if "docs/how-to/coming-from.md" not in str(caught.value):
            wrong[name] = str(caught.value)
    assert wrong == {}
    for name, text in {
        "collect": "list(pipeline.rows())", "count": "len(pipeline.rows())", "limit": ".take(n)", "where": ".filter(",
        "random_split": ".split(", "explode": ".flat_map(", "chain": "penstock.concat(", "take_while": "none",
    }.items():  # fmt: skip
        with pytest.raises(NoSuchVerb, match=re.escape(text)):
            getattr(pipeline, name)
    with pytest.raises(NoSuchVerb, match=r"\.flat_map\(\)"):
        getattr(pipeline, "flatmap")  # noqa: B009


@pytest.mark.parametrize(("name", "text"), [
    ("from_pandas", "penstock.from_records("), ("from_arrow", "penstock.from_records("),
    ("from_list", "penstock.from_records("), ("from_tensor_slices", "penstock.from_arrays("),
    ("from_generator", "penstock.from_stream("), ("read_webdataset", "penstock.read_tar("),
    ("read_tfrecord", "penstock.read_tfrecords"), ("read_image", "penstock.read_images"),
    ("read_lmdb", "docs/how-to/other-formats.md"), ("load_dataset", "penstock.from_hf("),
    ("concatenate_datasets", "penstock.concat("), ("DataLoader", ".to_torch()"),
    ("ImageFolder", "penstock.read_images("),
])  # fmt: skip
def test_an_unknown_name_of_the_module_says_what_to_write(name: str, text: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(text)) as caught:
        getattr(ps, name)
    assert isinstance(caught.value, ps.UsageError) and f"penstock.{name}" in str(caught.value)
    assert not hasattr(ps, name)
    with pytest.raises(ImportError):
        exec(f"from penstock import {name}")


@pytest.mark.parametrize(("call", "text"), [
    (lambda p: p.rename(x="y"), r"\.rename\(\{'x': 'y'\}\)"),
    (lambda p: p.rename("x", "y"), r"\.rename\(\{'x': 'y'\}\)"),
    (lambda p: p.sample(frac=0.1), r'\.split\(\{"part": 0\.1, "rest": None\}\)\["part"\]'),
    (lambda p: p.sample(0.1), r'\.split\(\{"part": 0\.1, "rest": None\}\)\["part"\]'),
    (lambda p: p.repeat(-1), r"\.repeat\(\) is endless"), (lambda p: p.enumerate(start=5), r"\.map\("),
    (lambda p: p.select([0, 1]), r"\.take\(n\)"),
])  # fmt: skip
def test_calls_as_other_libraries_write_them(call, text: str) -> None:
    with pytest.raises(ps.UsageError, match=text):
        call(ps.from_arrays({"x": range(4)}))
