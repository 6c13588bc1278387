"""Turns text with `<image>` and `<audio>` into token ids with exact runs of placeholders, before anything is decoded.

What a picture or a sound costs in tokens follows from its header (height and width, seconds), so a sequence is planned,
measured and cut without touching pixels or samples. Cutting never separates the two: a medium is in the
sequence with its full run, or it is not there and `kept` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.collate.tokens import IGNORE
from penstock.core.arguments import explained_class
from penstock.core.errors import RecordError, UsageError
from penstock.tokenizers import as_tokenizer

Overflow = Literal["cut", "error"]
Ids = NDArray[np.int64]


@explained_class
@dataclass(frozen=True)
class ImageTokens:
    """What a picture costs: one token for `merge` x `merge` patches of `patch` x `patch` pixels, and `extra` for each.

    With `size` every picture is brought to that (height, width). Without, sides are rounded to whole tokens, and a
    picture of more than `most` tokens is shrunk until it has no more: `resized` says to which pixels.

    >>> cost = ImageTokens(patch=14, merge=2, most=256)
    >>> cost.tokens(224, 448), cost.resized(224, 448), cost.tokens(2000, 1000)
    (128, (224, 448), 242)
    """

    patch: int = 14
    merge: int = 1
    size: tuple[int, int] | None = None
    most: int | None = None
    extra: int = 0

    def __post_init__(self) -> None:
        if min(self.patch, self.merge, self.most or 1) < 1 or self.extra < 0:
            raise UsageError("patch, merge and most of at least 1, extra of at least 0", got=repr(self))
        if self.size is not None and any(side < 1 or side % self.cell for side in self.size):
            raise UsageError(f"size in multiples of patch * merge = {self.cell}", got=repr(self.size))

    @property
    def cell(self) -> int:
        """Pixels along each side of what one token stands for."""
        return self.patch * self.merge

    def grid(self, height: float, width: float) -> tuple[int, int]:
        """Rows and columns of tokens."""
        if not (height > 0 and width > 0):
            raise RecordError("a picture with pixels", got=f"{height} x {width}")
        if self.size is not None:
            return self.size[0] // self.cell, self.size[1] // self.cell
        rows, columns = (max(1, round(side / self.cell)) for side in (height, width))
        if self.most is not None and rows * columns > self.most:
            shrink = (height * width / (self.most * self.cell**2)) ** 0.5
            rows, columns = (max(1, int(side / self.cell / shrink)) for side in (height, width))
            rows, columns = min(rows, self.most // columns or 1), min(columns, self.most)
        return rows, columns

    def resized(self, height: float, width: float) -> tuple[int, int]:
        """The (height, width) in pixels that has exactly this many tokens."""
        rows, columns = self.grid(height, width)
        return rows * self.cell, columns * self.cell

    def tokens(self, height: float, width: float) -> int:
        rows, columns = self.grid(height, width)
        return rows * columns + self.extra


@explained_class
@dataclass(frozen=True)
class AudioTokens:
    """What a sound costs: one token for `frames` frames of `hop` samples at `sample_rate`, the last one begun counted.

    Sound of more than `most` tokens is cut to that many: `seconds_of` says to how many seconds.

    >>> AudioTokens().tokens(1.0), AudioTokens().tokens(0.001), AudioTokens(most=10).tokens(60.0)
    (25, 1, 10)
    """

    sample_rate: int = 16000
    hop: int = 160
    frames: int = 4
    most: int | None = None

    def __post_init__(self) -> None:
        if min(self.sample_rate, self.hop, self.frames, self.most or 1) < 1:
            raise UsageError("sample_rate, hop, frames and most of at least 1", got=repr(self))

    def tokens(self, seconds: float) -> int:
        if not seconds > 0:
            raise RecordError("a sound with a known length", got=f"{seconds} seconds")
        found = -(-round(seconds * self.sample_rate) // (self.hop * self.frames))
        return max(1, found if self.most is None else min(found, self.most))


@dataclass(frozen=True)
class Span:
    """Medium `number` of its kind is at ids [start, start + length)."""

    kind: str
    number: int
    start: int
    length: int


@dataclass(frozen=True)
class Interleaved:
    """Token ids and where each medium is in them; `dropped` are those that did not fit completely."""

    ids: Ids
    spans: tuple[Span, ...]
    dropped: tuple[tuple[str, int], ...] = ()

    def kept(self, kind: str) -> list[int]:
        """Which media of a kind to decode, in order."""
        return [span.number for span in self.spans if span.kind == kind]

    def mask(self, kind: str | None = None) -> NDArray[np.bool_]:
        """True where a placeholder stands."""
        out = np.zeros(len(self.ids), bool)
        for span in self.spans:
            out[span.start : span.start + span.length] |= kind in (None, span.kind)
        return out

    def labels(self) -> Ids:
        """The token after each; -100 where that is a placeholder or nothing."""
        out = np.full(len(self.ids), IGNORE, np.int64)
        out[:-1] = np.where(self.mask()[1:], IGNORE, self.ids[1:])
        return out


@explained_class
@dataclass(frozen=True)
class Interleave:
    """Makes sequences of text and media. `ids` holds the placeholder's token id for each kind: "image", "audio".

    `brackets` puts ids before and after a run; they belong to it. `overflow="cut"` ends a sequence that is longer than
    `length` before the first medium that does not fit completely (text is cut anywhere); "error" refuses it.

    >>> make = Interleave("bytes", {"image": 256}, image=ImageTokens(size=(28, 28)), length=12)
    >>> made = make("hi <image> and <image>", images=[(300, 200), (100, 100)])
    >>> made.ids.tolist()
    [104, 105, 32, 256, 256, 256, 256, 32, 97, 110, 100, 32]
    >>> made.kept("image"), made.dropped
    ([0], (('image', 1),))
    """

    tokenizer: Any
    ids: Mapping[str, int]
    image: ImageTokens = field(default_factory=ImageTokens)
    audio: AudioTokens = field(default_factory=AudioTokens)
    length: int | None = None
    overflow: Overflow = "cut"
    brackets: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.overflow not in ("cut", "error") or (self.length is not None and self.length < 1):
            raise UsageError(
                'overflow="cut" or "error" and length of at least 1', got=f"{self.overflow!r} and {self.length!r}"
            )
        unknown = [kind for kind in (*self.ids, *self.brackets) if kind not in ("image", "audio")]
        if unknown or not self.ids or set(self.brackets) - set(self.ids):
            raise UsageError('ids for "image", "audio" or both', got=repr(dict(self.ids)), fix='ids={"image": 50257}')
        object.__setattr__(self, "tokenizer", as_tokenizer(self.tokenizer, add_special_tokens=False))

    def __call__(
        self,
        text: str,
        *,
        images: Sequence[tuple[float, float]] = (),
        audio: Sequence[float] = (),
        where: str = "",
    ) -> Interleaved:
        """The sequence of a text, of the (height, width) of its pictures and the seconds of its sounds, in order."""
        parts: list[tuple[str, Ids]] = []
        media = {"image": iter(images), "audio": iter(audio)}
        for piece in re.split("(" + "|".join(f"<{kind}>" for kind in self.ids) + ")", text):
            kind = piece[1:-1]
            if piece == f"<{kind}>" and kind in self.ids:
                fact = next(media[kind], None)
                if fact is None:
                    raise _uneven(kind, text, where)
                parts.append((kind, self._run(kind, fact)))
            elif piece:
                parts.append(("", np.asarray(self.tokenizer.encode(piece), np.int64)))
        for kind, rest in media.items():
            if next(rest, None) is not None:
                raise _uneven(kind, text, where)
        return self._joined(parts, where)

    def count(self, text: str, **media: Any) -> int:
        """Tokens of the sequence before any is cut: what a length budget is to be asked for."""
        unlimited = Interleave(self.tokenizer, self.ids, self.image, self.audio, None, "cut", self.brackets)
        return len(unlimited(text, **media).ids)

    def _run(self, kind: str, fact: Any) -> Ids:
        count = self.image.tokens(*fact) if kind == "image" else self.audio.tokens(fact)
        run = np.full(count, self.ids[kind], np.int64)
        before, after = self.brackets.get(kind, (None, None))
        return run if before is None else np.concatenate([[before], run, [after]]).astype(np.int64)

    def _joined(self, parts: list[tuple[str, Ids]], where: str) -> Interleaved:
        total = sum(len(ids) for _, ids in parts)
        if self.length is not None and total > self.length and self.overflow == "error":
            raise RecordError(
                f"at most {self.length} tokens", got=f"{total}", where=where, fix='overflow="cut", or a larger length'
            )
        room = total if self.length is None else self.length
        kept: list[Ids] = []
        spans: list[Span] = []
        dropped: list[tuple[str, int]] = []
        seen = dict.fromkeys(("image", "audio"), 0)
        used, ended = 0, False
        for kind, ids in parts:
            fits = not ended and used + len(ids) <= room
            ended |= not fits
            if kind:
                number = seen[kind]
                seen[kind] += 1
                if not fits:
                    dropped.append((kind, number))
                    continue
                inner = 1 if kind in self.brackets else 0
                spans.append(Span(kind, number, used + inner, len(ids) - 2 * inner))
            taken = ids if fits else ids[: 0 if dropped else room - used]
            kept.append(taken)
            used += len(taken)
        made = np.concatenate(kept) if kept else np.empty(0, np.int64)
        return Interleaved(made, tuple(spans), tuple(dropped))


def _uneven(kind: str, text: str, where: str) -> RecordError:
    return RecordError(
        f"as many {kind}s as <{kind}> in the text",
        got=f"{text.count(f'<{kind}>')} in {text[:60]!r}",
        where=where,
        fix="write one placeholder in the text for each medium",
    )
