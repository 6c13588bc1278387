"""The checks of `penstock check`. Each runs on its own, on a real loader.

Costs a few batches of each loader, and tokenizing the beginning of each file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from penstock.core.errors import PenstockError
from penstock.plan import state as states

_ORDER_ROWS = 100_000
_MIN_ROWS = 8  # with fewer rows any order may occur by chance


@dataclass(frozen=True)
class Result:
    """One check: its name, whether it passed, and what was found."""

    loader: str
    check: str
    ok: bool
    seen: str


@dataclass
class Subject:
    """A loader under test and its expected properties. `stream` holds the file's first tokens, encoded separately."""

    name: str
    loader: Any
    again: Callable[[], Any]
    stream: Any
    vocab_size: int
    batch_size: int
    seq_length: int
    batches: int
    shuffled: bool

    @property
    def windows(self) -> int:
        return len(self.loader.dataset)

    @property
    def expected_batches(self) -> int:
        full, left = divmod(self.windows, self.batch_size)
        return full if self.shuffled else full + bool(left)


def run_checks(subject: Subject) -> Iterator[Result]:
    """Runs all checks of one loader. A check that raises has failed; the others still run."""
    first = list(islice(iter(subject.again()), subject.batches))
    checks: list[tuple[str, Callable[[], str | None]]] = [
        ("batches", lambda: _count(subject)),
        ("shapes", lambda: _shapes(subject, first)),
        ("labels", lambda: _labels(first)),
        ("tokens", lambda: _tokens(subject)),
        ("dtype", lambda: _dtype(subject, first)),
        ("contiguous", lambda: _contiguous(first)),
        ("order", lambda: _order(subject)),
        ("resume", lambda: _resume(subject)),
    ]
    passed = {
        "batches": f"{subject.expected_batches:,} of {subject.windows:,} windows",
        "shapes": f"input_ids and labels are [{subject.batch_size}, {subject.seq_length}]",
        "labels": "each label is the token after its input",
        "tokens": "windows hold the tokens of the file, each starting one token later",
        "dtype": f"int64, ids from 0 to {subject.vocab_size - 1:,}",
        "contiguous": ".view(-1) works",
        "order": _order_in_words(subject),
        "resume": "a new loader resumes with the same batches",
    }
    for name, check in checks:
        try:
            wrong = check()
        except (PenstockError, RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        yield Result(subject.name, name, wrong is None, passed[name] if wrong is None else wrong)


def _count(subject: Subject) -> str | None:
    """Checks the length, and by reading the last two batches that iteration ends there."""
    expected = subject.expected_batches
    if len(subject.loader) != expected:
        return f"expected {expected:,} batches, len() says {len(subject.loader):,}"
    loader = subject.again()
    state = loader.state_dict()
    back = min(2, expected)
    moved = {"step": expected - back, "n": (expected - back) * subject.batch_size}
    loader.load_state_dict(states.signed(state | moved))
    tail = [int(batch["input_ids"].shape[0]) for batch in loader]
    last = subject.windows - (expected - 1) * subject.batch_size
    wanted = [subject.batch_size] * (back - 1) + [min(last, subject.batch_size)]
    return None if tail == wanted else f"expected the epoch to end with batches of {wanted} rows, got {tail}"


def _shapes(subject: Subject, first: list[Any]) -> str | None:
    if len(first) != min(subject.batches, subject.expected_batches):
        return f"expected {min(subject.batches, subject.expected_batches)} batches, got {len(first)}"
    for at, batch in enumerate(first):
        rows = min(subject.batch_size, subject.windows - at * subject.batch_size)
        for name in ("input_ids", "labels"):
            shape = tuple(batch[name].shape)
            if shape != (rows, subject.seq_length):
                return f"batch {at}: expected {name} of {[rows, subject.seq_length]}, got {list(shape)}"
    return None


def _labels(first: list[Any]) -> str | None:
    for at, batch in enumerate(first):
        inputs, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
        if not np.array_equal(inputs[:, 1:], labels[:, :-1]):
            return f"batch {at}: labels are not the inputs shifted by one token"
    return None


def _tokens(subject: Subject) -> str | None:
    """Compares some windows of the dataset, inputs and labels, with the separately encoded tokens."""
    stream, length = subject.stream, subject.seq_length
    known = min(subject.windows, len(stream) - length)
    if known < 1:
        return "the file is shorter than one window"
    for i in sorted({0, 1 % known, known // 2, known - 1}):
        sample = subject.loader.dataset[i]
        if not np.array_equal(sample["input_ids"].numpy(), stream[i : i + length]):
            return f"window {i} does not begin at token {i}"
        if not np.array_equal(sample["labels"].numpy(), stream[i + 1 : i + length + 1]):
            return f"the labels of window {i} are not tokens {i + 1} to {i + length}"
    return None


def _dtype(subject: Subject, first: list[Any]) -> str | None:
    for at, batch in enumerate(first):
        for name in ("input_ids", "labels"):
            kind = str(batch[name].dtype)
            if kind != "torch.int64":
                return f"batch {at}: expected torch.int64 {name}, got {kind}"
            low, high = int(batch[name].min()), int(batch[name].max())
            if low < 0 or high >= subject.vocab_size:
                return f"batch {at}: expected ids below {subject.vocab_size}, got {low} to {high}"
    return None


def _contiguous(first: list[Any]) -> str | None:
    for at, batch in enumerate(first):
        for name in ("input_ids", "labels"):
            if not batch[name].is_contiguous():
                return f"batch {at}: {name} is not contiguous"
            batch[name].view(-1)
    return None


def _order_in_words(subject: Subject) -> str:
    if not subject.shuffled:
        return "in the order of the file, every epoch"
    few = subject.windows < _MIN_ROWS
    return "no window twice; too few to detect a shuffle" if few else "shuffled, a different order each epoch"


def _order(subject: Subject) -> str | None:
    """Training: no window twice, no epoch in file order, and two epochs differ. Validation: 0, 1, 2... in both."""
    epochs = []
    for epoch in (0, 1):
        sampler = subject.again().batch_sampler
        sampler.set_epoch(epoch)
        most = max(1, _ORDER_ROWS // subject.batch_size)
        epochs.append(np.concatenate([np.asarray(rows) for rows in islice(sampler, most)]))
    in_order = [bool(np.array_equal(rows, np.arange(len(rows)))) for rows in epochs]
    if not subject.shuffled:
        return None if all(in_order) else "validation windows are not in the order of the file"
    for epoch, rows in enumerate(epochs):
        if len(np.unique(rows)) != len(rows) or rows.min() < 0 or rows.max() >= subject.windows:
            return f"a window occurs twice in epoch {epoch}"
    if subject.windows < _MIN_ROWS:
        return None
    if any(in_order):
        return "training windows are in the order of the file"
    return "both epochs have the same order" if np.array_equal(epochs[0], epochs[1]) else None


def _following(loader: Any, taken: Iterator[Any], count: int) -> list[Any]:
    """Returns the next batches, continuing in the next epoch if necessary."""
    found = list(islice(taken, count))
    while len(found) < count:
        found += islice(iter(loader), count - len(found))
    return found


def _resume(subject: Subject) -> str | None:
    loader = subject.again()
    taken = iter(loader)
    next(taken)
    saved = json.dumps(loader.state_dict())
    if len(saved) > 1024:
        return f"expected a state of at most 1024 bytes, got {len(saved)}"
    rest = _following(loader, taken, subject.batches)
    fresh = subject.again()
    fresh.load_state_dict(json.loads(saved))
    again = _following(fresh, iter(fresh), subject.batches)
    for at, (one, two) in enumerate(zip(rest, again, strict=True)):
        if not np.array_equal(one["input_ids"].numpy(), two["input_ids"].numpy()):
            return f"batch {at + 1} after resuming differs"
    return None
