"""How a TFRecord file begins: the length of its first record and the CRC32C of that length."""

from __future__ import annotations

HEAD = 12


def begins_frame(head: bytes) -> bool:
    """Whether these bytes begin a frame: a length and its sum. Needs no package, for 8 bytes.

    >>> begins_frame(bytes.fromhex("1200000000000000 241f6425")), begins_frame(b"some plain text")
    (True, False)
    """
    if len(head) < HEAD:
        return False
    crc = 0xFFFFFFFF
    for byte in head[:8]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == int.from_bytes(head[8:HEAD], "little")
