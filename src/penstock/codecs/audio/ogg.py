"""Verifies the pages of an Ogg file (Vorbis, Opus, FLAC): checksums, order, completeness; finds its last page.

libsndfile drops a page whose checksum does not match, and everything after it moves. Every page has a CRC-32, whose
polynomial is zlib's with the bits of each byte in the other order: so zlib computes it, at about 500 MB/s.
"""

from __future__ import annotations

import zlib

from penstock.core.errors import RecordError

_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_FIRST = 2


def check(data: bytes | memoryview, where: str) -> int:
    """Raises `RecordError` for a damaged, missing or incomplete page, and for several streams after one another.

    Returns the granule position at which the last page begins, the earliest of all streams.
    """
    view, at, begun = memoryview(data), 0, False
    numbers: dict[bytes, int] = {}
    ends: dict[bytes, tuple[int, int]] = {}  # granule positions at which the last page of a stream begins and ends
    while at + 27 <= len(view) and bytes(view[at : at + 4]) == b"OggS":
        parts = view[at + 26]
        end = at + 27 + parts + sum(view[at + 27 : at + 27 + parts])
        if end > len(view):
            raise _damaged(f"the file ends inside the page at byte {at:,}", where)
        page = view[at:end]
        if _crc(page) != int.from_bytes(page[22:26], "little"):
            raise _damaged(f"the page at byte {at:,} does not match its checksum", where)
        serial, number = bytes(page[14:18]), int.from_bytes(page[18:22], "little")
        if page[5] & _FIRST and begun:
            raise RecordError(
                "an Ogg file of one stream", got=f"another that begins at byte {at:,}", where=where,
                fix="split the file where its streams begin",
            )  # fmt: skip
        begun |= not page[5] & _FIRST
        if serial in numbers and number != numbers[serial] + 1:
            raise _damaged(f"page {number} after page {numbers[serial]}, at byte {at:,}", where)
        numbers[serial] = number
        granule = int.from_bytes(page[6:14], "little", signed=True)
        if granule >= 0:  # no packet ends on a page without
            ends[serial] = (ends.get(serial, (0, 0))[1], granule)
        at = end
    if b"OggS" in bytes(view[at : at + (1 << 20)]):
        raise _damaged(f"bytes that are no page at byte {at:,}", where)
    return min((begin for begin, _ in ends.values()), default=0)


def _crc(page: memoryview) -> int:
    """The checksum of a page, for which its own four bytes count as zero."""
    body = (bytes(page[:22]) + bytes(4) + bytes(page[26:])).translate(_MIRRORED)
    plain = zlib.crc32(body, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{plain:032b}"[::-1], 2)


def _damaged(got: str, where: str) -> RecordError:
    return RecordError("an intact Ogg file", got=got, where=where, fix="fetch it again or leave it out")
