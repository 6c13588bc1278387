"""Pipelines in other people's trainers: HF's Trainer, TRL, Keras and plain DataLoaders, resumed where they can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import penstock as ps

TOKENS = np.arange(1_400) % 250
STEPS = 2 * 10  # two epochs of 10 batches


def windows() -> ps.Pipeline:
    return ps.open_tokens(TOKENS).windows(16).shuffle(seed=3).batch(8)


class TinyLM(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Embedding(260, 8), torch.nn.Linear(8, 260))
        self.seen: list[Any] = []

    def forward(self, input_ids: Any, labels: Any) -> dict[str, Any]:
        self.seen.append(input_ids.tolist())
        return {"loss": torch.nn.functional.cross_entropy(self.net(input_ids).flatten(0, 1), labels.flatten())}


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


class PipelineTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(windows().to_torch())


def train(folder: Path, stop: int = 0, resume: bool = False, **more: Any) -> list[Any]:
    model = TinyLM()
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, per_device_train_batch_size=8, save_strategy="no",
        logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    kind = Trainer if more else PipelineTrainer
    trainer = kind(model=model, args=arguments, callbacks=[StopAt(stop)] if stop and not resume else [], **more)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{stop}") if resume else None)
    return model.seen


def test_hf_trainer_resumes_in_each_epoch_without_computing_batches_again(tmp_path: Path) -> None:
    loader = windows().to_torch()
    expected = [batch["input_ids"].tolist() for _ in range(2) for batch in loader]
    assert train(tmp_path / "all") == expected and len(expected) == STEPS
    for stop in (3, 14):
        folder = tmp_path / str(stop)
        assert train(folder, stop) == expected[:stop]
        assert train(folder, stop, resume=True) == expected[stop:]


def test_skip_first_batches_counts_from_the_start_of_the_epoch() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(windows().to_torch())
    plain = [batch["input_ids"].tolist() for batch in windows().to_numpy()]
    for _, _batch in zip(range(4), loader, strict=False):  # as after load_state: the loader is in the epoch
        pass
    skipping = accelerator.skip_first_batches(loader, 4)
    assert [batch["input_ids"].tolist() for batch in skipping] == plain[4:]
    loader.seek_epoch(0)
    assert list(accelerator.skip_first_batches(loader, 10)) == []


def test_a_checkpoint_after_the_last_batch_of_an_epoch_resumes_in_the_next(tmp_path: Path) -> None:
    """As Accelerate's examples resume: the epoch and the batches to skip are computed from the number of steps."""
    from accelerate import Accelerator

    def train_loop(stop: int, resume: int = 0) -> list[Any]:
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(windows().to_torch())
        if resume:
            accelerator.load_state(str(tmp_path / str(resume)))
        seen = []
        for epoch in range(resume // len(loader), 2):
            begins = resume and epoch == resume // len(loader)
            batches = accelerator.skip_first_batches(loader, resume % len(loader)) if begins else loader
            for batch in batches:
                seen.append(batch["input_ids"].tolist())
                if resume + len(seen) == stop:
                    accelerator.save_state(str(tmp_path / str(stop)))
                    return seen
        return seen

    expected = train_loop(0)
    assert len(expected) == STEPS
    for stop in (3, 9, 10, 11, 19):
        assert train_loop(stop) + train_loop(0, resume=stop) == expected, stop


@pytest.mark.parametrize("stop", [5, 11, 17])
def test_hf_trainer_with_an_iterable_dataset(tmp_path: Path, stop: int) -> None:
    """Its length says in which epoch a checkpoint is; without one the Trainer skipped over the first epoch only."""
    rows = ps.open_tokens(TOKENS).windows(16).shuffle(seed=3)
    expected = train(tmp_path / "all", train_dataset=rows.to_dataset("iterable"))
    epochs = [sorted(row[0] for batch in expected[part] for row in batch) for part in (slice(0, 11), slice(11, None))]
    assert len(expected) == 22 and epochs[0] == epochs[1] and expected[:11] != expected[11:]
    first = train(tmp_path / "run", stop, train_dataset=rows.to_dataset("iterable"))
    rest = train(tmp_path / "run", stop, resume=True, train_dataset=rows.to_dataset("iterable"))
    assert first + rest == expected


def test_hf_trainer_with_a_dataset_of_rows(tmp_path: Path) -> None:
    rows = ps.open_tokens(TOKENS).windows(16)
    expected = train(tmp_path / "all", train_dataset=rows.to_dataset())
    assert sorted(row[0] for batch in expected[:11] for row in batch) == sorted(
        int(row["input_ids"][0]) for row in rows.peek(1000)
    )
    first = train(tmp_path / "run", 13, train_dataset=rows.to_dataset())
    assert first + train(tmp_path / "run", 13, resume=True, train_dataset=rows.to_dataset()) == expected


def test_keras_fit_and_evaluate() -> None:
    import keras

    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    rows = ps.from_arrays({"x": x, "y": (x.sum(1) > 0).astype(np.int32)}).shuffle(seed=1)
    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="binary_crossentropy", metrics=["accuracy"])
    loader = rows.repeat().batch(8).to_torch().as_tuples("x", "y")
    history = model.fit(loader, steps_per_epoch=8, epochs=4, verbose=0, shuffle=False).history["loss"]
    assert len(history) == 4 and history[-1] < history[0]
    assert model.evaluate(rows.batch(8).to_torch().as_tuples("x", "y"), steps=8, verbose=0)[1] > 0.8


@pytest.mark.parametrize("output", ["to_numpy", "to_torch", "to_jax"])
def test_keras_trains_on_each_batch_of_a_generator_and_resumes(output: str) -> None:
    import keras

    x = np.arange(64, dtype=np.float32)
    rows = ps.from_arrays({"x": x[:, None] / 64, "y": x / 64}).shuffle(seed=1).repeat().batch(8)

    def fit(loader: Any, epochs: int, states: list[Any]) -> list[Any]:
        seen = []

        def noted() -> Any:
            for pair in loader:
                seen.append(np.asarray(pair[1]).tolist())
                yield pair

        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs=None: states.append(loader.state_dict())
        )
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        model.fit(noted(), steps_per_epoch=8, epochs=epochs, verbose=0, shuffle=False, callbacks=[keep])
        return seen

    states: list[Any] = []
    seen = fit(getattr(rows, output)().as_tuples("x", "y"), 3, states)
    assert [state["step"] for state in states] == [2, *range(2, 25)]
    epochs = [sum(seen[at : at + 8], []) for at in (0, 8, 16)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2]) == (x / 64).tolist() and epochs[0] != epochs[1]
    again = getattr(rows, output)().as_tuples("x", "y")
    again.load_state_dict(states[7])
    assert fit(again, 2, []) == seen[8:]


def test_trl_sft_trainer(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(50))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=53, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    texts = ps.from_texts([" ".join(f"w{i * j % 50}" for j in range(5 + i % 7)) for i in range(16)])
    arguments = SFTConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True, bf16=False,
        disable_tqdm=True, save_strategy="no", logging_strategy="no", max_length=32,
    )  # fmt: skip
    for data in (texts.to_hf(cache_dir=tmp_path / "hf"), texts.to_hf(streaming=True)):
        trainer: Any = SFTTrainer(
            model=LlamaForCausalLM(config), args=arguments, train_dataset=data, processing_class=wrapped
        )
        assert trainer.train().training_loss > 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_dataloader_over_rows(workers: int) -> None:
    numbers = ps.from_arrays({"x": range(20), "name": [f"r{i}" for i in range(20)]})
    rows = numbers.map(lambda record, rng: {**record, "noise": float(rng.random())}).shuffle(seed=2)
    expected = rows.batch(5).to_torch()
    for style in ("map", "iterable"):
        dataset: Any = rows.to_dataset(style)
        for epoch in (0, 1) if workers == 0 else (1,):
            dataset.set_epoch(epoch)
            made = list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers))
            found = {int(row["x"]): (row["name"], float(row["noise"])) for row in made}
            assert len(found) == 20
            want = [expected.batch_at(4 * epoch + step) for step in range(4)]
            assert found == {
                int(x): (name, float(noise))
                for batch in want
                for x, name, noise in zip(batch["x"], batch["name"], batch["noise"], strict=True)
            }
            if style == "map":
                assert list(found) == [int(x) for batch in want for x in batch["x"]]


def test_what_datasets_refuse() -> None:
    numbers = ps.from_arrays({"x": range(4)})
    with pytest.raises(ps.UsageError, match="leave .shard"):
        numbers.shard(0, 2).to_dataset()
    with pytest.raises(ps.UsageError, match="leave .batch"):
        numbers.batch(2).to_dataset()
    with pytest.raises(ps.UsageError, match="with an end"):
        numbers.repeat().to_dataset("map")
    assert isinstance(numbers.repeat().to_dataset(), torch.utils.data.IterableDataset)
    with pytest.raises(ps.UsageError, match="with an end"):
        numbers.repeat().to_hf()
    with pytest.raises(ps.UsageError, match="names of columns of the batch"):
        numbers.batch(2).to_numpy().as_tuples("x", "label").batch_at(0)
    with pytest.raises(IndexError):
        numbers.to_dataset()[4]


def test_hf_datasets_hold_what_prepare_would_store(tmp_path: Path) -> None:
    texts = ps.from_texts([str(i) for i in range(300)]).filter(lambda record: not record["text"].endswith("7"))
    made: Any = texts.to_hf(cache_dir=tmp_path)
    assert made["text"][:] == [str(i) for i in range(300) if i % 10 != 7]
    assert made.cache_files == texts.to_hf(cache_dir=tmp_path).cache_files  # type: ignore[union-attr]
    stream: Any = texts.to_hf(streaming=True)
    assert [example["text"] for example in stream] == made["text"][:]
    assert stream.num_shards == 64


def test_tuples_with_threads_children_and_state() -> None:
    expected = [batch["labels"].tolist() for batch in windows().to_numpy()]
    for options in ({"threads": 0}, {"threads": 2}, {"workers": 1}):
        for output in ("to_numpy", "to_torch", "to_jax"):
            loader = getattr(windows(), output)(**options).as_tuples("labels", "input_ids")
            assert [labels.tolist() for labels, _ in loader] == expected
    loader = windows().to_torch().as_tuples("labels")
    next(iter(loader))
    again = windows().to_torch().as_tuples("labels")
    again.load_state_dict(loader.state_dict())
    assert [labels.tolist() for (labels,) in again] == expected[1:]
