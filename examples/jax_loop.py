"""A jitted training step fed by `to_jax`: shapes are static, so it is compiled once."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps

LENGTH, WIDTH, VOCAB = 64, 32, 256
STEPS = 60


def init(key: jax.Array) -> dict[str, jax.Array]:
    embed, head = jax.random.split(key)
    return {
        "embed": jax.random.normal(embed, (VOCAB, WIDTH)) * 0.1,
        "head": jax.random.normal(head, (WIDTH, VOCAB)) * 0.1,
    }


def loss_of(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """A bigram model: the next byte from this one."""
    logits = jnp.tanh(params["embed"][batch["input_ids"]]) @ params["head"]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][..., None], axis=-1)
    return -picked.mean()


TRACES: list[str] = []


@jax.jit
def step(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
    TRACES.append(str(batch["input_ids"].shape))  # runs when JAX compiles, not when the step runs
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda p, g: p - 10.0 * g, params, grads), loss


def main() -> None:
    text = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
    dataset = ps.open_tokens(list(text.encode()), vocab_size=VOCAB).windows(LENGTH, stride=16)

    # With one device, omit `sharding`. Here rows are sharded over all devices.
    mesh = Mesh(jax.devices(), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    loader = dataset.shuffle(seed=7).repeat().batch(8 * len(jax.devices())).to_jax(sharding=rows)

    params = jax.device_put(init(jax.random.key(0)), NamedSharding(mesh, PartitionSpec()))
    losses = []
    for batch in islice(loader, STEPS):
        params, loss = step(params, batch)
        losses.append(float(loss))
        if len(losses) % 20 == 1:
            print(f"step {loader.step:>3}  loss {losses[-1]:.3f}  {batch['input_ids'].aval}")
    print(f"step {loader.step:>3}  loss {losses[-1]:.3f}  compiled once for {TRACES}")
    print(loader.stats()["verdict"])
    assert losses[-1] < losses[0] - 1.0, "the model did not learn"
    assert len(TRACES) == 1, TRACES


if __name__ == "__main__":
    main()
