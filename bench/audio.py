"""A folder of 8 kHz WAV files to padded batches of 32 at 16 kHz.

Penstock, the Audio column of Hugging Face datasets, and lhotse, the last two in the loop and in a torch DataLoader with
2 workers; the faster of each counts. They run in a process of their own, in the environment that has them
(`bench.peers`): datasets 4 and later decode with torchcodec, which needs the libraries of FFmpeg, 3.6 with soundfile
and librosa. All pad with zeros and return lengths.

    python -m bench audio
    python bench/audio.py --folder recordings
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import judge, medians, rate, rounds, save, table, unmeasured
from bench.peers import tried

ROWS, RATE, WANTED = 32, 16000, 3.0


def make_folder(root: Path, count: int = 1024) -> None:
    """Generates clips of a third of a second to a second, like spoken words."""
    from penstock.codecs.audio import wav

    rng = np.random.default_rng(0)
    for i in range(count):
        n = int(8000 * rng.uniform(0.3, 1.0))
        tone = np.sin(np.cumsum(rng.uniform(0.1, 1.0) + 0.2 * np.sin(np.arange(n) / 900)))
        (root / f"{i:05d}.wav").write_bytes(wav.encode(0.4 * tone + rng.normal(0, 0.02, n), 8000))


def padded(rows: list[Any]) -> tuple[Any, Any]:
    """A typical collate function."""
    lengths = [len(row) for row in rows]
    out = np.zeros((len(rows), max(lengths)), np.float32)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
    return out, np.array(lengths)


def ours(folder: Path, threads: int | None) -> Any:
    from penstock.read import read_audio

    return (
        read_audio(folder, None).shuffle(seed=1).repeat().decode_audio(RATE).batch(ROWS).pad().to_numpy(threads=threads)
    )


class HfClips:
    """The Audio column, one clip by number."""

    def __init__(self, files: list[Path]) -> None:
        import datasets

        data = datasets.Dataset.from_dict({"audio": [str(f) for f in files]})
        self.data = data.cast_column("audio", datasets.Audio(sampling_rate=RATE))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[int(index)]["audio"]["array"]


class LhotseClips:
    """A cut, resampled and loaded, one clip by number."""

    def __init__(self, files: list[Path]) -> None:
        from lhotse import CutSet, Recording, RecordingSet

        recordings = RecordingSet.from_recordings(Recording.from_file(f) for f in files)
        self.cuts = list(CutSet.from_manifests(recordings=recordings).resample(RATE))

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, index: int) -> Any:
        return self.cuts[int(index)].load_audio()[0]


def looped(clips: Any) -> Iterator[Any]:
    epoch = 0
    while True:
        order = np.random.default_rng(epoch).permutation(len(clips))
        for at in range(0, len(order) - ROWS + 1, ROWS):
            yield padded([clips[i] for i in order[at : at + ROWS]])
        epoch += 1


def workers(clips: Any) -> Iterator[Any]:
    from torch.utils import data

    loader = data.DataLoader(
        clips, ROWS, shuffle=True, num_workers=2, collate_fn=padded, drop_last=True, multiprocessing_context="spawn",
        persistent_workers=True,
    )  # fmt: skip
    while True:
        yield from loader


@functools.cache
def peer_clips(name: str, files: tuple[str, ...]) -> Any:
    return {"HF datasets": HfClips, "lhotse": LhotseClips}[name]([Path(f) for f in files])


def peer_round(name: str, files: list[str], many: int, seconds: float) -> float:
    """Clips a second of a peer, in its process."""
    clips = peer_clips(name, tuple(files))
    return ROWS * (rate(workers(clips), seconds, warm=10) if many else rate(looped(clips), seconds))


def run(folder: Path | None = None, count: int = 5, seconds: float = 2.0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = Path(made)
            make_folder(folder)
        return compare(folder, count, seconds)


def compare(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    files = sorted(folder.rglob("*.wav"))
    print(f"{len(files)} WAV files, batches of {ROWS}, to {RATE} Hz")
    contenders: dict[str, Callable[[], float]] = {
        "penstock": lambda: ROWS * rate(ours(folder, None), seconds, warm=40),  # by then it knows about threads
        "penstock, 2 threads": lambda: ROWS * rate(ours(folder, 2), seconds),
    }
    names = [str(f) for f in files]
    before = os.getloadavg()
    with ExitStack() as stack:
        for name, module in (("HF datasets", "librosa"), ("lhotse", "lhotse")):
            if peer := tried(stack, name, module, "bench.audio:peer_round", name, names, 0, 0.2):
                for many in (0, 2):
                    title = f"{name}, {many} workers" if many else f"{name}, in the loop"
                    contenders[title] = lambda peer=peer, name=name, many=many: peer(name, names, many, seconds)
        found = rounds(contenders, count)
    middle = medians(found)
    ranked = sorted(middle.items(), key=lambda item: -item[1])
    shown = [(name, f"{value:.0f}", f"{min(found[name]):.0f}..{max(found[name]):.0f}") for name, value in ranked]
    table("clips a second, median of rounds", shown, ("", "clips/s", "range"))
    targets = []
    for peer in ("HF datasets", "lhotse"):
        rates = [value for name, value in middle.items() if name.startswith(peer)]
        what = f"times {peer}"
        found_times = judge(what, middle["penstock"] / max(rates), WANTED) if rates else None
        targets.append(found_times or unmeasured(what, WANTED, "it does not run"))
    table("targets", targets, ("what", "found", "wanted", ""))
    print(f"load average before {before[0]:.1f}, after {os.getloadavg()[0]:.1f}")
    facts = {"clips_per_second": middle, "rounds": found, "targets": targets, "load": [before, os.getloadavg()]}
    save("audio", facts)
    return facts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="WAV files to read; without it some are made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    run(asked.folder, asked.rounds, asked.seconds)
