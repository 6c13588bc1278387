"""`CapibaraDataLoader` as document 000 describes it, against a plain computation of what each batch must hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock.core.errors import DataError, StateError, UsageError, UserCodeError
from penstock.facades.capibara.config import CapibaraConfig, DataLoaderConfig
from penstock.facades.capibara.loader import CapibaraDataLoader
from penstock.facades.capibara.resolve import register_dataset
from tests.facades.capibara.conftest import TEXTS

LENGTH = 16


def rows_of(texts: list[str], tokenizer: Any, length: int = LENGTH) -> dict[tuple[int, ...], np.ndarray]:
    """What each text must become: ids, mask and labels, one under another, by its ids."""
    out = {}
    for text in texts:
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id][:length]
        rest = length - len(ids)
        labels = ids[1:] + [-100] * (rest + 1)
        row = np.array([ids + [tokenizer.pad_token_id] * rest, [1] * len(ids) + [0] * rest, labels])
        out[tuple(row[0])] = row
    return out


def stacked(batch: dict[str, Any]) -> np.ndarray:
    return np.stack([np.asarray(batch[name]) for name in ("input_ids", "attention_mask", "labels")], axis=1)


def test_the_code_of_the_document(texts: list[str], tokenizer: Any) -> None:
    data = datasets.Dataset.from_dict({"text": texts})
    register_dataset("wikitext", lambda: data)

    # Initialize components
    config = CapibaraConfig()

    # Create data loader
    loader = CapibaraDataLoader(
        config=config,
        tokenizer=tokenizer,
        dataset_name="wikitext",
        batch_size=32,
        shuffle=True,
    )

    # Iterate over batches
    for batch in loader:
        input_ids = batch["input_ids"]
        attention_mask = batch["attention_mask"]
        labels = batch["labels"]

    assert len(loader) == 1
    for array in (input_ids, attention_mask, labels):
        assert isinstance(array, jax.Array)
        assert array.shape == (32, 2048)
        assert array.dtype == jnp.int32
    known = rows_of(texts, tokenizer, 2048)
    for row in stacked(batch):
        assert np.array_equal(row, known[tuple(row[0])])


def test_an_epoch_gives_every_text_once_with_its_mask_and_labels(texts: list[str], tokenizer: Any) -> None:
    loader = CapibaraDataLoader(tokenizer=tokenizer, dataset_name=texts, batch_size=6, max_length=LENGTH)
    known = rows_of(texts, tokenizer)
    cut = [k for k in known if known[k][1].all()]
    assert cut, "some texts are longer than the row"
    epochs = []
    for _ in range(2):
        rows = [row for batch in loader for row in stacked(batch)]
        assert sorted(tuple(r[0]) for r in rows) == sorted(rows_of_all(texts, tokenizer))
        for row in rows:
            assert np.array_equal(row, known[tuple(row[0])])
        epochs.append([tuple(r[0]) for r in rows])
    assert epochs[0] != epochs[1], "each epoch has an order of its own"
    plain = CapibaraDataLoader(tokenizer=tokenizer, dataset_name=texts, batch_size=6, max_length=LENGTH, shuffle=False)
    assert [tuple(r[0]) for b in plain for r in stacked(b)] == rows_of_all(texts, tokenizer)


def rows_of_all(texts: list[str], tokenizer: Any) -> list[tuple[int, ...]]:
    return [next(iter(rows_of([text], tokenizer))) for text in texts]


def test_threads_ranks_and_resume_do_not_change_batches(texts: list[str], tokenizer: Any) -> None:
    def make(**more: Any) -> CapibaraDataLoader:
        return CapibaraDataLoader(
            tokenizer=tokenizer,
            **({"dataset_name": texts, "batch_size": 8, "max_length": LENGTH, "seed": 3} | more),
        )

    want = [stacked(batch) for batch in make(num_workers=0)]
    assert all(np.array_equal(a, stacked(b)) for a, b in zip(want, make(num_workers=3), strict=True))
    halves = [[stacked(b) for b in make(rank=rank, world=2)] for rank in range(2)]
    assert all(np.array_equal(w, np.concatenate(pair)) for w, *pair in zip(want, *halves, strict=True))
    first = make()
    taken = iter(first)
    for _ in range(3):
        next(taken)
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1024
    other = make(batch_size=4, num_workers=1)  # half the batch: the same rows go on
    other.load_state_dict(state)
    rest = np.concatenate([stacked(b) for b in other])
    assert len(rest) == 60 - 24, "the rows that batches of 8 drop make one more batch of 4"
    assert np.array_equal(rest[: len(want[3:]) * 8], np.concatenate(want[3:]))
    assert np.array_equal(stacked(make().batch_at(5)), want[5])
    why = make(shuffle=False).why(1, row=2)
    assert why["from"]["pipeline_row"] == 10
    with pytest.raises(StateError, match="state of this very pipeline"):
        make(dataset_name=texts[1:]).load_state_dict(state)


def test_stats_count_what_was_taken(texts: list[str], tokenizer: Any) -> None:
    loader = CapibaraDataLoader(
        tokenizer=tokenizer, dataset_name=texts, batch_size=8, max_length=LENGTH, shuffle=False, prefetch=4
    )
    assert loader.stats()["tokens"] == {"all": 0}
    run = iter(loader)
    taken = [stacked(next(run)) for _ in range(3)]
    facts = loader.stats()
    assert facts["rows"] == {"all": 24}
    assert facts["tokens"] == {"all": int(sum(t[:, 1].sum() for t in taken))}
    whole = sum(len(tokenizer.encode(t, add_special_tokens=False)) + 1 for t in texts)
    kept = sum(int(r[1].sum()) for t in texts for r in rows_of([t], tokenizer).values())
    assert facts["cut_tokens"] == {"all": whole - kept} != {"all": 0}
    assert facts["batches_taken"] == 3


def test_collate_fn_is_honoured(texts: list[str], tokenizer: Any) -> None:
    seen: list[list[dict[str, Any]]] = []

    class Doubled(CapibaraDataLoader):
        def _collate_fn(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
            seen.append(batch)
            made = super()._collate_fn(batch)
            return made | {"lengths": jnp.array([len(one["input_ids"]) for one in batch])}

    loader = Doubled(tokenizer=tokenizer, dataset_name=texts, batch_size=5, max_length=LENGTH)
    plain = CapibaraDataLoader(tokenizer=tokenizer, dataset_name=texts, batch_size=5, max_length=LENGTH)
    for got, want in zip(loader, plain, strict=True):
        assert np.array_equal(stacked(got), stacked(want))
        assert got["lengths"].tolist() == want["attention_mask"].sum(axis=1).tolist()
        assert isinstance(got["input_ids"], jax.Array)
    assert isinstance(seen[0], list)
    assert set(seen[0][0]) >= {"input_ids", "attention_mask", "labels"}
    assert loader.state_dict()["step"] == 12
    assert np.array_equal(stacked(loader.batch_at(4)), stacked(plain.batch_at(4)))


def test_data_generator_is_honoured(texts: list[str], tokenizer: Any) -> None:
    class Shifted(CapibaraDataLoader):
        def _data_generator(self) -> Any:
            for batch in super()._data_generator():
                yield batch | {"input_ids": batch["input_ids"] + 1}

    loader = Shifted(tokenizer=tokenizer, dataset_name=texts, batch_size=10, max_length=LENGTH)
    plain = CapibaraDataLoader(tokenizer=tokenizer, dataset_name=texts, batch_size=10, max_length=LENGTH)
    for got, want in zip(loader, plain, strict=True):
        assert np.array_equal(got["input_ids"], want["input_ids"] + 1)
    assert loader.step == 6


def test_a_failing_collate_says_so(tokenizer: Any) -> None:
    class Wrong(CapibaraDataLoader):
        def _collate_fn(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
            raise KeyError("nothing")

    loader = Wrong(tokenizer=tokenizer, dataset_name=TEXTS, batch_size=10, max_length=LENGTH)
    with pytest.raises(UserCodeError, match="_collate_fn to return"):
        next(iter(loader))


def test_windows_lose_no_token(texts: list[str], tokenizer: Any) -> None:
    loader = CapibaraDataLoader(
        tokenizer=tokenizer, dataset_name=texts, layout="windows", batch_size=2, max_length=16, shuffle=False
    )
    stream = [t for text in texts for t in [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]]
    got = np.concatenate([stacked(batch) for batch in loader])
    assert np.array_equal(got[:, 0].ravel(), stream[: got[:, 0].size])
    assert np.array_equal(got[:, 2].ravel(), stream[1 : got[:, 0].size + 1])
    assert got[:, 1].all()


def test_blank_texts_are_left_out(tokenizer: Any) -> None:
    loader = CapibaraDataLoader(
        tokenizer=tokenizer, dataset_name=["one", "", " \n", "two"], batch_size=2, max_length=8, shuffle=False
    )
    (batch,) = loader
    decoded = [tokenizer.decode(r, skip_special_tokens=True) for r in batch["input_ids"]]
    assert decoded == ["one", "two"]
    with pytest.raises(UsageError, match="that is not blank"):
        CapibaraDataLoader(tokenizer=tokenizer, dataset_name=["", "  "], batch_size=1)


def test_a_field_that_no_record_has_is_named_with_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one", "id": 1}\n{"body": "two", "id": 2}\n')
    (tmp_path / "blank.jsonl").write_text('{"body": " ", "id": 1}\n')
    path = str(tmp_path / "a.jsonl")
    for options, name in (({}, "text"), ({"text_field": "txt"}, "txt")):
        with pytest.raises(DataError, match=f"a field '{name}'\n.*'body', 'id'\n.*a.jsonl, line 1.*\n.*text_field="):
            CapibaraDataLoader(tokenizer="bytes", dataset_name=path, batch_size=1, **options)
    assert len(CapibaraDataLoader(tokenizer="bytes", dataset_name=path, batch_size=1, text_field="body")) == 2
    with pytest.raises(UsageError, match="only blank ones in 'body'\n.*blank.jsonl\n.*text_field="):
        path = str(tmp_path / "blank.jsonl")
        CapibaraDataLoader(tokenizer="bytes", dataset_name=path, batch_size=1, text_field="body")


@pytest.mark.parametrize("remainder", ["drop", "short", "pad"])
def test_what_an_epoch_leaves_over(tokenizer: Any, remainder: str) -> None:
    loader = CapibaraDataLoader(
        tokenizer=tokenizer, dataset_name=TEXTS[:7], batch_size=4, max_length=LENGTH, remainder=remainder
    )
    shapes = [batch["input_ids"].shape for batch in loader]
    assert shapes == {"drop": [(4, LENGTH)], "short": [(4, LENGTH), (3, LENGTH)], "pad": [(4, LENGTH)] * 2}[remainder]
    if remainder == "pad":
        last = loader.batch_at(1)
        assert last["valid"].tolist() == [True, True, True, False]
        assert (last["labels"][3] == -100).all()


def test_data_with_ids_needs_no_tokenizer(tmp_path: Path) -> None:
    ids = [list(range(1, n + 2)) for n in range(12)]
    data = datasets.Dataset.from_dict({"input_ids": ids, "title": ["t"] * 12})
    loader = CapibaraDataLoader(dataset_name=data, batch_size=4, max_length=6, shuffle=False)
    got = np.concatenate([stacked(batch) for batch in loader])
    assert got[2].tolist() == [[1, 2, 3, 0, 0, 0], [1, 1, 1, 0, 0, 0], [2, 3, -100, -100, -100, -100]]
    assert set(loader.batch_at(0)) == {"input_ids", "attention_mask", "labels"}
    assert sum(loader.stats()["tokens"].values()) == sum(min(6, len(row)) for row in ids)


def test_wrong_arguments_say_what_to_do(texts: list[str], tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="did you mean 'max_length'"):
        CapibaraDataLoader(tokenizer=tokenizer, dataset_name=texts, max_lenght=8)
    with pytest.raises(UsageError, match="a tokenizer for text"):
        CapibaraDataLoader(dataset_name=texts)
    with pytest.raises(UsageError, match="text_field='body'"):
        CapibaraDataLoader(tokenizer=tokenizer, dataset_name=[{"body": "a", "title": "b"}])
    with pytest.raises(UsageError, match="a whole number of at least 1 for batch_size"):
        CapibaraDataLoader(tokenizer=tokenizer, dataset_name=texts, batch_size=0)
    with pytest.raises(UsageError, match="a CapibaraConfig, a DataLoaderConfig"):
        CapibaraDataLoader(config=3, tokenizer=tokenizer, dataset_name=texts)


def test_micro_batches_are_parts_of_the_global_batch(texts: list[str], tokenizer: Any) -> None:
    settings = DataLoaderConfig(batch_size=12, max_length=LENGTH, seed=1)
    whole = CapibaraDataLoader(settings, tokenizer, texts)
    parts = CapibaraDataLoader(settings, tokenizer, texts, micro_batches=3)
    for a, b in zip(whole, parts, strict=True):
        assert b["input_ids"].shape == (3, 4, LENGTH)
        for name, array in a.items():
            assert all(np.array_equal(b[name][j], array[j::3]) for j in range(3))
    with pytest.raises(UsageError, match="batch_size=12"):
        CapibaraDataLoader(settings, tokenizer, texts, batch_size=10, micro_batches=3)
