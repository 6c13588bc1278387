"""BulkEncoder: same ids as the reference whatever happens, and says so when the fast way is not taken."""

from __future__ import annotations

import pickle
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, DataError, UsageError
from penstock.tokenizers import BulkEncoder, as_tokenizer
from penstock.tokenizers import giga as giga_module
from penstock.tokenizers.base import PROBES
from penstock.tokenizers.bulk import cut_slices, spread

from .conftest import train_bpe


@pytest.fixture
def fast(bpe: Any, tiktoken_encoding: Any, sp_models: dict[str, Path], request: pytest.FixtureRequest) -> Any:
    text, special = (
        as_tokenizer(tiktoken_encoding, **policy) for policy in ({"disallowed_special": ()}, {"allowed_special": "all"})
    )
    kinds = {"tokenizers": bpe, "tiktoken": text, "tiktoken special": special, "sentencepiece": sp_models["bpe"]}
    return kinds[request.param]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("fast", ["tokenizers", "tiktoken", "tiktoken special", "sentencepiece"], indirect=True)
def test_gigatoken_gives_the_reference_ids(fast: Any, corpus: list[str], threads: int) -> None:
    texts = [*corpus, *PROBES, "a<s>b</s> <|endoftext|>", "y" * 5000] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bulk = BulkEncoder(fast, threads=threads, slice_bytes=700)
        bulk.check(texts)
        got = bulk.encode(texts)
    assert bulk.engine == "gigatoken", bulk.reason
    assert bulk.checked
    assert "identical ids" in bulk.reason
    assert got.values.dtype == np.uint32
    assert got.offsets.dtype == np.int64
    assert got.tolist() == as_tokenizer(fast).encode_batch(texts).tolist()
    bulk.close()
    assert bulk.encode(["the", ""]).tolist() == as_tokenizer(fast).encode_batch(["the", ""]).tolist()
    assert len(bulk.encode([])) == 0


def test_a_tokenizer_gigatoken_reads_wrongly_is_noticed(corpus: list[str]) -> None:
    """Byte-level without its split rule: gigatoken accepts the file, splits anyway, and its ids differ."""
    from tokenizers import pre_tokenizers

    raw = train_bpe(corpus, pre=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    import gigatoken

    ids = gigatoken.Tokenizer.from_json(raw.to_str()).encode_batch(corpus[:20]).tolist()
    assert ids != [raw.encode(t).ids for t in corpus[:20]], "gigatoken has learnt this one: find another for this test"
    bulk = BulkEncoder(raw, threads=2)
    assert bulk.engine == "gigatoken"
    assert not bulk.checked
    with pytest.warns(RuntimeWarning, match="gigatoken returns other ids than tokenizers"):
        got = bulk.encode(corpus)
    assert bulk.engine == "tokenizers"
    assert "other ids" in bulk.reason
    assert got.tolist() == [raw.encode(t).ids for t in corpus]


def test_a_sentencepiece_normalizer_read_wrongly_is_noticed(sp_models: dict[str, Path], corpus: list[str]) -> None:
    """No document of this corpus shows the difference; the awkward texts do."""
    bulk = BulkEncoder(sp_models["bpe nfkc"])
    with pytest.warns(RuntimeWarning, match="other ids than sentencepiece"):
        bulk.check(corpus[:50])
    assert bulk.engine == "sentencepiece"


def test_special_tokens_with_rules_gigatoken_lacks_are_noticed(bpe: Any) -> None:
    from tokenizers import AddedToken, Tokenizer

    raw = Tokenizer.from_str(bpe.to_str())
    raw.add_special_tokens([AddedToken("<w>", single_word=True)])
    bulk = BulkEncoder(raw)
    with pytest.warns(RuntimeWarning, match="a<w>b"):
        bulk.check(["nothing special here"])
    assert bulk.encode(["a<w>b"]).tolist() == [raw.encode("a<w>b").ids]


def test_a_tokenizer_gigatoken_refuses_falls_back_at_once(corpus: list[str], sp_models: dict[str, Path]) -> None:
    from tokenizers import normalizers

    raw = train_bpe(corpus, normalizer=normalizers.Lowercase())
    with pytest.warns(RuntimeWarning, match="does not take this tokenizer.*Lowercase"):
        bulk = BulkEncoder(raw)
    assert (bulk.engine, bulk.checked) == ("tokenizers", True)
    assert bulk.encode(["THE Fox"]).tolist() == [raw.encode("THE Fox").ids]
    with pytest.warns(RuntimeWarning, match="unigram"):
        assert BulkEncoder(sp_models["unigram"]).engine == "sentencepiece"


def test_an_unknown_tiktoken_pattern_is_not_guessed() -> None:
    import tiktoken

    ranks = {bytes([b]): b for b in range(256)}
    encoding = tiktoken.Encoding("odd", pat_str=r"\S|\s+", mergeable_ranks=ranks, special_tokens={})
    with pytest.warns(RuntimeWarning, match="no splitter for the pattern"):
        assert BulkEncoder(encoding).engine == "tiktoken"


def test_gigatoken_missing_is_said(bpe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    with pytest.warns(RuntimeWarning, match="gigatoken"):
        bulk = BulkEncoder(bpe)
    assert bulk.engine == "tokenizers"


def _swap(bulk: BulkEncoder, run: Any) -> BulkEncoder:
    bulk._run = run
    return bulk


def test_check_can_fail_on_one_wrong_id_in_one_document(bpe: Any, corpus: list[str]) -> None:
    reference = as_tokenizer(bpe)

    def off_by_one(texts: Sequence[str]) -> Ragged:
        out = reference.encode_batch(texts)
        if "target" in texts:
            out.values[out.offsets[list(texts).index("target") + 1] - 1] += 1
        return out

    sound = _swap(BulkEncoder(bpe), reference.encode_batch)
    sound.check([*corpus, "target"])
    assert sound.engine == "gigatoken"
    broken = _swap(BulkEncoder(bpe), off_by_one)
    with pytest.warns(RuntimeWarning, match="for 'target'"):
        broken.check([*corpus, "target"])
    assert broken.engine == "tokenizers"


def test_check_notices_lost_rows_and_failures(bpe: Any) -> None:
    reference = as_tokenizer(bpe)

    def short(texts: Sequence[str]) -> Ragged:
        return reference.encode_batch(texts[:-1])

    def fails(texts: Sequence[str]) -> Ragged:
        raise RuntimeError("native trouble")

    for run, said in ((short, "other ids"), (fails, "failed on a sample: native trouble")):
        bulk = _swap(BulkEncoder(bpe), run)
        with pytest.warns(RuntimeWarning, match=said):
            bulk.check(["a"])
        assert bulk.engine == "tokenizers"


def test_a_failure_after_the_check_falls_back_too(bpe: Any, corpus: list[str]) -> None:
    bulk = BulkEncoder(bpe, threads=2, slice_bytes=500)
    bulk.check(corpus)

    def fails(texts: Sequence[str]) -> Ragged:
        raise RuntimeError("native trouble")

    _swap(bulk, fails)
    with pytest.warns(RuntimeWarning, match="native trouble"):
        got = bulk.encode(corpus)
    assert got.tolist() == [bpe.encode(t, add_special_tokens=False).ids for t in corpus]


def test_bad_rows_are_all_named_with_their_place_in_the_call(bpe: Any) -> None:
    bulk = BulkEncoder(bpe, threads=2, slice_bytes=4)
    texts: list[Any] = ["fine"] * 50 + [None] + ["fine"] * 9 + ["\udfff"]
    with pytest.raises(BadRecords) as caught:
        bulk.encode(texts)
    assert [e.row for e in caught.value.errors] == [50, 60]
    assert bulk.engine == "gigatoken"


def test_ids_beyond_the_stated_vocabulary_are_stopped() -> None:
    bulk = BulkEncoder("bytes")
    bulk.tokenizer.vocab_size = 100
    with pytest.raises(DataError, match="ids below the vocabulary size 100"):
        bulk.encode(["z"])


def test_many_threads_may_call_at_once(bpe: Any, corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giga_module, "ENGINE_SECONDS", 0.0)  # every call meets a used engine and replaces it
    bulk = BulkEncoder(bpe, threads=2, slice_bytes=2000)
    expected = as_tokenizer(bpe).encode_batch(corpus).tolist()
    wrong: list[int] = []

    def run(k: int) -> None:
        for _ in range(3):
            if bulk.encode(corpus).tolist() != expected:
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert bulk.engine == "gigatoken"


@pytest.mark.parametrize(("engine", "copies"), [("gigatoken", 1_500_000), ("tokenizers", 40_000)])
def test_other_threads_run_while_one_encodes(bpe: Any, engine: str, copies: int) -> None:
    """A held GIL lets the other thread tick once or twice during the call; released, it ticks all the way."""
    bulk = BulkEncoder(bpe, threads=1)
    bulk.check(["the"])
    run = bulk.encode if engine == "gigatoken" else bulk.tokenizer.encode_batch
    stop, ticks = threading.Event(), [0]

    def tick() -> None:
        while not stop.is_set():
            time.sleep(0.0005)
            ticks[0] += 1

    text = "the quick brown fox " * copies
    other = threading.Thread(target=tick)
    other.start()
    before = ticks[0]
    run([text])
    during = ticks[0] - before
    stop.set()
    other.join()
    assert during >= 10


@pytest.mark.parametrize("char", ["a", " ", "é", "\n"])
@pytest.mark.parametrize("kind", ["gigatoken", "tokenizers"])
def test_a_long_run_of_one_character_costs_in_proportion(bpe: Any, char: str, kind: str) -> None:
    bulk = BulkEncoder(bpe, threads=1)
    bulk.check(["a"])
    run = bulk.encode if kind == "gigatoken" else bulk.tokenizer.encode_batch

    def seconds(n: int) -> float:
        best = 1e9
        for _ in range(2):
            start = time.process_time()  # not of the clock on the wall: other processes would count
            out = run([char * n])
            best = min(best, time.process_time() - start)
        assert bulk.tokenizer.decode(out[0][:50]) == (char * n)[: len(bulk.tokenizer.decode(out[0][:50]))]
        return best

    assert seconds(800_000) < 30 * seconds(100_000) + 0.05  # quadratic would be 64 times


def test_pickle_keeps_settings_and_checks_again(bpe: Any) -> None:
    bulk = BulkEncoder(bpe, threads=2, slice_bytes=1234)
    bulk.check(["a"])
    again = pickle.loads(pickle.dumps(bulk))
    assert (again.threads, again.slice_bytes, again.engine, again.checked) == (2, 1234, "gigatoken", False)


def test_python_tokenizers_run_on_one_thread() -> None:
    class Duck:
        vocab_size = 256

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    bulk = BulkEncoder(Duck(), threads=8)
    assert (bulk.threads, bulk.engine) == (1, "object")
    assert bulk.encode(["ab"]).tolist() == [[97, 98]]


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="threads of 1 or more"):
        BulkEncoder("bytes", threads=0)
    with pytest.raises(UsageError, match="slice_bytes"):
        BulkEncoder("bytes", slice_bytes=0)


def test_slices_cover_every_row_once_and_stay_small() -> None:
    texts = ["x" * n for n in (0, 5, 3, 900, 0, 1, 2, 50, 0)]
    cuts = list(cut_slices(texts, 10))
    assert [r for start, stop in cuts for r in range(start, stop)] == list(range(len(texts)))
    assert all(sum(map(len, texts[a:b])) <= 10 or b - a == 1 or len(texts[a:b][-1]) > 0 for a, b in cuts)


def test_chunks_that_are_encoded_beside_each_other_are_cut_less(bpe: Any) -> None:
    texts = ["the quick brown fox " * 5000] * 20  # 2 MB
    calls: list[int] = []
    bulk = BulkEncoder(bpe, threads=2)
    bulk.check(texts)
    run = bulk._run

    def noted(some: Sequence[str]) -> Ragged:
        calls.append(len(some))
        return run(some)

    bulk._run = noted
    alone = bulk.encode(texts)
    assert len(calls) >= 8  # four for each thread, for balance
    calls.clear()
    bulk.callers = 3
    assert bulk.encode(texts).tolist() == alone.tolist()
    assert calls == [20]  # the other thread has another call
    bulk.close()


def test_the_sample_prefers_what_is_not_plain_ascii() -> None:
    texts = ["plain"] * 5000
    texts[1234] = "é"
    texts[4321] = "a" * 100_000 + "日本語" + "b" * 100_000
    sample = spread(texts)
    assert "é" in sample
    assert any("日本語" in text for text in sample)


def test_the_sample_reaches_both_ends_and_is_bounded() -> None:
    texts = [f"{i} " * 200_000 for i in range(3)] + [str(i) for i in range(1000)]
    sample = spread(texts)
    assert sample[-1] == "999"
    assert sample[0].startswith("0 ")
    assert sum(map(len, sample)) <= 1 << 17
