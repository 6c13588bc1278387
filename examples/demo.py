"""`make demo`: prepares text, trains, kills the training run in the middle and resumes it.

No network, no download: the corpus is the source code of Python's own standard library. It takes about a minute and a
half. Exit code 0 means: the loss decreased, and every batch equals the batch of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import penstock as ps
from penstock.sources.text import TextFiles
from penstock.store.verify import verify

HERE = Path(__file__).resolve().parent
LEAVE_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
VOCAB = 2048
RULE = "─" * 78


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train in all (default 60)")
    seconds = parser.parse_args().seconds
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a bar still shows the run
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        folder = Path(name)
        title("1  Prepare", "text to a verified token store, once")
        prepare(folder)
        title("2  Train", f"a small transformer, about {seconds:.0f} s on the CPU")
        before = train(folder, seconds, kill_at=seconds * 0.45)
        print(
            f"\n  kill -9 at step {before.last:,}: trainer, loader and threads are gone. Only the checkpoint is left.\n"
        )
        after = train(folder, seconds, steps=before.last + 20)
        after.report()
        title("3  Prove", "the batches after the kill are the ones that would have come")
        same = prove(folder, before, after)
        down = after.held_out[-1] < before.held_out[0] * 0.9
        print(f"  held-out loss {before.held_out[0]:.2f} → {after.held_out[-1]:.2f}: {verdict(down)}")
        print(f"  batches: {verdict(same)}\n{RULE}")
    return 0 if same and down else 1


def prepare(folder: Path) -> None:
    """Trains a tokenizer on a part of the corpus and tokenizes all of it."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(library.rglob("*.py")) if not LEAVE_OUT & set(p.relative_to(library).parts)]
    if len(files) < 50:
        raise SystemExit(f"this Python carries no source of its standard library in {library}; run with another one")
    began = time.perf_counter()
    sample = (path.read_text("utf-8", "replace") for path in files[::4])
    tokenizer = ps.MicroTransformerTokenizer().train(sample, vocab_size=VOCAB)
    print(
        f"  a byte-level BPE of {tokenizer.get_vocab_size():,} tokens, trained in {time.perf_counter() - began:.1f} s"
    )
    made = ps.prepare(TextFiles(files), tokenizer, folder / "store", on_error="skip", budget=20, show_progress=False)
    rate = made.text_bytes / made.seconds / 1e6
    print(
        f"  {made.documents:,} files of the standard library, {made.text_bytes / 1e6:.1f} MB → {made.tokens:,} tokens"
    )
    print(f"  in {made.seconds:.1f} s ({rate:.0f} MB/s, {made.engine}); {made.skipped} files skipped")
    checked = verify(folder / "store")
    checked.raise_first()
    print(f"  verified: {checked.bytes / 1e6:.1f} MB in {checked.pages} pages, every checksum as written")
    (folder / "facts.json").write_text(json.dumps({"vocab_size": tokenizer.get_vocab_size()}))


class Seen:
    """What a trainer process printed."""

    def __init__(self) -> None:
        self.batches: dict[int, str] = {}
        self.losses: dict[int, float] = {}
        self.held_out: list[float] = []
        self.started = 0
        self.state_bytes = 0
        self.spent = [0.0, 0.0]
        self.stats: dict[str, Any] = {}
        self.drawn = -1

    @property
    def last(self) -> int:
        return max(self.batches)

    def note(self, line: dict[str, Any]) -> None:
        kind = line["kind"]
        if kind == "held out":
            self.held_out.append(line["loss"])
        elif kind == "start":
            self.started, self.state_bytes = line["step"], line["state"]
            self.spent = [line["spent"], line["spent"]]
        elif kind == "step":
            self.batches[line["step"]], self.losses[line["step"]] = line["batch"], line["loss"]
            self.spent[1] = line["spent"]
        else:
            self.stats = line["stats"]

    def report(self) -> None:
        from demo_model import BATCH, LENGTH

        tokens = len(self.batches) * BATCH * LENGTH / (self.spent[1] - self.spent[0])
        print(f"\n  {tokens:,.0f} tokens/s trained; waiting for data: {self.stats['waited_share']:.2%} of the time")
        print(f"  {self.stats['verdict']}")


def train(folder: Path, seconds: float, kill_at: float | None = None, steps: int = 0) -> Seen:
    """Runs the trainer in a child process; kills it with SIGKILL after `kill_at` seconds of training."""
    seen = Seen()
    until = seconds if kill_at is None else math.inf
    command = [sys.executable, str(HERE / "demo_model.py"), str(folder), str(until), str(steps)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in lines_of(process):
            seen.note(line)
            if line["kind"] == "start":
                again = f" (resumed from {seen.state_bytes} bytes of loader state)" if seen.started else ""
                print(f"  step {seen.started:>5,}  starting{again}")
            elif line["kind"] == "step":
                draw(seen, line["spent"], seconds)
                due = kill_at is not None and line["spent"] >= kill_at and (folder / "checkpoint.pt").exists()
                if due and line["step"] % 20 >= 4:  # some way past a checkpoint, so that steps are lost
                    process.kill()
                    process.wait()
                    return seen
    finally:
        process.kill()
        code = process.wait()
    if kill_at is not None or code != 0:
        raise SystemExit(f"the trainer ended by itself with code {code}")
    return seen


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    for text in process.stdout or ():
        yield json.loads(text)


def draw(seen: Seen, spent: float, seconds: float) -> None:
    """Prints the loss of the first step and of every twelfth of the run."""
    mark = int(spent * 12 / seconds)
    if mark == seen.drawn:
        return
    seen.drawn = mark
    loss = fmean(list(seen.losses.values())[-20:])
    print(f"  step {seen.last:>5,}  loss {loss:5.2f}  {'█' * round(loss * 6)}", flush=True)


def prove(folder: Path, before: Seen, after: Seen) -> bool:
    """Compares every batch that was trained on with the batch that a new loader computes for that step."""
    from demo_model import digest, train_loader

    expected = train_loader(folder)
    wrong = [s for seen in (before, after) for s, h in seen.batches.items() if digest(expected.batch_at(s)) != h]
    again = sorted(before.batches.keys() & after.batches.keys())
    gap = max((abs(before.losses[s] - after.losses[s]) for s in again), default=math.nan)
    steps = sorted(before.batches.keys() | after.batches.keys())
    complete = steps == list(range(len(steps))) and 0 < after.started < before.last < after.last
    count = len(before.batches) + len(after.batches)
    print(
        f"  the last checkpoint was at step {after.started:,}: steps {again[0]:,} to {again[-1]:,} were trained again"
    )
    print(f"  {count:,} batches compared by hash with batch_at(step): {len(wrong) or 'none'} differ")
    print(f"  steps 0 to {steps[-1]:,}: {'none missing' if complete else 'NOT COMPLETE'}")
    print(f"  losses of the steps trained twice: {f'at most {gap:.1g} apart' if gap else 'the same to the last bit'}")
    row = expected.why(after.started, row=0)
    document = row["from"]["documents"][0]
    print(f"  why(step={after.started}, row=0): {document.get('file')}, token {document['from']:,} on")
    return complete and not wrong


def title(name: str, text: str) -> None:
    print(f"{RULE}\n  {name}: {text}\n{RULE}", flush=True)


def verdict(good: bool) -> str:
    return "proved ✓" if good else "FAILED"


if __name__ == "__main__":
    sys.exit(main())
