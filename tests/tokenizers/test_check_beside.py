"""The check of the fast engine runs beside the first texts, and nothing leaves `encode` before it has passed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.tokenizers import BulkEncoder, as_tokenizer
from penstock.tokenizers import probes as probes_module

from .conftest import train_bpe


@pytest.fixture
def misread(corpus: list[str]) -> Any:
    """A tokenizer that gigatoken accepts and reads wrongly: byte-level without its split rule."""
    from tokenizers import pre_tokenizers

    return train_bpe(corpus, pre=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


def held(texts: list[str]) -> tuple[threading.Event, Callable[[], list[str]]]:
    """A sample that is not there before the event is set."""
    go = threading.Event()

    def sample() -> list[str]:
        assert go.wait(60)
        return texts

    return go, sample


def started(bulk: BulkEncoder, texts: list[str]) -> tuple[threading.Thread, list[Any]]:
    """`encode` in another thread, and what it returned or raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(bulk.encode(texts).tolist())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def finished(bulk: BulkEncoder, go: threading.Event, thread: threading.Thread, found: list[Any]) -> list[Any]:
    go.set()
    thread.join(60)
    bulk.close()
    return found


@pytest.mark.parametrize("threads", [1, 3])
def test_encode_works_meanwhile_and_returns_after_the_check(bpe: Any, corpus: list[str], threads: int) -> None:
    bulk = BulkEncoder(bpe, threads=threads, slice_bytes=700)
    go, sample = held(corpus)
    worked = threading.Event()
    run = bulk._run

    def noted(texts: Any) -> Any:
        rows = run(texts)
        worked.set()
        return rows

    bulk._run = noted
    bulk.check_beside(sample)
    thread, found = started(bulk, corpus)
    assert worked.wait(60)  # some texts are encoded
    thread.join(0.05)
    assert not found  # and not returned
    go.set()
    thread.join(60)
    assert found == [as_tokenizer(bpe).encode_batch(corpus).tolist()]
    assert (bulk.engine, bulk.checked) == ("gigatoken", True)
    bulk.close()


def test_what_an_engine_encoded_before_it_failed_the_check_is_encoded_again(misread: Any, corpus: list[str]) -> None:
    bulk = BulkEncoder(misread, threads=2, slice_bytes=700)
    go, sample = held(corpus)
    bulk.check_beside(sample)
    with pytest.warns(RuntimeWarning, match="gigatoken returns other ids than tokenizers"):
        found = finished(bulk, go, *started(bulk, corpus))
    assert found == [[misread.encode(text).ids for text in corpus]]
    assert bulk.engine == "tokenizers"


def test_every_engine_that_worked_early_is_compared(bpe: Any, corpus: list[str]) -> None:
    """The check itself uses an engine that is right; another one, which encoded the texts meanwhile, is not."""
    import gigatoken

    wrong = json.loads(bpe.to_str())
    vocab = wrong["model"]["vocab"]
    vocab["Ġthe"], vocab["Ġquick"] = vocab["Ġquick"], vocab["Ġthe"]
    bulk = BulkEncoder(bpe, threads=2)
    assert bulk._giga is not None
    right, bulk._giga._build = bulk._giga._build, lambda: gigatoken.Tokenizer.from_json(json.dumps(wrong))
    text = "see the quick fox"
    go, sample = held(corpus)
    first = bulk._giga._free.get()  # so that the texts get a new engine
    bulk.check_beside(sample)
    thread, found = started(bulk, [text])
    while not (bulk._giga._early and bulk._giga._free.qsize()):  # the other engine has worked and is free again
        assert thread.is_alive()
    bulk._giga._build = right
    bulk._giga._free.put(first)
    with pytest.warns(RuntimeWarning, match="an engine of gigatoken returns other ids"):
        finished(bulk, go, thread, found)
    assert found == [[bpe.encode(text).ids]]


def test_an_engine_that_worked_early_is_compared_once(bpe: Any, corpus: list[str]) -> None:
    bulk = BulkEncoder(bpe, threads=1, slice_bytes=100)
    assert bulk._giga is not None
    check, compared = bulk._giga._check, list[Any]()

    def noted(engine: Any) -> None:
        compared.append(engine)
        check(engine)

    bulk._giga._check = noted
    go, sample = held(corpus)
    bulk.check_beside(sample)
    thread, found = started(bulk, corpus)
    while not bulk._giga._early:
        assert thread.is_alive()
    thread.join(0.05)  # many slices
    finished(bulk, go, thread, found)
    assert found == [as_tokenizer(bpe).encode_batch(corpus).tolist()]
    assert len(compared) <= 2  # before its ids were returned, and when it was used the next time


def test_a_sample_that_cannot_be_read_stops_the_encoder(bpe: Any) -> None:
    def fails() -> list[str]:
        raise ps.DataError("a file", got="none", where="b.jsonl")

    bulk = BulkEncoder(bpe, threads=1)
    bulk.check_beside(fails)
    with pytest.raises(ps.DataError, match=r"b\.jsonl"):
        bulk.encode(["a"])


def test_prepare_commits_nothing_of_an_engine_that_fails(tmp_path: Path, misread: Any, corpus: list[str]) -> None:
    for name, texts in (("a", corpus[:40]), ("b", corpus[40:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = ps.read_jsonl([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    with pytest.warns(RuntimeWarning, match="gigatoken returns other ids"):
        made = ps.prepare(source, misread, tmp_path / "store", eos=False, show_progress=False, shard_tokens=300)
    slow = ps.prepare(source, misread, tmp_path / "slow", eos=False, engine="reference", shard_tokens=300)
    assert (made.engine, made.id) == ("tokenizers", slow.id)
    rows = ps.open_store(tmp_path / "store").peek(len(corpus))
    assert [row["input_ids"].tolist() for row in rows] == [misread.encode(text).ids for text in corpus]


def test_ids_of_the_probes_are_remembered_per_tokenizer(
    bpe: Any, misread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real = probes_module.vocabulary_probes
    monkeypatch.setattr(probes_module, "vocabulary_probes", lambda tokenizer: made.append(tokenizer) or real(tokenizer))
    probes_module._known.clear()
    for _ in range(2):
        bulk = BulkEncoder(bpe, threads=1)
        bulk.check(["a"])
        assert bulk.engine == "gigatoken"
    assert len(made) == 1
    with pytest.warns(RuntimeWarning, match="other ids"):
        BulkEncoder(misread, threads=1).check(["a"])
    assert len(made) == 2
