"""A tokenizer whose class, or user, replaced `encode`: the ids are those of that `encode`."""

from __future__ import annotations

import pytest

import penstock as ps

sentencepiece = pytest.importorskip("sentencepiece")
TEXT = "Lower and lowest"
CORPUS = ["low lower lowest", "LOW LOWER LOWEST AND", "and"] * 20


class Upper:
    """Encodes in upper case."""

    def encode(self, text, *args, **options):
        return super().encode(text.upper(), *args, **options)


def _backend():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(CORPUS, vocab_size=300, special_tokens=["<s>", "</s>"], show_progress=False)
    return made._tokenizer


def _transformers():
    library = pytest.importorskip("transformers")
    kind = type("Kind", (Upper, library.PreTrainedTokenizerFast), {})
    return kind(tokenizer_object=_backend(), eos_token="</s>")


def _set_on_the_object():
    made = pytest.importorskip("transformers").PreTrainedTokenizerFast(tokenizer_object=_backend())
    library_encode = made.encode
    made.encode = lambda text, **options: library_encode(text.upper(), **options)
    return made


def _tiktoken():
    library = pytest.importorskip("tiktoken")
    kind = type("Kind", (Upper, library.Encoding), {})
    ranks = {bytes([i]): i for i in range(256)}
    return kind("letters", pat_str=r"\w+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256})


def _sentencepiece(folder):
    prefix = str(folder / "pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_prefix=prefix, vocab_size=40, model_type="bpe", minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    kind = type("Kind", (Upper, sentencepiece.SentencePieceProcessor), {})
    return kind(model_file=f"{prefix}.model")


@pytest.mark.parametrize("name", ["transformers", "object", "tiktoken", "sentencepiece"])
def test_the_ids_are_those_of_its_own_encode(name, tmp_path):
    makers = {"transformers": _transformers, "object": _set_on_the_object, "tiktoken": _tiktoken}
    original = _sentencepiece(tmp_path) if name == "sentencepiece" else makers[name]()
    expected = list(original.encode(TEXT))
    assert ps.as_tokenizer(original).encode(TEXT).tolist() == expected
    inputs, _ = ps.GPTDatasetV1(TEXT, original, max_length=len(expected) - 1, stride=1)[0]
    assert inputs.tolist() == expected[:-1]


@pytest.mark.parametrize("adds", [True, False])
def test_a_micro_transformer_tokenizer_with_its_own_encode(adds, tmp_path):
    class Own(ps.MicroTransformerTokenizer):
        def encode(self, text, *args, **options):
            return super().encode(text.upper(), *args, **(options | {"add_special_tokens": True} if adds else options))

    original = Own().train(CORPUS, vocab_size=300)
    (tmp_path / "texts.jsonl").write_text('{"text": "low lower"}\n{"text": "lowest"}\n')
    dataset = ps.TransformerDataset(tmp_path / "texts.jsonl", original, seq_length=2)
    expected = [*original.encode("low lower")["input_ids"], *original.encode("lowest")["input_ids"]]
    assert len(dataset) == len(expected) - 2
    assert [row["input_ids"].tolist()[0] for row in dataset] == expected[:-2]
    assert (expected[0] == original.cls_token_id) is adds
