"""Reads outside a token stream raise: out-of-range, negative and overflowing starts and lengths, through every caller.

`store/arrays.py` gathers over raw addresses. Its invariant: callers have checked every range against its part.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.columns import Ragged
from penstock.core.errors import PenstockError, StoreError, UsageError
from penstock.sources.megatron import open_megatron
from penstock.sources.nanogpt import open_nanogpt
from penstock.sources.tokens import TokenArray
from penstock.store.gather import gather_rows
from penstock.store.manifest import write_manifest
from penstock.store.reader import TokenStore
from penstock.store.writer import ShardWriter

SIZES = (300, 0, 7, 500, 193)
TOKENS = np.arange(sum(SIZES), dtype=np.uint16) + 5
N = len(TOKENS)
EDGES = np.cumsum([0, *SIZES])
HUGE = (2**31, 2**32, 2**62, 2**63 - 1)


def write_store(folder: Path, shards: int) -> Path:
    folder.mkdir()
    infos = []
    for k in range(shards):
        documents = [TOKENS[EDGES[d] : EDGES[d + 1]] for d in range(k, len(SIZES))][: None if k == shards - 1 else 1]
        with ShardWriter(folder / f"{k:05d}.tokens", vocab_size=60_000, page_bytes=4096) as shard:
            shard.add(Ragged.of(documents, np.uint16), {"number": np.arange(len(documents), dtype=np.uint16)})
        infos.append(shard.finish())
    write_manifest(folder, infos)
    return folder


def write_megatron(prefix: Path) -> Path:
    TOKENS.tofile(f"{prefix}.bin")
    lengths, pointers = np.array(SIZES, "<i4"), (EDGES[:-1] * 2).astype("<i8")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, len(SIZES), len(SIZES) + 1)
    documents = np.arange(len(SIZES) + 1, dtype="<i8")
    Path(f"{prefix}.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + documents.tobytes())
    return prefix


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("gather")
    one, five = write_store(root / "one", 1), write_store(root / "five", len(SIZES))
    for k, size in enumerate((400, 0, N - 400)):
        TOKENS[sum((400, 0)[:k]) :][:size].tofile(root / f"{k}.bin")
    checked = TokenStore(five)
    checked.gather(np.arange(N - 1), 1)
    checked.read(np.arange(len(checked)))
    return {
        "store of one shard": TokenStore(one),
        "store of five shards": TokenStore(five),
        "verified at opening": TokenStore(five, verify="open"),
        "never verified": TokenStore(five, verify="off"),
        "verified by use": checked,
        "array": TokenArray(TOKENS, doc_offsets=EDGES),
        "nanogpt files": open_nanogpt([root / "0.bin", root / "1.bin", root / "2.bin"], dtype="uint16"),
        "megatron": open_megatron(write_megatron(root / "megatron")),
    }


NAMES = [
    "store of one shard", "store of five shards", "verified at opening", "never verified", "verified by use", "array",
    "nanogpt files", "megatron",
]  # fmt: skip


@pytest.fixture(params=NAMES)
def source(request: pytest.FixtureRequest, sources: dict[str, Any]) -> Any:
    return sources[request.param]


def windows(source: Any) -> list[Callable[[Any, Any], Any]]:
    """The two ways to read windows."""
    return [source.gather, lambda starts, length: source.reader(starts, length)(0, len(starts))]


def test_what_is_inside_is_read_exactly(source: Any) -> None:
    for read in windows(source):
        for length in (1, 8, 300, N):
            starts = np.arange(N - length + 1)
            expected = np.lib.stride_tricks.sliding_window_view(TOKENS, length)
            np.testing.assert_array_equal(read(starts, length), expected)


@pytest.mark.parametrize("length", [1, 8, 300])
def test_windows_outside_the_stream_raise(source: Any, length: int) -> None:
    for bad in (-1, -N, -(2**31), -(2**63), N - length + 1, N, *HUGE):
        for starts in (np.array([bad]), np.array([0, 5, bad]), np.array([bad, 0])):
            for read in windows(source):
                with pytest.raises(UsageError, match=f"(?s)windows of {length} tokens.*start {bad}"):
                    read(starts, length)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64, np.uint32])
def test_windows_outside_raise_for_every_integer_type_of_starts(source: Any, kind: Any) -> None:
    top = np.iinfo(kind).max
    for starts in ([top], [0, top], [0, 1, N], [np.iinfo(kind).min or top, 0]):
        for read in windows(source):
            with pytest.raises(UsageError, match="windows of 8 tokens"):
                read(np.array(starts, kind), 8)
    for read in windows(source):
        np.testing.assert_array_equal(read(np.array([0, N - 8, 3], kind), 8)[1], TOKENS[-8:])


@pytest.mark.parametrize("length", [-1, -(2**63), N + 1, 2**40, 2**63 - 1, 2**64, 2**70])
def test_lengths_beyond_the_stream_raise(source: Any, length: int) -> None:
    for starts in (np.array([0]), np.array([0, N - 1])):
        for read in windows(source):
            with pytest.raises(UsageError, match=f"windows of {length} tokens"):
                read(starts, length)


@pytest.mark.parametrize("length", [np.uint64(N + 1), np.uint64(2**63), np.int64(-1), np.uint16(N + 1)])
def test_numpy_integers_as_length_do_not_wrap_around(source: Any, length: Any) -> None:
    for read in windows(source):
        with pytest.raises(UsageError, match=f"windows of {int(length)} tokens"):
            read(np.array([0, 1]), length)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    starts=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, N + 3), min_size=1, max_size=6),
    length=st.integers(-(2**63), 2**63 - 1) | st.integers(-3, N + 3),
)
def test_any_window_is_exact_or_raises(sources: dict[str, Any], name: str, starts: list[int], length: int) -> None:
    inside = length >= 0 and all(0 <= start <= N - length for start in starts)
    for read in windows(sources[name]):
        if inside:
            expected = [TOKENS[start : start + length].tolist() for start in starts]
            assert read(np.array(starts, np.int64), length).tolist() == expected
        else:
            with pytest.raises(UsageError):
                read(np.array(starts, np.int64), length)


@pytest.mark.parametrize("bad", [-1, -(2**63), *HUGE])
def test_documents_and_positions_outside_raise(source: Any, bad: int) -> None:
    for call in (source.read, source.lengths, source.starts, source.documents_at):
        for indices in (np.array([bad]), np.array([0, bad])):
            with pytest.raises(UsageError, match=f"(?s)in \\[0, .*{bad}"):
                call(indices)
    with pytest.raises(UsageError, match=f"(?s)documents in \\[0, .*{bad}"):
        source.locate(bad)
    if isinstance(source, TokenStore):
        with pytest.raises(UsageError, match=f"(?s)documents in \\[0, .*{bad}"):
            source.column("number", np.array([bad]))


@pytest.mark.parametrize(
    ("start", "length"),
    [(-1, 2), (-5, 1), (N - 1, 2), (N, 1), (N + 5, 1), (0, N + 1), (0, -1), (2**63 - 1, 2**63 - 1), (5, 2**63 - 1),
     (2**62, 1), (-(2**63), 2**63 - 1), (N - 3, 2**62)],
)  # fmt: skip
def test_ranges_outside_the_stream_raise(source: Any, start: int, length: int) -> None:
    for others in ([], [(0, 3)], [(0, 200), (7, 7)]):
        ranges = [*others, (start, length)]
        with pytest.raises(StoreError, match="ranges of tokens inside one part"):
            gather_rows(source, np.array([a for a, _ in ranges]), np.array([n for _, n in ranges]))


def test_ranges_that_leave_their_part_raise(sources: dict[str, Any]) -> None:
    for name in ("store of five shards", "nanogpt files"):
        source = sources[name]
        edge = int(source.bounds[1])
        values, offsets = gather_rows(source, np.array([edge - 4, edge]), np.array([4, 5]))
        assert values.tolist() == TOKENS[edge - 4 : edge + 5].tolist()
        assert offsets.tolist() == [0, 4, 9]
        with pytest.raises(StoreError, match="ranges of tokens inside one part"):
            gather_rows(source, np.array([0, edge - 4]), np.array([1, 5]))


@pytest.mark.parametrize("pointer", [-2, -(2**62), N * 2, 2**62])
def test_an_index_that_changes_after_it_was_checked_raises(tmp_path: Path, pointer: int) -> None:
    source = open_megatron(write_megatron(tmp_path / "set"))
    with open(tmp_path / "set.idx", "r+b") as file:  # the document table is a memory map of this file
        file.seek(struct.calcsize("<9sQBQQ") + 4 * len(SIZES) + 8 * 3)
        file.write(struct.pack("<q", pointer))
    with pytest.raises(PenstockError):
        source.read(np.array([2, 3]))


GUARDED = """
import ctypes, mmap, sys
import numpy as np
from penstock.core.errors import UsageError
from penstock.sources.tokens import TokenArray

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 3 * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
for guard in (0, 2):
    assert libc.mprotect(ctypes.c_void_p(base + guard * page), page, 0) == 0
tokens = np.frombuffer(memory, np.uint16, page // 2, page)
source = TokenArray(tokens)
n = len(tokens)
for read in (source.gather, lambda starts, length: source.reader(starts, length)(0, len(starts))):
    assert read(np.array([0, n - 64]), 64).shape == (2, 64)
    for start in (-64, -1, n - 63, n):
        try:
            read(np.array([0, start]), 64)
        except UsageError:
            continue
        sys.exit(f"window {start} was read")
print("refused")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect is a POSIX call")
def test_memory_next_to_the_tokens_is_never_touched() -> None:
    """The pages around the tokens are unreadable: a read outside would end the process with SIGSEGV."""
    found = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, "refused"), found.stderr
