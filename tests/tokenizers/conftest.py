"""Small real tokenizers of every kind, built once per run."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

TEXT = "the quick brown fox jumps over lazy dogs while café naïve Straße don't we'll 12 345 def return self"
WORDS = TEXT.split()
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    draw = random.Random(7)
    docs = [" ".join(draw.choices(WORDS, k=draw.randint(1, 60))) + ".\n" for _ in range(300)]
    return [*docs, "", "   ", "日本語 🙂 e\u0301", "x <|endoftext|> y"]


def train_bpe(corpus: list[str], **parts: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = parts.get("pre") or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if "normalizer" in parts:
        made.normalizer = parts["normalizer"]
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(corpus, trainer)
    return made


@pytest.fixture(scope="session")
def bpe(corpus: list[str]) -> Any:
    return train_bpe(corpus)


@pytest.fixture(scope="session")
def tiktoken_encoding(bpe: Any) -> Any:
    """The same merges as ranks: bytes first, then merged tokens in the order they were learnt."""
    import tiktoken

    from tokenizers import pre_tokenizers

    chars = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [b for b in range(256) if chr(b) in chars]
    table = {chr(b): b for b in plain} | {
        chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)
    }
    ranks = {bytes([b]): b for b in range(256)}
    for pair in json.loads(bpe.to_str())["model"]["merges"]:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        ranks.setdefault(bytes(table[c] for c in left + right), len(ranks))
    special = {"<|endoftext|>": len(ranks)}
    return tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


@pytest.fixture(scope="session")
def sp_models(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import sentencepiece

    folder = tmp_path_factory.mktemp("sp")
    out: dict[str, Path] = {}
    as_is: dict[str, Any] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    kinds: dict[str, dict[str, Any]] = {
        "bpe": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420, **as_is},
        "bpe nfkc": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420},
        "unigram": {"model_type": "unigram", "vocab_size": 80},
    }
    for kind, options in kinds.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([t for t in corpus if t.strip()]),
            model_writer=model,
            minloglevel=2,
            hard_vocab_limit=False,
            **options,
        )
        out[kind] = folder / f"{kind.replace(' ', '-')}.model"
        out[kind].write_bytes(model.getvalue())
    return out


@pytest.fixture(scope="session")
def gpt2_folder(bpe: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    bpe.model.save(str(folder))
    return folder
