"""A user's program, for type checkers only: they must refuse each line that ends in `# error` and accept all others."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import numpy as np
import torch
from numpy.typing import NDArray

import penstock as ps
from penstock import randomness
from penstock.testing import assert_exact_resume


def windows_for_numpy() -> None:
    loader = ps.open_store("corpus").windows(1024).shuffle(seed=7).batch(32).to_numpy(threads=2)
    assert_type(loader, ps.Loader[dict[str, NDArray[Any]]])
    for batch in loader:
        assert_type(batch["input_ids"], NDArray[Any])
        print(batch["input_ids"].shape, loader.step, loader.stats())
    loader.load_state_dict(loader.state_dict())
    print(loader.ledger.total + 1, [entry.reason.upper() for entry in loader.ledger.entries])
    assert_type(loader.batch_at(3), dict[str, NDArray[Any]])


def packed_for_torch() -> None:
    texts = ps.read_jsonl(["a.jsonl", "b.jsonl.zst"], field="body", on_error="skip", budget=0.01)
    documents = texts.tokenize("tokenizer.json", field="body", eos=False)
    loader = documents.pack(4096, strategy="concat", overlong="drop").shard().batch(8).to_torch(device="cuda")
    for batch in loader:
        assert_type(batch, dict[str, torch.Tensor])
        batch["labels"].to("cpu")


def images_for_jax(sharding: jax.sharding.NamedSharding) -> None:
    images = ps.read_images("photos", labels="name", exclude=["a.jpg"]).shuffle(3)
    loader = images.decode_images(224, crop="center", mean=(0.5, 0.5, 0.5), layout="NCHW").batch(per_rank=16)
    for batch in loader.to_jax(sharding=sharding, micro_batches=2, prefetch=2):
        assert_type(batch["image"], jax.Array)


def own_steps() -> None:
    def jitter(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"x": record["x"] + rng.normal()}

    def flip(columns: dict[str, Any], keys: NDArray[np.uint64]) -> dict[str, Any]:
        return {"x": columns["x"] * (1 - 2 * randomness.integers(keys, 0, 2))}

    rows = ps.from_arrays({"x": np.arange(10)}).map(jitter).map_batches(flip).filter(lambda record: record["x"] > 0)
    rows = rows.map(lambda record: {**record, "y": 1}).map_batches(lambda columns: {"x": columns["x"] * 2})
    rows = rows.map(lambda record, rng: {"x": record["x"] + rng.normal()}).map_batches(lambda columns, keys: columns)
    rows = rows.map_batches(ps.Augment()).map_batches(ps.carry_keys).filter(lambda c: c["x"], batched=True)
    mixed = ps.mix([rows, rows.take(3).repeat()], weights=[0.9, 0.1], stop="all")
    assert_type(mixed, ps.Pipeline)
    assert_exact_resume(lambda: mixed.batch(2))
    made = ps.prepare(ps.from_texts(["a"]), "bytes", "store", on_error="skip")
    print(made.tokens + 1, ps.Limits(line_bytes=1000).pixels, ps.__version__.split("."))
    try:
        rows.batch(3)
    except (ps.UsageError, ps.ArgumentError) as error:
        print(error.fix.upper())


def documents(tokens: NDArray[np.uint16]) -> None:
    config = ps.CapibaraConfig()
    dataset = ps.GPTDatasetV1("a text", "bytes", 8, 4)
    print(config.seed, len(dataset), ps.as_tokenizer("bytes").vocab_size)
    print(ps.open_tokens(tokens, documents=[0, 5, 9]).bucket([4, 8], sizes=[8, 4, 2]).to_numpy().epoch)


def wrong() -> None:
    rows = ps.from_arrays({"x": range(3)})
    ps.nonsense()  # error
    ps.open_stor("corpus")  # error
    ps.open_store(3)  # error
    ps.open_store("corpus", verify="never")  # error
    ps.read_text("a.txt", by="word")  # error
    ps.read_jsonl("a.jsonl", text_column="body")  # error
    ps.from_texts("one text", 3)  # error
    ps.prepare(rows)  # error
    rows.windows()  # error
    rows.shufle(seed=7)  # error
    rows.shuffle("seven")  # error
    rows.shuffle(buffer_size=1000)  # error
    rows.shuffle(7, 64, 4)  # error
    rows.batch(8, drop_last=True)  # error
    rows.batch(8, remainder="keep")  # error
    rows.pack(128, strategy="best")  # error
    rows.pad(to="max")  # error
    rows.decode_images(224, crop="middle")  # error
    rows.decode_images(224, resize=256)  # error
    rows.decode_audio(features="spectrogram")  # error
    rows.batch_tokens(4096, overlong="split")  # error
    rows.tokenize("bytes", num_proc=4)  # error
    rows.map("lower")  # error
    rows.map(str.lower)  # error
    rows.filter(lambda: True)  # error
    rows.take(n=3)  # error
    ps.mix(rows)  # error
    ps.mix([rows], stop="never ever")  # error
    rows.definition = None  # error
    for _ in rows:  # error
        print("never")
    loader = rows.batch(2).to_torch(num_workers=4)  # error
    loader = rows.batch(2).to_torch(workers=4, on_worker_death="ignore")  # error
    for batch in rows.batch(2).to_torch():
        batch["x"].nonsense()  # error
        batch.input_ids  # error
    loader.state_dict()["n"] + loader.step
    print(loader.nonsense)  # error
    print(loader.ledger.nonsense)  # error
    name: str = rows.batch(2).to_numpy().batch_at(0)["x"]  # error
    print(name, rows.peek(1)[0]["x"])
