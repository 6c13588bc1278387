"""Concat-and-chunk against the stream written out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
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
    back=st.integers(0, 19),
    superblock=st.integers(1, 50),
    permuted=st.booleans(),
    remainder=st.sampled_from(["drop", "short"]),
    epoch=st.integers(0, 2),
)
def test_chunks_cut_one_stream_of_all_documents(lengths, length, back, superblock, permuted, remainder, epoch):
    stride = max(1, length - back)
    plan = ChunkPlan.build(
        np.array(lengths, np.int64),
        length=length,
        stride=stride,
        key=3,
        permuted=permuted,
        superblock=superblock,
        remainder=remainder,
    )
    stream = [token for chunk in chunks_of(plan, epoch, np.arange(plan.n_chunks)) for token in chunk[:stride]]
    # What the last chunk overlaps into was cut off above by the stride.
    stream += chunks_of(plan, epoch, [plan.n_chunks - 1])[0][stride:] if plan.n_chunks else []
    assert plan.n_tokens == sum(lengths) == len(stream) + plan.left_out
    assert len(set(stream)) == len(stream)
    assert all(t < lengths[doc] for doc, t in stream)
    assert plan.left_out == 0 if remainder == "short" else plan.left_out < length
    if not permuted:
        assert stream == [(doc, t) for doc, n in enumerate(lengths) for t in range(n)][: len(stream)]
    order = plan.shuffled(np.arange(plan.n_chunks), epoch)
    assert sorted(order.tolist()) == list(range(plan.n_chunks))
    for i, chunk in zip(order.tolist(), chunks_of(plan, epoch, order), strict=True):
        last_short = remainder == "short" and i == plan.n_chunks - 1
        assert chunk == stream[i * stride : i * stride + length] and (len(chunk) == length or last_short)


def test_epochs_permute_documents_inside_superblocks():
    plan = ChunkPlan.build(np.full(100, 10), length=10, key=3, superblock=50)
    first, second = (plan.chunk(np.arange(100), epoch).documents for epoch in (0, 1))
    assert first.tolist() != second.tolist()
    for documents in (first, second):
        assert sorted(documents[:50].tolist()) == list(range(50))


def test_a_stride_that_skips_tokens_is_refused():
    with pytest.raises(UsageError, match=r"(?s)stride of at most the length, 4.*skip tokens"):
        ChunkPlan.build(np.array([9]), length=4, stride=5, key=0)
    with pytest.raises(UsageError, match="remainder: one of drop, short"):
        ChunkPlan.build(np.array([9]), length=4, key=0, remainder="pad")
