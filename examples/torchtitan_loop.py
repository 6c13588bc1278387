"""A loop as torchtitan writes it: everything stateful in one dict, saved by torch.distributed.checkpoint (DCP).

The loader has `state_dict` and `load_state_dict`, so DCP saves it as it is; a run that is stopped and resumed has the
same losses.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import penstock as ps

LENGTH, VOCAB, STEPS, STOP = 64, 256, 30, 12
TEXT = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))


class TrainState(Stateful):
    """The step, as torchtitan's trainer keeps it."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]


def start() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 32), torch.nn.Tanh(), torch.nn.Linear(32, VOCAB))
    windows = ps.open_tokens(list(TEXT.encode()), vocab_size=VOCAB).windows(LENGTH, stride=16)
    loader = windows.shuffle(seed=7).batch(16).to_torch()
    return {"model": model, "dataloader": loader, "train_state": TrainState()}


def train(parts: dict[str, Any], until: int, folder: Path | None = None) -> list[float]:
    model, loader, state = parts["model"], parts["dataloader"], parts["train_state"]
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    losses: list[float] = []
    while state.step < until:
        for batch in loader:
            logits = model(batch["input_ids"])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.step += 1
            losses.append(loss.item())
            if folder is not None and state.step == STOP:
                dcp.save(parts, checkpoint_id=folder, no_dist=True)
            if state.step == until:
                break
    return losses


def main() -> None:
    folder = Path(tempfile.mkdtemp()) / f"step-{STOP}"
    losses = train(start(), STEPS, folder)
    parts = start()
    dcp.load(parts, checkpoint_id=folder, no_dist=True)
    assert parts["train_state"].step == parts["dataloader"].step == STOP
    again = train(parts, STEPS)
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; resumed at step {STOP}: {again == losses[STOP:]}")
    assert losses[-1] < losses[0]
    assert again == losses[STOP:]


if __name__ == "__main__":
    main()
