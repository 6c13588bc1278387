"""Special tokens stay or go by an explicit argument, in text and around it, and the choice is part of the store."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.core.errors import BadRecords, DataError, RecordError, UsageError
from penstock.store.manifest import read_manifest
from penstock.tokenizers import BulkEncoder, as_tokenizer
from penstock.tokenizers.base import PROBES
from penstock.tokenizers.resolve import as_encoded

TEXTS = ["the quick fox", "", "lazy dogs 12"]
EOT = "<|endoftext|>"


@pytest.fixture(scope="module")
def framed_bpe(bpe: Any) -> Any:
    """Byte-level BPE whose post-processor writes [CLS] text [SEP]."""
    from tokenizers import Tokenizer, processors

    made = Tokenizer.from_str(bpe.to_str())
    made.add_special_tokens(["[CLS]", "[SEP]"])
    pair = [(t, made.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=pair)
    return made


def documents(store: str | Path) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in ps.open_store(store).peek(100)]


def kinds(bpe: Any, sp_models: dict[str, Path]) -> list[tuple[Any, Any]]:
    import sentencepiece
    import transformers

    class Both:
        vocab_size = 300

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [299] * add_special_tokens + list(text.encode())

    fast: Any = transformers.PreTrainedTokenizerFast
    hf = fast(tokenizer_object=bpe)
    byt5 = transformers.ByT5Tokenizer()
    ends = sentencepiece.SentencePieceProcessor(model_file=str(sp_models["bpe"]), add_bos=True, add_eos=True)
    return [
        (bpe, lambda t, add: bpe.encode(t, add_special_tokens=add).ids),
        (hf, lambda t, add: hf(t, add_special_tokens=add)["input_ids"]),
        (byt5, lambda t, add: byt5(t, add_special_tokens=add)["input_ids"]),
        (ends, lambda t, add: ends.encode(t, add_bos=add, add_eos=add)),
        (Both(), lambda t, add: Both().encode(t, add)),
        ("bytes", lambda t, add: list(t.encode())),
    ]


def test_each_kind_adds_its_special_tokens_or_none(framed_bpe: Any, sp_models: dict[str, Path]) -> None:
    texts = [*TEXTS, *PROBES]
    for original, expected in kinds(framed_bpe, sp_models):
        plain = as_tokenizer(original)
        full = as_tokenizer(original, add_special_tokens=True)
        for made, add in ((plain, False), (full, True)):
            assert made.encode_batch(texts).tolist() == [list(expected(t, add)) for t in texts], (made, add)
            bulk = BulkEncoder(made, threads=2)
            assert bulk.encode(texts).tolist() == [list(expected(t, add)) for t in texts], (bulk, bulk.reason)
        assert (full.identity() == plain.identity()) == (original == "bytes")
        assert "add_special_tokens" not in plain.identity()
        assert as_tokenizer(full) is full
        assert as_tokenizer(full, add_special_tokens=False).identity() == plain.identity()
        if type(original).__name__ != "Both":
            again = pickle.loads(pickle.dumps(full))
            assert again.identity() == full.identity()
            assert again.encode("fox").tolist() == full.encode("fox").tolist()


def test_the_fast_engine_runs_with_a_constant_frame_and_not_with_another(framed_bpe: Any) -> None:
    from tokenizers import Tokenizer, processors

    bulk = BulkEncoder(as_tokenizer(framed_bpe, add_special_tokens=True))
    bulk.check(TEXTS)
    assert bulk.engine == "gigatoken", bulk.reason
    twice = Tokenizer.from_str(framed_bpe.to_str())
    twice.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP] $A", special_tokens=[(t, twice.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    )
    odd = BulkEncoder(as_tokenizer(twice, add_special_tokens=True))
    assert odd.engine == "tokenizers"
    assert odd.encode(TEXTS).tolist() == [twice.encode(t).ids for t in TEXTS]


def test_a_class_that_adds_special_tokens_itself_is_not_bypassed(bpe: Any) -> None:
    import transformers

    class Adds(transformers.PreTrainedTokenizerFast):
        def __call__(self, text: str, **options: Any) -> Any:
            out = super().__call__(text, **options)
            return {"input_ids": [7, *out["input_ids"]] if options.get("add_special_tokens", True) else out.input_ids}

        def num_special_tokens_to_add(self, pair: bool = False) -> int:
            return 1

    original = Adds(tokenizer_object=bpe)  # type: ignore[no-untyped-call]
    assert as_tokenizer(original).encode("fox").tolist() == bpe.encode("fox").ids
    assert as_tokenizer(original, add_special_tokens=True).encode("fox").tolist() == [7, *bpe.encode("fox").ids]


def test_tokenize_and_prepare_keep_them_when_asked(framed_bpe: Any, tmp_path: Path) -> None:
    texts = ps.from_texts(["the fox", "dogs"])
    cache = tmp_path / "cache"
    plain = texts.tokenize(framed_bpe, cache_dir=cache, eos=False)
    full = texts.tokenize(framed_bpe, cache_dir=cache, eos=False, add_special_tokens=True)
    ids = [framed_bpe.encode(t).ids for t in ("the fox", "dogs")]
    assert [row["input_ids"].tolist() for row in full.peek(2)] == ids
    assert [row["input_ids"].tolist() for row in plain.peek(2)] == [i[1:-1] for i in ids]
    assert len(list((cache / "tokens").glob("*.used"))) == 2
    ps.prepare(texts, framed_bpe, tmp_path / "full", eos=False, add_special_tokens=True)
    assert documents(tmp_path / "full") == ids
    with pytest.raises(UsageError, match="a store of other data or settings"):
        ps.prepare(texts, framed_bpe, tmp_path / "full", eos=False)


def test_an_end_token_that_the_tokenizer_adds_is_not_added_twice(framed_bpe: Any, tmp_path: Path) -> None:
    framed_bpe.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "[SEP]"}')
    texts = ps.from_texts(["the fox", ""])
    made = ps.prepare(texts, tmp_path, tmp_path / "full", add_special_tokens=True)
    assert documents(made.path) == [framed_bpe.encode(t).ids for t in ("the fox", "")]
    assert read_manifest(made.path).eos_id == framed_bpe.token_to_id("[SEP]")
    made = ps.prepare(texts, tmp_path, tmp_path / "plain")
    assert documents(made.path) == [framed_bpe.encode(t).ids[1:] for t in ("the fox", "")]


def test_as_encoded_is_what_encode_returns(framed_bpe: Any) -> None:
    assert as_encoded(framed_bpe).encode("fox").tolist() == framed_bpe.encode("fox").ids
    micro = ps.MicroTransformerTokenizer()
    assert as_encoded(micro).encode("fox").tolist() == micro.encode("fox")["input_ids"]

    class Plain:
        vocab_size = 300

        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return [299] * add_special_tokens + list(text.encode())

    assert as_encoded(Plain()).encode("a").tolist() == [97]


def test_tiktoken_special_text_follows_tiktokens_own_policy(tiktoken_encoding: Any, tmp_path: Path) -> None:
    text = f"the fox{EOT}dogs"
    special = tiktoken_encoding.encode(text, allowed_special={EOT})
    plain = tiktoken_encoding.encode(text, disallowed_special=())
    assert special != plain
    with pytest.raises(ValueError, match="disallowed special token"):
        tiktoken_encoding.encode(text)
    with pytest.raises(BadRecords) as caught:
        as_tokenizer(tiktoken_encoding).encode(text)
    assert "allowed_special={'<|endoftext|>'}" in str(caught.value)
    assert "disallowed_special=()" in str(caught.value)
    policies: list[tuple[dict[str, Any], list[int]]] = [
        ({"allowed_special": {EOT}}, special), ({"allowed_special": "all"}, special),
        ({"disallowed_special": ()}, plain), ({"allowed_special": {EOT}, "disallowed_special": ()}, special),
    ]  # fmt: skip
    for n, (policy, ids) in enumerate(policies):
        made = as_tokenizer(tiktoken_encoding, **policy)
        assert made.encode(text).tolist() == ids
        assert pickle.loads(pickle.dumps(made)).encode(text).tolist() == ids
        bulk = BulkEncoder(made)
        assert bulk.encode([text, "fox"]).tolist() == [ids, tiktoken_encoding.encode("fox")]
        assert bulk.engine == "gigatoken", bulk.reason
        tokens = ps.from_texts([text]).tokenize(tiktoken_encoding, cache_dir=tmp_path, eos=False, **policy)
        assert tokens.peek(1)[0]["input_ids"].tolist() == ids
        ps.prepare(ps.from_texts([text]), tiktoken_encoding, tmp_path / str(n), eos=False, **policy)
        assert documents(tmp_path / str(n)) == [ids]
    both = as_tokenizer(tiktoken_encoding, allowed_special={EOT}, disallowed_special={EOT})
    with pytest.raises(BadRecords):
        both.encode(text)


def test_tiktoken_special_text_is_refused_by_record_or_skipped(tiktoken_encoding: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("the fox", f"x{EOT}", "dogs")))
    with pytest.raises(RecordError, match="special token of the tiktoken encoding") as caught:
        ps.prepare(ps.read_jsonl(path), tiktoken_encoding, tmp_path / "out")
    assert "a.jsonl, line 2" in str(caught.value)
    made = ps.prepare(ps.read_jsonl(path), tiktoken_encoding, tmp_path / "out", on_error="skip")
    assert (made.documents, made.skipped) == (2, 1)
    with pytest.raises(RecordError, match="special token of the tiktoken encoding"):
        ps.from_texts([f"a{EOT}"]).tokenize(tiktoken_encoding, cache_dir=tmp_path)
    # A cached store in which such text is ordinary is not found by the default policy.
    ps.from_texts([f"a{EOT}"]).tokenize(tiktoken_encoding, cache_dir=tmp_path, disallowed_special=())
    with pytest.raises(RecordError, match="special token of the tiktoken encoding"):
        ps.from_texts([f"a{EOT}"]).tokenize(tiktoken_encoding, cache_dir=tmp_path)


def test_create_dataset_allows_the_end_of_text_as_the_book_does(tiktoken_encoding: Any) -> None:
    text = f"the quick fox{EOT}lazy dogs " * 4
    dataset = ps.create_dataset("gpt_v1", txt=text, tokenizer=tiktoken_encoding, max_length=4, stride=4)
    ids = tiktoken_encoding.encode(text, allowed_special={EOT})
    assert [i for row in dataset.input_ids for i in row.tolist()] == ids[: len(dataset) * 4]
    assert tiktoken_encoding.eot_token in ids


def test_create_dataset_leaves_out_what_a_tokenizer_adds_unless_it_is_kept_by_name(framed_bpe: Any) -> None:
    """As docs/reference/gpt-windows.md says."""

    class Plain:
        def encode(self, text: str) -> list[int]:
            return list(framed_bpe.encode(text).ids)

    text = "the quick fox and lazy dogs " * 3
    ids = framed_bpe.encode(text).ids
    kept = as_tokenizer(framed_bpe, add_special_tokens=True)
    for tokenizer, first in ((framed_bpe, ids[1:5]), (kept, ids[:4]), (Plain(), ids[:4])):
        assert ps.GPTDatasetV1(text, tokenizer, 4, 4)[0][0].tolist() == first


def test_the_refusal_names_what_every_reader_of_text_takes(tiktoken_encoding: Any, tmp_path: Path) -> None:
    """`GPTDatasetV1` and the facades take no `allowed_special=`: the tokenizer holds it."""
    import tiktoken

    other = tiktoken.Encoding(
        "two", pat_str=tiktoken_encoding._pat_str, mergeable_ranks=tiktoken_encoding._mergeable_ranks,
        special_tokens={EOT: tiktoken_encoding.eot_token, "<|gap|>": tiktoken_encoding.eot_token + 1},
    )  # fmt: skip
    text = "lazy<|gap|>dogs " * 6

    def windows(tokenizer: Any) -> Any:
        return ps.create_dataset("gpt_v1", txt=text, tokenizer=tokenizer, max_length=4, stride=4)

    def capibara(tokenizer: Any) -> Any:
        return ps.CapibaraDataLoader(tokenizer=tokenizer, dataset_name=[text], batch_size=1, cache_dir=tmp_path)

    for make in (windows, capibara):
        with pytest.raises(DataError, match=r"as_tokenizer\(encoding, allowed_special=\{'<\|gap\|>'\}\)"):
            make(other)
    rows = windows(as_tokenizer(other, allowed_special={"<|gap|>"})).input_ids
    assert [i for row in rows for i in row.tolist()] == other.encode(text, allowed_special="all")[: len(rows) * 4]
    assert len(capibara(as_tokenizer(other, disallowed_special=()))) == 1


def test_policies_for_tokenizers_that_have_none_are_refused(bpe: Any, tiktoken_encoding: Any) -> None:
    for policy in ({"allowed_special": {EOT}}, {"disallowed_special": ()}):
        with pytest.raises(UsageError, match="with a tiktoken encoding"):
            as_tokenizer(bpe, **policy)
    with pytest.raises(UsageError, match="its special tokens are '<|endoftext|>'"):
        as_tokenizer(tiktoken_encoding, allowed_special={"<|endofprompt|>"})


def test_on_the_command_line(framed_bpe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    framed_bpe.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("the fox")
    options = ["prepare", str(tmp_path / "a.txt"), "-t", str(tmp_path / "tokenizer.json"), "-q", "--no-eos"]
    assert main([*options, "-o", str(tmp_path / "full"), "--add-special-tokens"]) == 0
    assert main([*options, "-o", str(tmp_path / "plain")]) == 0
    assert documents(tmp_path / "full") == [framed_bpe.encode("the fox").ids]
    assert documents(tmp_path / "plain") == [framed_bpe.encode("the fox").ids[1:-1]]
    assert main([*options, "-o", str(tmp_path / "x"), "--allowed-special", "all"]) != 0
    assert "tiktoken" in capsys.readouterr().err


def test_the_check_command_reads_what_the_dataset_reads(
    framed_bpe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    framed_bpe.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"the fox {i}"}) + "\n" for i in range(40)))
    path, tokenizer = str(tmp_path / "a.jsonl"), str(tmp_path / "tokenizer.json")
    main(["check", path, path, "-t", tokenizer, "--batch-size", "2", "--seq-length", "8", "--json"])
    assert json.loads(capsys.readouterr().out)
    dataset = ps.TransformerDataset(path, tokenizer, seq_length=8)
    assert dataset[0]["input_ids"].tolist() == [i for n in (0, 1) for i in framed_bpe.encode(f"the fox {n}").ids][:8]


def test_errors_of_a_foreign_tokenizer_name_the_record(tmp_path: Path) -> None:
    """A WordPiece without its unknown token raises a bare Exception for unknown words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordPiece(vocab={"the": 0, "fox": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("the fox", "the dog", "fox", "cat")))
    with pytest.warns(RuntimeWarning, match="gigatoken"), pytest.raises(RecordError, match="can encode") as caught:
        ps.prepare(ps.read_jsonl(path), made, tmp_path / "out")
    assert "a.jsonl, line 2" in str(caught.value)
    assert "[UNK]" in str(caught.value)
    with pytest.warns(RuntimeWarning, match="gigatoken"):
        result = ps.prepare(ps.read_jsonl(path), made, tmp_path / "out", on_error="skip")
    assert (result.documents, result.skipped) == (2, 2)
    assert documents(tmp_path / "out") == [[0, 1], [1]]

    class Letters:
        vocab_size = 26

        def encode(self, text: str) -> list[int]:
            return ["abcdefghijklmnopqrstuvwxyz".index(c) for c in text]

    with pytest.raises(RecordError, match="can encode") as caught:
        ps.from_texts(["ab", "a b"]).tokenize(Letters(), cache_dir=tmp_path)
    assert "ValueError: substring not found, for 'a b'" in str(caught.value)
    assert "record 1" in str(caught.value)
    kept = ps.from_texts(["ab", "a b"]).tokenize(Letters(), cache_dir=tmp_path, on_error="skip")
    assert [row["input_ids"].tolist() for row in kept.peek(5)] == [[0, 1]]
