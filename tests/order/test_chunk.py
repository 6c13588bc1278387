"""Concat-and-chunk against the stream written out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.chunk import ChunkPlan


def chunks_of(plan, epoch, asked):
    """Each chunk as a list of (document, token)."""
    pieces = plan.chunk(asked, epoch)
    assert (pieces.lengths >= 1).all()
    out = []
    for low, high in pairwise(pieces.offsets):
        rows = zip(*(a[low:high].tolist() for a in pieces[1:]), strict=True)
        out.append([(doc, t) for doc, start, length in rows for t in range(start, start + length)])
    return out


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), max_size=40),
    length=st.integers(1, 20),
    superblock=st.integers(1, 50),
    epoch=st.integers(0, 2),
)
def test_chunks_cut_one_stream_of_all_documents(lengths, length, superblock, epoch):
    plan = ChunkPlan.build(np.array(lengths, np.int64), length=length, key=3, superblock=superblock)
    stream = [token for chunk in chunks_of(plan, epoch, np.arange(plan.n_chunks)) for token in chunk]
    assert plan.n_tokens == sum(lengths) == len(stream)
    assert sorted(stream) == [(doc, t) for doc, n in enumerate(lengths) for t in range(n)]
    order = np.random.default_rng(epoch).permutation(plan.n_chunks)
    for i, chunk in zip(order.tolist(), chunks_of(plan, epoch, order), strict=True):
        assert chunk == stream[i * length : (i + 1) * length]
        assert len(chunk) == length or i == plan.n_chunks - 1


def test_epochs_permute_documents_inside_superblocks():
    plan = ChunkPlan.build(np.full(100, 10), length=10, key=3, superblock=50)
    first, second = (plan.chunk(np.arange(100), epoch).documents for epoch in (0, 1))
    assert first.tolist() != second.tolist()
    for documents in (first, second):
        assert sorted(documents[:50].tolist()) == list(range(50))
