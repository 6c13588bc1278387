"""MicroTransformerTokenizer: the tokenizer of the micro-transformer pipeline."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import UsageError
from penstock.core.errors import BadRecords, DataError
from penstock.facades.micro_transformer.tokenizer import SPECIAL_TOKENS, MicroTransformerTokenizer
from penstock.tokenizers import BulkEncoder, as_tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog. " * 3,
    "pack my box with five dozen jugs\n" * 5,
    "naïve café 🙂 ",
] * 5


@pytest.fixture(scope="module")
def tokenizer() -> MicroTransformerTokenizer:
    return MicroTransformerTokenizer().train(TEXTS, vocab_size=320)


def test_encode_gives_the_three_lists_and_nothing_added(tokenizer: MicroTransformerTokenizer) -> None:
    out = tokenizer.encode("the quick fox")
    assert list(out) == ["input_ids", "token_type_ids", "attention_mask"]
    n = len(out["input_ids"])
    assert all(type(i) is int for i in out["input_ids"])
    assert 0 < n < len("the quick fox")
    assert out["token_type_ids"] == [0] * n
    assert out["attention_mask"] == [1] * n
    assert tokenizer.decode(out["input_ids"]) == tokenizer.decode(out) == "the quick fox"
    special = {tokenizer.get_vocab()[t] for t in SPECIAL_TOKENS}
    assert not special & set(out["input_ids"])


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips(text: str) -> None:
    for made in (MicroTransformerTokenizer(), _trained()):
        ids = made.encode(text)["input_ids"]
        assert made.decode(ids) == text
        assert all(i < made.get_vocab_size() for i in ids)


_CACHE: list[MicroTransformerTokenizer] = []


def _trained() -> MicroTransformerTokenizer:
    if not _CACHE:
        _CACHE.append(MicroTransformerTokenizer().train(TEXTS, vocab_size=320))
    return _CACHE[0]


def test_sizes_and_ids(tokenizer: MicroTransformerTokenizer) -> None:
    t = tokenizer
    assert 260 < t.get_vocab_size() == len(t) == t.vocab_size == max(t.get_vocab().values()) + 1 <= 320
    assert (t.pad_token_id, t.cls_token_id, t.sep_token_id, t.mask_token_id) == (0, 1, 2, 3)
    assert len(MicroTransformerTokenizer()) == 260
    assert "vocab_size=" in repr(t)


def test_special_tokens_on_request_and_in_text(tokenizer: MicroTransformerTokenizer) -> None:
    plain = tokenizer.encode("fox")["input_ids"]
    out = tokenizer.encode("fox", add_special_tokens=True)
    assert out["input_ids"] == [1, *plain, 2]
    pair = tokenizer.encode("fox", "dog", add_special_tokens=True)
    dog = tokenizer.encode("dog")["input_ids"]
    assert pair["input_ids"] == [1, *plain, 2, *dog, 2]
    assert pair["token_type_ids"] == [0] * (len(plain) + 2) + [1] * (len(dog) + 1)
    masked = tokenizer.encode("a [MASK] b")["input_ids"]
    assert masked.count(3) == 1
    assert tokenizer.decode(masked) == "a [MASK] b"
    assert tokenizer.decode(out["input_ids"], skip_special_tokens=True) == "fox"


def test_truncation_and_padding(tokenizer: MicroTransformerTokenizer) -> None:
    text = "zyxwvutsrq"  # untrained letters: one id each
    full = tokenizer.encode(text)["input_ids"]
    assert tokenizer.encode(text, max_length=4, truncation=True)["input_ids"] == full[:4]
    assert tokenizer.encode(text, max_length=4)["input_ids"] == full
    framed = tokenizer.encode(text, max_length=6, truncation=True, add_special_tokens=True)["input_ids"]
    assert framed == [1, *full[:4], 2]
    padded = tokenizer.encode("z", max_length=4, padding="max_length")
    assert padded["input_ids"][1:] == [0, 0, 0]
    assert padded["attention_mask"] == [1, 0, 0, 0]
    batch = tokenizer.encode_batch(["zyx", "", "z"], padding=True)
    assert [len(r) for r in batch["input_ids"]] == [3, 3, 3]
    assert batch["attention_mask"] == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert [len(r) for r in tokenizer.encode_batch(["zyx", "", "z"])["input_ids"]] == [3, 0, 1]
    assert tokenizer(["zyx"]) == tokenizer.encode_batch(["zyx"])
    assert tokenizer("zyx") == tokenizer.encode("zyx")


@pytest.mark.parametrize(
    ("a", "b", "room", "kept"),
    [(8, 2, 6, (4, 2)), (2, 8, 6, (2, 4)), (5, 5, 6, (3, 3)), (1, 1, 6, (1, 1)), (6, 5, 6, (3, 3)), (5, 5, 5, (3, 2))],
)
def test_pairs_are_cut_from_the_longer(
    tokenizer: MicroTransformerTokenizer, a: int, b: int, room: int, kept: tuple[int, int]
) -> None:
    out = tokenizer.encode("z" * a, "y" * b, max_length=room, truncation=True)
    assert (out["token_type_ids"].count(0), out["token_type_ids"].count(1)) == kept


def test_training_is_the_same_every_time_and_in_every_process(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(TEXTS))
    code = (
        "import sys; from penstock.facades.micro_transformer.tokenizer import MicroTransformerTokenizer as M\n"
        "M().train(sys.argv[1], vocab_size=330).save(sys.argv[2])"
    )
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-c", code, str(file), str(tmp_path / name)], check=True)
    one, two = ((tmp_path / n / "tokenizer.json").read_bytes() for n in ("one", "two"))
    assert one == two
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


def test_training_sources_agree(tmp_path: Path) -> None:
    lines = [line + "\n" for line in "".join(TEXTS).split("\n")]
    text, jsonl = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text("".join(lines))
    jsonl.write_text("\n\n".join(json.dumps({"text": line, "body": "x"}) for line in lines))
    made = [
        MicroTransformerTokenizer().train(s, vocab_size=300).get_vocab()
        for s in (lines, iter(lines), str(text), text, [str(text)], [jsonl], jsonl)
    ]
    assert all(m == made[0] for m in made)
    assert len(made[0]) == 300
    for name, data in (("b.json", jsonl.read_bytes()), ("b.jsonl.gz", gzip.compress(jsonl.read_bytes()))):
        (tmp_path / name).write_bytes(data)
        assert MicroTransformerTokenizer().train(tmp_path / name, vocab_size=300).get_vocab() == made[0]
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.read_bytes()))
    assert MicroTransformerTokenizer().train(tmp_path / "b.txt.gz", vocab_size=300).get_vocab() == made[0]
    assert MicroTransformerTokenizer().train(jsonl, vocab_size=300, text_field="body").get_vocab() != made[0]


def test_min_frequency_limits_merges() -> None:
    few = MicroTransformerTokenizer().train(["abc abd abe"], vocab_size=300, min_frequency=3)
    assert len(few) == 261  # "ab" is the only pair seen three times


def test_save_load_pickle_and_other_libraries(tokenizer: MicroTransformerTokenizer, tmp_path: Path) -> None:
    import transformers

    folder = tokenizer.save_pretrained(tmp_path / "deep" / "tok")
    ids = tokenizer.encode("the quick [MASK]")["input_ids"]
    for made in (
        MicroTransformerTokenizer.from_pretrained(folder),
        MicroTransformerTokenizer.from_pretrained(str(folder / "tokenizer.json")),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert made.encode("the quick [MASK]")["input_ids"] == ids
        assert made.get_vocab() == tokenizer.get_vocab()
    auto = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert auto("the quick [MASK]", add_special_tokens=False)["input_ids"] == ids
    assert auto.pad_token_id == 0


def test_loads_vocab_and_merges(tokenizer: MicroTransformerTokenizer, tmp_path: Path) -> None:
    tokenizer.penstock_tokenizer().backend.model.save(str(tmp_path))
    made = MicroTransformerTokenizer.from_pretrained(tmp_path)
    assert made.encode("the quick [MASK]") == tokenizer.encode("the quick [MASK]")


def test_as_tokenizer_and_gigatoken_take_it(tokenizer: MicroTransformerTokenizer) -> None:
    adapted = as_tokenizer(tokenizer)
    assert (adapted.eos_id, adapted.bos_id, adapted.pad_id) == (2, 1, 0)
    assert adapted.vocab_size == tokenizer.get_vocab_size()
    bulk = BulkEncoder(tokenizer)
    texts = [*TEXTS, "a [SEP] b"]
    assert bulk.encode(texts).tolist() == tokenizer.encode_batch(texts)["input_ids"]
    assert bulk.engine == "gigatoken", bulk.reason


def test_wrong_places_and_arguments(tokenizer: MicroTransformerTokenizer, tmp_path: Path) -> None:
    load = MicroTransformerTokenizer.from_pretrained
    with pytest.raises(UsageError, match="no such file or folder") as caught:
        load(tmp_path / "nothing")
    assert "train one" in str(caught.value)
    with pytest.raises(UsageError, match="a folder without these files"):
        load(tmp_path)
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match=r"one without \[PAD\] \[CLS\]"):
        load(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"truncation": True}, "max_length together with truncation=True"),
        ({"padding": "max_length"}, "max_length together with padding"),
        ({"padding": "left"}, "padding of False, True"),
        ({"max_length": 1, "truncation": True, "add_special_tokens": True}, "max_length of at least 2"),
    ]
    for options, said in wrong:
        with pytest.raises(UsageError, match=said):
            tokenizer.encode("a", **options)
    with pytest.raises(BadRecords):
        tokenizer.encode("\ud800")
    with pytest.raises(UsageError, match="as many second texts"):
        tokenizer.encode_batch(["a"], ["b", "c"])


def test_wrong_training_data(tmp_path: Path) -> None:
    train = MicroTransformerTokenizer().train
    with pytest.raises(UsageError, match="vocab_size of at least 260"):
        train(["a"], vocab_size=200)
    with pytest.raises(UsageError, match="no such file"):
        train(tmp_path / "missing.txt")
    with pytest.raises(UsageError, match="no such file"):
        train(["missing.jsonl"])
    real = tmp_path / "real.txt"
    real.write_text("a")
    with pytest.raises(UsageError, match="only paths or only texts"):
        train([str(real), "some words"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"txt": 1}\n')
    with pytest.raises(DataError, match="line 2"):
        train(bad)
    with pytest.raises(UsageError, match="item 1"):
        train(iter(["a", 3]))  # type: ignore[arg-type]
