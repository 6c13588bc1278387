"""Texts on which a fast engine is compared with the reference: made from the vocabulary, not only from a corpus.

Every added token in several surroundings, and a sample of the vocabulary in new combinations. Costs some hundredths of
a second for a vocabulary of 200,000; the reference's ids are kept, so that the next engine of the process pays nothing.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import orjson

from penstock.core.columns import Ragged, concat
from penstock.core.errors import BadRecords, PenstockError
from penstock.core.signals import surface
from penstock.tokenizers.base import PROBES, BaseTokenizer, Tokenizer

SAMPLE_IDS = 1 << 13
GROUP = 8
SHAPED = 128  # added tokens tried in every shape; all of them are tried in one
SHAPES = ("{0}", "a{0}b", "a {0} b", "  {0}{0}\n{0} ", "1{0}é", "\t{0}\u3000{0}🇨🇭", "_{0}_ x", "{0}{1}", "{1} {0}")
# Text that tokenizers of many families treat specially, and characters whose case or form changes their length.
ODD = (
    "<|endoftext|>", "<s>", "</s>", "[MASK]", "<unk>", "<0x41>", "▁a ▁▁", "Ġa Ċ", "##a a##b", "İi ßẞ ŉ ǰ ΐ ﬃ Å Å",
    "각 각 ก็ ि क्षि", "👍🏽 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☺️ ❤︎ 🇨🇭🇨 🇩", "a\u200db\u2060c\u00add\u202ee",
    "\u0301a \U0001f3fb \ue000\U000f0000\U0010ffff",
    "x\u0085y\u2029z\x0b\x0c\x1c", "１２３ ४५ ① ½ ٣", "don’t DON'T It’S 'LL", "\r\n\r\n \n\t\n", " \u00a0\u2003 a",
)  # fmt: skip


_KEPT = 4  # tokenizers whose probes are remembered: about 1 MB each
_known: OrderedDict[bytes, tuple[list[str], Ragged]] = OrderedDict()
_lock = threading.Lock()


def expected_ids(tokenizer: BaseTokenizer, sample: Sequence[str]) -> tuple[list[str], Ragged]:
    """The sample and the probes of the vocabulary, without texts that the tokenizer refuses, and the ids of each."""
    texts, ids = accepted(tokenizer, sample)
    probes, probe_ids = _expected_probes(tokenizer)
    if not texts:
        return probes, probe_ids
    rows = concat([{"ids": ids}, {"ids": probe_ids}])["ids"]
    assert isinstance(rows, Ragged)
    return [*texts, *probes], rows


def _expected_probes(tokenizer: BaseTokenizer) -> tuple[list[str], Ragged]:
    key = orjson.dumps([type(tokenizer).__qualname__, tokenizer.identity(), tokenizer.policy()])
    with _lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = accepted(tokenizer, vocabulary_probes(tokenizer))
        _known.move_to_end(key)
        while len(_known) > _KEPT:
            _known.popitem(last=False)
        return found


def accepted(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[str], Ragged]:
    """Those of the texts that the tokenizer encodes, and their ids."""
    try:
        return list(texts), tokenizer.encode_batch(texts)
    except BadRecords as refused:
        bad = {error.row for error in refused.errors}
        return accepted(tokenizer, [text for row, text in enumerate(texts) if row not in bad])


def vocabulary_probes(tokenizer: BaseTokenizer) -> list[str]:
    """Texts made from a tokenizer's vocabulary and from what tokenizers tend to differ on; the same every time.

    >>> from penstock.tokenizers.bytes import ByteTokenizer
    >>> len(vocabulary_probes(ByteTokenizer())) > 60
    True
    """
    return [*PROBES, *ODD, *_added(tokenizer), *_combined(tokenizer)]


def _added(tokenizer: BaseTokenizer) -> Iterator[str]:
    names = list(tokenizer.added_tokens)
    for at, name in enumerate(names):
        other = names[at - 1]
        if at % max(1, len(names) // SHAPED) == 0:
            for text in dict.fromkeys((name, name.upper(), name.lower(), name.strip(), name[:-1])):
                yield from (shape.format(text, other) for shape in (SHAPES if text == name else SHAPES[:3]))
        else:
            yield f"a {name}b{name}{other}"


def _combined(tokenizer: BaseTokenizer) -> Iterator[str]:
    """Tokens decoded beside others than usual: twice, if the vocabulary is small."""
    draw = random.Random("penstock probes")
    for _ in range(2 if tokenizer.vocab_size <= SAMPLE_IDS else 1):
        ids = draw.sample(range(tokenizer.vocab_size), min(tokenizer.vocab_size, SAMPLE_IDS))
        for at in range(0, len(ids), GROUP):
            text = _decoded(tokenizer, ids[at : at + GROUP])
            yield text
            if at % (4 * GROUP) == 0:
                yield " " + text.title() + "  " + text[::-1]


def _decoded(tokenizer: BaseTokenizer, ids: list[int]) -> str:
    try:
        return tokenizer.decode(ids)
    except PenstockError:
        raise
    except Exception as error:  # an id without a token
        surface(error)
        return ""
