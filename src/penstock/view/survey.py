"""What a bounded look at a target finds: lengths, classes, languages, duplicates, bad records.

At most `RECORDS` records (`MEDIA_FILES` of media) in `RUNS` evenly spaced runs are read, and no more than `BYTES`;
lengths of a token store come from its document table, of up to `LENGTHS` documents.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.markup.visible import number_of
from penstock.view.samples import Sample, Samples, TokenSamples, class_names
from penstock.view.scripts import scripts_of
from penstock.view.session import Session
from penstock.view.skipped import Skipped, read_skipped

RECORDS, MEDIA_FILES, RUNS, BYTES, LENGTHS = 600, 120, 12, 32 << 20, 100_000
LANGUAGES = ("lang", "language", "languages", "lang_code", "language_code", "locale", "lang_id")
_TEXTS = 20  # of a record whose scripts are counted
_VALUES, _LEAST = 24, 12  # a column has classes if few different short values are in enough records


@dataclass
class Balance:
    """How often each value of a column occurs."""

    column: str
    counts: list[tuple[str, int]]
    every: bool  # over all records, or over those looked at
    language: bool = False


@dataclass
class Survey:
    """The figures of a bounded look."""

    looked_at: int
    of: int
    lengths: NDArray[Any]
    lengths_note: str
    balances: list[Balance] = field(default_factory=list)
    duplicates: list[list[Sample]] = field(default_factory=list)  # groups of equal samples
    bad: dict[str, list[Sample]] = field(default_factory=dict)  # by reason
    columns: list[str] = field(default_factory=list)
    scripts: list[tuple[str, int]] = field(default_factory=list)  # letters by script, of the texts looked at
    skipped: Skipped | None = None  # what `prepare` skipped

    @property
    def share(self) -> str:
        """Which part was looked at, in words."""
        if self.looked_at >= self.of:
            return f"all {self.of:,} were looked at" if self.of > 1 else "the only one was looked at"
        return f"{self.looked_at:,} of {self.of:,} were looked at ({100 * self.looked_at / self.of:.2g}%)"


def spread(count: int, most: int, runs: int = RUNS) -> list[int]:
    """At most `most` numbers below `count`, in runs that are evenly spaced.

    >>> spread(5, 10), spread(100, 6, runs=3)
    ([0, 1, 2, 3, 4], [0, 1, 49, 50, 98, 99])
    """
    if count <= most:
        return list(range(count))
    length = max(1, most // runs)
    starts = np.linspace(0, count - length, min(runs, most)).astype(np.int64)
    return [int(n) for n in np.unique((starts[:, None] + np.arange(length)).ravel())]


def survey(session: Session, samples: Samples) -> Survey:
    """The survey of a session, made once."""
    return session.keep("survey", lambda: _survey(session, samples))


def _survey(session: Session, samples: Samples) -> Survey:
    media = samples.kind in ("images", "audio")
    wanted = spread(len(samples), MEDIA_FILES if media else RECORDS)
    looked: list[Sample] = []
    groups: defaultdict[int, list[Sample]] = defaultdict(list)
    scripts: Counter[str] = Counter()
    spent = 0
    for at in range(0, len(wanted), 50):
        if spent > BYTES:
            break
        for one in samples.read(wanted[at : at + 50]):
            spent += len(one.content)
            if not media and not one.error:
                for text in samples.texts(one)[:_TEXTS]:
                    scripts.update(scripts_of(text))
            looked.append(one)
            if not one.error:
                groups[xxhash.xxh3_64_intdigest(one.content)].append(one)
            one.content = b""
    lengths, note = _lengths(samples, looked)
    found = Survey(len(looked), len(samples), lengths, note)
    found.duplicates = sorted((same for same in groups.values() if len(same) > 1), key=len, reverse=True)
    for one in looked:
        if one.error:
            found.bad.setdefault(one.reason, []).append(one)
    found.columns = list(dict.fromkeys(name for one in looked[:50] for name in one.values))
    found.scripts = scripts.most_common()
    found.balances = list(_balances(samples, looked))
    if session.path is not None and os.path.isdir(session.path):
        found.skipped = read_skipped(session.path)
    return found


def _lengths(samples: Samples, looked: list[Sample]) -> tuple[NDArray[Any], str]:
    if isinstance(samples, TokenSamples):
        numbers = np.array(spread(len(samples), LENGTHS, runs=100), np.int64)
        note = (
            ""
            if len(numbers) == len(samples)
            else f"of {number_of(len(numbers), 'document')} in runs that are evenly spaced"
        )
        return samples.source.lengths(numbers), note
    good = [one.length for one in looked if not one.error]
    integers = samples.unit != "seconds"
    note = "" if len(looked) == len(samples) else f"of {len(good):,} {samples.what} that were looked at"
    return np.array(good, np.int64 if integers else np.float64), note


def _balances(samples: Samples, looked: list[Sample]) -> Any:
    source, names = samples.source, class_names(samples)
    if samples.kind in ("images", "audio"):
        if source.labels is not None and source.classes:
            counts = np.bincount(source.labels, minlength=len(source.classes)).tolist()
            pairs = sorted(zip(source.classes, counts, strict=True), key=lambda pair: -pair[1])
            yield Balance("class", pairs, every=True)
        return
    values: defaultdict[str, list[Any]] = defaultdict(list)
    for one in looked:
        for name, value in one.values.items():
            values[name].append(value.item() if isinstance(value, np.generic) else value)
    for name, held in values.items():
        if any(not isinstance(value, str | int | bool | None) or len(str(value)) > 60 for value in held):
            continue
        known = names.get(name)
        counted = Counter(
            known[v] if known and isinstance(v, int) and 0 <= v < len(known) else str(v) or "(empty)" for v in held
        ).most_common()
        language = name.lower() in LANGUAGES
        if len(counted) > _VALUES and not language and known is None:
            continue
        if known is None and not language and (len(held) < _LEAST or len(counted) < 2):
            continue
        if known is None and not language and len(counted) > len(held) // 3:
            continue
        yield Balance(name, counted, every=len(looked) == len(samples), language=language)
