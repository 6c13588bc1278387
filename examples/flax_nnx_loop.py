"""Flax NNX trained from `to_jax`, with a checkpoint of Orbax: stopped after 20 steps, resumed, the same losses."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx

import penstock as ps

LENGTH, WIDTH, VOCAB, STEPS, STOP = 64, 32, 256, 40, 20
TEXT = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))


class Bigram(nnx.Module):
    """The next byte from this one."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.head(jnp.tanh(self.embed(ids)))


@nnx.jit
def step(model: Bigram, optimizer: nnx.Optimizer, batch: dict[str, jax.Array]) -> jax.Array:
    def loss_of(model: Bigram) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["input_ids"]), batch["labels"]).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def start() -> tuple[Bigram, nnx.Optimizer, ps.Loader]:
    model = Bigram(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    windows = ps.open_tokens(list(TEXT.encode()), vocab_size=VOCAB).windows(LENGTH, stride=16)
    return model, optimizer, windows.shuffle(seed=7).repeat().batch(16).to_jax()


def main() -> None:
    model, optimizer, loader = start()
    losses = []
    with ocp.CheckpointManager(Path(tempfile.mkdtemp()) / "run") as manager:
        for batch in islice(loader, STEPS):
            losses.append(float(step(model, optimizer, batch)))
            if loader.step == STOP:  # the loader's state is plain JSON beside the arrays
                arrays = nnx.to_pure_dict(nnx.state((model, optimizer)))
                saved = {"arrays": ocp.args.StandardSave(arrays), "loader": ocp.args.JsonSave(loader.state_dict())}
                manager.save(STOP, args=ocp.args.Composite(**saved))
        manager.wait_until_finished()

        model, optimizer, loader = start()
        state = nnx.state((model, optimizer))
        wanted = {"arrays": ocp.args.StandardRestore(nnx.to_pure_dict(state)), "loader": ocp.args.JsonRestore()}
        found = manager.restore(STOP, args=ocp.args.Composite(**wanted))
    nnx.replace_by_pure_dict(state, found.arrays)
    nnx.update((model, optimizer), state)
    loader.load_state_dict(found.loader)
    again = [float(step(model, optimizer, batch)) for batch in islice(loader, STEPS - STOP)]
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; resumed at step {STOP}: {again == losses[STOP:]}")
    assert losses[-1] < losses[0] - 1.0
    assert again == losses[STOP:]


if __name__ == "__main__":
    main()
