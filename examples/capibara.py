"""Pretrain a small decoder in plain JAX from a TFDS dataset that is built here, without TensorFlow."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow_datasets as tfds

from penstock.facades.capibara.config import CapibaraConfig
from penstock.facades.capibara.loader import CapibaraDataLoader

LENGTH, WIDTH, VOCAB, STEPS = 64, 48, 257, 80


class ExampleLines(tfds.core.GeneratorBasedBuilder):
    """Lines of these examples."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, manager: Any) -> Any:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        for path in sorted(Path(__file__).parent.glob("*.py")):
            for number, line in enumerate(path.read_text().splitlines()):
                yield f"{path.name}:{number}", {"text": line}


def init(key: jax.Array) -> dict[str, jax.Array]:
    shapes = {"embed": (VOCAB, WIDTH), "place": (LENGTH, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "head": (WIDTH, VOCAB)}
    keys = jax.random.split(key, len(shapes))
    return {name: 0.1 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def loss_of(p: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """One block: causal attention, a feed-forward layer, and the next byte from each place."""
    x = p["embed"][batch["input_ids"]] + p["place"]
    q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool)) & (batch["attention_mask"][:, None, :] == 1)
    scores = jnp.where(seen, jnp.einsum("bqd,bkd->bqk", q, k) / WIDTH**0.5, -1e9)
    x = x + jax.nn.softmax(scores) @ v @ p["out"]
    x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
    known = batch["labels"] != -100
    picked = jnp.take_along_axis(jax.nn.log_softmax(x @ p["head"]), jnp.maximum(batch["labels"], 0)[..., None], -1)
    return -(picked[..., 0] * known).sum() / known.sum()


@jax.jit
def step(p: dict[str, jax.Array], batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
    loss, grads = jax.value_and_grad(loss_of)(p, batch)
    return jax.tree.map(lambda w, g: w - 0.5 * g, p, grads), loss


def main() -> None:
    tfds.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        config = CapibaraConfig.from_dict(
            {"seed": 7, "data": {"max_length": LENGTH, "data_dir": folder, "cache_dir": f"{folder}/cache"}}
        )
        loader = CapibaraDataLoader(config=config, tokenizer="bytes", dataset_name="example_lines", batch_size=16)
        params, losses = init(jax.random.key(0)), []
        while len(losses) < STEPS:
            for batch in islice(loader, STEPS - len(losses)):
                params, loss = step(params, batch)
                losses.append(float(loss))
        print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {loader.step} steps; {loader.stats()['verdict']}")
        assert losses[-1] < losses[0] - 1, "the model did not learn"


if __name__ == "__main__":
    main()
