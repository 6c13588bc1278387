"""Inside the HF `Trainer`: stop in the middle of an epoch, resume from its checkpoint, see the same batches."""

from __future__ import annotations

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from penstock import create_collate_fn
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from tests.torch_data.trainers.tiny import RECORDS, TinyLM, engine

STEPS, STOP = 14, 10  # 8 steps an epoch: it stops in the second


class Built(Trainer):
    """A Trainer that is given a penstock DataLoader."""

    def get_train_dataloader(self):
        loader = (
            DataLoaderBuilder().with_dataset(self.train_dataset).with_batch_size(4).with_shuffle().with_seed(5).build()
        )
        return self.accelerator.prepare(loader)


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def run(kind, folder, stop=None, resume=False):
    if kind == "unsized":
        dataset = StreamingPreprocessedDataset(lambda: iter(RECORDS * 4), engine(), buffer_size=8)
    elif kind == "stream":
        dataset = StreamingPreprocessedDataset(RECORDS, engine(), buffer_size=8)
    else:
        dataset = PreprocessedDataset(RECORDS, engine())
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    model = TinyLM()
    trainer = (Built if kind == "built" else Trainer)(
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=create_collate_fn(pad_token_id=0),
        callbacks=[StopAt(stop)] if stop else [],
    )
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{STOP}") if resume else None)
    return model


@pytest.mark.parametrize(
    "kind", ["map", "stream", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("built", "unsized"))]
)
def test_stop_and_resume(kind, tmp_path):
    whole = run(kind, tmp_path / "whole")
    assert len(whole.seen) == STEPS
    if kind != "unsized":
        rows = [tuple(row) for batch in whole.seen[:8] for row in batch]
        assert len(rows) == len(set(rows)) == 30  # an epoch has every record once
        assert whole.seen[:6] != whole.seen[8:]  # and the next one another order
    first = run(kind, tmp_path / "run", stop=STOP)
    assert first.seen == whole.seen[:STOP]
    second = run(kind, tmp_path / "run", resume=True)
    assert second.seen == whole.seen[STOP:]
    assert second.weights() == whole.weights()


def test_epochs_of_a_built_loader_are_the_builders_own(tmp_path):
    whole = run("built", tmp_path)
    dataset = PreprocessedDataset(RECORDS, engine())
    loader = DataLoaderBuilder().with_dataset(dataset).with_batch_size(4).with_shuffle().with_seed(5).build()
    want = [loader.batch_at(step) for step in range(STEPS)]
    shown = [
        [row[mask.bool()].tolist() for row, mask in zip(b["input_ids"], b["attention_mask"], strict=True)] for b in want
    ]
    assert whole.seen == shown
    assert isinstance(loader, torch.utils.data.DataLoader)
