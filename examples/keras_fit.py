"""Keras 3 `fit` on a pipeline: stop after an epoch, resume from a small state, the same batches and the same loss."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

import penstock as ps

os.environ.setdefault("KERAS_BACKEND", "jax")  # or torch, tensorflow
import keras

ROWS, BATCH, STEPS = 256, 16, 16


def loader() -> Any:
    """Endless batches as tuples (x, y): Keras counts its epochs by `steps_per_epoch`."""
    x = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)
    rows = ps.from_arrays({"x": x, "y": (x.sum(1) > 0).astype(np.float32)})
    return rows.shuffle(seed=7).repeat().batch(BATCH).to_numpy().as_tuples("x", "y")


def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")])
    made.compile(optimizer=keras.optimizers.SGD(0.5), loss="binary_crossentropy")
    return made


class SaveLoader(keras.callbacks.Callback):
    """Keeps the position of the loader at the end of each epoch, as a file beside the weights would."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of, self.states = of, list[str]()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.states.append(json.dumps(self.of.state_dict()))


def fit(trained: keras.Model, batches: Any, epochs: int) -> tuple[list[float], list[str]]:
    def generator() -> Iterator[Any]:  # so that Keras trains on the first batch too
        yield from batches

    keep = SaveLoader(batches)
    history = trained.fit(
        generator(), steps_per_epoch=STEPS, epochs=epochs, shuffle=False, verbose=0, callbacks=[keep]
    )  # shuffle=False: the loader shuffles
    return history.history["loss"], keep.states


def main() -> None:
    whole, _ = fit(model(), loader(), 3)

    first = model()
    before, states = fit(first, loader(), 1)
    again = loader()
    again.load_state_dict(json.loads(states[-1]))
    second = model()
    second.set_weights(first.get_weights())  # a weights file in a real run
    after, _ = fit(second, again, 2)

    print(f"loss without a stop: {np.round(whole, 4).tolist()}")
    print(f"loss with a stop:    {np.round(before + after, 4).tolist()}; state of {len(states[-1])} bytes")
    assert np.allclose(whole, before + after, atol=1e-6)
    print("the same batches, in the same order")


if __name__ == "__main__":
    main()
