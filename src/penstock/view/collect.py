"""Collects the data of a report in bounded memory.

A token store is not read completely: lengths come from its document table (of at most a million documents, in a
thousand evenly spaced runs, so that few of many shards are opened) and only the samples are read. Text files are read
once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import PenstockError
from penstock.core.progress import progress
from penstock.markup.visible import number_of
from penstock.view.documents import beginning, decoded, place
from penstock.view.skipped import Skipped, read_skipped
from penstock.view.training_run import figures

MAX_LENGTHS = 1_000_000
RUN = 1000  # documents that follow each other, of which lengths are read
SAMPLE_TOKENS = 512
SAMPLE_CHARACTERS = 2000


@dataclass
class Sample:
    """One document: its location, its length and its beginning."""

    where: str
    size: str
    text: str


@dataclass
class Facts:
    """The data of a report."""

    title: str
    documents: int
    table: list[tuple[str, Any]]
    unit: str
    lengths: NDArray[np.int64]
    lengths_note: str = ""
    samples: list[Sample] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    plan: dict[str, Any] | None = None
    plan_note: str = ""


def of_tokens(path: str, source: Any, tokenizer: Any, *, samples: int, seed: int, length: int, batch: int) -> Facts:
    """Collects the report of a token source."""
    lengths = _lengths(source)
    note = "" if len(lengths) == len(source) else f"{len(lengths):,} of them, in runs that are evenly spaced"
    facts = Facts(Path(path).name or path, len(source), _rows(source.describe()), "tokens", lengths, note)
    for number in chosen(len(source), samples, seed):
        facts.samples.append(_document(source, number, tokenizer))
    facts.skipped = read_skipped(path) or Skipped(int(_metadata(source).get("skipped", 0)))
    try:
        facts.plan = figures(source, length, None, batch, seed=seed)
    except PenstockError as error:
        facts.plan_note = f"expected {error.expected}, got {error.got}"
    return facts


def _metadata(source: Any) -> dict[str, Any]:
    return getattr(getattr(source, "manifest", None), "metadata", {})


def _lengths(source: Any) -> NDArray[np.int64]:
    count = len(source)
    picked = np.arange(min(count, MAX_LENGTHS))
    if count > MAX_LENGTHS:
        runs = np.linspace(0, count - RUN, MAX_LENGTHS // RUN).astype(np.int64)
        picked = (runs[:, None] + np.arange(RUN)).ravel()
    found: NDArray[np.int64] = source.lengths(picked)
    return found


def _document(source: Any, number: int, tokenizer: Any) -> Sample:
    length, ids = beginning(source, number, SAMPLE_TOKENS)
    text = decoded(tokenizer, ids)
    more = " …" if length > SAMPLE_TOKENS else ""
    shown = " ".join(map(str, ids)) if text is None else text
    return Sample(place(source, number), f"{number_of(length, 'token')}", shown + more)


def of_texts(path: str, source: Any, *, samples: int, seed: int) -> Facts:
    """Collects the report of text files in one pass."""
    description = source.describe()
    lengths: list[NDArray[np.int64]] = []
    kept: list[tuple[int, int, Sample]] = []
    skipped, seen = Skipped(), 0
    with progress(description.get("bytes"), "B", "reading") as bar:
        for chunk in source.iterate():
            lengths.append(np.fromiter(map(len, chunk.texts), np.int64, len(chunk.texts)))
            # The sample is the documents with the smallest random keys: uniform, in one pass.
            keys = randomness.bits(
                randomness.keys(randomness.key(seed, "report"), np.arange(seen, seen + len(chunk.texts))), 0
            )
            for i in np.argsort(keys)[:samples].tolist():
                file, line, _ = chunk.positions[i]
                text = chunk.texts[i]
                more = " …" if len(text) > SAMPLE_CHARACTERS else ""
                one = Sample(
                    f"{source.paths[file]}, line {line}",
                    f"{number_of(len(text), 'character')}",
                    text[:SAMPLE_CHARACTERS] + more,
                )
                kept.append((int(keys[i]), seen + i, one))
            kept = sorted(kept, key=lambda k: k[:2])[:samples]
            for error in chunk.errors:
                skipped.total += 1
                skipped.reasons[error.expected] = skipped.reasons.get(error.expected, 0) + 1
                if len(skipped.entries) < 100:
                    skipped.entries.append({"file": error.where, "reason": error.expected, "detail": error.got})
            seen += len(chunk.texts)
            bar.update(chunk.file_bytes)
    every = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    rows = [*_rows(description), ("characters", f"{int(every.sum()):,}")]
    found = [one for _, _, one in sorted(kept, key=lambda k: k[1])]
    return Facts(Path(path).name or path, seen, rows, "characters", every, samples=found, skipped=skipped)


def chosen(count: int, samples: int, seed: int) -> list[int]:
    """Returns the documents to show, in order: the first, and others drawn with the seed.

    >>> chosen(3, 8, 0), chosen(1000, 3, 0) == chosen(1000, 3, 0), len(chosen(1000, 3, 0))
    ([0, 1, 2], True, 3)
    """
    if count <= samples:
        return list(range(count))
    found = {0} if samples else set()
    draw = 0
    while len(found) < samples:
        found.add(int(randomness.integers(randomness.keys(randomness.key(seed, "report"), [draw]), 0, count)[0]))
        draw += 1
    return sorted(found)


def _rows(description: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in description.items():
        if isinstance(value, dict):
            rows += [(f"{name} {k}", v) for k, v in value.items() if v is not None]
        elif value is not None and value != []:
            rows.append((name, value))
    return rows
