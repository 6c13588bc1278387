"""Inside Accelerate, both ways: the loader registered for checkpointing, and the loader prepared and skipped into."""

from __future__ import annotations

import accelerate
import pytest
import torch

from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from tests.torch_data.trainers.tiny import RECORDS, TinyLM, engine

STEPS, STOP = 14, 10  # 8 steps an epoch: it stops in the second


def loader_of(kind):
    builder = DataLoaderBuilder().with_batch_size(4)
    if kind == "stream":
        return builder.with_dataset(StreamingPreprocessedDataset(RECORDS, engine(), buffer_size=8)).build()
    return builder.with_dataset(PreprocessedDataset(RECORDS, engine())).with_shuffle().with_seed(5).build()


def set_up(prepared, kind):
    accelerator = accelerate.Accelerator(cpu=True)
    inner = TinyLM()
    model, optimizer = accelerator.prepare(inner, torch.optim.AdamW(inner.parameters(), lr=0.01))
    loader = loader_of(kind)
    if prepared:
        loader = accelerator.prepare(loader)
    else:
        accelerator.register_for_checkpointing(loader)
    return accelerator, inner, model, optimizer, loader


def step(accelerator, model, optimizer, batch):
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_registered_for_checkpointing(kind, tmp_path):
    def run(steps, save=None, load=None):
        accelerator, inner, model, optimizer, loader = set_up(False, kind)
        if load:
            accelerator.load_state(load)
        done = 0
        while True:
            for batch in loader:
                step(accelerator, model, optimizer, batch)
                done += 1
                if done == steps:
                    if save:
                        accelerator.save_state(save)
                    return inner

    whole = run(STEPS)
    assert len({tuple(row) for batch in whole.seen[:8] for row in batch}) == 30
    first = run(STOP, save=tmp_path)
    assert first.seen == whole.seen[:STOP]
    second = run(STEPS - STOP, load=tmp_path)
    assert second.seen == whole.seen[STOP:]
    assert second.weights() == whole.weights()


def test_prepared_for_several_processes():
    made = [
        accelerate.data_loader.prepare_data_loader(
            loader_of("map"), num_processes=2, process_index=rank, put_on_device=False, even_batches=False
        )
        for rank in range(2)
    ]
    epochs = [[list(loader) for loader in made] for _ in range(2)]
    shown = [
        sorted(tuple(r[m.bool()].tolist()) for loader in e for b in loader for r, m in zip(*_pair(b), strict=True))
        for e in epochs
    ]
    assert shown[0] == shown[1] == sorted(tuple(engine()(record)["input_ids"].tolist()) for record in RECORDS)
    first, second = (e[0][0]["input_ids"].tolist() for e in epochs)
    assert first != second  # the processes were told of the new epoch


def _pair(batch):
    return batch["input_ids"], batch["attention_mask"]


def test_prepared_and_skipped_into(tmp_path):
    def run(begin, end, save=None, load=None):
        accelerator, inner, model, optimizer, loader = set_up(True, "map")
        assert isinstance(loader, torch.utils.data.DataLoader)
        if load:
            accelerator.load_state(load)
        done, epoch = begin, begin // len(loader)
        while True:
            loader.set_epoch(epoch)
            skipped = done % len(loader)
            batches = accelerator.skip_first_batches(loader, skipped) if skipped else loader
            for batch in batches:
                step(accelerator, model, optimizer, batch)
                done += 1
                if done == end:
                    if save:
                        accelerator.save_state(save)
                    return inner
            epoch += 1

    whole = run(0, STEPS)
    want = [loader_of("map").batch_at(n)["input_ids"].shape for n in range(STEPS)]
    assert [len(batch) for batch in whole.seen] == [shape[0] for shape in want]
    assert len({tuple(row) for batch in whole.seen[:8] for row in batch}) == 30
    assert whole.seen[:6] != whole.seen[8:]
    first = run(0, STOP, save=tmp_path)
    assert first.seen == whole.seen[:STOP]
    second = run(STOP, STEPS, load=tmp_path)
    assert second.seen == whole.seen[STOP:]
    assert second.weights() == whole.weights()
