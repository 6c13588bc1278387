"""Compares the number of samples that a FLAC header states with the file's last frame.

The stated number may be 0, for "unknown", or wrong: libsndfile then reads nothing, or stops early without an error.
The last frame says which samples it holds. Frames have checksums of their own, which libsndfile verifies.
"""

from __future__ import annotations

from penstock.core.errors import RecordError

TAIL = 1 << 17
"""Bytes at the end in which the last frame is looked for, unless the header says that frames are larger."""
MAX_TRIES = 32
"""Most places that look like a frame header of which the checksum of the frame is computed."""

_BLOCKS = {1: 192, **{code: 576 << (code - 2) for code in range(2, 6)}, **{c: 256 << (c - 8) for c in range(8, 16)}}


def stated(header: bytes) -> int:
    """Samples that the header states; `header` is the file's first 42 bytes."""
    return int.from_bytes(header[21:26], "big") & 0xFFFFFFFFF


def with_total(data: bytes, total: int) -> bytes:
    """The same file with `total` samples in its header."""
    first = bytes([data[21] & 0xF0 | total >> 32])
    return data[:21] + first + (total & 0xFFFFFFFF).to_bytes(4, "big") + data[26:]


def total_samples(header: bytes, tail: bytes, where: str) -> int:
    """Samples of each channel, by the last frame. `tail` is the end of the file.

    Raises `RecordError` if the header states another number (other than 0), or 0 and there is no last frame.
    """
    claimed, actual = stated(header), _end(header, tail, stated(header))
    if actual is None and claimed:
        return claimed  # damaged or unusual at its end: decoding decides
    if actual is None or (claimed and actual != claimed):
        raise RecordError(
            f"a FLAC of {claimed:,} samples, as its header says" if claimed else "a FLAC with a complete last frame",
            got=f"frames up to sample {actual:,}" if actual is not None else "none at the end of the file",
            where=where, fix="the file is truncated or damaged: fetch it again or leave it out",
        )  # fmt: skip
    return actual


def _end(header: bytes, tail: bytes, claimed: int) -> int | None:
    """The sample after the last frame; None if no frame ends where the file does."""
    if tail[-128:-125] == b"TAG":
        tail = tail[:-128]
    at, tries = len(tail), 0
    while tries < MAX_TRIES and (at := tail.rfind(b"\xff", 0, at)) >= 0:
        end = _frame(header, tail, at)
        if end is not None:
            tries += 1
            if end == claimed or _crc16(tail[at:]) == 0:
                return end
    return None


def _frame(header: bytes, tail: bytes, at: int) -> int | None:
    """The sample after the frame whose header is at `at`; None if there is none."""
    head = tail[at : at + 16]
    if len(head) < 6 or head[1] & 0xFE != 0xF8 or head[3] & 1 or head[2] & 15 == 15 or head[3] >> 4 > 10:
        return None
    number, used = _coded_number(head[4:])
    block, rate = head[2] >> 4, head[2] & 15
    place = 4 + used
    extra = {6: 1, 7: 2}.get(block, 0)
    size = int.from_bytes(head[place : place + extra], "big") + 1 if extra else _BLOCKS.get(block, 0)
    place += extra + {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if number is None or not size or place >= len(head) or _crc8(head[:place]) != head[place]:
        return None
    fixed = int.from_bytes(header[8:10], "big")
    return (number if head[1] & 1 else number * fixed) + size


def _coded_number(data: bytes) -> tuple[int | None, int]:
    """A number in the coding of UTF-8, up to 36 bits, and its bytes."""
    first = data[0]
    if first < 0x80:
        return first, 1
    more = next((n for n in range(1, 7) if not first >> (6 - n) & 1), 0) if first >= 0xC0 else 0
    if not more or len(data) <= more or any(byte >> 6 != 2 for byte in data[1 : 1 + more]):
        return None, 1
    value = first & ((1 << (6 - more)) - 1 if more < 6 else 0)
    for byte in data[1 : 1 + more]:
        value = value << 6 | byte & 0x3F
    return value, 1 + more


def _table(polynomial: int, bits: int) -> list[int]:
    made = []
    for byte in range(256):
        value = byte << (bits - 8)
        for _ in range(8):
            value = (value << 1) ^ (polynomial if value >> (bits - 1) & 1 else 0)
        made.append(value & ((1 << bits) - 1))
    return made


_TABLE8, _TABLE16 = _table(0x107, 8), _table(0x18005, 16)


def _crc8(data: bytes) -> int:
    value = 0
    for byte in data:
        value = _TABLE8[value ^ byte]
    return value


def _crc16(data: bytes) -> int:
    """0 for a complete frame, whose last two bytes are its checksum."""
    value = 0
    for byte in data:
        value = (value << 8 & 0xFFFF) ^ _TABLE16[value >> 8 ^ byte]
    return value
