"""Ray Train: two workers take their shares of the global batches, and a run with one worker resumes theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

STEPS, STOP = 9, 4


def windows() -> ps.Pipeline:
    return ps.open_tokens(np.arange(1_400) % 250).windows(16).shuffle(seed=3).repeat().batch(8)


def loop(config: dict[str, Any]) -> None:
    """What runs in each worker of Ray."""
    import tempfile

    from ray import train

    context = train.get_context()
    loader = windows().shard(context.get_world_rank(), context.get_world_size()).to_torch(threads=1)
    if config["checkpoint"]:
        with train.Checkpoint.from_directory(config["checkpoint"]).as_directory() as folder:
            loader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))
    seen = []
    for batch in loader:
        seen.append((loader.step - 1, batch["input_ids"].tolist()))
        if loader.step == config["until"]:
            break
    name = f"{config['name']}-{context.get_world_rank()}.json"
    Path(config["out"], name).write_text(json.dumps(seen))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))
        rank = context.get_world_rank()
        train.report({"steps": loader.step}, checkpoint=train.Checkpoint.from_directory(folder) if rank == 0 else None)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data, which Ray Train imports
def test_workers_share_global_batches_and_another_number_resumes(tmp_path: Path) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def fit(name: str, workers: int, until: int, checkpoint: str = "") -> str:
        trainer = TorchTrainer(
            loop, train_loop_config={"name": name, "until": until, "out": str(tmp_path), "checkpoint": checkpoint},
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(name=name, storage_path=str(tmp_path / "ray")),
        )  # fmt: skip
        saved = trainer.fit().checkpoint
        assert saved is not None
        return saved.path

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        saved = fit("two", 2, STOP)
        fit("one", 1, STEPS, saved)
    finally:
        ray.shutdown()
    ranks = [dict(json.loads((tmp_path / f"two-{rank}.json").read_text())) for rank in range(2)]
    rest = dict(json.loads((tmp_path / "one-0.json").read_text()))
    want = windows().to_torch(threads=0)
    for step in range(STEPS):
        expected = want.batch_at(step)["input_ids"].tolist()
        got = ranks[0][step] + ranks[1][step] if step < STOP else rest[step]
        assert sorted(got) == sorted(expected), step
    assert sorted(rest) == list(range(STOP, STEPS)) and all(len(rank[0]) == 4 for rank in ranks)
