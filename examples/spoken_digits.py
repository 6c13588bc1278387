"""Spoken digits from WAV files: log-mel features, masks and shifts, a small convolutional net.

    python examples/spoken_digits.py             # sounds made up here
    python examples/spoken_digits.py recordings  # files named 7_speaker_12.wav

One recording in five is kept for testing; it is never trained on.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from penstock.audio import wav
from penstock.augment import Augment, FrequencyMask, Shift, TimeMask
from penstock.pipeline import Pipeline
from penstock.read_media import read_audio

RATE, BANDS, STEPS = 8000, 40, 400


def make_up(folder: Path) -> None:
    """Ten "words", each two gliding tones, said by six "speakers" of different pitch, five times, with noise."""
    rng = np.random.default_rng(0)
    for digit in range(10):
        for voice in range(6):
            for take in range(5):
                t = np.arange(int(RATE * rng.uniform(0.3, 0.6))) / RATE
                pitch = (1 + 0.08 * voice) * rng.uniform(0.98, 1.02)
                low = np.sin(2 * np.pi * pitch * (300 + 60 * digit + 200 * t) * t)
                high = np.sin(2 * np.pi * pitch * (1200 + 70 * (digit * 7 % 10) - 300 * t) * t)
                sound = 0.2 * low + 0.2 * high + rng.normal(0, 0.05, len(t))
                (folder / f"{digit}_voice{voice}_{take}.wav").write_bytes(wav.encode(sound, RATE))


def features(files: Pipeline) -> Pipeline:
    return files.decode_audio(RATE, duration=0.8, offset="start", features="log_mel", n_mels=BANDS, hop=128, out="mel")


def net() -> nn.Module:
    layers: list[nn.Module] = [nn.BatchNorm2d(1)]
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Dropout(0.3), nn.Linear(384, 10))


def main(folder: Path) -> float:
    torch.manual_seed(0)
    everything = read_audio(folder, labels="name")
    names = [row["path"] for row in everything.peek(10**6)]
    last = {name.rpartition("_")[0]: name for name in names}  # the last take of every digit and speaker
    train = read_audio(folder, labels="name", exclude=last.values())
    test = read_audio(folder, labels="name", exclude=set(names) - set(last.values()))
    print(f"{len(names)} recordings, {len(last)} of them kept for testing")

    augment = Augment(Shift(0.1), TimeMask(0.15), FrequencyMask(0.15), seed=1)
    loader = features(train).shuffle(seed=1).repeat().map_batches(augment).batch(32).to_torch()
    model = net()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total_steps=STEPS)
    for step, batch in enumerate(islice(loader, STEPS)):
        loss = nn.functional.cross_entropy(model(batch["mel"][:, None]), batch["label"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step:>3}  loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        right = [model(b["mel"][:, None]).argmax(1) == b["label"] for b in features(test).batch(10).to_torch(threads=0)]
    accuracy = torch.cat(right).float().mean().item()
    print(f"accuracy on {len(torch.cat(right))} recordings never trained on: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if not sys.argv[1:]:
            make_up(Path(made))
        assert main(Path(sys.argv[1] if sys.argv[1:] else made)) > 0.9, "less than 90 of 100"
