"""Search and sort with bounded work: what was looked at is always said."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.view.samples import MediaSamples, Sample, Samples
from penstock.view.survey import spread

RECORDS, NAMES, FOUND = 3000, 1_000_000, 200
SORTED = 1000
ORDERS = {"number": "in order", "longest": "longest first", "shortest": "shortest first", "spread": "spread over all"}


@dataclass
class Found:
    """Numbers to show, and which part was searched or sorted to find them."""

    numbers: list[int]
    note: str = ""
    onward: int | None = None  # where a search that stopped would go on


def search(samples: Samples, text: str, start: int) -> Found:
    """Records from `start` on that contain `text`, in any case: names of media, strings and decoded texts of others."""
    wanted = text.casefold()
    total = len(samples)
    found: list[int] = []
    if isinstance(samples, MediaSamples):
        stop = min(total, start + NAMES)
        at = start
        while at < stop and len(found) < FOUND:
            if wanted in str(samples.source.names[at]).casefold():
                found.append(at)
            at += 1
        return _told(found, start, at, total, "names")
    stop = min(total, start + RECORDS)
    at = start
    while at < stop and len(found) < FOUND:
        block = list(range(at, min(at + 50, stop)))
        found += [one.number for one in samples.read(block) if matches(samples, one, wanted)]
        at += len(block)
    return _told(found, start, at, total, samples.what)


def matches(samples: Samples, one: Sample, wanted: str) -> bool:
    """Whether a text of the sample, its error or its place contains `wanted` (case-folded)."""
    return any(wanted in text.casefold() for text in (*samples.texts(one), one.error, one.where))


def _told(found: list[int], start: int, stop: int, total: int, what: str) -> Found:
    every = start == 0 and stop == total
    part = f"all {total:,} {what}" if every else f"{what} {start:,} to {max(start, stop - 1):,} of {total:,}"
    return Found(found, f"searched {part}: {len(found):,} found", None if stop >= total else stop)


def ordered(samples: Samples, order: str) -> Found:
    """Numbers by length or spread over all; of large data `SORTED` records are looked at, in evenly spaced runs."""
    total = len(samples)
    if order == "spread":
        return Found(spread(total, SORTED, runs=SORTED), "" if total <= SORTED else f"{SORTED:,} of {total:,}")
    numbers = spread(total, SORTED)
    if samples.kind == "tokens":
        import numpy as np

        lengths = samples.source.lengths(np.array(numbers, np.int64)).tolist()
    else:
        numbers = spread(total, SORTED if samples.kind == "records" else SORTED // 5)
        lengths = [one.length for one in samples.read(numbers)]
    pairs = sorted(zip(lengths, numbers, strict=True), key=lambda pair: pair[0], reverse=order == "longest")
    note = "" if len(numbers) == total else f"sorted {len(numbers):,} of {total:,} {samples.what}, evenly spaced"
    return Found([number for _, number in pairs], note)
