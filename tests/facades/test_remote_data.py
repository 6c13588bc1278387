"""Facades read URLs with credentials that are passed to them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import penstock as ps
from penstock.storage import objects


@pytest.fixture(scope="module")
def lines(s3, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "train.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {n}", "n": n}) + "\n" for n in range(40)))
    array = path.with_name("array.json")
    array.write_text(json.dumps([{"n": n} for n in range(7)]))
    for each in (path, array):
        objects.put_new(s3.url("facades", each.name), each, s3.options)
    return path, array


def test_preprocessed_datasets_read_urls(lines, s3):
    for path in lines:
        remote = s3.url("facades", path.name)
        local = ps.PreprocessedDataset(str(path), lambda r: {"x": r["n"]})
        for made in (
            ps.PreprocessedDataset(remote, lambda r: {"x": r["n"]}, storage_options=s3.options),
            ps.create_preprocessed_dataset(remote, lambda r: {"x": r["n"]}, storage_options=s3.options),
        ):
            assert [made[i] for i in range(len(made))] == [local[i] for i in range(len(local))]
        stream = ps.create_preprocessed_dataset(
            remote, lambda r: {"x": r["n"]}, streaming=True, storage_options=s3.options
        )
        assert list(stream) == [local[i] for i in range(len(local))]


def test_capibara_loaders_read_urls_and_keep_their_credentials_to_themselves(lines, s3, tmp_path):
    def batches(name: str, **more):
        config = ps.DataLoaderConfig(max_length=12, pad_id=0, cache_dir=str(tmp_path / "c"), seed=2, **more)
        return list(ps.CapibaraDataLoader(config, tokenizer="bytes", dataset_name=name, batch_size=4))

    local = batches(str(lines[0]))
    for remote in (s3.url("facades", "train.jsonl"), s3.url("facades", "train*.jsonl")):
        found = batches(remote, storage_options=s3.options)
        for a, b in zip(found, local, strict=True):
            np.testing.assert_array_equal(a["input_ids"], b["input_ids"])
    config = ps.DataLoaderConfig(storage_options={"secret_access_key": "hidden-words"})
    whole = ps.CapibaraConfig(data=config)
    config.save(tmp_path / "a.json")
    whole.save(tmp_path / "b.json")
    shown = repr(config) + repr(whole) + (tmp_path / "a.json").read_text() + (tmp_path / "b.json").read_text()
    assert "hidden-words" not in shown
