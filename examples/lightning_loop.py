"""Instruction data in Lightning: its checkpoint holds the loader's state, so a resumed run sees the same batches."""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from penstock import PromptEngine
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset

RECORDS = [{"instruction": f"Double {i}.", "input": "", "output": str(2 * i)} for i in range(40)]
STOP, STEPS = 7, 10  # five steps an epoch


class TinyLM(lightning.LightningModule):
    """Predicts the next byte from the last one, and remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Embedding(260, 16), torch.nn.Linear(16, 260))
        self.seen: list[int] = []

    def training_step(self, batch: dict[str, Any], _: int) -> Any:
        self.seen.append(int((batch["input_ids"] * batch["attention_mask"]).sum()))
        logits = self.net(batch["input_ids"])
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def train(folder: Path, steps: int, resume: Path | None = None) -> list[int]:
    dataset = PreprocessedDataset(RECORDS, PromptEngine("bytes", "alpaca", eos=0))
    loader = DataLoaderBuilder().with_dataset(dataset).with_batch_size(8).with_shuffle().with_seed(1).build()
    model = TinyLM()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # On several devices: .with_distributed(rank, world_size) above, and use_distributed_sampler=False here.
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)],
    )
    trainer.fit(model, loader, ckpt_path=resume, weights_only=False)
    return model.seen


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # advice about worker processes, which are threads here
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = train(folder / "uninterrupted", STEPS)
        before = train(folder / "run", STOP)
        after = train(folder / "more", STEPS, resume=folder / "run" / f"step={STOP}.ckpt")
    print(f"{len(expected)} steps uninterrupted; {len(before)} before the stop and {len(after)} after it")
    assert before + after == expected
    print("the batches are the same")


if __name__ == "__main__":
    main()
