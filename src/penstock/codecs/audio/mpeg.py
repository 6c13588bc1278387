"""Finds the frames of an MP3 (MPEG audio), since its length stands nowhere.

libsndfile estimates the length of a file without an Info or Xing header from the size of its first frame: tags then
count as sound, and of a variable bit rate the end is lost. Where the bit rate varies it also seeks to a place from
which the decoder cannot go on correctly. Here every frame header is read (about 1 us each, 0.15 s for an hour), tags
and other bytes between frames are skipped, and `part` makes a stream of just the frames that a slice needs.

The encoder's silence at both ends is trimmed as the Info header says. A header that states fewer frames than there are
belongs to the first of several joined files: then nothing is trimmed and all are decoded. One that states more means a
truncated file, and raises. Without a header, an incomplete last frame is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import RecordError

MAX_SEARCH = 500_000
"""Most places between frames that are looked at: more is not an MP3 but an attack on time."""
LARGEST_FREE = 8192
"""Bytes of the largest frame of free format that is looked for."""

DECODER_DELAY = 529
"""Samples by which every decoder of layer III lags behind."""
WARM_UP = 4
"""Frames before a slice after which the decoder's state is what it would be in a full decode."""
RESERVOIR = 511
"""Most bytes before a frame to which it can refer back."""
RECOGNISED = 3
"""Frames from which libsndfile knows that a stream is an MP3."""
MAX_BLANK = 64
MOST_OVERHEAD = 38
"""Most bytes of a frame that are not sound: header, checksum, side information."""

I64 = NDArray[np.int64]

_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # by version: 1, 2, 2.5
_KBIT = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}  # (1 for version 1, 2 for 2 and 2.5; layer)
_SAME = 0xFFFE0C00  # sync, version, layer, sample rate: equal in all frames of a stream
_SYNC = re.compile(rb"\xff[\xe2-\xff]")
_ID3, _ID3V1, _APE, _LYRICS = b"ID3", b"TAG", b"APETAGEX", b"LYRICSBEGIN"


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a stream, without Info frames: frame i is the bytes from `starts[i]` to `stops[i]`."""

    header: int
    """The first four bytes of the first frame."""
    starts: I64
    stops: I64
    begin: int
    """Samples that the decoder and the encoder put before the sound, as the Info header says."""
    samples: int
    """Samples of each channel, without those."""

    @property
    def sample_rate(self) -> int:
        return _RATES[self.header >> 19 & 3][self.header >> 10 & 3]

    @property
    def channels(self) -> int:
        return 1 if _is_mono(self.header) else 2


def walk(data: bytes | memoryview, where: str) -> Frames | None:
    """Reads all frame headers; None if there is no stream of MPEG audio. `RecordError` for a truncated file."""
    view = memoryview(data)
    n = len(view)
    if n >= 128 and view[n - 128 : n - 125] == _ID3V1:
        n -= 128
    search = _Search(view, n, where)
    first = search.next(0, None)
    if first is None:
        return None
    header = _word(view, first)
    free = search.free_size(first, header)
    same, tag = header & _SAME, None
    starts: list[int] = []
    stops: list[int] = []
    sizes: dict[int, int] = {}
    at: int | None = first
    while at is not None:
        info = _info(view, at)
        if info is not None:
            tag = tag or (info if at == first else None)
            at += _size(_word(view, at), free)
        while at + 4 <= n:
            word = int.from_bytes(view[at : at + 4], "big")
            size = sizes.get(word)
            if size is None:
                size = sizes[word] = _size(word, free) if word & _SAME == same else 0
            if not size or at + size > n:
                break
            starts.append(at)
            at += size
            stops.append(at)
        at = search.next(at, same, free)
    if len({_is_mono(word) for word, size in sizes.items() if size}) > 1:
        raise RecordError("an MP3 of one number of channels", got="frames of one and of two", where=where)
    begin, end = _sound(tag, len(starts), _samples(header), where)
    return Frames(header, np.array(starts, np.int64), np.array(stops, np.int64), begin, end - begin)


def _sound(tag: _Info | None, count: int, each: int, where: str) -> tuple[int, int]:
    """Where the sound begins and ends in the samples of all frames."""
    total = count * each
    if tag is None or not tag.frames:
        return 0, total
    if count < tag.frames:
        raise RecordError(
            f"{tag.frames:,} frames, as the header of this MP3 says", got=f"{count:,} complete ones", where=where,
            fix="the file is truncated: fetch it again or leave it out",
        )  # fmt: skip
    begin, end = tag.before + DECODER_DELAY, min(total, total - tag.after + DECODER_DELAY)
    if count > tag.frames or not tag.trims or begin > end:
        return 0, total
    return begin, end


def part(data: bytes | memoryview, frames: Frames, first: int, wanted: int) -> tuple[bytes, int]:
    """A stream that holds the samples [first, first + wanted), and how many samples to skip in it.

    libsndfile does not seek exactly where the bit rate varies, so the stream begins a few frames early: some whose
    sound is blanked, as they only hold bits that later frames refer back to, and some that bring the decoder into the
    state that it has there. The samples then equal those of a full decode. The last frame is repeated where there are
    too few for libsndfile to recognise them. Zeros at the end make libsndfile's estimate
    of the length cover all frames.
    """
    view = memoryview(data)
    each = _samples(frames.header)
    target, last = (frames.begin + first) // each, (frames.begin + first + wanted - 1) // each
    real = max(0, target - WARM_UP)
    blank, held = real, 0
    if _layer(frames.header) == 3:
        while blank > 0 and held < RESERVOIR and real - blank < MAX_BLANK:
            blank -= 1
            held += int(frames.stops[blank] - frames.starts[blank]) - MOST_OVERHEAD
    starts, stops = frames.starts[blank : last + 1].tolist(), frames.stops[blank : last + 1].tolist()
    parts = [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    held = 0
    for i in range(real - blank):
        parts[i], held = _blanked(parts[i], held)
    parts += parts[-1:] * (RECOGNISED - len(parts))
    largest = max(map(len, parts), default=0)
    rest = (len(parts) + 2) * (largest + 1) - sum(map(len, parts))
    return b"".join(parts) + bytes(max(0, rest)), frames.begin + first - blank * each


def _blanked(frame: bytes, held: int) -> tuple[bytes, int]:
    """A frame without sound of its own, that passes on its bytes and `held` ones before it; and how many those are.

    The decoder keeps of earlier frames only what the previous one referred to, so each refers back as far as it can.
    """
    word = int.from_bytes(frame[:4], "big")
    first = word >> 19 & 3 == 3
    start, size = 4 if word >> 16 & 1 else 6, _side_bytes(word)
    back = min(held, 511 if first else 255)
    side = (back << 7).to_bytes(2, "big") if first else bytes([back, 0])
    return frame[:start] + side + bytes(size - 2) + frame[start + size :], back + len(frame) - start - size


class _Search:
    """Finds where frames begin again after bytes that are none."""

    def __init__(self, view: memoryview, n: int, where: str) -> None:
        self.view, self.n, self.where, self.looked = view, n, where, 0

    def next(self, at: int, same: int | None, free: int = 0) -> int | None:
        """The first frame at or after `at` that another one, or the end, follows; None if there is none."""
        at = self._after_tags(at)
        for found in _SYNC.finditer(self.view, at, self.n):
            at = found.start()
            self.looked += 1
            if self.looked > MAX_SEARCH:
                fix = "leave the file out"
                raise RecordError("an MP3 of frames", got="mostly other bytes", where=self.where, fix=fix)
            if at + 4 > self.n:
                return None
            word = _word(self.view, at)
            if same is not None and word & _SAME != same:
                continue
            size = _size(word, free or self.free_size(at, word))
            if size and self._followed(at + size, word, free):
                return at
        return None

    def free_size(self, at: int, word: int) -> int:
        """Bytes without padding of a frame of free format: the distance to the next header like it; 0 for others."""
        if not _valid(word) or word >> 12 & 15:
            return 0
        alike = word & 0xFFFFFC00
        for found in _SYNC.finditer(self.view, at + 4, min(self.n, at + LARGEST_FREE)):
            after = found.start()
            if after + 4 <= self.n and _word(self.view, after) & 0xFFFFFC00 == alike:
                return after - at - _padding(word)
        return 0

    def _followed(self, at: int, word: int, free: int) -> bool:
        """Whether a frame of the same stream begins at `at`, or a tag, or the file ends."""
        if at == self.n:
            return True
        if at + 4 > self.n:
            return False
        after = _word(self.view, at)
        return (after & _SAME == word & _SAME and _valid(after)) or self._after_tags(at) != at

    def _after_tags(self, at: int) -> int:
        """The end of the tags that begin at `at`."""
        view = self.view
        for _ in range(64):
            if view[at : at + 3] == _ID3 and at + 10 <= self.n:
                at += id3_size(view[at : at + 10])
            elif view[at : at + 8] == _APE and at + 32 <= self.n:
                header = view[at + 23] & 0x20
                at += 32 + (int.from_bytes(view[at + 12 : at + 16], "little") if header else 0)
            elif view[at : at + 3] == _ID3V1 and at + 128 <= self.n:
                at += 128
            elif view[at : at + 11] == _LYRICS:
                ends = [bytes(view[at : self.n]).find(mark) for mark in (b"LYRICS200", b"LYRICSEND")]
                at += max(11, *(end + 9 for end in ends))
            else:
                return min(at, self.n)
        return min(at, self.n)


def is_frame(head: bytes) -> bool:
    """Whether a frame of MPEG audio may begin so.

    >>> is_frame(bytes.fromhex("fffb9064")), is_frame(b"RIFF")
    (True, False)
    """
    return len(head) >= 4 and _valid(int.from_bytes(head[:4], "big"))


def id3_size(head: bytes | memoryview) -> int:
    """The size of the ID3v2 tag with these first 10 bytes."""
    size = 0
    for byte in head[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size + (10 if head[5] & 0x10 else 0)


def _word(view: memoryview, at: int) -> int:
    return int.from_bytes(view[at : at + 4], "big")


def _valid(word: int) -> bool:
    """Whether these four bytes can be a frame header."""
    return (
        word >> 21 == 0x7FF
        and word >> 19 & 3 != 1
        and bool(word >> 17 & 3)
        and word >> 12 & 15 != 15
        and word >> 10 & 3 != 3
    )


def _layer(word: int) -> int:
    return 4 - (word >> 17 & 3)


def _padding(word: int) -> int:
    return (4 if _layer(word) == 1 else 1) * (word >> 9 & 1)


def _size(word: int, free: int) -> int:
    """Bytes of the frame with this header; 0 if it is none. `free` is the size of frames of free format."""
    if not _valid(word):
        return 0
    version, layer, index = word >> 19 & 3, _layer(word), word >> 12 & 15
    if not index:
        return free + _padding(word) if free else 0
    rate = _RATES[version][word >> 10 & 3]
    bits = _KBIT[1 if version == 3 else 2, layer][index - 1] * 1000
    if layer == 1:
        return (12 * bits // rate) * 4 + _padding(word)
    return (72 if layer == 3 and version != 3 else 144) * bits // rate + _padding(word)


def _samples(word: int) -> int:
    layer = _layer(word)
    return 384 if layer == 1 else 576 if layer == 3 and word >> 19 & 3 != 3 else 1152


@dataclass(frozen=True, slots=True)
class _Info:
    """What an Info, Xing or VBRI header says: frames (0: nothing), and samples that the encoder added at both ends."""

    frames: int
    before: int = 0
    after: int = 0
    trims: bool = False


def _info(view: memoryview, at: int) -> _Info | None:
    """The Info, Xing or VBRI header in the frame at `at`; None if it is a frame of sound."""
    word = _word(view, at)
    if _layer(word) != 3:
        return None
    if bytes(view[at + 36 : at + 40]) == b"VBRI":
        return _Info(int.from_bytes(view[at + 50 : at + 54], "big"))
    tag = at + 4 + _side_bytes(word)
    if bytes(view[tag : tag + 4]) not in (b"Xing", b"Info") or len(view) < tag + 8:
        return None
    flags = view[tag + 7]
    frames = int.from_bytes(view[tag + 8 : tag + 12], "big") if flags & 1 else 0
    encoder = tag + 8 + 4 * (flags & 1) + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
    delays = int.from_bytes(view[encoder + 21 : encoder + 24], "big")
    trims = encoder + 24 <= at + _size(word, 0) and bytes(view[encoder : encoder + 1]) not in (b"\0", b"")
    return _Info(frames, delays >> 12, delays & 0xFFF, trims)


def _is_mono(word: int) -> bool:
    return word >> 6 & 3 == 3


def _side_bytes(word: int) -> int:
    """Bytes of the side information of layer III."""
    mono = _is_mono(word)
    return (17 if mono else 32) if word >> 19 & 3 == 3 else (9 if mono else 17)
