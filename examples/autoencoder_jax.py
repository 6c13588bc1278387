"""An autoencoder in plain JAX on synthetic circles: penstock feeds it, one compiled step trains it.

The dataset computes each image from its index, so nothing is stored. Augmentation runs on the device, compiled, keyed
by the record, so it is the same after a restart and on any number of devices.
"""

from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock as ps
from penstock.augment import Augment, Flip, Rot90

SIDE, CODE, STEPS = 16, 16, 300
Params = dict[str, jax.Array]


def init(key: jax.Array) -> Params:
    sizes = {"in": (SIDE * SIDE, 128), "code": (128, CODE), "back": (CODE, 128), "out": (128, SIDE * SIDE)}
    keys = jax.random.split(key, len(sizes))
    return {name: jax.random.normal(k, s) * (2 / s[0]) ** 0.5 for k, (name, s) in zip(keys, sizes.items(), strict=True)}


def rebuilt(params: Params, images: jax.Array) -> jax.Array:
    flat = images.reshape(len(images), -1)
    code = jax.nn.gelu(flat @ params["in"]) @ params["code"]
    return jax.nn.sigmoid(jax.nn.gelu(code @ params["back"]) @ params["out"]).reshape(images.shape)


def error(params: Params, images: jax.Array) -> jax.Array:
    return jnp.mean((rebuilt(params, images) - images) ** 2)


@jax.jit
def step(params: Params, speed: Params, images: jax.Array) -> tuple[Params, Params, jax.Array]:
    """One step of gradient descent with momentum."""
    loss, slope = jax.value_and_grad(error)(params, images)
    speed = jax.tree.map(lambda v, g: 0.9 * v - 2.0 * g, speed, slope)
    return jax.tree.map(jnp.add, params, speed), speed, loss


def main() -> None:
    config = ps.ImageModalityConfig(height=SIDE, width=SIDE, representation=ps.ImageRepresentation.GRAYSCALE)
    circles = ps.SyntheticImageDataset(config, dataset_size=4096, pattern_type="circles", rngs=0)
    train = ps.Pipeline(circles).skip(512).shuffle(seed=1).repeat()
    loader = train.map_batches(ps.carry_keys).batch(64).to_jax()
    unseen = jnp.asarray(ps.Pipeline(circles).take(512).rows().read(np.arange(512))["images"])

    augment = Augment(Flip(), Rot90(), seed=2)
    params = init(jax.random.key(0))
    speed = jax.tree.map(jnp.zeros_like, params)
    flat = float(jnp.mean((unseen - unseen.mean(axis=0)) ** 2))
    for number, batch in enumerate(islice(loader, STEPS)):
        images: Any = augment.jax(batch)["images"]
        params, speed, loss = step(params, speed, images)
        if number % 60 == 0:
            print(f"step {number:>3}  loss {float(loss):.4f}")
    found = float(error(params, unseen))
    print(f"unseen images: error {found:.4f}, {flat / found:.1f} times less than their mean has ({flat:.4f})")
    print(loader.stats()["verdict"])
    assert found < flat / 2, "the model did not learn"


if __name__ == "__main__":
    main()
