"""A folder returns the ids that transformers returns for it: its configuration counts, not only its vocabulary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.tokenizers import as_tokenizer

TEXTS = ("the  Quick <think> fox 12345 don't", "brown <|x|><|endoftext|>café \n\n naïve", "<extra_id_0> <mask>a the")
THINK = {"content": "<think>", "single_word": False, "lstrip": False, "rstrip": True, "normalized": False}

GENERIC: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
BESIDE_JSON: dict[str, dict[str, dict[str, Any]]] = {
    "nothing more": {},
    "a token of the decoder": {"tokenizer_config.json": {"added_tokens_decoder": {"500": THINK}}},
    "other flags": {"tokenizer_config.json": {"added_tokens_decoder": {"0": THINK | {"content": "<|endoftext|>"}}}},
    "an added token": {"added_tokens.json": {"<think>": 500}},
    "a special token": {"tokenizer_config.json": {"additional_special_tokens": ["<|x|>"]}},
    "a special token in the map": {"special_tokens_map.json": {"additional_special_tokens": ["<think>"]}},
    "a token for padding": {"tokenizer_config.json": {"pad_token": "<think>"}},
    "split": {"tokenizer_config.json": {"split_special_tokens": True}},
    "a blank before": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
}
MODELS = ("LlamaTokenizer", "T5Tokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "SiglipTokenizer")
FILES = {"LlamaTokenizer": "tokenizer.model", "T5Tokenizer": "spiece.model", "SiglipTokenizer": "spiece.model"}


def same_as_transformers(folder: Path) -> ps.Tokenizer:
    from transformers import AutoTokenizer

    original: Any = AutoTokenizer.from_pretrained(str(folder))
    made = as_tokenizer(str(folder))
    for text in TEXTS:
        assert made.encode(text).tolist() == original(text, add_special_tokens=False)["input_ids"], text
    return made


@pytest.mark.parametrize("name", BESIDE_JSON)
def test_a_configuration_beside_tokenizer_json(tmp_path: Path, bpe: Any, name: str) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    for file, content in ({"tokenizer_config.json": {}} | BESIDE_JSON[name]).items():
        (tmp_path / file).write_text(json.dumps((GENERIC if "config" in file else {}) | content))
    made = same_as_transformers(tmp_path)
    assert made.eos_id == bpe.token_to_id("<|endoftext|>")
    alone = as_tokenizer(tmp_path / "tokenizer.json")
    assert [alone.encode(text).tolist() for text in TEXTS] == [bpe.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer", "RobertaTokenizer", "CLIPTokenizer"])
def test_the_class_of_a_vocabulary_with_merges(tmp_path: Path, gpt2_folder: Path, name: str) -> None:
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(gpt2_folder / file, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    same_as_transformers(tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_the_class_of_a_sentencepiece_model(tmp_path: Path, sp_models: dict[str, Path], name: str) -> None:
    kind = "bpe" if name == "LlamaTokenizer" else "unigram"
    shutil.copy(sp_models[kind], tmp_path / FILES.get(name, "sentencepiece.bpe.model"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    same_as_transformers(tmp_path)
    alone = as_tokenizer(next(tmp_path.glob("*.model")))
    assert alone.kind == "sentencepiece"


def test_a_class_that_does_not_read_the_files_is_named(tmp_path: Path, sp_models: dict[str, Path]) -> None:
    shutil.copy(sp_models["unigram"], tmp_path / "odd.model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "SiglipTokenizer"}))
    with pytest.raises(UsageError, match=r"pass the path of a tokenizer\.json or \.model"):
        as_tokenizer(tmp_path)
