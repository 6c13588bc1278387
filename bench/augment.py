"""Augmenting 128 images of 32x32x3 in JAX: a loop over samples, against the compiled batch functions.

The loop calls plain `jax.numpy` operations per sample, with `if` on drawn values, as one writes it first: flip, quarter
turn, brightness, contrast, noise. `augment_batch_jit` does the same five in one program; `Augment.jax` does them with
parameters from record keys, `Augment.torch` and `Augment` (NumPy) are shown beside it. Prints medians and ratios.

    python bench/augment.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from penstock.augment import Augment, Brightness, Contrast, Flip, Noise, Rot90
from penstock.augment.guide import augment_batch_jit

ROWS, SHAPE, WANTED = 128, (32, 32, 3), 20.0


def one_sample(image: Any, key: Any) -> Any:
    flips, turns, light, contrast, noise = jax.random.split(key, 5)
    if jax.random.bernoulli(flips, 0.5):
        image = jnp.flip(image, axis=1)
    image = jnp.rot90(image, k=int(jax.random.randint(turns, (), 0, 4)))
    image = jnp.clip(image * jax.random.uniform(light, minval=0.8, maxval=1.2), 0, 1)
    mean = image.mean()
    image = jnp.clip((image - mean) * jax.random.uniform(contrast, minval=0.8, maxval=1.2) + mean, 0, 1)
    level, field = jax.random.split(noise)
    grain = jax.random.uniform(level, maxval=0.05) * jax.random.normal(field, image.shape)
    return jnp.clip(image + grain, 0, 1)


def loop(images: Any, key: Any) -> Any:
    keys = jax.random.split(key, len(images))
    return jnp.stack([one_sample(images[i], keys[i]) for i in range(len(images))])


def median(call: Callable[[int], Any], turns: int) -> float:
    call(0)
    taken = []
    for turn in range(1, turns + 1):
        start = time.perf_counter()
        call(turn)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=5, help="turns of the loop over samples")
    parser.add_argument("--turns", type=int, default=200, help="turns of each other way")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    host = np.random.default_rng(0).random((ROWS, *SHAPE), np.float32)
    images = jax.device_put(host)
    augment = Augment(Flip(), Rot90(), Brightness(), Contrast(), Noise())
    keys = [jax.random.key(i) for i in range(asked.turns + 1)]
    rows = [augment.keys(np.arange(ROWS), epoch) for epoch in range(asked.turns + 1)]
    ways: dict[str, tuple[Callable[[int], Any], int]] = {
        "loop over samples": (lambda i: loop(images, keys[i]).block_until_ready(), asked.loops),
        "augment_batch_jit": (lambda i: augment_batch_jit(images, keys[i]).block_until_ready(), asked.turns),
        "Augment.jax": (lambda i: augment.jax({"image": images}, rows[i])["image"].block_until_ready(), asked.turns),
        "Augment.torch": (lambda i: augment.torch({"image": host}, rows[i]), asked.turns),
        "Augment (NumPy)": (lambda i: augment({"image": host}, rows[i]), asked.turns),
    }
    print(f"{ROWS} images of {'x'.join(map(str, SHAPE))} float32, {jax.default_backend()}")
    found = {name: median(call, turns) for name, (call, turns) in ways.items()}
    for name, seconds in found.items():
        ratio = found["loop over samples"] / seconds
        print(f"  {name:18s} {seconds * 1e3:9.2f} ms {ratio:8.1f}x the loop")
    reached = found["loop over samples"] / found["augment_batch_jit"]
    print(f"jitted batch: {reached:.1f}x, at least {WANTED:.0f}x wanted: {'yes' if reached >= WANTED else 'NO'}")


if __name__ == "__main__":
    main()
