"""A JPEG encoder for tests: one flat colour per 8 x 8 block, with any sampling factors, unlike Pillow and OpenCV."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

DC_SIZES = 12  # a Huffman code of 4 bits for each size of a DC difference from 0 to 11


def encode(
    blocks: Sequence[np.ndarray], factors: Sequence[tuple[int, int]], height: int, width: int, *, scans: bool = False
) -> bytes:
    """A baseline JPEG of component planes (one grey level per block) with (horizontal, vertical) factors.

    `scans` writes each component in a scan of its own.
    """
    count = len(factors)
    wide, tall = max(h for h, _ in factors), max(v for _, v in factors)
    frame = b"".join(bytes([i + 1, h << 4 | v, 0]) for i, (h, v) in enumerate(factors))
    out = b"\xff\xd8" + _segment(0xDB, b"\0" + b"\1" * 64)
    out += _segment(0xC0, struct.pack(">BHHB", 8, height, width, count) + frame)
    out += _segment(0xC4, b"\0" + bytes([0, 0, 0, DC_SIZES] + [0] * 12) + bytes(range(DC_SIZES)))
    out += _segment(0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\0")  # AC: only "end of block", one bit
    if scans:
        for c, (h, v) in enumerate(factors):
            tall_c, wide_c = -(-height * v // (8 * tall)), -(-width * h // (8 * wide))
            out += _scan(blocks, [(c, y, x) for y in range(tall_c) for x in range(wide_c)])
    else:
        out += _scan(
            blocks,
            [
                (c, my * v + y, mx * h + x)
                for my in range(-(-height // (8 * tall)))
                for mx in range(-(-width // (8 * wide)))
                for c, (h, v) in enumerate(factors)
                for y in range(v)
                for x in range(h)
            ],
        )
    return out + b"\xff\xd9"


def _scan(blocks: Sequence[np.ndarray], order: Sequence[tuple[int, int, int]]) -> bytes:
    """A scan of blocks, each a (component, row, column); beyond the edge the last block is repeated."""
    components = sorted({c for c, _, _ in order})
    last = dict.fromkeys(components, 0)
    bits: list[str] = []
    for c, y, x in order:
        plane = blocks[c]
        level = (int(plane[min(y, plane.shape[0] - 1), min(x, plane.shape[1] - 1)]) - 128) * 8
        bits.append(_dc(level - last[c]) + "0")
        last[c] = level
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    scan = b"".join(bytes([c + 1, 0]) for c in components)
    body = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8)).replace(b"\xff", b"\xff\0")
    return _segment(0xDA, bytes([len(components)]) + scan + b"\0\x3f\0") + body


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _dc(difference: int) -> str:
    size = abs(difference).bit_length()
    value = difference if difference > 0 else difference + (1 << size) - 1
    return f"{size:04b}" + (f"{value:0{size}b}" if size else "")
