"""Tokenizers of many makes, generated from a seed: families, normalizers, added tokens with every flag, and doubles."""

from __future__ import annotations

import json
import random
from typing import Any

WORDS = (
    "the", "quick", "brown", "fox", "café", "naïve", "Straße", "日本", "語", "🇨🇭", "🙂", "👩\u200d👩\u200d👧", "don't",
    "we'll", "12", "345", "ŉ", "ﬁ", "e\u0301", "İ", "ß",
)  # fmt: skip
ADDED = (
    "<think>", "<|im_start|>", "    ", "  ", "[X]", "🇨", "é", "foo", "Foo", "\n\n", "<a b>", "日本", "ﬁ", "THE", " the",
    "e\u0301", "</think>",
)  # fmt: skip
DOUBLES = ("🇨", "🇭", "日", "🙂", "д", "Ġ日", "日本", "▁日", " a", "a b", "<0x41>", "A")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FAMILIES = ("byte", "byte", "split", "metaspace", "wordpiece", "unigram", "whitespace")


def corpus(draw: random.Random) -> list[str]:
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 20))) for _ in range(60)]


def make(seed: int) -> Any:
    """A `tokenizers.Tokenizer`, the same for the same seed."""
    from tokenizers import AddedToken, Tokenizer

    draw = random.Random(seed)
    family = draw.choice(FAMILIES)
    made, trainer = _parts(family, draw)
    normalizer = draw.choice(_normalizers())
    if family != "metaspace" and normalizer is not None and draw.random() < 0.4:
        made.normalizer = normalizer
    made.train_from_iterator(corpus(draw), trainer)
    config = json.loads(made.to_str())
    config["added_tokens"] = [t for t in config["added_tokens"] if not t["content"].startswith("<0x")]
    if draw.random() < 0.4 and isinstance(config["model"]["vocab"], dict):
        vocab = config["model"]["vocab"]
        for token in draw.sample(DOUBLES, draw.randint(1, 4)):
            vocab.setdefault(token, max(vocab.values()) + 1)
    made = Tokenizer.from_str(json.dumps(config))
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    made.add_tokens(
        [
            AddedToken(text, **{flag: draw.random() < 0.3 for flag in flags})
            for text in draw.sample(ADDED, draw.randint(0, 5))
        ]
    )
    return made


def _normalizers() -> list[Any]:
    from tokenizers import normalizers as n

    strip = n.Sequence([n.NFD(), n.StripAccents()])
    return [None, n.NFC(), n.NFKC(), n.Lowercase(), strip, n.Replace(" ", "▁"), n.Prepend("▁"), n.BertNormalizer()]


def _parts(family: str, draw: random.Random) -> tuple[Any, Any]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    quiet: dict[str, Any] = {"show_progress": False, "vocab_size": 380}
    pre, made, trainer = pre_tokenizers, None, None
    if family == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.pre_tokenizer = pre.BertPreTokenizer()
        return made, trainers.WordPieceTrainer(special_tokens=["[UNK]"], **quiet)
    if family == "unigram":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre.Metaspace()
        quiet["vocab_size"] = 150
        return made, trainers.UnigramTrainer(special_tokens=["<unk>"], unk_token="<unk>", **quiet)
    if family == "whitespace":
        made = Tokenizer(models.BPE(unk_token="<unk>"))
        made.pre_tokenizer = pre.Whitespace()
        return made, trainers.BpeTrainer(special_tokens=["<unk>"], **quiet)
    if family == "metaspace":
        options: dict[str, Any] = {"byte_fallback": draw.random() < 0.7, "fuse_unk": draw.random() < 0.5}
        made = Tokenizer(models.BPE(unk_token="<unk>", **options))
        if draw.random() < 0.5:
            made.pre_tokenizer = pre.Metaspace()
        else:
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        fallback = [f"<0x{i:02X}>" for i in range(256)]
        return made, trainers.BpeTrainer(special_tokens=["<unk>", "<s>", *fallback], **quiet)
    made = Tokenizer(models.BPE(ignore_merges=draw.random() < 0.3))
    level = pre.ByteLevel(add_prefix_space=draw.random() < 0.3, use_regex=family == "byte")
    made.pre_tokenizer = level if family == "byte" else pre.Sequence([pre.Split(Regex(SPLIT), "isolated"), level])
    alphabet = sorted(pre.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], **quiet)
    return made, trainer


def texts(tokenizer: Any, seed: int, count: int) -> list[str]:
    """Texts in which its added tokens, doubles and odd characters meet."""
    draw = random.Random(seed)
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    parts = [*WORDS, *names, *DOUBLES, "\n", "\t", " ", "a", "Foo", "xfoox", "THE"]
    return [
        "".join(draw.choice(parts) + draw.choice(["", " ", "  "]) for _ in range(draw.randint(1, 6)))
        for _ in range(count)
    ]
