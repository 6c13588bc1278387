"""A copy of a live tokenizer returns the ids of the original, or it is refused: saving can change a tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import penstock as ps
from penstock import UsageError, as_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

# The second score is one that the library's JSON reader rounds; the third is what it makes of it.
EXACT, READ = -3.9549850190771427, -3.9549850190771423


def unigram(score: float) -> Any:
    """Two ways to cut "aab" are worth the same, to the last digit."""
    pieces = [("<unk>", -20.0), ("a", score), ("ab", -9.0), ("aa", -9.0 + READ - EXACT), ("b", EXACT)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def gaps() -> Any:
    vocab = {"[UNK]": 0, "a": 1, "b": 6}
    tokenizer = Tokenizer(models.WordLevel(vocab, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for text in ("<x>", "b", "<z>"):
        tokenizer.add_tokens([AddedToken(text)])
    return tokenizer


def test_a_unigram_model_that_saving_changes_is_refused() -> None:
    live = unigram(EXACT)
    saved = Tokenizer.from_str(live.to_str())
    assert json.loads(saved.to_str())["model"]["vocab"][1] == ["a", READ], "the library reads scores exactly now"
    with pytest.raises(UsageError, match="other scores of pieces") as caught:
        as_tokenizer(live)
    assert "Tokenizer.from_str(tokenizer.to_str())" in str(caught.value)
    assert as_tokenizer(saved).encode("aab").tolist() == saved.encode("aab").ids


def test_a_transformers_tokenizer_that_saving_changes_runs_as_it_is() -> None:
    original = PreTrainedTokenizerFast(tokenizer_object=unigram(-4.0))
    assert as_tokenizer(original).kind == "tokenizers"
    original.backend_tokenizer.model = unigram(EXACT).model
    made = as_tokenizer(original)
    assert made.kind == "transformers"
    for text in ("aab", "aabaab", "a b"):
        assert made.encode(text).tolist() == original(text, add_special_tokens=False)["input_ids"]


def test_added_tokens_that_get_other_ids_are_refused() -> None:
    live = gaps()
    saved = Tokenizer.from_str(live.to_str())
    assert live.encode("<x> <z>").ids != saved.encode("<x> <z>").ids, "the library keeps ids of added tokens now"
    with pytest.raises(UsageError, match="other ids of added tokens"):
        as_tokenizer(live)
    assert as_tokenizer(saved).encode("<x> <z>").tolist() == saved.encode("<x> <z>").ids


class Letters:
    def pre_tokenize(self, text: Any) -> None:
        text.split(lambda _, part: [part])


def test_a_tokenizer_with_a_part_in_python_is_refused_in_plain_words() -> None:
    live = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    live.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Letters())  # type: ignore[no-untyped-call]
    for use in (as_tokenizer, ps.from_texts(["a"]).tokenize):
        with pytest.raises(UsageError, match="can be written as JSON"):
            use(live)
    original = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(live.model), unk_token="[UNK]")
    original.backend_tokenizer.pre_tokenizer = live.pre_tokenizer
    made = as_tokenizer(original)
    assert made.kind == "transformers"
    assert made.encode("a").tolist() == [0]
