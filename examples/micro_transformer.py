"""The micro-transformer: train a tokenizer, build both loaders, train, print the validation loss."""

from __future__ import annotations

import argparse
import inspect
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR

import penstock as ps

MODULES = (argparse, inspect)  # any text will do; their own source is at hand
EPOCHS = 2


class MicroTransformer(nn.Module):
    """One causal layer: enough to see a loss go down in seconds."""

    def __init__(self, vocab_size: int, width: int = 64, seq_length: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab_size, width), nn.Embedding(seq_length, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        return self.head(self.layer(x, src_mask=mask, is_causal=True))


def write_data(folder: Path) -> None:
    """JSON lines with a `text` field: functions of a few modules, the first ones for validation."""
    parts = [part for module in MODULES for part in inspect.getsource(module).split("\ndef ")]
    lines = [json.dumps({"text": part}) + "\n" for part in parts]
    (folder / "train.jsonl").write_text("".join(lines[8:]))
    (folder / "val.jsonl").write_text("".join(lines[:8]))


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    outputs = model(batch["input_ids"])
    return nn.functional.cross_entropy(outputs.view(-1, outputs.shape[-1]), batch["labels"].view(-1))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    write_data(folder)
    ps.MicroTransformerTokenizer().train([folder / "train.jsonl"], vocab_size=512).save(folder / "tokenizer")
    tokenizer = ps.MicroTransformerTokenizer.from_pretrained(folder / "tokenizer")
    print(sorted(tokenizer.encode("def main():")), tokenizer)
    train_loader, val_loader = ps.create_dataloaders(
        train_path=folder / "train.jsonl", val_path=folder / "val.jsonl", tokenizer=tokenizer,
        batch_size=16, seq_length=64, num_workers=2, stride=64,
    )  # fmt: skip
    model = MicroTransformer(vocab_size=tokenizer.get_vocab_size())
    optimizer = AdamW(model.parameters(), lr=3e-3)
    scheduler, losses = LinearLR(optimizer, start_factor=0.1, total_iters=20), []
    for epoch in range(EPOCHS):
        model.train()
        for batch in train_loader:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        with torch.no_grad():
            losses.append(sum(loss_of(model, batch).item() for batch in val_loader) / len(val_loader))
        print(f"Epoch {epoch + 1}, Validation Loss: {losses[-1]:.3f}")
    assert losses[-1] < losses[0], "the model did not learn"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
