"""Inside Lightning: its checkpoint holds the loader's state; batches after a resume are those of a whole run."""

from __future__ import annotations

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from penstock import create_dataloader, create_dataset
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from tests.torch_data.trainers.tiny import RECORDS, TinyLM, engine

STEPS, STOP = 14, 10  # 8 steps an epoch: it stops in the second

# What Lightning says of a machine, a model and a loader this small; none of it is about the data.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined:UserWarning"),  # and it is right
    pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = TinyLM()

    def training_step(self, batch, _):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def _begin():
    return iter(RECORDS)


def loader_of(kind, workers):
    builder = DataLoaderBuilder().with_batch_size(4).with_workers(workers)
    if kind == "unsized":
        return builder.with_dataset(StreamingPreprocessedDataset(_begin, engine(), buffer_size=8)).build()
    if kind == "map":
        return builder.with_dataset(PreprocessedDataset(RECORDS, engine())).with_shuffle().with_seed(5).build()
    return builder.with_dataset(StreamingPreprocessedDataset(RECORDS, engine(), buffer_size=8)).build()


def run(kind, workers, folder, steps, resume=None):
    module = Module()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        limit_train_batches=1000 if kind == "unsized" else 1.0,
        logger=False,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, loader_of(kind, workers), ckpt_path=resume, weights_only=False)
    return module.model


@pytest.mark.parametrize(("kind", "workers"), [
    ("map", 2), ("stream", 2), ("unsized", 0),
    *(pytest.param(kind, 0, marks=pytest.mark.soak) for kind in ("map", "stream")),
])  # fmt: skip
@pytest.mark.parametrize("stop", [STOP, pytest.param(8, marks=pytest.mark.soak)])
def test_stop_and_resume(kind, workers, stop, tmp_path):
    whole = run(kind, workers, tmp_path / "whole", STEPS)
    assert len(whole.seen) == STEPS
    rows = [tuple(row) for batch in whole.seen[:8] for row in batch]
    assert len(rows) == len(set(rows)) == 30
    assert whole.seen[:6] != whole.seen[8:]
    first = run(kind, workers, tmp_path / "first", stop)
    assert first.seen == whole.seen[:stop]
    second = run(kind, workers, tmp_path / "second", STEPS, resume=tmp_path / "first" / f"step={stop}.ckpt")
    assert second.seen == whole.seen[stop:]
    assert second.weights() == whole.weights()


class Rows(lightning.LightningModule):
    """Gives back what it is shown; its loaders can come from its own hooks."""

    def __init__(self, make=None):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.make, self.seen = make, []

    def predict_step(self, batch, _):
        return batch["x"].tolist()

    def training_step(self, batch, _):
        self.seen.append(batch["x"].tolist())
        return self.net(batch["x"].float()[:, None]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return self.make(self.trainer)

    def predict_dataloader(self):
        return self.make(self.trainer)


def same(record):
    return dict(record)


def rows_loader(kind, drop_last=False, **workers):
    rows = [{"x": i} for i in range(22)]
    builder = DataLoaderBuilder().with_batch_size(4).with_drop_last(drop_last).with_workers(**({"num": 0} | workers))
    if kind == "stream":
        return builder.with_dataset(StreamingPreprocessedDataset(rows, same)).build()
    return builder.with_dataset(rows).with_shuffle(kind == "shuffled").build()


def quiet(folder, **options):
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        **options,
    )


@pytest.mark.parametrize("hook", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("kind", "workers"), [
    ("map", {"num": 0}), ("shuffled", {"num": 0}), ("stream", {"num": 2, "processes": True}),
    pytest.param("stream", {"num": 0}, marks=pytest.mark.soak),
    *(pytest.param(kind, {"num": 2, "processes": True}, marks=pytest.mark.soak) for kind in ("map", "shuffled")),
])  # fmt: skip
def test_predict(kind, workers, hook, tmp_path):
    want = [batch["x"].tolist() for batch in rows_loader(kind)]
    if hook:
        shown = quiet(tmp_path).predict(Rows(lambda _: rows_loader(kind, **workers)))
    else:
        loader = rows_loader(kind, **workers)
        next(iter(loader))  # wherever it is, all rows are asked for
        shown = quiet(tmp_path).predict(Rows(), loader)
    assert shown == want


def test_predict_keeps_the_last_rows(tmp_path):
    shown = quiet(tmp_path).predict(Rows(), rows_loader("map", drop_last=True))
    assert [x for batch in shown for x in batch] == list(range(22))


@pytest.mark.filterwarnings("ignore:You are using a custom batch sampler:UserWarning")
def test_predict_over_windows(tmp_path):
    dataset = create_dataset("gpt_v1", txt="the river runs " * 9, tokenizer="bytes", max_length=8, stride=8)
    loader = create_dataloader(dataset, batch_size=3, shuffle=False, drop_last=False)

    class Pairs(Rows):
        def predict_step(self, batch, _):
            return batch[0].tolist()

    next(iter(loader))
    shown = quiet(tmp_path).predict(Pairs(), loader)
    assert [row for batch in shown for row in batch] == [dataset[i][0].tolist() for i in range(len(dataset))]


@pytest.mark.filterwarnings("ignore:You requested to overfit:UserWarning")
def test_overfitting_sees_the_same_rows_again(tmp_path):
    module = Rows(lambda _: rows_loader("shuffled"))
    quiet(tmp_path, overfit_batches=2, max_epochs=2).fit(module)
    assert module.seen == 2 * [[0, 1, 2, 3], [4, 5, 6, 7]]
