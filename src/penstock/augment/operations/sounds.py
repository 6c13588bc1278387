"""Operations that use recorded sounds: `MixNoise` and `RoomImpulse`. And `Pitch`.

The sounds are held in memory, as one float32 array; JAX compiles them into its program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.augment.arrays import Arrays, each
from penstock.augment.operations.base import Op, Range, Shape
from penstock.augment.params import Drawn, f32, i32, uniform
from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.randomness import U64


class Sounds:
    """Recordings of one sample rate, mono, compared by their content.

    >>> Sounds.of([np.ones(3), np.zeros(2)]).lengths.tolist()
    [3, 2]
    """

    def __init__(self, values: NDArray[np.float32], lengths: NDArray[np.int64]) -> None:
        self.values, self.lengths = values, lengths
        self.starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        self.id = hashlib.blake2b(values.tobytes() + lengths.tobytes(), digest_size=8).hexdigest()

    @classmethod
    def of(cls, rows: Any) -> Sounds:
        """From arrays of samples: integers are scaled to [-1, 1)."""
        if isinstance(rows, Sounds):
            return rows
        made = []
        for row in rows if isinstance(rows, Sequence | np.ndarray) else [None]:
            one = np.asarray(row)
            if one.ndim != 1 or not len(one) or one.dtype.kind not in "if":
                raise _not_sounds(f"{one.dtype} of shape {one.shape}")
            scale = 1 / (np.iinfo(one.dtype).max + 1) if one.dtype.kind == "i" else 1
            made.append((one * scale).astype(np.float32))
        if not made or not all(np.isfinite(one).all() for one in made):
            raise _not_sounds("none, or NaN or infinity among them")
        if sum(map(len, made)) >= 1 << 31:
            raise _not_sounds("2**31 samples or more")
        return cls(np.concatenate(made), np.array([len(one) for one in made], np.int64))

    def rows(self) -> list[NDArray[np.float32]]:
        """The recordings."""
        return [self.values[start : start + n] for start, n in zip(self.starts, self.lengths, strict=True)]

    def of_unit_energy(self) -> NDArray[np.float32]:
        """(recordings, longest): each scaled so that its squares sum to 1, then silence."""
        made = np.zeros((len(self), int(self.lengths.max())), np.float32)
        for place, row in zip(made, self.rows(), strict=True):
            place[: len(row)] = row / max(float(np.sqrt((row * row).sum())), 1e-12)
        return made

    def __len__(self) -> int:
        return len(self.lengths)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sounds) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Sounds({len(self)}, {self.id})"


def _not_sounds(got: str) -> UsageError:
    fix = "a list of arrays of samples, for example [row['audio'] for row in pipeline.decode_audio(16_000).peek(100)]"
    return UsageError("recordings as one-dimensional arrays of samples", got=got, where="Augment, sounds", fix=fix)


class _WithSounds(Op):
    kind: ClassVar[str] = "audio"
    field: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(self.field, Sounds.of(getattr(self, self.field)))

    @property
    def sounds(self) -> Sounds:
        found: Sounds = getattr(self, self.field)
        return found

    def spec(self) -> dict[str, Any]:
        return super().spec() | {self.field: self.sounds.id}

    def _check_waves(self, shape: Shape) -> None:
        if len(shape) != 1 or not shape[0]:
            raise self._misfit("waveforms (rows, samples)", shape, "use it before features are computed")


@dataclass(frozen=True)
class MixNoise(_WithSounds):
    """Adds one of `noises`, from a random place on (repeated if it is short), at a signal-to-noise ratio drawn from
    `snr` in decibels. Powers are means of squares over the row; silence stays."""

    noises: Any
    snr: float | Range = (5.0, 20.0)
    p: float = 1.0
    field: ClassVar[str] = "noises"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.snr, int | float):
            self._set("snr", (self.snr, self.snr))
        self._range("snr", None, -100.0, 100.0)

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        self._check_waves(shape)
        which = randomness.integers(keys, 0, len(self.sounds))
        length = self.sounds.lengths[which]
        start = randomness.integers(keys, 1, length)
        return {
            "noise": i32(which), "first": i32(self.sounds.starts[which]), "length": i32(length), "start": i32(start),
            "snr": uniform(keys, self.snr, 2),
        }  # fmt: skip

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        time = xp.indices(x.shape[-1], x)[None, :]
        place = p["first"][:, None] + (p["start"][:, None] + time) % p["length"][:, None]
        noise = xp.constant(self.sounds.values, x)[place]
        loud, quiet = ((one * one).mean(axis=-1, keepdims=True) for one in (x, noise))
        heard = (loud > 0) & (quiet > 0)
        ratio = loud / xp.where(heard, quiet, 1.0) * 10 ** (p["snr"][:, None] * -0.1)
        return x + noise * xp.where(heard, xp.sqrt(ratio), 0.0)


@dataclass(frozen=True)
class RoomImpulse(_WithSounds):
    """Convolves with one of the impulse `responses`, aligned to the response's largest peak; the row keeps its
    length and its power."""

    responses: Any
    p: float = 0.5
    field: ClassVar[str] = "responses"

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        self._check_waves(shape)
        which = randomness.integers(keys, 0, len(self.sounds))
        peaks = [int(np.abs(row).argmax()) for row in self.sounds.rows()]
        return {"response": i32(which), "peak": i32(np.array(peaks)[which])}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        table = self.sounds.of_unit_energy()
        longest = table.shape[1]
        response = xp.constant(table, x)[p["response"]]
        size = 1 << (x.shape[-1] + longest - 2).bit_length()
        made = xp.irfft(xp.rfft(x, size) * xp.rfft(response, size), size)
        made = xp.windows(made, -1, (p["peak"],), (x.shape[-1],))
        before, after = ((one * one).mean(axis=-1, keepdims=True) for one in (x, made))
        return made * xp.sqrt(before / xp.where(after > 0, after, 1.0))


BITS = 16
ONE = 1 << BITS


@dataclass(frozen=True)
class Pitch(Op):
    """Changes the pitch by `semitones` and keeps the duration: two reading heads that run at another speed and fade
    into each other every `window` samples. A number means (-number, number)."""

    semitones: float | Range = 2.0
    window: int = 1024
    p: float = 1.0
    kind: ClassVar[str] = "audio"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._range("semitones", 0.0, -24.0, 24.0)
        if isinstance(self.window, bool) or not isinstance(self.window, int) or not 64 <= self.window <= 1 << 14:
            raise self._wrong("window from 64 to 16384 samples", self.window, "window=1024")

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        if len(shape) != 1:
            raise self._misfit("waveforms (rows, samples)", shape, "use it before features are computed")
        semitones = uniform(keys, self.semitones)
        return {"semitones": semitones, "faster": f32(2.0 ** (semitones.astype(np.float64) / 12) - 1)}

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        length, half = x.shape[-1], self.window // 2
        time = xp.indices(length, x)
        total = xp.full(x.shape, 0, x)
        for shift in (0, half):
            phase = (time + shift) % self.window
            ahead = p["faster"][:, None] * xp.astype(phase - half, xp.float32)[None, :]
            move = xp.astype(xp.round(ahead * float(ONE)), xp.int32)
            share = xp.astype(move & (ONE - 1), xp.float32) * (1 / ONE)
            place = time[None, :] + (move >> BITS)
            left, right = (xp.gather(x, -1, xp.clip(at, 0, length - 1)) for at in (place, place + 1))
            weight = 1 - xp.abs(xp.astype(phase - half, xp.float32)) * (1 / half)
            total = total + (left + (right - left) * share) * weight[None, :]
        return xp.where(each(p["faster"] == 0, x), x, total)
