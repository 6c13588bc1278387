"""Damage that keeps a format's own checksums and lengths right, so that it reaches what lies behind them.

Each function draws one damaged file from a seeded generator: the same on every machine.
"""

from __future__ import annotations

import random
import struct
import zlib

from tests.hostile.test_tar import padded

_FIELDS = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "mtime": (136, 12), "kind": (156, 1),
           "link": (157, 100), "magic": (257, 8), "prefix": (345, 155)}  # fmt: skip
_NAMES = ("a.txt", "./a.txt", "d/a.b.txt", "é.txt", "n" * 100, "a b.txt", "d/", "x", ".txt", "a.txt/", "")
_SIZES = ("%011o\0", "%11o ", "0o%o", "%o", " %o", "%o 7", "-%o", "0%do", "0x%x", "+%o", "%o_0")


def tar_header(draw: random.Random, size: int) -> bytes:
    """A header with a valid checksum and one or two odd fields."""
    block = bytearray(512)
    name = draw.choice(_NAMES).encode()[:100] if draw.random() < 0.3 else b"%d.txt" % draw.randrange(10**6)
    block[: len(name)] = name
    block[100:108], block[124:136], block[136:148] = b"0000644\0", b"%011o\0" % size, b"00000000000\0"
    block[156:157], block[257:265] = b"0", b"ustar\x0000"
    fields = draw.sample(list(_FIELDS), draw.choice((0, 1, 1, 2)))
    for field in fields[:1] if {"magic", "prefix"} == set(fields) else fields:  # tarfile takes any prefix
        at, length = _FIELDS[field]
        sizes = [pattern % size for pattern in _SIZES]
        odd = {
            "kind": draw.choice((b"0", b"\0", b"7", b"1", b"2", b"5", b"S", b"V", b"M", b"D", b"A", b"x", b"L")),
            "size": draw.choice([*(text.encode() for text in sizes), b"\x80" + size.to_bytes(11, "big")]),
            "mode": b"%7o" % draw.randrange(8**7),
            "mtime": b"%o" % draw.randrange(8**11),
            "magic": draw.choice((b"ustar  \0", bytes(8), b"ustar\x0011", b"USTAR\x0000")),
            "prefix": draw.choice((b"p", b"/p", b"../p", b"p\0q", b"\xff")),
            "name": draw.choice((b"../a.txt", b"/a.txt", b"a\0b.txt", b"a\xff.txt", b"a/../b.txt", b"-.txt")),
        }.get(field, draw.randbytes(length))
        block[at : at + length] = bytes(length)
        block[at : at + len(odd[:length])] = odd[:length]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def tar(draw: random.Random) -> bytes:
    """An archive of one to three members with such headers."""
    parts = []
    for _ in range(draw.randint(1, 3)):
        data = draw.randbytes(draw.choice((0, 1, 7, 512, 600)))
        parts += [tar_header(draw, len(data)), padded(data)]
    return b"".join(parts) + bytes(draw.choice((1024, 1024, 1024, 512, 0, 10240)))


def png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Name and body of each chunk."""
    chunks, at = [], 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return chunks


def png(draw: random.Random, data: bytes) -> bytes:
    """A PNG whose chunks were changed, moved, repeated or left out, each with a checksum that fits."""
    chunks = png_chunks(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(chunks))
        name, body = chunks[at]
        match draw.randrange(7):
            case 0:
                chunks.insert(at, draw.choice(chunks))
            case 1:
                chunks.append(chunks.pop(at))
            case 2 if len(chunks) > 2:
                chunks.pop(at)
            case 3 if body:
                place = draw.randrange(len(body))
                chunks[at] = name, body[:place] + draw.randbytes(1) + body[place + 1 :]
            case 4:
                chunks[at] = name, body[: draw.randrange(len(body) + 1)]
            case 5:
                names = (b"tRNS", b"gAMA", b"PLTE", b"eXIf", b"acTL", b"fdAT", b"abcd", b"ABCD", b"iCCP", b"IDAT")
                chunks.insert(at, (draw.choice(names), draw.randbytes(draw.choice((0, 1, 2, 6, 26, 768)))))
            case 6 if name == b"IDAT":
                cut = draw.randrange(len(body) + 1)
                chunks[at : at + 1] = [(name, body[:cut]), (name, b""), (name, body[cut:])]
    parts = [struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks]
    return data[:8] + b"".join(parts)


def gif_blocks(data: bytes) -> list[bytes]:
    """The header with its colours, each extension and frame, and the end."""
    at = 13 + (3 * (2 << (data[10] & 7)) if data[10] & 0x80 else 0)
    blocks = [data[:at]]
    while data[at : at + 1] not in (b";", b""):
        start = at
        if data[at] == 0x21:
            at += 2
        else:
            at += 11 + (3 * (2 << (data[at + 9] & 7)) if data[at + 9] & 0x80 else 0)
        while data[at]:
            at += 1 + data[at]
        at += 1
        blocks.append(data[start:at])
    return [*blocks, data[at:]]


def gif(draw: random.Random, data: bytes) -> bytes:
    """A GIF whose blocks were changed, moved, repeated or left out."""
    blocks = gif_blocks(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(blocks))
        block = blocks[at]
        match draw.randrange(6):
            case 0:
                blocks.insert(at, draw.choice(blocks))
            case 1:
                blocks.append(blocks.pop(at))
            case 2 if len(blocks) > 2:
                blocks.pop(at)
            case 3 if block:
                place = draw.randrange(min(len(block), 14))
                blocks[at] = block[:place] + draw.randbytes(1) + block[place + 1 :]
            case 4:
                blocks[at] = block[: draw.randrange(len(block) + 1)]
            case 5:
                blocks.insert(
                    at, b"\x21" + draw.choice((b"\xf9", b"\xfe", b"\xff")) + b"\4" + draw.randbytes(4) + b"\0"
                )
    return b"".join(blocks)


def gzip_member(draw: random.Random, data: bytes) -> bytes:
    """A gzip member with any header fields, its checksum right."""
    flags, fields = 0, b""
    if draw.random() < 0.5:
        extra = draw.randbytes(draw.choice((0, 1, 300)))
        flags, fields = flags | 4, fields + struct.pack("<H", len(extra)) + extra
    for flag, field in ((8, b"name\xff.txt\0"), (16, b"\0")):
        if draw.random() < 0.4:
            flags, fields = flags | flag, fields + field
    head = b"\x1f\x8b\x08" + bytes([flags | (2 if draw.random() < 0.3 else 0)]) + draw.randbytes(6) + fields
    if head[3] & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    packer = zlib.compressobj(draw.randrange(10), zlib.DEFLATED, -15)
    half = len(data) // 2
    body = packer.compress(data[:half]) + packer.flush(draw.choice((zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH)))
    body += packer.compress(data[half:]) + packer.flush()
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


def wav(draw: random.Random, samples: bytes) -> bytes:
    """A RIFF file with odd chunks around 16-bit samples, its lengths right."""
    rate, channels, bits = draw.choice((8000, 44100)), draw.choice((1, 2)), draw.choice((8, 16, 24, 32))
    frame = channels * bits // 8
    samples = samples[: len(samples) // (12 * frame) * 12 * frame]
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, bits)
    if draw.random() < 0.3:
        guid = struct.pack("<H", 1) + bytes.fromhex("000000001000800000aa00389b71")
        form = struct.pack("<H", 0xFFFE) + form[2:] + struct.pack("<HHI", 22, bits, (1 << channels) - 1) + guid
    around = [(b"LIST", b"INFOISFT\4\0\0\0abc\0"), (b"fact", struct.pack("<I", len(samples) // frame)),
              (b"id3 ", b"odd"), (b"JUNK", bytes(28)), (b"bext", draw.randbytes(602))]  # fmt: skip
    chunks = [(b"fmt ", form), (b"data", samples[: draw.choice((len(samples), len(samples) // 2 // frame * frame, 0))])]
    for _ in range(draw.randint(0, 3)):
        chunks.insert(draw.randint(0, len(chunks)), draw.choice(around))
    body = b"".join(n + struct.pack("<I", len(b)) + b + bytes(len(b) % 2) for n, b in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body
