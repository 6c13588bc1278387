"""Spoken digits from WAV files: log-mel features, masks and shifts, a small convolutional net.

python examples/spoken_digits.py [FOLDER of files named 7_speaker_12.wav; without one, sounds are generated]

The last recording of every digit and speaker is the test set.
"""

import sys
import tempfile
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from penstock import Pipeline
from penstock.augment import Augment, FrequencyMask, Shift, TimeMask
from penstock.codecs.audio import wav
from penstock.read import read_audio

RATE, STEPS = 8000, 250


def make_up(folder: Path) -> None:
    """Generates ten "words" of two gliding tones each, by six "speakers" of different pitch, five times, with noise."""
    rng = np.random.default_rng(0)
    for digit, voice, take in product(range(10), range(6), range(5)):
        t = np.arange(int(RATE * rng.uniform(0.3, 0.6))) / RATE
        low, high = 300 + 90 * digit + 200 * t, 1500 + 160 * (digit * 7 % 10) - 300 * t
        turns = (1 + 0.02 * voice) * rng.uniform(0.99, 1.01) * 2 * np.pi * t
        sound = 0.2 * np.sin(turns * low) + 0.2 * np.sin(turns * high) + rng.normal(0, 0.05, len(t))
        (folder / f"{digit}_voice{voice}_{take}.wav").write_bytes(wav.encode(sound, RATE))


def standard(columns: dict[str, Any]) -> dict[str, Any]:
    """Normalizes each recording to mean 0 and deviation 1: loudness does not matter, a masked span is the mean."""
    centred = columns["mel"] - columns["mel"].mean(axis=(1, 2), keepdims=True)
    return {**columns, "mel": centred / (centred.std(axis=(1, 2), keepdims=True) + 1e-5)}


def features(files: Pipeline) -> Pipeline:
    mel = files.decode_audio(RATE, duration=0.8, offset="start", features="log_mel", n_mels=32, hop=160, out="mel")
    return mel.map_batches(standard)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    names = [row["path"] for row in read_audio(folder, labels="name").peek(10**6)]
    held = set({name.rpartition("_")[0]: name for name in names}.values())
    train = features(read_audio(folder, labels="name", exclude=held))
    test = features(read_audio(folder, labels="name", exclude=set(names) - held))
    augment = Augment(Shift(0.05), TimeMask(0.1), FrequencyMask(0.1), seed=1)
    loader = train.shuffle(seed=1).repeat().map_batches(augment).batch(32).to_torch()

    layers: list[nn.Module] = []
    for before, after in ((1, 12), (12, 24), (24, 48)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(48 * 4 * 5, 10))
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=STEPS)
    for step, batch in enumerate(islice(loader, STEPS)):
        loss = nn.functional.cross_entropy(model(batch["mel"][:, None]), batch["label"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step:>3}  loss {loss.item():.3f}")
    model.eval()
    right = torch.cat([model(b["mel"][:, None]).argmax(1) == b["label"] for b in test.batch(10).to_torch()])
    print(f"{right.float().mean():.1%} right of {len(right)} recordings never trained on")
    assert right.float().mean() > 0.9


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        make_up(Path(made))
        main(Path(sys.argv[1] if sys.argv[1:] else made))
