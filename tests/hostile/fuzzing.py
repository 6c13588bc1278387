"""Seeded mutations of file bytes, and a loop that feeds them to a parser.

The loops are bounded by count, not by time, and the same seed makes the same mutants on every machine.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

from penstock.core.errors import PenstockError

_EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


def mutants(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yields `count` damaged copies of `data`, each unlike it: flipped bits, other bytes and integers, cuts, repeats.

    >>> list(mutants(b"abcdefgh", 3)) == list(mutants(b"abcdefgh", 3))
    True
    """
    rng = random.Random(seed)
    made = 0
    while made < count:
        mutant = data
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            mutant = rng.choice(_WAYS)(mutant, rng)
        if mutant != data:
            made += 1
            yield mutant


def fuzz(
    read: Callable[[bytes], object], data: bytes, count: int, seed: int = 0, *, checked: bool = False
) -> Counter[str]:
    """Reads `count` mutants; each must raise a PenstockError or return. Any other exception fails, with its mutant.

    `checked=True` says that the format has checksums over everything: a mutant that is read must then equal the
    result for the undamaged bytes. Returns how many were "refused", read as the "same", or read as "other".
    """
    sound = read(data)
    counts: Counter[str] = Counter()
    for number, mutant in enumerate(mutants(data, count, seed)):
        try:
            result = read(mutant)
        except PenstockError:
            counts["refused"] += 1
            continue
        except Exception as error:
            raise AssertionError(f"mutant {number} of seed {seed}: {type(error).__name__}: {error}") from error
        same = result == sound
        counts["same" if same else "other"] += 1
        assert same or not checked, f"mutant {number} of seed {seed} was read as other data without an error"
    return counts


def _flip_bit(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\x00"
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _other_byte(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + bytes([rng.choice(_EDGES)]) + data[place + 1 :]


def _other_integer(data: bytes, rng: random.Random) -> bytes:
    width = rng.choice((2, 4, 8))
    place = rng.randrange(max(len(data) - width, 0) + 1)
    value = rng.choice(
        (0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1, rng.getrandbits(8 * width))
    )
    return data[:place] + value.to_bytes(width, rng.choice(("little", "big"))) + data[place + width :]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _cut(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randrange(1, 64) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    stop = start + rng.randrange(1, 64)
    return data[:stop] + data[start:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.randrange(1, 16)) + data[place:]


def _zero(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    length = min(rng.randrange(1, 512), len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


_WAYS = (_flip_bit, _flip_bit, _flip_bit, _other_byte, _other_integer, _truncate, _cut, _repeat, _insert, _zero)
