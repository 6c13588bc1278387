"""Where the learnt text begins inside a token, the row still says the text that was given, blank for blank."""

from __future__ import annotations

import io
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from penstock import PromptEngine, RecordError
from penstock.chat.loss_masks import Encoder
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from .conftest import CORPUS

RECORD = {"q": "What is the capital of France?", "a": "Paris is the capital"}
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST] "
    "{% else %}{{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)


def metaspace(kind: str) -> Any:
    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:?.!,[]/\n▁")
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    scheme = "first" if kind == "first" else "always"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)  # type: ignore[assignment]
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, initial_alphabet=letters
    )
    backend.train_from_iterator(CORPUS, trainer)
    if kind == "llama2":
        backend.pre_tokenizer = None  # type: ignore[assignment]
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # type: ignore[assignment]
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        backend.decoder = decoders.Sequence(parts)  # type: ignore[assignment, arg-type]
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>", unk_token="<unk>")


def sentencepiece() -> Any:
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS, "Q: Is it Paris? A: Paris"] * 20), model_writer=out, vocab_size=150,
        model_type="bpe", character_coverage=1.0, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


@pytest.fixture(scope="module", params=["always", "first", "llama2", "sentencepiece"])
def blank(request: Any) -> Any:
    return sentencepiece() if request.param == "sentencepiece" else metaspace(request.param)


@pytest.mark.parametrize("template", ["Q: {q} A: {a}", "Q: {q} A:{a}", "{q} {a}", "{q}  {a}"])
def test_no_blank_is_added_before_the_answer(template: str, blank: Any) -> None:
    row = PromptEngine(blank, template, eos=False)(RECORD)
    assert row is not None
    decode = Encoder(blank).tokenizer.decode
    text = template.format(**RECORD)
    assert decode(row["input_ids"]) == decode(Encoder(blank).encode(text))
    learnt = row["labels"] != -100
    assert decode(row["input_ids"][learnt]).endswith("Paris is the capital")
    assert decode(row["input_ids"][~learnt]).rstrip() == text[: -len(RECORD["a"])].rstrip()


@pytest.mark.parametrize("kind", ["always", "first", "llama2"])
def test_nor_in_a_chat(kind: str) -> None:
    tokenizer = metaspace(kind)
    turns = [{"role": "user", "content": "the capital"}, {"role": "assistant", "content": "Paris it is"}] * 2
    engine = PromptEngine(tokenizer, chat_template=INST)
    row = engine({"messages": turns})
    assert row is not None
    decode, text = engine.encoder.tokenizer.decode, engine.template.render(turns)  # type: ignore[union-attr]
    assert decode(row["input_ids"]) == decode(engine.encoder.encode(text))
    assert decode(row["input_ids"][row["labels"] != -100]).count("Paris it is </s>") == 2


def test_an_answer_that_cannot_be_written_apart_is_refused() -> None:
    """Words only: behind a prompt that ends inside a word there is no way to write the rest of it."""
    vocab = {"foobar": 0, "foo": 1, "bar": 2, "[UNK]": 3, "</s>": 4}
    words = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    words.decoder = decoders.WordPiece()  # type: ignore[assignment]
    with pytest.raises(RecordError, match="a response that can be tokenized behind its prompt"):
        PromptEngine(words, "foo{a}")({"a": "bar"})
    assert PromptEngine(words, "foo {a}")({"a": "bar"})["input_ids"].tolist() == [1, 2, 4]  # type: ignore[index]


def test_a_boundary_is_proved_by_encoding_the_prompt() -> None:
    """Pieces encoded apart differ and decoding proves nothing, but the prompt's own tokens begin the whole."""

    class Marked:
        """Every text begins with a mark, which decodes as a blank."""

        vocab_size, eos_token_id = 300, 299

        def encode(self, text: str) -> list[int]:
            return [256, *text.encode()]

        def decode(self, ids: Any) -> str:
            return "".join(" " if i == 256 else chr(int(i)) for i in ids)

    row = PromptEngine(Marked(), "{q}{a}", boundary="error")({"q": "ab", "a": "cd"})
    assert row is not None
    assert row["input_ids"].tolist() == [256, *b"abcd", 299]
    assert row["labels"].tolist() == [-100] * 3 + [*b"cd", 299]
