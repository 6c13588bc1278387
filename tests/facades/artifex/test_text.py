"""Text datasets: tokens, patterns, parameters, statistics."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from penstock import UsageError
from penstock.facades.artifex.datasets.config import ModalityConfiguration
from penstock.facades.artifex.text.config import TextParams
from penstock.facades.artifex.text.dataset import SimpleTextDataset
from penstock.facades.artifex.text.hash_words import HashWords
from penstock.facades.artifex.text.synthetic import PATTERNS, SyntheticTextDataset, create_text_dataset


def config(**params):
    return ModalityConfiguration(name="text", modality_type="text", metadata={"text_params": params})


def test_row_is_bos_words_eos_pad():
    tokens = np.asarray(SimpleTextDataset(config(max_length=8), ["One two three"])[0]["text_tokens"])
    assert tokens.dtype == np.int32
    assert tokens[0] == 2
    assert tokens[4] == 3
    assert (tokens[1:4] >= 4).all()
    assert (tokens[5:] == 0).all()


def test_cutting_keeps_eos():
    tokens = np.asarray(SimpleTextDataset(config(max_length=5), ["a b c d e f g"])[0]["text_tokens"])
    assert tokens[0] == 2
    assert tokens[-1] == 3
    assert (tokens != 0).all()


def test_ids_are_stable_forever():
    words = HashWords(TextParams())
    assert [words.word_id(word) for word in ("the", "quick", "fox", "größer")] == [9624, 6679, 1864, 4447]


def test_special_ids_anywhere_are_never_words():
    params = TextParams(vocab_size=12, pad_token_id=5, unk_token_id=0, bos_token_id=11, eos_token_id=7)
    words = HashWords(params)
    seen = {words.word_id(f"w{i}") for i in range(500)}
    assert seen == set(range(12)) - {5, 0, 11, 7}


def test_case():
    one = SimpleTextDataset(config(), ["Fox fox"])[0]["text_tokens"]
    two = SimpleTextDataset(config(case_sensitive=True), ["Fox fox"])[0]["text_tokens"]
    assert int(one[1]) == int(one[2])
    assert int(two[1]) != int(two[2])


def test_batch_keys_and_a_batch_larger_than_the_dataset():
    texts = ["one", "two", "three", "four"]
    batch = SimpleTextDataset(None, texts, rngs=0).get_batch(batch_size=32)
    assert list(batch) == ["text_tokens", "texts", "indices"]
    assert batch["text_tokens"].shape == (32, 512)
    assert batch["texts"] == [texts[int(i)] for i in batch["indices"]]
    assert batch["indices"].dtype == jnp.int32
    assert np.bincount(np.asarray(batch["indices"])).tolist() == [8] * 4


def test_samples_and_text_access():
    dataset = SimpleTextDataset(None, ["one", "two"])
    samples = list(dataset)
    assert [s["text"] for s in samples] == ["one", "two"]
    assert [int(s["index"]) for s in samples] == [0, 1]
    assert dataset.get_sample_text(1) == "two"
    with pytest.raises(IndexError):
        dataset.get_sample_text(2)


def test_vocab_stats_count_what_is_there():
    dataset = SimpleTextDataset(config(vocab_size=1000, max_length=16), ["a b c", "c d"])
    distinct = {int(t) for sample in dataset for t in sample["text_tokens"]} - {0}
    assert dataset.get_vocab_stats() == {
        "unique_tokens": len(distinct),
        "vocab_coverage": len(distinct) / 1000,
        "total_sequences": 2,
        "max_length": 16,
    }


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_what_they_say(pattern):
    dataset = SyntheticTextDataset(None, 300, pattern, rngs=5)
    texts = [dataset.get_sample_text(i) for i in range(300)]
    assert len(set(texts)) > 15
    for text in texts:
        words = text.split()
        if pattern == "palindromes":
            assert text == text[::-1]
        elif pattern == "sequences":
            assert len({b - a for a, b in zip(map(int, words), map(int, words[1:]), strict=False)}) == 1
        elif pattern == "repeated_phrases":
            assert any(words == words[:n] * (len(words) // n) for n in range(1, len(words) // 2 + 1))
        else:
            assert len(words) >= 4
    other = SyntheticTextDataset(None, 300, pattern, rngs=6)
    assert [other.get_sample_text(i) for i in range(300)] != texts


def test_refused_while_building():
    with pytest.raises(UsageError, match="pattern_type one of 'random_sentences'"):
        SyntheticTextDataset(None, 10, "poems")
    with pytest.raises(UsageError, match="dataset_type one of"):
        create_text_dataset(dataset_type="wiki")
    with pytest.raises(UsageError, match="at least one string"):
        create_text_dataset(dataset_type="simple")
    with pytest.raises(UsageError, match="text 1"):
        SimpleTextDataset(None, ["a", 5])
    with pytest.raises(UsageError, match="text_params with keys out of"):
        SimpleTextDataset(config(max_len=3), ["a"])
    with pytest.raises(UsageError, match="four different special ids"):
        SimpleTextDataset(config(eos_token_id=0), ["a"])
    with pytest.raises(UsageError, match="max_length of at least 2"):
        SimpleTextDataset(config(max_length=1), ["a"])
