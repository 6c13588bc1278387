"""Data and tensor parallel: four processes as a 2 x 2 mesh. Ranks that share a model share the data.

`shard(rank, world)` takes the coordinates of the data-parallel axis only. Tensor- and pipeline-parallel ranks of one
model replica have the same data coordinate, so they compute the same batch; no data is sent between them.
"""

from __future__ import annotations

import os
import tempfile
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import penstock as ps

DATA, TENSOR, BATCH, STEPS = 2, 2, 8, 3


def pipeline() -> ps.Pipeline:
    return ps.open_tokens(list(range(200)) * 40, vocab_size=200).windows(16).shuffle(seed=7)


def work(rank: int, meeting_place: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=DATA * TENSOR)
    mesh = init_device_mesh("cpu", (DATA, TENSOR), mesh_dim_names=("data", "tensor"))
    data_rank, tensor_rank = mesh.get_local_rank("data"), mesh.get_local_rank("tensor")

    loader = pipeline().shard(data_rank, world=mesh["data"].size()).batch(BATCH).to_torch()
    for step, batch in enumerate(islice(loader, STEPS)):
        ids = batch["input_ids"]
        across_tensor = [torch.empty_like(ids) for _ in range(TENSOR)]
        dist.all_gather(across_tensor, ids, group=mesh.get_group("tensor"))
        across_data = [torch.empty_like(ids) for _ in range(DATA)]
        dist.all_gather(across_data, ids, group=mesh.get_group("data"))
        # Tensor ranks of a replica have the same rows; the two replicas together have the global batch.
        assert all(torch.equal(part, ids) for part in across_tensor)
        assert torch.equal(torch.cat(across_data), pipeline().batch(BATCH).to_torch().batch_at(step)["input_ids"])
        if tensor_rank == 0:
            print(
                f"step {step}: replica {data_rank} has rows {tuple(ids.shape)}, first tokens {ids[:, 0].tolist()}\n",
                end="",
            )
        dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.path.exists("/sys/class/net/lo") else "lo0")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(str(Path(folder) / "meet"),), nprocs=DATA * TENSOR)
    print(f"{DATA} replicas x {TENSOR} tensor ranks: same data inside a replica, the global batch across replicas")


if __name__ == "__main__":
    main()
