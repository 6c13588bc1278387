"""`to_torch()` returns a torch DataLoader: copies, pickles, workers, and trainers that build it again."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch

import penstock as ps


def make() -> Any:
    return ps.from_arrays({"x": range(10)}).shuffle(seed=1).batch(4, remainder="short").to_torch(threads=0)


def rows(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def test_it_is_a_dataloader_and_copies_are_independent() -> None:
    loader = make()
    assert isinstance(loader, torch.utils.data.DataLoader) and len(loader) == 3
    epochs = [rows(loader), rows(loader)]
    loader.set_epoch(0)
    next(iter(loader))
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.dataset.loader is other
        assert rows(other) == epochs[0][1:], "the position is copied"
        assert rows(other.dataset) == epochs[1]
    assert rows(loader) == epochs[0][1:]


def test_set_epoch_keeps_a_position_in_that_epoch() -> None:
    loader = make()
    epochs = [rows(loader) for _ in range(3)]
    loader.set_epoch(1)
    next(iter(loader))
    loader.set_epoch(1)
    assert rows(loader) == epochs[1][1:]
    loader.set_epoch(0)
    assert rows(loader) == epochs[0]
    endless = ps.from_arrays({"x": range(10)}).repeat().batch(4).to_torch()
    endless.set_epoch(3)  # it has no epochs
    assert endless.step == 0


def test_torch_workers_around_its_dataset_are_refused() -> None:
    with pytest.raises(ps.UsageError, match="2 torch workers, each of which would make all of them"):
        next(iter(torch.utils.data.DataLoader(make().dataset, batch_size=None, num_workers=2)))
    assert rows(torch.utils.data.DataLoader(make().dataset, batch_size=None, num_workers=1)) == rows(make())


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.append(batch["x"].tolist())
        return self.layer(batch["x"][:, None].float()).sum()

    def validation_step(self, batch: Any, index: int) -> None:
        self.seen.append(batch["x"].tolist())

    def predict_step(self, batch: Any, index: int) -> Any:
        return batch["x"].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)

    def predict_dataloader(self) -> Any:
        return make()


@pytest.mark.filterwarnings("ignore")
def test_lightning_fits_validates_and_predicts(tmp_path: Path) -> None:
    def trainer() -> Any:
        return lightning.Trainer(
            max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip

    loader = make()
    epochs = [rows(loader), rows(loader)]
    module = Module()
    trainer().fit(module, make())
    assert module.seen == epochs[0] + epochs[1]
    module = Module()
    trainer().validate(module, make(), verbose=False)
    assert module.seen == epochs[0]
    assert trainer().predict(Module()) == trainer().predict(Module(), make()) == epochs[0]
