"""Every kind of tokenizer gives, through `as_tokenizer`, the ids the original gives."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import PenstockError, UsageError
from penstock.core.errors import BadRecords, DataError
from penstock.facades.micro_transformer.tokenizer import MicroTransformerTokenizer
from penstock.tokenizers import Tokenizer, as_tokenizer
from penstock.tokenizers.base import PROBES

Expected = Callable[[str], list[int]]


class ListDuck:
    vocab_size = 256
    eos_token_id = 0

    def encode(self, text: str) -> Any:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


class DictDuck(ListDuck):
    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        ids = list(text.encode())
        return {"input_ids": [0, *ids, 0] if add_special_tokens else ids}


class EncodingDuck(ListDuck):
    def encode(self, text: str) -> Any:
        return types.SimpleNamespace(ids=list(text.encode()))


class ArrayDuck(ListDuck):
    def encode(self, text: str) -> Any:
        return np.array([list(text.encode())])


KINDS = [
    "bytes", "tokenizers", "tokenizers json", "tokenizers folder", "vocab+merges", "transformers fast", "gpt2",
    "transformers slow", "tiktoken", "sp bpe", "sp unigram file", "sp folder", "list", "dict", "encoding", "array",
    "micro",
]  # fmt: skip


@pytest.fixture(params=KINDS)
def made(
    request: pytest.FixtureRequest,
    bpe: Any,
    tiktoken_encoding: Any,
    sp_models: dict[str, Path],
    gpt2_folder: Path,
    corpus: list[str],
    tmp_path: Path,
) -> tuple[Tokenizer, Expected]:
    """A tokenizer and, from the original object alone, the ids expected of it."""
    kind = request.param
    utf8: Expected = lambda t: list(t.encode())  # noqa: E731
    hf: Expected = lambda t: bpe.encode(t, add_special_tokens=False).ids  # noqa: E731
    if kind == "bytes":
        return as_tokenizer("bytes"), utf8
    if kind == "tokenizers":
        return as_tokenizer(bpe), hf
    if kind.startswith("tokenizers "):
        bpe.save(str(tmp_path / "tokenizer.json"))
        return as_tokenizer(tmp_path if kind.endswith("folder") else str(tmp_path / "tokenizer.json")), hf
    if kind == "vocab+merges":
        return as_tokenizer(str(gpt2_folder)), hf
    if kind in {"transformers fast", "gpt2", "transformers slow"}:
        import transformers

        original: Any
        if kind == "gpt2":
            original = transformers.GPT2Tokenizer(str(gpt2_folder / "vocab.json"), str(gpt2_folder / "merges.txt"))
        elif kind == "transformers slow":
            original = transformers.ByT5Tokenizer()
        else:
            fast: Any = transformers.PreTrainedTokenizerFast
            original = fast(tokenizer_object=bpe, eos_token="<|endoftext|>")
        return as_tokenizer(original), lambda t: original(t, add_special_tokens=False)["input_ids"]
    if kind == "tiktoken":
        return as_tokenizer(tiktoken_encoding, disallowed_special=()), tiktoken_encoding.encode_ordinary
    if kind.startswith("sp "):
        import sentencepiece

        path = sp_models["unigram" if "unigram" in kind else "bpe"]
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        if kind == "sp folder":
            (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
            return as_tokenizer(tmp_path), processor.encode
        return as_tokenizer(processor if kind == "sp bpe" else path), processor.encode
    if kind == "micro":
        micro = MicroTransformerTokenizer().train(corpus, vocab_size=400)
        return as_tokenizer(micro), lambda t: micro.encode(t)["input_ids"]
    duck = {"list": ListDuck, "dict": DictDuck, "encoding": EncodingDuck, "array": ArrayDuck}[kind]()
    return as_tokenizer(duck), utf8


def test_ids_equal_the_originals(made: tuple[Tokenizer, Expected], corpus: list[str]) -> None:
    tokenizer, expected = made
    texts = [*corpus[::20], *corpus[-4:], *PROBES]
    rows = tokenizer.encode_batch(texts)
    assert rows.values.dtype == np.uint32
    assert rows.offsets.dtype == np.int64
    assert rows.tolist() == [list(expected(t)) for t in texts]
    assert tokenizer.encode(texts[0]).tolist() == rows[0].tolist()
    assert int(rows.values.max()) < tokenizer.vocab_size
    assert isinstance(tokenizer, Tokenizer)
    assert as_tokenizer(tokenizer) is tokenizer
    assert tokenizer.decode(tokenizer.encode("the quick fox")) == "the quick fox"
    assert len(tokenizer.encode_batch([])) == 0


def test_pickles_with_the_same_identity(made: tuple[Tokenizer, Expected]) -> None:
    tokenizer, _ = made
    again = pickle.loads(pickle.dumps(tokenizer))
    identity = tokenizer.identity()
    assert again.identity() == identity == json.loads(json.dumps(identity))
    assert set(identity) == {"kind", "sha256", "vocab_size", "eos_id", "bos_id", "pad_id"}
    assert again.encode_batch(["a fox", ""]).tolist() == tokenizer.encode_batch(["a fox", ""]).tolist()
    assert (again.name, again.vocab_size, again.eos_id) == (tokenizer.name, tokenizer.vocab_size, tokenizer.eos_id)


def test_text_that_is_not_text_is_named_by_row(made: tuple[Tokenizer, Expected]) -> None:
    tokenizer, _ = made
    for bad, said in (("a\ud800", "surrogate"), (None, "NoneType")):
        with pytest.raises(BadRecords) as caught:
            tokenizer.encode_batch(["fine", bad])  # type: ignore[list-item]
        assert caught.value.errors[0].row == 1
        assert said in str(caught.value)


def test_byte_tokenizer_ends_documents_outside_the_bytes() -> None:
    tokenizer = as_tokenizer("bytes")
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (257, 256, None)
    assert tokenizer.decode([*"é".encode(), 256]) == "é"


def test_identity_is_the_same_in_another_process_and_by_any_road(bpe: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    bpe.save(str(path))
    code = (
        "import json, sys; from penstock.tokenizers import as_tokenizer\n"
        "print(json.dumps(as_tokenizer(sys.argv[1]).identity()))"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == as_tokenizer(bpe).identity() == as_tokenizer(path).identity()


def test_identity_sees_a_changed_tokenizer(bpe: Any, tiktoken_encoding: Any) -> None:
    import tiktoken

    from tokenizers import Tokenizer as Raw

    other = Raw.from_str(bpe.to_str())
    other.add_tokens(["zzz"])
    assert as_tokenizer(other).identity()["sha256"] != as_tokenizer(bpe).identity()["sha256"]
    enc = tiktoken_encoding
    changed = tiktoken.Encoding(
        "small", pat_str=r"\S+|\s+", mergeable_ranks=enc._mergeable_ranks, special_tokens=enc._special_tokens
    )
    assert as_tokenizer(changed).identity()["sha256"] != as_tokenizer(enc).identity()["sha256"]


def test_added_tokens_beyond_the_model_count_in_vocab_size(bpe: Any) -> None:
    from tokenizers import Tokenizer as Raw

    other = Raw.from_str(bpe.to_str())
    other.add_special_tokens(["<extra>"])
    tokenizer = as_tokenizer(other)
    assert tokenizer.encode("<extra>").tolist() == [bpe.get_vocab_size()]
    assert tokenizer.vocab_size == bpe.get_vocab_size() + 1


def test_truncation_and_padding_left_in_a_file_do_not_cut_documents(bpe: Any) -> None:
    from tokenizers import Tokenizer as Raw

    other = Raw.from_str(bpe.to_str())
    other.enable_truncation(4)
    other.enable_padding(length=4)
    text = "the quick brown fox jumps over lazy dogs"
    assert len(other.encode(text).ids) == 4
    assert as_tokenizer(other).encode(text).tolist() == bpe.encode(text).ids
    assert as_tokenizer(other).identity() == as_tokenizer(bpe).identity()


def test_special_text_follows_the_original_object(bpe: Any) -> None:
    from tokenizers import Tokenizer as Raw

    plain = Raw.from_str(bpe.to_str())
    plain.encode_special_tokens = True
    text = "x<|endoftext|>"
    as_special, as_text = as_tokenizer(bpe), as_tokenizer(plain)
    assert as_special.encode(text).tolist()[-1] == as_special.eos_id == 0
    assert as_text.encode(text).tolist() == plain.encode(text).ids != as_special.encode(text).tolist()
    assert pickle.loads(pickle.dumps(as_text)).encode(text).tolist() == plain.encode(text).ids
    assert as_text.identity()["sha256"] != as_special.identity()["sha256"]


def test_roles_come_from_the_configuration_beside_the_file(bpe: Any, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    more = Tokenizer.from_str(bpe.to_str())
    more.add_special_tokens(["<|turn|>"])
    more.save(str(tmp_path / "tokenizer.json"))
    assert as_tokenizer(tmp_path).pad_id is None
    config = '{"eos_token": "<|turn|>", "pad_token": {"content": "<|endoftext|>"}}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    tokenizer = as_tokenizer(tmp_path)
    assert (tokenizer.eos_id, tokenizer.pad_id) == (more.token_to_id("<|turn|>"), 0)


def test_a_fast_tokenizer_whose_class_changes_ids_is_not_bypassed(bpe: Any) -> None:
    import transformers

    class Upper(transformers.PreTrainedTokenizerFast):
        def __call__(self, text: str, **options: Any) -> Any:
            return super().__call__(text.upper(), **options)

    tokenizer = as_tokenizer(Upper(tokenizer_object=bpe))  # type: ignore[no-untyped-call]
    assert tokenizer.kind == "transformers"
    assert tokenizer.encode("fox").tolist() == bpe.encode("FOX").ids


@pytest.mark.parametrize(
    "value",
    [3, None, b"bytes", object(), ["a"], ListDuck, "no/such/deep/path", "./nothing", "missing.json", "a b", "x" * 5000],
)
def test_refusals_list_what_is_accepted(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        as_tokenizer(value)
    for word in ("bytes", "tokenizer.json", "tiktoken", "SentencePiece", "transformers", "vocab.json"):
        assert word in str(caught.value)


def test_a_hub_name_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match="hub name that can be reached") as caught:
        as_tokenizer("someone/no-such-tokenizer")
    assert "tokenizer.json" in str(caught.value)
    assert "someone/no-such-tokenizer" in str(caught.value)


def test_a_hub_name_without_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'penstock-data\[hf\]'"):
        as_tokenizer("someone/no-such-tokenizer")


def test_broken_files_and_folders(tmp_path: Path, gpt2_folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = {"a.json": b"{", "b.json": b"\xff\xfe", "c.model": b"IQ== 0\n", "d.bin": b"1"}
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
    for place in [tmp_path / "empty", *(tmp_path / name for name in broken)]:
        with pytest.raises(UsageError) as caught:
            as_tokenizer(place)
        assert "fix:" in str(caught.value)
        assert place.name in str(caught.value)
    words = tmp_path / "words"
    words.mkdir()
    (words / "vocab.json").write_text('{"a": 0, "b</w>": 1}')
    (words / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(UsageError, match="end-of-word"):
        as_tokenizer(words)
    (words / "merges.txt").write_text("#version: 0.2\nx y\n")
    with pytest.raises(UsageError, match="one byte-level BPE"):
        as_tokenizer(words)


def test_dropout_is_refused_because_ids_would_be_random(bpe: Any) -> None:
    config = json.loads(bpe.to_str())
    config["model"]["dropout"] = 0.5
    from tokenizers import Tokenizer as Raw

    with pytest.raises(UsageError, match="same ids every time"):
        as_tokenizer(Raw.from_str(json.dumps(config)))


def test_ducks_that_do_not_keep_their_word() -> None:
    class NoSize:
        def encode(self, text: str) -> list[int]:
            return [1]

    class Liar(ListDuck):
        vocab_size = 100

    class Words(ListDuck):
        def encode(self, text: str) -> Any:
            return text.split()

    class NoIds(ListDuck):
        def encode(self, text: str) -> Any:
            return {"ids": [1]}

    with pytest.raises(UsageError, match="states its vocabulary size"):
        as_tokenizer(NoSize())
    with pytest.raises(DataError, match="ids from 0 to 99"):
        as_tokenizer(Liar()).encode("z")
    for wrong in (Words(), NoIds()):
        with pytest.raises(PenstockError, match="encode\\(text\\) to return a list of ints"):
            as_tokenizer(wrong).encode("a b")


@pytest.mark.parametrize(("name", "near"), [("byte", "bytes"), ("Bytes", "bytes"), ("cl100k", "cl100k_base")])
def test_a_misspelt_name_suggests_the_near_one(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{near}'"):
        as_tokenizer(name)


def test_tiktoken_encodings_by_name(tiktoken_encoding: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tiktoken import registry

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("cl100k_base", "gpt2"):
        monkeypatch.setitem(registry.ENCODINGS, name, tiktoken_encoding)
        assert as_tokenizer(name).encode("the fox").tolist() == tiktoken_encoding.encode("the fox")
    monkeypatch.delitem(registry.ENCODINGS, "cl100k_base")
    monkeypatch.setattr(
        registry, "ENCODING_CONSTRUCTORS", {"cl100k_base": (tmp_path / "cl100k_base.tiktoken").read_bytes}
    )
    with pytest.raises(UsageError, match="files of the tiktoken encoding 'cl100k_base'") as caught:
        as_tokenizer("cl100k_base")
    assert "TIKTOKEN_CACHE_DIR" in str(caught.value)
