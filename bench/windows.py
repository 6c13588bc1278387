"""Windows from a token store: 50 M uint16 tokens, B=32, L=1024, shuffled, contiguous int64 torch tensors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import penstock as ps
from bench.common import Again, judge, left_out, medians, rate, rounds, save, table, unmeasured
from penstock.core.columns import Ragged
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter
from penstock.torch_data.windows import WindowDataset, core_dataloader

TOKENS, BATCH, LENGTH = 50_000_000, 32, 1024
BEST = "times the best of torch and Grain"


def write_store(folder: Path) -> np.ndarray:
    """Documents of 1,000 tokens in one shard, and the same tokens as a raw file for the others."""
    tokens = np.random.default_rng(0).integers(0, 50_257, TOKENS).astype(np.uint16)
    with ShardWriter(folder / "00000.tokens", vocab_size=50_257) as shard:
        shard.add(Ragged(tokens, np.arange(0, TOKENS + 1, 1000)))
    write_manifest(folder, [shard.finish()])
    tokens.tofile(folder / "raw.bin")
    return np.memmap(folder / "raw.bin", np.uint16, "r")


class PerItem(torch.utils.data.Dataset):
    """A typical map-style dataset: one window per index."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = torch.from_numpy(self.tokens[i * LENGTH : i * LENGTH + LENGTH + 1].astype(np.int64))
        return part[:-1], part[1:]


class GrainSource:
    """The same for Grain."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        part = self.tokens[i * LENGTH : i * LENGTH + LENGTH + 1].astype(np.int64)
        return {"input_ids": part[:-1], "labels": part[1:]}


def bare(tokens: np.ndarray) -> Iterator[Any]:
    """The lower bound: one NumPy gather of the same batches, with the order already known."""
    view = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)
    starts = np.random.default_rng(1).permutation((len(tokens) - 1) // LENGTH - 1) * LENGTH
    for i in range(0, len(starts) - BATCH, BATCH):
        rows = view[starts[i : i + BATCH]]
        yield {
            "input_ids": torch.from_numpy(rows[:, :-1].astype(np.int64)),
            "labels": torch.from_numpy(rows[:, 1:].astype(np.int64)),
        }


def nano(tokens: np.ndarray) -> Iterator[Any]:
    """Random offsets, one slice per row."""
    while True:
        ix = torch.randint(len(tokens) - LENGTH, (BATCH,))
        yield (
            torch.stack([torch.from_numpy(tokens[i : i + LENGTH].astype(np.int64)) for i in ix]),
            torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in ix]),
        )


def torch_loader(path: Path, workers: int) -> Any:
    return torch.utils.data.DataLoader(PerItem(path), batch_size=BATCH, shuffle=True, num_workers=workers)


def grain_loader(path: Path, threads: int) -> Iterator[Any]:
    import grain

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(1, threads) * 2)
    dataset = grain.MapDataset.source(GrainSource(path)).shuffle(seed=1).batch(BATCH).to_iter_dataset(options)
    for batch in dataset:
        yield {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in batch.items()}


def grains(raw: Path, seconds: float) -> dict[str, Callable[[], float]]:
    """Grain with and without threads; none where it is not installed."""
    if find_spec("grain") is None:
        left_out("grain", "it is not installed: pip install 'penstock-data[bench]'")
        return {}
    return {
        "grain": lambda: rate(Again(lambda: grain_loader(raw, 0)), seconds),
        "grain, 2 read threads": lambda: rate(Again(lambda: grain_loader(raw, 2)), seconds),
    }


def run(seconds: float = 1.0, count: int = 15) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = write_store(folder)
        pipeline = ps.open_store(folder).windows(LENGTH).shuffle(seed=1).batch(BATCH)
        dataset = WindowDataset(ps.open_store(folder).windows(LENGTH))
        list(zip(range(3000), pipeline.to_torch(), strict=False))  # pages verified once, as on any long run
        raw = folder / "raw.bin"
        found = rounds(
            {
                "bare gather": lambda: rate(Again(lambda: bare(tokens)), seconds),
                "penstock": lambda: rate(pipeline.to_torch(), seconds),
                "penstock, 2 threads": lambda: rate(pipeline.to_torch(threads=2), seconds),
                "penstock, DataLoader": lambda: rate(
                    core_dataloader(dataset, batch_size=BATCH, shuffle=True, drop_last=True), seconds
                ),
                "torch DataLoader, 0 workers": lambda: rate(torch_loader(raw, 0), seconds),
                "torch DataLoader, 2 workers": lambda: rate(torch_loader(raw, 2), seconds),
                **grains(raw, seconds),
                "nanoGPT get_batch": lambda: rate(Again(lambda: nano(tokens)), seconds),
            },
            count,
        )
    million = {name: value * BATCH * LENGTH / 1e6 for name, value in medians(found).items()}
    peers = max(v for k, v in million.items() if k.startswith(("torch", "grain")))
    plain = max(v for k, v in million.items() if k.startswith("torch"))
    table(
        "Windows, B=32, L=1024, 50 M tokens, shuffled, int64 torch tensors",
        [(name, f"{value:,.0f}", f"{value / million['bare gather']:.2f}") for name, value in million.items()],
        ("loader", "Mtokens/s", "of bare"),
    )
    targets = [
        judge(BEST, million["penstock"] / peers, 10)
        if "grain" in million
        else unmeasured(BEST, 10, f"without grain, {million['penstock'] / peers:.3g} times torch"),
        judge("of one bare NumPy gather", million["penstock"] / million["bare gather"], 0.75),
        judge("DataLoader: times plain DataLoader", million["penstock, DataLoader"] / plain, 5),
    ]
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {"mtokens": million, "targets": targets}
    save("windows", facts)
    return facts


if __name__ == "__main__":
    run()
