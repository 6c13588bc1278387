"""Sliding windows over one text: `create_dataset` and `create_dataloader`, which yield `(inputs, targets)`."""

from __future__ import annotations

import penstock as ps

TEXT = "The quick brown fox jumps over the lazy dog and runs fast across the field"


class Words:
    """Your own tokenizer: any object with `encode` and a vocabulary size. Here word ids start at 1."""

    vocab_size = 100

    def encode(self, text: str) -> list[int]:
        return [number for number, _ in enumerate(text.split(), start=1)]


def show_windows() -> None:
    """Prints every window, to show the overlap."""
    dataset = ps.create_dataset(dataset_type="gpt_v1", txt=TEXT, tokenizer=Words(), max_length=4, stride=2)
    print(f"tokens 1 to {len(TEXT.split())}, max_length=4, stride=2: {len(dataset)} samples")
    for number, (inputs, targets) in enumerate(dataset, start=1):
        print(f"  sample {number}: input={inputs.tolist()} target={targets.tolist()}")
    assert dataset[0][0].tolist() == [1, 2, 3, 4]
    assert dataset[1][1].tolist() == [4, 5, 6, 7]

    loader = ps.create_dataloader(dataset, batch_size=2, shuffle=False)
    for number, (inputs, _) in enumerate(loader, start=1):
        print(f"  batch {number}: {inputs.tolist()}")


def common_configurations() -> None:
    """Prints the number of batches for several strides and batch sizes."""
    text = "".join(f"Line {i}: the loader cuts windows out of one long sequence of tokens.\n" for i in range(400))
    print(f"\na text of {len(text):,} bytes, one token per byte")
    for name, stride, batch_size in (
        ("much overlap, small batches", 64, 2),
        ("some overlap (the default)", 128, 4),
        ("no overlap, large batches", 256, 8),
    ):
        dataset = ps.create_dataset("gpt_v1", txt=text, tokenizer="bytes", max_length=256, stride=stride)
        loader = ps.create_dataloader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)
        inputs, targets = next(iter(loader))
        assert inputs.shape == targets.shape == (batch_size, 256)
        assert (inputs[:, 1:] == targets[:, :-1]).all(), "targets are the inputs one token on"
        print(
            f"  {name:<28} stride={stride:<4} {len(dataset):>4} samples {len(loader):>4} batches {tuple(inputs.shape)}"
        )


if __name__ == "__main__":
    show_windows()
    common_configurations()
