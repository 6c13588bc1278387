"""Preparing: what comes out, what is skipped, what is refused."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.preparation.run import prepare
from penstock.sources.arrays import Texts
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.text import TextFiles
from penstock.sources.tokens import TokenStore
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXTS = [f"Document {i}: " + "word " * (i % 23) + "é 漢字 🙂" for i in range(400)]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def write_jsonl(path: Path, texts: list[str]) -> Path:
    data = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    path.write_bytes(gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode())
    return path


def documents(store: TokenStore) -> list[list[int]]:
    return store.read(np.arange(len(store)))["input_ids"].tolist()


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_documents_are_the_tokenizers_ids_and_the_end_token(tmp_path: Path, bpe: Tokenizer) -> None:
    report = prepare(JsonlFiles(write_jsonl(tmp_path / "a.jsonl", TEXTS)), bpe, tmp_path / "out")
    store = TokenStore(tmp_path / "out")
    end = bpe.token_to_id("<|endoftext|>")
    assert documents(store) == [bpe.encode(t, add_special_tokens=False).ids + [end] for t in TEXTS]
    assert report.documents == len(TEXTS)
    assert report.tokens == store.n_tokens
    assert report.engine == "gigatoken"
    assert store.dtype == np.uint16


@pytest.mark.parametrize("eos", [False, 7])
def test_the_end_token_as_asked(tmp_path: Path, eos: bool | int) -> None:
    prepare(Texts(["ab", ""]), "bytes", tmp_path, eos=eos)
    assert documents(TokenStore(tmp_path)) == ([[97, 98], []] if eos is False else [[97, 98, 7], [7]])


def test_same_bytes_for_any_threads_and_source_form(tmp_path: Path, bpe: Tokenizer) -> None:
    plain, packed = write_jsonl(tmp_path / "a.jsonl", TEXTS), write_jsonl(tmp_path / "a.jsonl.gz", TEXTS)
    ids = set()
    for number, (source, threads) in enumerate([(plain, 1), (plain, 4), (packed, 2)]):
        ids.add(prepare(JsonlFiles(source), bpe, tmp_path / str(number), threads=threads).id)
    assert len(ids) == 1


def test_shards_are_cut_and_read_as_one(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", [f"{i}-{j} " * 50 for j in range(40)]) for i in range(3)]
    source = JsonlFiles([str(p) for p in paths])
    whole = prepare(source, "bytes", tmp_path / "one")
    many = prepare(source, "bytes", tmp_path / "many", shard_tokens=2000)  # far less than a chunk of 4 MB
    assert whole.shards == 1
    assert many.tokens == whole.tokens
    sizes = [shard.tokens for shard in TokenStore(tmp_path / "many").manifest.shards]
    longest = max(map(len, documents(TokenStore(tmp_path / "one"))))
    assert all(2000 <= size < 2000 + longest for size in sizes[:-1]) and sizes[-1] < 2000 + longest
    assert documents(TokenStore(tmp_path / "one")) == documents(TokenStore(tmp_path / "many"))


def test_why_leads_back_to_the_line(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["first " * 9, "second " * 9])
    write_jsonl(tmp_path / "b.jsonl", ["third " * 9])
    prepare(JsonlFiles([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]), "bytes", tmp_path / "out")
    loader = ps.open_store(tmp_path / "out").windows(20).batch(1).to_numpy()
    last = loader.why(len(loader) - 1)["from"]["documents"][-1]
    assert (last["file"], last["line"]) == ("b.jsonl", 1)
    assert "_file" not in ps.open_store(tmp_path / "out").peek(1)[0]


def test_bad_records_stop_or_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n{"text": bad}\n{"words": "none"}\n{"text": "fine"}\n')
    with pytest.raises(ps.RecordError, match="line 2"):
        prepare(JsonlFiles(path), "bytes", tmp_path / "strict")
    assert not (tmp_path / "strict" / "manifest.json").exists()
    report = prepare(JsonlFiles(path), "bytes", tmp_path / "loose", on_error="skip", budget=5)
    assert (report.documents, report.skipped) == (2, 2)
    listed = [json.loads(line) for line in (tmp_path / "loose" / "skipped.jsonl").read_text().splitlines()]
    assert listed[0]["skipped"] == 2
    assert [entry["record"] for entry in listed[1:]] == [2, 3]
    with pytest.raises(ps.DataError, match="at most 1 skipped"):
        prepare(JsonlFiles(path), "bytes", tmp_path / "tight", on_error="skip", budget=1)


def test_the_same_job_again_does_nothing_and_another_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = prepare(Texts(TEXTS), "bytes", out)
    before = files(out)
    again = prepare(Texts(TEXTS), "bytes", out)
    assert again.already
    assert again.id == first.id
    with pytest.raises(ps.UsageError, match="the store of the same job") as caught:
        prepare(Texts(TEXTS[1:]), "bytes", out)
    assert "--restart" in str(caught.value)
    assert files(out) == before
    other = prepare(Texts(TEXTS[1:]), "bytes", out, restart=True)
    assert other.documents == len(TEXTS) - 1


def test_an_interrupted_run_goes_on_and_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", [f"{i}-{j} " * 2000 for j in range(600)]) for i in range(2)]
    source = JsonlFiles([str(p) for p in paths])
    prepare(source, "bytes", tmp_path / "clean", shard_tokens=1_300_000)  # less than a chunk has
    from penstock.preparation.journal import Journal

    real, calls = Journal.add, []

    def dies(self: Journal, *record: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(self, *record)

    monkeypatch.setattr(Journal, "add", dies)
    with pytest.raises(KeyboardInterrupt):
        prepare(source, "bytes", tmp_path / "cut", shard_tokens=1_300_000)
    monkeypatch.setattr(Journal, "add", real)
    report = prepare(source, "bytes", tmp_path / "cut", shard_tokens=1_300_000)
    assert report.resumed
    assert files(tmp_path / "cut") == files(tmp_path / "clean")


def test_an_engine_that_begins_to_lie_is_caught(tmp_path: Path, bpe: Tokenizer) -> None:
    from penstock.preparation import encode
    from penstock.tokenizers import BulkEncoder

    encoder = BulkEncoder(bpe)
    encoder.check(TEXTS)
    honest = encoder._run
    encoder._run = lambda texts: ps.Ragged(honest(texts).values ^ 1, honest(texts).offsets)
    chunk = next(iter(Texts(TEXTS).iterate()))
    with pytest.raises(ps.DataError, match="the same ids from gigatoken and tokenizers") as caught:
        encode._encode(chunk, encoder)
    assert "--engine reference" in str(caught.value)


@pytest.mark.parametrize("lie", ["at the start", "in the middle", "at the end"])
def test_documents_too_long_for_a_second_encoding_are_compared_by_pieces(bpe: Tokenizer, lie: str) -> None:
    from penstock.preparation import encode
    from penstock.tokenizers import BulkEncoder

    encoder = BulkEncoder(bpe)
    encoder.check(TEXTS)
    honest, mark = encoder._run, {"at the start": "ab", "in the middle": "é", "at the end": "yz"}[lie]
    long = "ab " + "mill " * encode.SPOT_CHARACTERS + "é" + " brook" * encode.SPOT_CHARACTERS + " yz"

    def lies(texts: Sequence[str]) -> ps.Ragged:
        return honest([text.replace(mark, "ox") for text in texts])

    chunk = next(iter(Texts([long] * 3).iterate()))
    _, documents = encode._encode(chunk, encoder)
    assert documents.tolist() == [bpe.encode(long).ids] * 3
    encoder._run = lies
    with pytest.raises(ps.DataError, match="the same ids from gigatoken and tokenizers"):
        encode._encode(chunk, encoder)


def test_reference_engine_gives_the_same_store(tmp_path: Path, bpe: Tokenizer) -> None:
    fast = prepare(Texts(TEXTS), bpe, tmp_path / "fast")
    slow = prepare(Texts(TEXTS), bpe, tmp_path / "slow", engine="reference")
    assert (fast.engine, slow.engine) == ("gigatoken", "tokenizers")
    assert fast.id == slow.id


def test_empty_text_and_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ps.UsageError, match='engine="auto"'):
        prepare(TextFiles(tmp_path / "a.txt"), "bytes", tmp_path / "o", engine="warp")
    with pytest.raises(ps.UsageError, match="shard_tokens of at least 1"):
        prepare(TextFiles(tmp_path / "a.txt"), "bytes", tmp_path / "o", shard_tokens=0)
    with pytest.raises(ps.UsageError, match="below the vocabulary size 257"):
        prepare(TextFiles(tmp_path / "a.txt"), "bytes", tmp_path / "o", eos=999)


class HashedBeside(JsonlFiles):
    """Says when its fingerprint is asked for."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked = threading.Event()

    def fingerprint(self) -> str:
        self.asked.set()
        return super().fingerprint()


def test_files_are_hashed_while_the_tokenizer_is_loaded(bpe: Tokenizer, tmp_path: Path) -> None:
    source = HashedBeside(str(write_jsonl(tmp_path / "a.jsonl", TEXTS)))
    waited = []

    class Loading:
        def penstock_tokenizer(self) -> Tokenizer:
            waited.append(source.asked.wait(20))
            return bpe

    prepare(source, Loading(), tmp_path / "beside")
    assert waited == [True]
    prepare(JsonlFiles(str(tmp_path / "a.jsonl")), bpe, tmp_path / "plain")
    assert files(tmp_path / "beside") == files(tmp_path / "plain")


def test_a_file_that_cannot_be_hashed_is_an_error_of_prepare(bpe: Tokenizer, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    source = JsonlFiles(str(path))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.jsonl"):
        prepare(source, bpe, tmp_path / "out")
