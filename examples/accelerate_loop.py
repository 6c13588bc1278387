"""Instruction data with Accelerate: the loader is registered, so `save_state` and `load_state` include its position."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator

from penstock import PromptEngine
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset

RECORDS = [{"instruction": f"Double {i}.", "input": "", "output": str(2 * i)} for i in range(40)]
STOP, STEPS = 7, 10  # five steps an epoch


def train(steps: int, save: Path | None = None, load: Path | None = None) -> list[int]:
    """Trains a model that predicts the next byte from the last one; returns a checksum of each batch."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(260, 16), torch.nn.Linear(16, 260))
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))

    loader = (
        DataLoaderBuilder()
        .with_dataset(PreprocessedDataset(RECORDS, PromptEngine("bytes", "alpaca", eos=0)))
        .with_batch_size(8)
        .with_shuffle()
        .with_seed(1)
        .with_distributed(accelerator.process_index, accelerator.num_processes)
        .build()
    )
    # Not prepared by Accelerate: with_distributed shards the records. For a prepared loader omit with_distributed.
    accelerator.register_for_checkpointing(loader)
    if load is not None:
        accelerator.load_state(str(load))

    seen: list[int] = []
    while len(seen) < steps:
        for made in loader:
            batch = {name: tensor.to(accelerator.device) for name, tensor in made.items()}
            seen.append(int((batch["input_ids"] * batch["attention_mask"]).sum()))
            logits = model(batch["input_ids"])
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if len(seen) == steps:
                break
    if save is not None:
        accelerator.save_state(str(save))
    return seen


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        expected = train(STEPS)
        before = train(STOP, save=Path(name))
        after = train(STEPS - STOP, load=Path(name))
    print(f"{len(expected)} steps uninterrupted; {len(before)} before the stop and {len(after)} after it")
    assert before + after == expected
    print("the batches are the same")


if __name__ == "__main__":
    main()
