"""Ray Train: two workers share the global batches; one worker resumes their run, with the same rows in each step."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import penstock as ps

STOP, STEPS = 4, 8


def windows() -> ps.Pipeline:
    return ps.open_tokens(np.arange(2_000) % 250).windows(16).shuffle(seed=7).repeat().batch(8)


def loop(config: dict[str, Any]) -> None:
    """What runs in each worker: its rows of every global batch, and the position beside the checkpoint."""
    context = train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    loader = windows().shard(rank, world).to_torch()
    if config["resume"]:
        with train.Checkpoint.from_directory(config["resume"]).as_directory() as folder:
            loader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))
    seen = {}
    for batch in loader:
        seen[loader.step - 1] = batch["input_ids"].sum(1).tolist()  # your training step
        if loader.step == config["until"]:
            break
    Path(config["out"], f"{config['until']}-{rank}.json").write_text(json.dumps(seen))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))  # the same on every rank
        train.report({"step": loader.step}, checkpoint=train.Checkpoint.from_directory(folder) if rank == 0 else None)


def fit(out: Path, workers: int, until: int, resume: str = "") -> str:
    trainer = TorchTrainer(
        loop,
        train_loop_config={"until": until, "out": str(out), "resume": resume},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(name=f"until-{until}", storage_path=str(out / "ray")),
    )
    checkpoint = trainer.fit().checkpoint
    assert checkpoint is not None
    return str(checkpoint.path)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            fit(out, 1, STEPS, resume=fit(out, 2, STOP))
        finally:
            ray.shutdown()
        ranks = [json.loads((out / f"{STOP}-{rank}.json").read_text()) for rank in range(2)]
        rest = json.loads((out / f"{STEPS}-0.json").read_text())
    expected = windows().to_torch()
    for step in range(STEPS):
        got = ranks[0][str(step)] + ranks[1][str(step)] if step < STOP else rest[str(step)]
        assert got == expected.batch_at(step)["input_ids"].sum(1).tolist()
    print(f"steps 0 to {STOP - 1} on two workers, {STOP} to {STEPS - 1} on one: the same global batches")


if __name__ == "__main__":
    main()
