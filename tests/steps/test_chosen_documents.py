"""Windows and packs of chosen documents: the same as over one source that holds just these documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import Pipeline
from penstock.core.columns import Ragged
from penstock.plan.build import build
from penstock.plan.estimate import orders_of
from penstock.sources import token_documents
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter
from penstock.testing import assert_elastic, assert_exact_resume
from penstock.testing.resume import assert_same_batches, batches
from tests.storage.remote_stores import upload

Make = Callable[[], Pipeline]


def tokens(documents: int, seed: int, vocab_size: int | None = 251) -> Pipeline:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 40, documents)
    stream = rng.integers(0, 250, lengths.sum()).astype(np.uint16)
    return ps.open_tokens(stream, np.concatenate([[0], np.cumsum(lengths)]), vocab_size)


def uneven(record: dict) -> bool:
    return len(record["input_ids"]) % 3 != 0


def many() -> Pipeline:
    return tokens(170, 1)


def few() -> Pipeline:
    return tokens(90, 2)


CHOSEN: dict[str, Make] = {
    "concat": lambda: ps.concat([many(), few()]),
    "concat of one twice": lambda: few().concat(few()),
    "exact filter": lambda: many().filter(uneven, exact=True),
    "sample": lambda: many().sample(100, seed=3),
    "part of a split": lambda: many().split({"train": 0.8, "val": 0.2}, seed=1)["train"],
    "take": lambda: many().take(77),
    "skip": lambda: many().skip(10),
    "repeat": lambda: few().repeat(3),
    "interleave": lambda: ps.interleave([many(), few()]),
    "nested": lambda: (
        ps.concat([many().filter(uneven, exact=True), few(), ps.interleave([few().take(20), many().sample(30)])])
    ).skip(3),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))


@pytest.fixture(params=["all positions", "some positions"])
def _tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few documents the position of each is kept, with many that of some."""
    if request.param == "some positions":
        monkeypatch.setattr(token_documents, "KEPT", 0)


def written(chosen: Pipeline) -> Pipeline:
    """The same documents as one array."""
    documents = [record["input_ids"] for record in chosen.rows()]
    edges = np.cumsum([0, *map(len, documents)])
    return ps.open_tokens(np.concatenate(documents).astype(np.uint16), edges, 251)


def assert_same_rows(one: Pipeline, other: Pipeline) -> None:
    assert len(one.rows()) == len(other.rows())
    for here, there in zip(one.rows(), other.rows(), strict=True):
        assert here.keys() == there.keys()
        assert all(np.array_equal(here[name], there[name]) for name in there)


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize("name", CHOSEN)
def test_windows_and_packs_are_those_of_one_source_with_these_documents(name: str) -> None:
    make = CHOSEN[name]
    one = written(make())
    for length, stride in ((16, None), (64, 5), (1, 1), (300, 7)):
        assert_same_rows(make().windows(length, stride=stride), one.windows(length, stride=stride))
    options: list[dict[str, Any]] = [{}, {"strategy": "concat"}, {"overlong": "truncate"}, {"max_docs": 2}]
    for option in options:
        for length in (24, 64):
            assert_same_rows(make().pack(length, **option), one.pack(length, **option))


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("name", CHOSEN)
def test_planned_batches_are_those_of_one_source_with_these_documents(name: str, shuffled: bool) -> None:
    def planned(pipeline: Pipeline) -> list[Pipeline]:
        rows = pipeline.shuffle(seed=5) if shuffled else pipeline
        return [
            rows.bucket([8, 20], batch_size=7, remainder="short"), rows.batch_tokens(150, overlong="drop"),
            rows.batch_tokens(120, shapes=[16, 40], static=True), rows.bucket([16], sizes=[6, 3]).shard(1, 2),
        ]  # fmt: skip

    for here, there in zip(planned(CHOSEN[name]()), planned(written(CHOSEN[name]())), strict=True):
        one, other = here.to_numpy(threads=0), there.to_numpy(threads=0)
        assert len(one) == len(other) > 3
        for _ in range(2):  # epochs
            assert list(map(_rows, one)) == list(map(_rows, other))


def _rows(batch: dict[str, Any]) -> list[Any]:
    return [batch[name].tolist() for name in ("input_ids", "labels", "valid", "valid_labels")]


def recordings(lengths: list[int], first: int) -> Pipeline:
    rows = [np.arange(n) + 1000 * i for i, n in enumerate(lengths, first)]
    labels = [np.where(row % 3 > 0, row, -100) for row in rows]
    numbers = np.arange(first, first + len(rows))
    return ps.from_arrays({"input_ids": Ragged.of(rows), "labels": Ragged.of(labels), "n": numbers})


def test_planned_batches_of_chosen_records_of_other_sources() -> None:
    made = ps.concat([recordings([3, 9, 4, 2, 8], 0).skip(1), recordings([5, 1, 7, 6], 5)])
    seen = []
    for batch in made.shuffle(seed=2).bucket([5], 2, remainder="short").to_numpy(threads=0):
        for ids, mask, n in zip(batch["input_ids"], batch["attention_mask"], batch["n"].tolist(), strict=True):
            assert ids[mask > 0].tolist() == [1000 * n + k for k in range(int(mask.sum()))]
            seen.append((n, int(mask.sum())))
        labels = batch["labels"][batch["valid"]]
        assert int(batch["valid_labels"]) == (labels != -100).sum()
    assert sorted(seen) == [(1, 9), (2, 4), (3, 2), (4, 8), (5, 5), (6, 1), (7, 7), (8, 6)]
    with shown(r"(?s)documents of tokens right before .bucket\(\).*records of arrays.*put .tokenize"):
        ps.concat([made.drop("n").take(2), ps.from_arrays({"x": [1]})]).bucket([5], 2).to_numpy()


def test_the_law_of_planned_batches(tmp_path: Path) -> None:
    parts = [weighted(tmp_path, 0, trained=True), weighted(tmp_path, 60, trained=True).filter(later, exact=True)]

    def make(budget: int) -> Pipeline:
        return ps.concat(parts).skip(3).shuffle(seed=7).batch_tokens(budget, overlong="truncate")

    assert_exact_resume(lambda: make(200))
    assert_elastic(lambda _: make(200), batch=1, worlds=(1, 2, 3, 4), threads=(0, 1, 2))
    loader = make(200).to_numpy(threads=0)
    batch, number = loader.batch_at(2), 0
    at = loader.why(2, number)["from"]
    found = parts[at["concat_source"]].definition.origin.read(np.array([at["document"]]))["document"] if at else None
    assert found is not None and batch["document"][number] == found[0]
    trained = [int((batch["labels"][row] != -100).sum()) for row in range(len(batch["labels"]))]
    assert int(batch["valid_labels"]) == sum(trained)
    ranks = [make(200).shard(rank, 3).to_numpy(threads=0).batch_at(2) for rank in range(3)]
    assert {int(part["valid_labels"]) for part in ranks} == {sum(trained)}


def test_plans_of_planned_batches(tmp_path: Path) -> None:
    stores = ps.concat([weighted(tmp_path, 0).take(40), weighted(tmp_path, 60)]).shuffle(seed=1).batch_tokens(100)
    assert len(orders_of(build(stores.definition).root)) == 2
    assert "batches of .batch_tokens()" in str(stores.plan())
    made = ps.concat([many(), few().skip(5)]).shuffle(seed=1).bucket([8, 20], batch_size=6, remainder="short")
    root = build(made.definition).root
    records = np.concatenate([root.batch_plan.batches(np.array([n]), 0).records for n in range(root.size)])
    read = [np.zeros(0, np.int64)] * 2
    for leaf, starts, lengths, *_ in root.reads(root.batch_plan.picks(records, 0)):
        read[leaf.number] = np.concatenate([read[leaf.number], *map(np.arange, starts, starts + lengths)])
    total = [sum(len(record["input_ids"]) for record in one.rows()) for one in (many(), few().skip(5))]
    assert [len(np.unique(one)) for one in read] == [len(one) for one in read] == total


def test_child_processes_make_the_same_batches() -> None:
    make = CHOSEN["nested"]
    planned = make().shuffle(seed=3).batch_tokens(100)
    assert_same_batches(batches(planned.to_numpy(threads=0), 6), batches(planned.to_numpy(workers=2), 6))
    for cut in (make().windows(16), make().pack(32)):
        rows = cut.shuffle(seed=3).batch(8)
        assert_same_batches(batches(rows.to_numpy(threads=0), 6), batches(rows.to_numpy(workers=2), 6))


def test_provenance_names_the_source_and_its_document() -> None:
    loader = CHOSEN["concat"]().windows(16).batch(1).to_numpy(threads=0)
    sources = [list(map(int, np.concatenate([r["input_ids"] for r in one.rows()]))) for one in (many(), few())]
    for step in (0, len(loader) - 1):
        found = json.loads(json.dumps(loader.why(step, 0)))["from"]["documents"]
        first = found[0]
        stream = sources[first["concat_source"]]
        begin = first["start"] + first["from"]
        assert loader.batch_at(step)["input_ids"][0, 0] == stream[begin]
        assert first["concat_source"] == (0 if step == 0 else 1)


def test_the_plan_counts_what_is_read_of_each_source() -> None:
    made = ps.concat([many(), few().skip(5)])
    total = sum(len(record["input_ids"]) for record in made.rows())
    root = build(made.windows(16).batch(1).definition).root
    assert root.size == (total - 17) // 16 + 1
    read = {0: np.zeros(0, np.int64), 1: np.zeros(0, np.int64)}
    for leaf, starts, lengths, *_ in root.reads(root.pick(np.arange(root.size), 0)):
        read[leaf.number] = np.unique(np.concatenate([read[leaf.number], *map(np.arange, starts, starts + lengths)]))
    first, second = (one.rows() for one in (many(), few()))
    skipped = sum(len(second[i]["input_ids"]) for i in range(5))
    assert read[0].tolist() == list(range(sum(len(record["input_ids"]) for record in first)))
    assert read[1][0] == skipped and len(read[0]) + len(read[1]) == 16 * root.size + 1


def weighted(folder: Path, first: int, trained: bool = False) -> Pipeline:
    """A store whose columns say what its ids say, document and place; the second half of a document is trained on."""
    numbers = np.arange(first, first + 60)
    ids = [np.arange(n) + 100 * i for i, n in zip(numbers, 3 * numbers % 47, strict=True)]
    columns: dict[str, Any] = {"weight": Ragged.of([one / 2 for one in ids], np.float32), "document": numbers}
    if trained:
        columns["loss_runs"] = Ragged.of([[len(one) // 2, len(one) - len(one) // 2] for one in ids], np.uint32)
    (store := folder / str(first)).mkdir()
    with ShardWriter(store / "00000.tokens", vocab_size=20_000) as shard:
        shard.add(Ragged.of(ids, np.int64), columns)
    write_manifest(store, [shard.finish()])
    return ps.open_store(store)


def later(record: dict) -> bool:
    return int(record["document"]) % 4 != 1


def test_columns_beside_tokens(tmp_path: Path) -> None:
    chosen = ps.concat([weighted(tmp_path, 0), weighted(tmp_path, 60).filter(later, exact=True)])
    for rows in (
        chosen.windows(20, stride=9, columns=["weight", "document"]),
        chosen.pack(48, columns={"weight": 0, "document": 0}),
    ):
        for row in rows.rows():
            held = row.get("segment_ids", np.ones(len(row["input_ids"]))) > 0
            ids = row["input_ids"].astype(int)
            assert (row["weight"] == np.where(held, ids / 2, 0)).all()
            assert (row["document"] == np.where(held, ids // 100, 0)).all()
    root = build(chosen.pack(48, columns=["weight"]).batch(1).definition).root
    for leaf, *_, documents, columns in root.reads(root.pick(np.arange(3), 0)):
        assert documents is not None and columns == ("weight",)
        assert 0 <= documents().min() <= documents().max() < len(leaf.source)


def test_loss_masks(tmp_path: Path) -> None:
    parts = [weighted(tmp_path, 0, trained=True), weighted(tmp_path, 60, trained=True).sample(50, seed=3)]
    chosen = ps.concat(parts)
    for rows in (chosen.windows(20), chosen.pack(48)):
        seen = 0
        for row in rows.rows():
            labels = row["labels"]
            kept = labels[labels != -100]
            document, place = np.divmod(kept, 100)
            length = (3 * document) % 47
            assert (place >= length // 2).all()
            seen += len(kept)
        assert seen > 500


def shown(text: str) -> Any:
    return pytest.raises(ps.UsageError, match=text)


def test_what_cannot_be_random_access_is_refused(tmp_path: Path) -> None:
    with shown(r"(?s)tokens right before .windows\(\), documents in an order that stays.*exact=True"):
        many().filter(uneven).windows(8).rows()
    with shown(r"(?s)\.shuffle\(\) or penstock.mix\(\) of documents before it.*put it after \.pack\(\)"):
        many().shuffle(seed=1).take(20).pack(8).rows()
    with shown("an endless sequence of documents"):
        many().repeat().pack(8).rows()
    with shown(r'(?s)a step that changes documents.*\.write\("folder", "store"\)'):
        many().map(dict).windows(8).rows()
    with shown("a step that changes documents"):
        ps.concat([many(), few().enumerate()]).windows(8).rows()
    with shown(r"(?s)tokens of one tokenizer.*vocabulary 251.*vocabulary 300"):
        ps.concat([many(), tokens(5, 3, vocab_size=300)]).windows(8).rows()
    with shown(
        r"(?s)the same columns from every source: \['document', 'loss_runs', 'weight'\].*\['document', 'weight'\]"
    ):
        ps.concat([weighted(tmp_path, 0, trained=True), weighted(tmp_path, 60)]).windows(8).rows()
    with shown(r"(?s)tokens right before .windows\(\).*records of arrays.*\.tokenize\("):
        ps.from_arrays({"x": range(5)}).take(3).windows(8).rows()


def test_stores_behind_urls(s3: Any, tmp_path: Path) -> None:
    def both(kind: str) -> Pipeline:
        if kind == "local":
            return ps.concat([ps.open_store(tmp_path / str(first)) for first in (0, 60)])
        urls = [s3.url(tmp_path.name, str(first)) for first in (0, 60)]
        return ps.concat([ps.open_store(url, storage_options=s3.options) for url in urls])

    for first in (0, 60):
        weighted(tmp_path, first)
        upload(tmp_path / str(first), s3.url(tmp_path.name, str(first)), s3.options)
    cuts: list[Callable[[Pipeline], Pipeline]] = [
        lambda p: p.windows(20, columns=["weight"]).shuffle(seed=1).batch(6),
        lambda p: p.sample(100, seed=2).pack(32).shuffle(seed=1).batch(6),
    ]
    for cut in cuts:
        there, here = (cut(both(kind)).to_numpy(threads=2) for kind in ("remote", "local"))
        assert_same_batches(batches(there, 8), batches(here, 8))


@pytest.mark.parametrize("verb", ["windows", "pack"])
def test_rows_that_hold_token_ids_are_told_to_be_written_once(verb: str, tmp_path: Path) -> None:
    """As `from_hf` of a tokenized dataset: the error only named `.tokenize()`, which they do not need."""
    rows = ps.from_records([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7]}])
    with pytest.raises(ps.UsageError, match=rf'\.write\("folder", "store"\), then open_store\("folder"\)\.{verb}\('):
        getattr(rows, verb)(2).peek(1)
    rows.write(tmp_path / "folder", "store")
    assert getattr(ps.open_store(tmp_path / "folder"), verb)(2).peek(1)[0]["input_ids"].tolist() == [1, 2]
