"""What a run waits for, and what to change: the verdict in a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

FIRST = 20  # batches before which waiting says little: threads start, files are opened
FEW, MUCH = 0.02, 0.2  # shares of the trainer's time spent waiting: none worth a change; a lot

_PYTHON = "your function runs in Python, which holds the GIL: .map_batches() with NumPy, or workers={cores} in .to_*()"
_DECODE = "decoding: a smaller size scales while it decodes; dtype='uint8' moves less; .cache() decodes once"
_SMALL = "it is close to a memory copy: a longer step of the trainer, or workers={cores}, is all that can help"
CHANGES = {
    "map": _PYTHON, "filter": _PYTHON, "flat_map": _PYTHON, "map_batches": _PYTHON,
    "decode_images": _DECODE, "decode_video": _DECODE,
    "decode_audio": "decoding: .cache() decodes once; a lower sample_rate or a shorter duration=; more cores",
    "windows": _SMALL, "pack": _SMALL,
    "pad": "padding: .bucket() or .batch_tokens() pads less; .pack() pads nothing",
    "deliver": "handing batches over: pin_memory=True with device=, or fewer and smaller columns (.select())",
    "batch": "the columns of the batch: fewer columns (.select())",
}  # fmt: skip
_SOURCE = (
    "reading: `penstock prepare` makes a token store, .cache() keeps decoded rows, .shuffle(block=) reads near rows"
)
_STORAGE = "most of the waiting is for storage: a larger cache_bytes= or prefetch=, or .shuffle(lanes=)"


class Verdict(NamedTuple):
    """How the loader keeps up, and what to change; `change` is empty where nothing has to be."""

    text: str
    change: str = ""


def verdict(facts: Mapping[str, Any], cores: int) -> Verdict:
    """The verdict of a loader's `stats()`.

    >>> busy = {"batches_taken": 50, "waited_share": 0.5, "waited_seconds": 2.0, "verb_seconds": {"jsonl": 1.0, "map": 3}}
    >>> print(verdict(busy, 8).text)
    the trainer waits for data 50% of the time; 75% of the loader's work is in map
    >>> verdict(busy | {"waited_share": 0.001}, 8).change
    ''
    """  # noqa: E501
    taken, share = facts["batches_taken"], facts["waited_share"]
    if taken < FIRST:
        return Verdict(f"too early to say: {taken} of the first {FIRST} batches")
    if share < FEW:
        return Verdict(f"the loader keeps up: the trainer waited {share:.1%} of the time")
    how = "waits for data" if share >= MUCH else "waits a little for data:"
    text = f"the trainer {how} {share:.0%} of the time"
    waits = (facts.get("storage") or {}).get("read_waits_seconds", 0.0)
    if waits > facts["waited_seconds"] / 2:
        return Verdict(text, _STORAGE)
    seconds: Mapping[str, float] = facts.get("verb_seconds") or {}
    total = sum(seconds.values())
    if total <= 0:
        return Verdict(text)
    slowest = max(seconds, key=lambda verb: seconds[verb])
    text += f"; {seconds[slowest] / total:.0%} of the loader's work is in {slowest}"
    verb = slowest.rstrip("0123456789").rstrip()
    return Verdict(text, CHANGES.get(verb, _SOURCE if slowest == next(iter(seconds)) else "").format(cores=cores))
