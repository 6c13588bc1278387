"""Delivery to JAX: batches per second of a jitted step, against NumPy, Hugging Face and TFDS; and a warm start.

Every contender delivers the same rows: 32 documents per batch, truncated and padded to 2,048 tokens, as int32
`input_ids`, `attention_mask` and `labels`, in shuffled order. TFDS runs in a process of its own, in the
environment that has TensorFlow (`bench.peers`).
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import judge, medians, rate, rounds, save, table, unmeasured
from bench.peers import tried

ROWS, BATCH, LENGTH = 4096, 32, 2048
SECONDS, ROUNDS = 1.5, 5
NAMES = ("input_ids", "attention_mask", "labels")


def documents() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 50_000, int(n)).astype(np.uint16) for n in random.integers(200, 3000, ROWS)]


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def stacked(data: Any) -> Iterator[Any]:
    """Rows by index, as with a map-style dataset, stacked on the device."""
    import jax.numpy as jnp

    random = np.random.default_rng(0)
    while True:
        rows = [data[int(i)] for i in random.integers(0, ROWS, BATCH)]
        yield {name: jnp.stack([row[name] for row in rows]) for name in NAMES}


def stepped(batches: Any) -> Iterator[Any]:
    """Passes each batch to a jitted step that only waits for it."""
    import jax

    step = jax.jit(lambda batch: {name: array[0, 0] for name, array in batch.items()})
    last = None
    for batch in batches:
        last = step(batch)
        yield last
    jax.block_until_ready(last)


def hugging_face(rows: list[np.ndarray]) -> Any:
    import datasets

    from penstock.core import columns
    from penstock.steps.pad import Pad
    from penstock.steps.picks import Picks

    ids = columns.Ragged.of(rows)
    padded = Pad(LENGTH, truncate=True).padded({"input_ids": ids}, Picks(np.empty(0, np.int64), 0))
    plain = {name: np.asarray(padded[name], np.int32) for name in NAMES}
    kind = datasets.Features({name: datasets.List(datasets.Value("int32"), length=LENGTH) for name in NAMES})
    return plain, datasets.Dataset.from_dict(plain, features=kind)


def write_tfds(plain: dict[str, np.ndarray], folder: Path) -> Any:
    import tensorflow_datasets as tfds

    class DeliveryRows(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        """Padded rows."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            one = tfds.features.Tensor(shape=(LENGTH,), dtype=np.int32)
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(dict.fromkeys(NAMES, one)))

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for i in range(ROWS):
                yield i, {name: array[i] for name, array in plain.items()}

    builder = DeliveryRows(data_dir=folder)
    builder.download_and_prepare()
    return builder


def tfds_rate(folder: str, seconds: float) -> float:
    """Batches a second of TFDS, in its process."""
    return rate(as_numpy(tfds_files(folder)), seconds)


@functools.cache
def tfds_files(folder: str) -> Any:
    with np.load(Path(folder, "rows.npz")) as rows:
        return write_tfds({name: rows[name] for name in NAMES}, Path(folder))


def as_numpy(builder: Any) -> Any:
    import tensorflow_datasets as tfds

    data = builder.as_dataset(split="train", shuffle_files=True)
    return tfds.as_numpy(data.shuffle(ROWS // 4).repeat().batch(BATCH).prefetch(3))


WARM = """
import json, sys, time
import datasets, jax, penstock.facades.capibara.loader, penstock.sources.hf, penstock.preparation.cache
from transformers import AutoTokenizer
jax.device_put(0).block_until_ready()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
began = time.perf_counter()
loader = penstock.facades.capibara.loader.CapibaraDataLoader(
    tokenizer=tokenizer, dataset_name=sys.argv[1], batch_size=32, max_length=2048, cache_dir=sys.argv[3]
)
jax.block_until_ready(next(iter(loader)))
print(json.dumps(time.perf_counter() - began))
"""


def warm_start(folder: Path) -> tuple[float, float]:
    """Seconds from construction to the first batch: the first start, and the median of later ones."""
    import datasets
    import transformers

    import tokenizers

    words = [f"word{i}" for i in range(5000)]
    random = np.random.default_rng(1)
    texts = [" ".join(np.take(words, random.integers(0, 5000, 300))) for _ in range(10_000)]
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(folder / "texts")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=8000, special_tokens=["<|endoftext|>"], show_progress=False)
    bpe.train_from_iterator(texts[:500], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>")
    fast.save_pretrained(folder / "tokenizer")
    command = [sys.executable, "-c", WARM, *(str(folder / name) for name in ("texts", "tokenizer", "cache"))]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ) for _ in range(6)]
    first, *later = (float(json.loads(run.stdout)) for run in runs)
    return first, statistics.median(later)


def run() -> dict[str, Any]:
    import penstock as ps
    from penstock.engine.loader import Loader
    from penstock.facades.capibara.loader import CapibaraDataLoader
    from penstock.outputs.numpy import NumpyOutput

    rows = documents()
    plain, data = hugging_face(rows)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    tokens = ps.open_tokens(np.concatenate(rows), offsets, vocab_size=50_000)

    def ours(workers: int, **more: Any) -> Any:
        shape = {"batch_size": BATCH, "max_length": LENGTH}
        return CapibaraDataLoader(dataset_name=tokens, num_workers=workers, **shape, **more)

    def in_numpy(workers: int) -> Any:
        return Loader(ours(workers)._loader.definition, NumpyOutput("int32"), threads=workers)

    shuffled = data.shuffle(seed=1).with_format("jax")
    contenders = {
        "penstock, NumPy": lambda: rate(endless(in_numpy(0)), SECONDS),
        "penstock, jitted step": lambda: rate(stepped(endless(ours(0))), SECONDS),
        "penstock, jitted step, num_workers=4": lambda: rate(stepped(endless(ours(4))), SECONDS),
        "penstock, full windows, jitted step": lambda: rate(stepped(endless(ours(0, layout="windows"))), SECONDS),
        "datasets with_format('jax'), by row": lambda: rate(stepped(stacked(shuffled)), SECONDS, warm=1),
        "datasets with_format('jax'), .iter(32)": lambda: rate(stepped(shuffled.iter(BATCH)), SECONDS, warm=1),
    }
    with tempfile.TemporaryDirectory() as name:
        np.savez(Path(name, "rows.npz"), **plain)
        with ExitStack() as stack:
            if tfds := tried(stack, "TFDS", "tensorflow", "bench.jax_delivery:tfds_rate", name, 0.2):
                contenders["TFDS as_numpy"] = lambda: tfds(name, SECONDS)
            found = medians(rounds(contenders, ROUNDS))
        first, later = warm_start(Path(name))
    best = found["penstock, jitted step"]
    table(
        f"batches of {BATCH} x {LENGTH}, three columns",
        [(n, f"{v:.1f}", f"{v * BATCH * LENGTH / 1e6:.1f}") for n, v in found.items()],
        ("contender", "batches/s", "Mtokens/s"),
    )
    targets = [
        judge("JAX step / NumPy", best / found["penstock, NumPy"], 0.5),
        judge("JAX step / datasets by row", best / found["datasets with_format('jax'), by row"], 10),
        judge("JAX step / datasets .iter", best / found["datasets with_format('jax'), .iter(32)"], 10),
        judge("warm start to first batch, ms", 1e3 * later, 200, most=True),
    ]
    what, theirs = "JAX step / TFDS as_numpy", found.get("TFDS as_numpy")
    targets.insert(3, judge(what, best / theirs, 3) if theirs else unmeasured(what, 3, "it does not run"))
    table("targets", targets, ("what", "measured", "target", ""))
    facts = {"batches_per_second": found, "first_start_seconds": first, "warm_start_seconds": later, "targets": targets}
    save("jax_delivery", facts)
    return facts


if __name__ == "__main__":
    run()
