"""Instruction data in the HF `Trainer`: stop in the middle of an epoch, resume from its checkpoint, same batches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from penstock import PromptEngine, create_collate_fn
from penstock.facades.preprocessed.dataset import PreprocessedDataset

RECORDS = [{"instruction": f"Double {i}.", "input": "", "output": str(2 * i)} for i in range(40)]
STOP = 7


class TinyLM(torch.nn.Module):
    """Predicts the next byte from the last one, and remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Embedding(260, 16), torch.nn.Linear(16, 260))
        self.seen: list[int] = []

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
        self.seen.append(int((input_ids * attention_mask).sum()))
        logits = self.net(input_ids)
        return {"loss": torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}


class Stop(TrainerCallback):
    """Saves a checkpoint and stops after a few steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == STOP:
            control.should_save = control.should_training_stop = True


def train(folder: Path, interrupted: bool = False, resume: str | None = None) -> TinyLM:
    model = TinyLM()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=2,
            per_device_train_batch_size=8,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        ),
        # Replace "bytes" with your tokenizer; the engine sets the labels of the prompt to -100.
        train_dataset=PreprocessedDataset(RECORDS, PromptEngine("bytes", "alpaca", eos=0)),
        data_collator=create_collate_fn(pad_token_id=0),
        callbacks=[Stop()] if interrupted else [],
    )
    trainer.train(resume_from_checkpoint=resume)
    return model


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = train(folder / "uninterrupted").seen
        before = train(folder / "run", interrupted=True).seen
        after = train(folder / "run", resume=str(folder / "run" / f"checkpoint-{STOP}")).seen
    print(f"{len(expected)} steps uninterrupted; {len(before)} before the stop and {len(after)} after it")
    assert before + after == expected
    print("the batches are the same")


if __name__ == "__main__":
    main()
