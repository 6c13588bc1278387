"""On two real processes: every record exactly once, whoever deals the records out."""

from __future__ import annotations

import pytest
import torch

from penstock import UsageError, create_collate_fn, create_dataset
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.torch_data.windows import core_dataloader
from tests.torch_data.trainers.ranks import on_ranks
from tests.torch_data.trainers.tiny import TinyLM, engine

ROWS = 24
RECORDS = [{"q": f"q{i:02d}", "a": "y"} for i in range(ROWS)]


def same(record):
    return dict(record)


def stream(**options):
    return StreamingPreprocessedDataset([{"x": i} for i in range(ROWS)], same, **options)


def torch_loader(**options):
    return torch.utils.data.DataLoader(stream(), batch_size=3, **options)


def built(dataset, **options):
    return DataLoaderBuilder().with_dataset(dataset).with_batch_size(3).with_workers(**({"num": 0} | options)).build()


def shared(rank, dataset):
    return DataLoaderBuilder().with_dataset(dataset).with_batch_size(3).with_distributed(rank, 2).build()


def rows():
    return [{"x": i} for i in range(ROWS)]


ONCE = {
    "torch, prepared": lambda rank: torch_loader(),
    "torch, prepared, forked workers": lambda rank: torch_loader(num_workers=2),
    "torch, prepared, spawned workers": lambda rank: torch_loader(num_workers=1, multiprocessing_context="spawn"),
    "built stream, prepared": lambda rank: built(stream()),
    "built stream, prepared, workers": lambda rank: built(stream(), num=2),
    "built map, prepared": lambda rank: built(rows()),
    "built map, prepared, processes": lambda rank: built(rows(), num=2, processes=True),
}
ALONE = {
    "torch": lambda rank: torch_loader(),
    "torch, forked workers": lambda rank: torch_loader(num_workers=2),
    "torch, spawned workers": lambda rank: torch_loader(num_workers=1, multiprocessing_context="spawn"),
    "built stream": lambda rank: built(stream()),
    "built stream, workers": lambda rank: built(stream(), num=2),
    "shared map": lambda rank: shared(rank, rows()),
    "shared stream": lambda rank: shared(rank, stream()),
}
REFUSED = {
    "windows": lambda rank: core_dataloader(
        create_dataset("gpt_v1", txt="river " * 9, tokenizer="bytes", max_length=4, stride=4),
        batch_size=2,
        shuffle=False,
        drop_last=True,
        rank=rank,
        world=2,
    ),
    "shared map": lambda rank: shared(rank, rows()),
    "shared stream": lambda rank: shared(rank, stream()),
    "a stream that was told its rank": lambda rank: torch.utils.data.DataLoader(
        stream(rank=rank, world_size=2), batch_size=3
    ),
}


def _shown(loader):
    try:
        return [len(loader), [batch["x"].tolist() for batch in loader]]
    except UsageError as error:
        return str(error)


def _accelerate(rank):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    found = {}
    for dispatch in (False, True):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
        for name, make in {**ONCE, **REFUSED}.items():
            if dispatch and "spawned" in name:
                continue  # an interpreter for each worker; forked ones are dispatched too
            found[name, dispatch] = _shown(accelerator.prepare(make(rank)))
    # Inside a loop over a prepared loader, one that is not prepared still shares by itself.
    prepared = iter(accelerator.prepare(torch_loader()))
    next(prepared)
    for name, make in ALONE.items():
        found[name] = _shown(make(rank))
    skipped = accelerator.skip_first_batches(accelerator.prepare(built(stream())), 2)
    found["skipped into"] = [None, [batch["x"].tolist() for batch in skipped]]
    return found


@pytest.fixture(scope="module")
def accelerate_runs():
    ranks = on_ranks(_accelerate)
    assert [type(rank) for rank in ranks] == [dict, dict], "\n".join(map(str, ranks))
    return ranks


def once(ranks, rows=ROWS):
    assert all(isinstance(rank, list) for rank in ranks), ranks
    assert sorted(x for _, batches in ranks for batch in batches for x in batch) == list(range(ROWS - rows, ROWS))
    assert len({tuple(map(len, batches)) for _, batches in ranks}) == 1


@pytest.mark.parametrize(
    ("name", "dispatch"), [(name, on) for name in ONCE for on in (False, True) if not on or "spawned" not in name]
)
def test_accelerate_deals_out_every_record_once(name, dispatch, accelerate_runs):
    ranks = [run[name, dispatch] for run in accelerate_runs]
    once(ranks)
    assert [length for length, _ in ranks] == [4, 4]


@pytest.mark.parametrize("name", ALONE)
def test_without_prepare_ranks_share_by_themselves(name, accelerate_runs):
    once([run[name] for run in accelerate_runs])


def test_skipping_into_a_prepared_stream(accelerate_runs):
    once([run["skipped into"] for run in accelerate_runs], rows=12)


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_dealing_twice_is_refused(name, dispatch, accelerate_runs):
    for run in accelerate_runs:
        text = run[name, dispatch]
        assert isinstance(text, str), text
        assert "Accelerate assigns the batches to 2 processes" in text
        assert any(
            f"leave out {what}" in text for what in ("with_distributed", "rank and world_size", "rank= and world=")
        )


TRAINED = [("stream", None), ("stream", False), ("map", None)]


def _trainers(rank, folder):
    return [_trained(kind, dispatch, folder) for kind, dispatch in TRAINED]


def _trained(kind, dispatch, folder):
    from transformers import Trainer, TrainingArguments

    dataset = (StreamingPreprocessedDataset if kind == "stream" else PreprocessedDataset)(RECORDS, engine())
    model = TinyLM()
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=1,
        per_device_train_batch_size=3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        dataloader_pin_memory=False,
        ddp_backend="gloo",
        accelerator_config={"dispatch_batches": dispatch},
    )
    Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=create_collate_fn(0)).train()
    return [[bytes(row[:3]).decode() for row in batch] for batch in model.seen]


def test_the_hf_trainer_sees_every_record_once(tmp_path):
    both = on_ranks(_trainers, str(tmp_path))
    assert all(isinstance(rank, list) for rank in both), "\n".join(map(str, both))
    for case, *ranks in zip(TRAINED, *both, strict=True):
        assert sorted(row for rank in ranks for batch in rank for row in batch) == [r["q"] for r in RECORDS], case
        assert [len(rank) for rank in ranks] == [4, 4], case


def _lightning(rank, folder):
    from tests.torch_data.trainers.test_lightning import Rows, quiet

    def make(kind, split):
        def loader(trainer):
            builder = DataLoaderBuilder().with_dataset(stream() if kind == "stream" else rows()).with_batch_size(3)
            return (builder.with_distributed(trainer.global_rank, trainer.world_size) if split else builder).build()

        return loader

    found = {}
    for kind, split, own in [
        ("map", True, False),
        ("map", True, True),
        ("map", False, True),
        ("stream", True, True),
        ("stream", False, True),
    ]:
        options = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": own}
        module = Rows(make(kind, split))
        try:
            quiet(folder, max_epochs=1, **options).fit(module)
            found[kind, split, own] = [None, module.seen]
        except UsageError as error:
            found[kind, split, own] = str(error)
    found["predict"] = [
        None,
        quiet(folder, devices=2, strategy="ddp", use_distributed_sampler=False).predict(Rows(make("map", True))),
    ]
    return found


def test_lightning_on_two_devices(tmp_path):
    ranks = on_ranks(_lightning, str(tmp_path))
    assert [type(rank) for rank in ranks] == [dict, dict], "\n".join(map(str, ranks))
    for case in [("map", True, False), ("stream", True, True), ("stream", False, True), "predict"]:
        once([rank[case] for rank in ranks])
    for case in [("map", True, True), ("map", False, True)]:
        for rank in ranks:
            assert "Trainer(use_distributed_sampler=False), and .with_distributed(rank, world_size)" in rank[case]
