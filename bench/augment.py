"""Augmenting 128 images of 32x32x3 in JAX: a loop over samples, against the compiled batch functions.

The loop calls plain `jax.numpy` operations per sample, with `if` on random values: flip, quarter
turn, brightness, contrast, noise. `augment_batch_jit` does the same five in one program; `Augment.jax` does them with
parameters from record keys, `Augment.torch` and `Augment` (NumPy) are shown beside it. Prints medians and ratios.

    python -m bench augment
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bench.common import judge, save, table
from penstock.augment import Augment, Brightness, Contrast, Flip, Noise, Rot90
from penstock.facades.artifex.augment import augment_batch_jit

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


def run(loops: int = 5, turns: int = 200) -> dict[str, Any]:
    torch.set_num_threads(1)
    host = np.random.default_rng(0).random((ROWS, *SHAPE), np.float32)
    images = jax.device_put(host)
    augment = Augment(Flip(), Rot90(), Brightness(), Contrast(), Noise())
    keys = [jax.random.key(i) for i in range(turns + 1)]
    rows = [augment.keys(np.arange(ROWS), epoch) for epoch in range(turns + 1)]
    ways: dict[str, tuple[Callable[[int], Any], int]] = {
        "loop over samples": (lambda i: loop(images, keys[i]).block_until_ready(), loops),
        "augment_batch_jit": (lambda i: augment_batch_jit(images, keys[i]).block_until_ready(), turns),
        "Augment.jax": (lambda i: augment.jax({"image": images}, rows[i])["image"].block_until_ready(), turns),
        "Augment.torch": (lambda i: augment.torch({"image": host}, rows[i]), turns),
        "Augment (NumPy)": (lambda i: augment({"image": host}, rows[i]), turns),
    }
    found = {name: median(call, count) for name, (call, count) in ways.items()}
    slow = found["loop over samples"]
    table(
        f"{ROWS} images of {'x'.join(map(str, SHAPE))} float32, {jax.default_backend()}",
        [(name, f"{seconds * 1e3:.2f}", f"{slow / seconds:.1f}") for name, seconds in found.items()],
        ("way", "ms a batch", "times the loop"),
    )
    targets = [judge("jitted batch: times the loop over samples", slow / found["augment_batch_jit"], WANTED)]
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {"seconds": found, "targets": targets}
    save("augment", facts)
    return facts


if __name__ == "__main__":
    run()
