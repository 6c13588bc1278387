"""Three languages of very different size in one run: weights by temperature, a cap on repetition, counts, resume."""

from __future__ import annotations

import json
import tempfile
from itertools import islice

import jax
import jax.numpy as jnp
from flax import nnx

from penstock.facades.capibara.loader import CapibaraDataLoader

LENGTH, VOCAB, STEPS = 48, 257, 60
WORDS = {
    "en": "the river carries water past the mill and the wheel turns all night",
    "de": "der Fluss trägt Wasser an der Mühle vorbei und das Rad dreht sich",
    "ja": "川は 水車の そばを流れ、 夜通し 水車を 回す。",
}
SIZES = {"en": 900, "de": 300, "ja": 60}


def texts(language: str) -> list[str]:
    words = WORDS[language].split()
    return [" ".join(words[(i * 7 + j * (i % 3 + 1)) % len(words)] for j in range(6)) for i in range(SIZES[language])]


class Decoder(nnx.Module):
    """A byte, the mean of those before it, and a guess at the next one."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, 32, rngs=rngs)
        self.inner = nnx.Linear(64, 64, rngs=rngs)
        self.head = nnx.Linear(64, VOCAB, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.embed(ids)
        before = jnp.cumsum(x, axis=1) / jnp.arange(1, LENGTH + 1)[:, None]
        return self.head(nnx.gelu(self.inner(jnp.concatenate([x, before], axis=-1))))


def loss_of(model: Decoder, batch: dict[str, jax.Array]) -> jax.Array:
    known = batch["labels"] != -100
    guesses = jax.nn.log_softmax(model(batch["input_ids"]))
    picked = jnp.take_along_axis(guesses, jnp.maximum(batch["labels"], 0)[..., None], axis=-1)[..., 0]
    return -(picked * known).sum() / known.sum()


@nnx.jit
def step(model: Decoder, batch: dict[str, jax.Array]) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_of)(model, batch)
    nnx.update(model, jax.tree.map(lambda w, g: w - 1.0 * g, nnx.state(model, nnx.Param), grads))
    return loss


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:

        def make(batch_size: int) -> CapibaraDataLoader:
            return CapibaraDataLoader(
                tokenizer="bytes", dataset_name={name: texts(name) for name in WORDS}, batch_size=batch_size,
                max_length=LENGTH, sampling="temperature", temperature=2.0, max_repeats=6.0, normalize="NFC",
                cache_dir=cache,
            )  # fmt: skip

        loader, model = make(16), Decoder(nnx.Rngs(0))
        losses = [float(step(model, batch)) for batch in islice(loader, STEPS)]
        print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; passes an epoch {loader.stats()['passes_per_epoch']}")
        print(f"tokens by language {loader.stats()['tokens']}")
        assert losses[-1] < losses[0] - 1, "the model did not learn"

        state, smaller = json.dumps(loader.state_dict()), make(8)  # the same rows continue in batches of another size
        smaller.load_state_dict(json.loads(state))
        assert (next(iter(smaller))["input_ids"] == loader.batch_at(STEPS)["input_ids"][:8]).all()
        print(f"saved {len(state)} bytes at step {loader.step}, went on with batches of 8")


if __name__ == "__main__":
    main()
