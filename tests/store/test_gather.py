"""Windows that cross from part to part are those of the joined stream, whatever the sizes of the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.columns import Ragged
from penstock.core.errors import StoreError
from penstock.sources.nanogpt import open_nanogpt
from penstock.store.manifest import write_manifest
from penstock.store.reader import TokenStore
from penstock.store.writer import ShardWriter

TOKENS = np.random.default_rng(3).integers(1, 60_000, 6_000).astype(np.uint16)


@pytest.mark.parametrize("sizes", [(1_000,) * 6, (2_900, 3, 97, 3_000), (64,) * 93 + (48,), (5_999, 1)])
@settings(deadline=None)
@given(length=st.integers(1, 200), seed=st.integers(0, 1_000))
def test_windows_of_parts(
    tmp_path_factory: pytest.TempPathFactory, sizes: tuple[int, ...], length: int, seed: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / ("parts-" + "-".join(map(str, sizes[:4])))
    if not folder.exists():
        folder.mkdir()
        for number, part in enumerate(np.split(TOKENS, np.cumsum(sizes)[:-1])):
            part.tofile(folder / f"{number:03d}.bin")
    source = open_nanogpt(sorted(folder.iterdir()), dtype="uint16")
    near = np.cumsum(sizes)[np.random.default_rng(seed).integers(0, len(sizes), 40)]
    starts = near + np.random.default_rng(seed).integers(-250, 50, 40)
    starts = starts[(starts >= 0) & (starts + length <= len(TOKENS))]
    expected = [TOKENS[start : start + length].tolist() for start in starts.tolist()]
    assert source.gather(starts, length).tolist() == expected
    assert source.reader(starts, length)(0, len(starts)).tolist() == expected
    source.close()


def test_both_pieces_of_a_crossing_window_are_verified(tmp_path: Path) -> None:
    infos = []
    for number in range(2):
        with ShardWriter(tmp_path / f"{number:05d}.tokens", vocab_size=60_000, page_bytes=4096) as shard:
            shard.add(Ragged.of([TOKENS[number * 3_000 : number * 3_000 + 3_000]], np.uint16))
        infos.append(shard.finish())
    write_manifest(tmp_path, infos)
    starts = np.array([3_000, 600, 2_900])  # tokens 0 to 2,047 of a shard are in one page
    expected = [TOKENS[start : start + 2_600].tolist() for start in starts.tolist()]
    assert TokenStore(tmp_path).gather(starts, 2_600).tolist() == expected
    first = TokenStore(tmp_path)._shard(0).header.section("tokens").offset
    for shard, token, rows in ((0, 2_500, [1]), (0, 2_990, [2]), (1, 0, [1]), (1, 2_400, [2]), (1, 2_400, [0])):
        path = tmp_path / f"{shard:05d}.tokens"
        intact = path.read_bytes()
        damaged = bytearray(intact)
        damaged[first + 2 * token] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="checksum"):
            TokenStore(tmp_path).gather(starts[rows], 2_600)
        path.write_bytes(intact)
