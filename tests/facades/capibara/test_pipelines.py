"""A pipeline as `dataset_name`: its filters, skipped records and shard hold in the batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import UsageError

RECORDS = [{"text": f"text {i:02}", "lang": "de" if i % 3 else "sw"} for i in range(40)]
COLUMNS = {name: [record[name] for record in RECORDS] for name in ("text", "lang")}


def is_even(record: dict[str, Any]) -> bool:
    return int(record["text"][-2:]) % 2 == 0


def fails_on_sevens(record: dict[str, Any]) -> dict[str, Any]:
    if record["text"].endswith("7"):
        raise ValueError("a bad record")
    return record


def draw(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**record, "text": f"{rng.integers(10**9):09} {record['text']}"}


def open_loader(data: Any, **options: Any) -> ps.CapibaraDataLoader:
    settings = {"tokenizer": "bytes", "batch_size": 1, "max_length": 32, "eos": False, "shuffle": False} | options
    return ps.CapibaraDataLoader(dataset_name=data, **settings)


def texts_of(loader: ps.CapibaraDataLoader) -> list[str]:
    return [
        bytes(np.asarray(ids)[np.asarray(mask) == 1].astype(np.uint8)).decode()
        for batch in loader
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


@pytest.mark.parametrize("field", [None, "lang"])
@pytest.mark.parametrize(
    ("verb", "kept"),
    [
        (lambda p: p.filter(is_even), [r["text"] for r in RECORDS if is_even(r)]),
        (lambda p: p.map(fails_on_sevens).skip_errors(), [r["text"] for r in RECORDS if not r["text"].endswith("7")]),
    ],
    ids=["filter", "skip_errors"],
)
def test_rejected_records_are_left_out(field: str | None, verb: Any, kept: list[str]) -> None:
    loader = open_loader(verb(ps.from_arrays(COLUMNS)), language_field=field)
    assert len(loader) == len(kept)
    found = texts_of(loader) + texts_of(loader)  # a mixture may cross the end of an epoch by a row
    assert sorted(set(found)) == kept
    assert max(map(found.count, kept)) <= 3


def test_random_maps_draw_the_same_with_and_without_languages() -> None:
    pipeline = ps.from_arrays(COLUMNS).filter(is_even).map(draw)
    loaders = [open_loader(pipeline, language_field=field) for field in ("lang", None)]
    apart, together = ({*texts_of(loader), *texts_of(loader)} for loader in loaders)
    assert apart == together
    assert len({text[:9] for text in apart}) == 20


def test_a_count_after_a_filter_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no \.take\(\) between \.filter\(\) and"):
        open_loader(ps.from_arrays(COLUMNS).filter(is_even).take(10), language_field="lang")


def test_a_filter_that_keeps_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least one record"):
        open_loader(ps.from_arrays(COLUMNS).filter(lambda record: False), language_field="lang")


@pytest.mark.parametrize("field", [None, "lang"])
def test_the_shard_of_a_pipeline_is_kept(field: str | None) -> None:
    full = texts_of(open_loader(ps.from_arrays(COLUMNS), language_field=field, batch_size=4))
    ranks = [
        texts_of(open_loader(ps.from_arrays(COLUMNS).shard(rank, 2), language_field=field, batch_size=4))
        for rank in range(2)
    ]
    assert [len(texts) for texts in ranks] == [20, 20]
    assert sorted(ranks[0] + ranks[1]) == sorted(full)


def test_the_shards_of_languages_are_kept() -> None:
    for rank in range(2):
        data = {name: ps.from_texts([f"{name} {i}" for i in range(10)]).shard(rank, 2) for name in ("de", "sw")}
        found = texts_of(open_loader(data, batch_size=4))
        assert len(found) == 10


def test_two_different_shards_are_refused() -> None:
    sharded = ps.from_arrays(COLUMNS).shard(1, 2)
    with pytest.raises(UsageError, match="one shard") as met:
        open_loader(sharded, rank=0, world=4, batch_size=4)
    assert "rank 1 of 2 in the pipeline and rank 0 of 4 here" in str(met.value)
    same = open_loader(sharded, rank=1, world=2, batch_size=4)
    assert texts_of(same) == texts_of(open_loader(sharded, batch_size=4))
