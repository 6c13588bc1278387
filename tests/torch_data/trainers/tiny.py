"""A model of a few numbers that remembers what it was shown, and a few records."""

from __future__ import annotations

from typing import Any

import torch

from penstock import PromptEngine

RECORDS = [{"q": f"question {i}", "a": "yes " * (1 + i % 5)} for i in range(30)]


def engine() -> PromptEngine:
    return PromptEngine("bytes", "{q}? {a}", eos=0)


class TinyLM(torch.nn.Module):
    """Predicts the next byte from the last one; `seen` holds the token ids of every batch, padding left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(260, 8)
        self.out = torch.nn.Linear(8, 260)
        self.seen: list[list[list[int]]] = []

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        self.seen.append([row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)])
        logits = self.out(self.table(input_ids))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}

    def weights(self) -> list[float]:
        return [float(p.detach().double().sum()) for p in self.parameters()]
