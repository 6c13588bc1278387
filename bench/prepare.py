"""`penstock prepare` from JSONL to a verified store, against HF `datasets.map` and gigatoken's bare `encode_files`.

The corpus is Python source of this machine: the standard library and installed packages, up to 120 MB. `python -m
bench.prepare 10` takes ten copies of it, 1.2 GB, where 0.8 of bare is asked.

What is asked compares all of a preparation with `encode_files` alone. Two more rows say what that leaves out: the same
with the tokenizer loaded before and no verification after, as bare has it, and bare with its tokenizer loaded.
"""

from __future__ import annotations

import json
import shutil
import site
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.common import judge, medians, rounds, save, table

CORPUS_BYTES = 120_000_000
HF_BYTES = 15_000_000  # the slow one gets a slice
VOCABULARY = 16_000


def sources() -> Iterator[str]:
    for folder in (sysconfig.get_paths()["stdlib"], *site.getsitepackages()):
        for path in sorted(Path(folder).rglob("*.py")):
            try:
                yield path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue


def write_corpus(path: Path, most: int) -> int:
    size = 0
    with path.open("w") as file:
        for text in sources():
            size += file.write(json.dumps({"text": text}) + "\n")
            if size > most:
                break
    return path.stat().st_size


def write_tokenizer(path: Path, corpus: Path) -> None:
    """A GPT-2-like byte-level BPE, trained on a part of the corpus."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with corpus.open() as file:
        texts = [json.loads(line)["text"] for _, line in zip(range(1500), file, strict=False)]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def ours(corpus: Path, tokenizer: Any, size: int, *, verified: bool = True) -> float:
    from penstock.preparation.run import prepare
    from penstock.sources.jsonl import JsonlFiles
    from penstock.store.verify import verify

    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        prepare(JsonlFiles(str(corpus)), tokenizer, out)
        if verified:
            verify(out).raise_first()
        return size / 1e6 / (time.perf_counter() - began)


def ours_loaded(corpus: Path, tokenizer: Path, size: int) -> float:
    """Without loading the tokenizer and without verification; its engines are built anew, as for every preparation."""
    from penstock.tokenizers import as_tokenizer

    loaded = as_tokenizer(str(tokenizer))
    loaded.identity()
    return ours(corpus, loaded, size, verified=False)


def bare(corpus: Path, tokenizer: Path, size: int, *, loaded: bool = True) -> float:
    """gigatoken reads and parses the file itself, tokens in memory: no store, no verification."""
    import gigatoken

    began = time.perf_counter()
    engine = gigatoken.Tokenizer.from_json(tokenizer.read_text())
    began = time.perf_counter() if loaded else began
    engine.encode_files(gigatoken.JsonlFileSource([str(corpus)], field="text"))
    return size / 1e6 / (time.perf_counter() - began)


def hf(corpus: Path, tokenizer: Path, size: int) -> float:
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        rows = datasets.load_dataset("json", data_files=str(corpus), split="train", cache_dir=cache)
        rows.map(
            lambda b: {"input_ids": fast(b["text"])["input_ids"]}, batched=True, num_proc=2, remove_columns=["text"]
        )
        return size / 1e6 / (time.perf_counter() - began)


def run(count: int = 3, copies: int = 1) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus, small, tokenizer = folder / "corpus.jsonl", folder / "small.jsonl", folder / "tokenizer.json"
        size, small_size = write_corpus(corpus, CORPUS_BYTES), write_corpus(small, HF_BYTES)
        write_tokenizer(tokenizer, corpus)
        if copies > 1:
            corpus, size = copied(corpus, copies), size * copies
        found = rounds(
            {
                "penstock prepare": lambda: ours(corpus, str(tokenizer), size),
                "gigatoken encode_files, bare": lambda: bare(corpus, tokenizer, size),
                "HF datasets.map, 2 processes": lambda: hf(small, tokenizer, small_size),
                "penstock prepare, tokenizer loaded before, not verified": lambda: ours_loaded(corpus, tokenizer, size),
                "gigatoken encode_files, tokenizer loaded as well": lambda: bare(corpus, tokenizer, size, loaded=False),
            },
            count,
        )
    rates = medians(found)
    ours_rate, bare_rate, hf_rate, *_ = rates.values()
    table("JSONL to tokens", [(n, f"{v:.1f}") for n, v in rates.items()], ("what", "MB/s"))
    targets = [
        judge("times HF datasets.map", ours_rate / hf_rate, 10),
        judge("of gigatoken's bare encode_files", ours_rate / bare_rate, 0.7 if copies == 1 else 0.8),
    ]
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {"mb_per_second": rates, "targets": targets}
    if copies == 1:
        save("prepare", facts)
    return facts


def copied(corpus: Path, copies: int) -> Path:
    many = corpus.with_name("copies.jsonl")
    with many.open("wb") as file:
        for _ in range(copies):
            with corpus.open("rb") as one:
                shutil.copyfileobj(one, file, 1 << 22)
    return many


if __name__ == "__main__":
    run(copies=int(sys.argv[1]) if len(sys.argv) > 1 else 1)
