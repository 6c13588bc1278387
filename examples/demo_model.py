"""The demo's trainer: a small transformer and a training loop with checkpoints that can be killed at any moment.

`python examples/demo_model.py FOLDER SECONDS STEPS` trains in FOLDER until SECONDS of training and STEPS steps are done
in total, resuming from the last checkpoint if there is one. It prints one JSON line per step. `demo.py` starts it,
kills it, starts it again and checks its batches.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import penstock as ps

LENGTH, BATCH, WIDTH, HEADS, LAYERS = 128, 16, 128, 4, 3
HELD_OUT = 64  # windows that training never sees
SAVE_EVERY = 20


def windows(folder: Path) -> ps.Pipeline:
    """Every window of the prepared corpus, in order."""
    return ps.open_store(folder / "store").windows(LENGTH)


def train_loader(folder: Path) -> ps.Loader:
    """The batches of the run; every process that builds this loader gets the same ones."""
    return windows(folder).skip(HELD_OUT).shuffle(seed=7).batch(BATCH).to_torch()


def digest(batch: dict[str, Tensor]) -> str:
    """A hash of all columns of a batch."""
    parts = b"".join(batch[name].numpy().tobytes() for name in sorted(batch))
    return hashlib.blake2b(parts, digest_size=12).hexdigest()


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.think(self.between(x))


class SmallTransformer(nn.Module):
    """A decoder that predicts the next token."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocab_size, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab_size, bias=False)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.token.weight

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        ids, labels = batch["input_ids"], batch["labels"]
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class Training:
    """Model, optimizer and loader, saved and restored together."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        torch.manual_seed(0)
        self.model = SmallTransformer(vocab_size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=0.01)
        self.loader = train_loader(folder)
        self.path, self.spent = folder / "checkpoint.pt", 0.0
        if self.path.exists():
            saved = torch.load(self.path, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.loader.load_state_dict(json.loads(saved["loader"]))
            self.spent = saved["spent"]

    def save(self) -> None:
        """Writes the checkpoint atomically; the loader's part of it is a line of JSON."""
        partial = self.path.with_suffix(".partial")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "loader": json.dumps(self.loader.state_dict()),
                "spent": self.spent,
            },
            partial,
        )
        os.replace(partial, self.path)

    def run(self, seconds: float, steps: int) -> None:
        say(kind="start", step=self.loader.step, spent=self.spent, state=len(json.dumps(self.loader.state_dict())))
        batches = iter(self.loader)
        while self.spent < seconds or self.loader.step < steps:
            began, step = time.perf_counter(), self.loader.step
            batch = next(batches, None)
            if batch is None:  # the end of an epoch; the next one is reshuffled
                batches = iter(self.loader)
                continue
            self.optimizer.zero_grad()
            loss = self.model.loss(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.spent += time.perf_counter() - began
            say(kind="step", step=step, loss=loss.item(), batch=digest(batch), spent=self.spent)
            if self.loader.step % SAVE_EVERY == 0:
                self.save()
        say(kind="end", stats=self.loader.stats())


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def held_out_loss(model: SmallTransformer, folder: Path) -> float:
    """Mean loss on the validation windows."""
    loader = windows(folder).take(HELD_OUT).batch(BATCH).to_torch()
    with torch.no_grad():
        losses = [model.loss(batch).item() for batch in loader]
    return sum(losses) / len(losses)


if __name__ == "__main__":
    place, seconds, steps = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # threads that wait for a busy core are slower than none
    training = Training(place, json.loads((place / "facts.json").read_text())["vocab_size"])
    say(kind="held out", loss=held_out_loss(training.model, place))
    training.run(seconds, steps)
    say(kind="held out", loss=held_out_loss(training.model, place))
