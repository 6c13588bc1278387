"""Log-mel features of 16 kHz WAV files in padded batches, beside soundfile and the extractor of transformers.

Both compute Whisper's features of clips of 2 to 10 seconds, padded to the longest of a batch. Rates are batches a
second of the wall clock; costs are processor time of all threads, which says more on a loaded machine.

    python -m bench features
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import judge, medians, rounds, save, table

ROWS, RATE, CLIPS = 16, 16_000, 96


def make_folder(root: Path) -> None:
    import soundfile

    rng = np.random.default_rng(0)
    for i in range(CLIPS):
        clip = 0.2 * rng.standard_normal(int(RATE * rng.uniform(2, 10)))
        soundfile.write(root / f"{i:04d}.wav", clip.astype(np.float32), RATE, subtype="PCM_16")


def ours(folder: Path) -> Iterator[Any]:
    import penstock as ps

    clips = ps.read_audio(folder, None).shuffle(seed=1).repeat()
    yield from clips.decode_audio(RATE, features="log_mel", mel="whisper").batch(ROWS).pad().to_numpy()


def theirs(folder: Path) -> Iterator[Any]:
    import soundfile
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor()
    files = sorted(folder.iterdir())
    for seed in range(1 << 30):
        order = np.random.default_rng(seed).permutation(len(files))
        for at in range(0, len(order) - ROWS + 1, ROWS):
            clips = [soundfile.read(files[i], dtype="float32")[0] for i in order[at : at + ROWS]]
            yield extractor(clips, sampling_rate=RATE, padding="longest", return_tensors="np", truncation=False)


def costs(make: Callable[[], Iterator[Any]], count: int, warm: int) -> tuple[float, float]:
    """Processor and wall seconds a batch."""
    run = make()
    for _ in islice(run, warm):
        pass
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in islice(run, count):
        pass
    cost = (time.process_time() - cpu) / count, (time.perf_counter() - wall) / count
    getattr(run, "close", lambda: None)()
    return cost


def run(count: int = 3, batches: int = 8) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_folder(folder)
        walls: dict[str, list[float]] = {}

        def contender(title: str, make: Callable[[], Iterator[Any]]) -> Callable[[], float]:
            def one() -> float:
                cpu, wall = costs(make, batches, 3)
                walls.setdefault(title, []).append(wall)
                return cpu

            return one

        names = {"penstock": lambda: ours(folder), "soundfile + transformers": lambda: theirs(folder)}
        found = rounds({title: contender(title, make) for title, make in names.items()}, count)
    cpu, wall = medians(found), medians(walls)
    rows = [(title, f"{1e3 * cpu[title]:.1f}", f"{1 / wall[title]:.1f}") for title in names]
    table(f"batches of {ROWS} clips", rows, ("what", "cpu ms", "batches/s"))
    mine, peer = names
    targets = [
        judge("processor time of soundfile + transformers", cpu[mine] / cpu[peer], 0.5, most=True),
        judge("times the rate of soundfile + transformers", wall[peer] / wall[mine], 2),
    ]
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"cpu_ms": cpu, "batch_seconds": wall, "targets": targets}
    save("features", facts)
    return facts


if __name__ == "__main__":
    run()
