"""TRL `SFTTrainer` on a pipeline: records are filtered and split by Penstock, tokenized and batched by TRL."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

import penstock as ps
from tokenizers import Tokenizer, models, pre_tokenizers

STOP, STEPS = 3, 6


def rows() -> dict[str, ps.Pipeline]:
    """Prompts and completions; too short ones are left out, and the parts are the same in every run."""
    records = [{"prompt": f"double {i}", "completion": f"{2 * i} is it" if i % 5 else ""} for i in range(60)]
    kept = ps.from_records(records).filter(lambda record: bool(record["completion"]), exact=True)
    return kept.split({"train": 0.9, "val": 0.1}, seed=7)


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of numbers, in place of your model's."""
    words = ["<pad>", "<eos>", "<unk>", "double", "is", "it", *map(str, range(120))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def train(folder: Path, steps: int, resume: bool = False) -> list[float]:
    set_seed(0)
    words = tokenizer()
    parts = rows()
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    arguments = SFTConfig(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=8, save_steps=STOP, logging_steps=1,
        learning_rate=1e-2, lr_scheduler_type="constant", max_length=32, report_to=[], use_cpu=True, bf16=False,
        disable_tqdm=True, seed=1,
    )  # fmt: skip
    trainer: Any = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        # Arrow files in the cache of datasets: with them the trainer resumes in any epoch.
        train_dataset=parts["train"].to_hf(cache_dir=folder / "hf"),
        eval_dataset=parts["val"].to_hf(cache_dir=folder / "hf"),
        processing_class=words,
    )
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        expected = train(Path(name, "uninterrupted"), STEPS)
        train(Path(name, "run"), STOP)
        found = train(Path(name, "run"), STEPS, resume=True)
    print(f"losses without a stop: {expected}")
    print(f"losses with a stop:    {found}")
    assert all(abs(one - other) < 1e-3 for one, other in zip(expected, found, strict=True))
    print("the trainer continued with the same batches")


if __name__ == "__main__":
    main()
