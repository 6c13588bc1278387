"""Packs: every token once, labels inside their document, sequences that can be checked against a plain loop."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.core.columns import Ragged, rows_of
from penstock.sources.tokens import TokenArray
from penstock.steps.loss_runs import encode_runs, trained
from penstock.steps.pack import Pack
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter


def documents(lengths: list[int]) -> list[np.ndarray]:
    """Tokens that say where they are: every value occurs once in the corpus."""
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    return [np.arange(a, b) + 1 for a, b in pairwise(edges)]


def tokens(lengths: list[int]) -> ps.Pipeline:
    held = documents(lengths)
    flat = np.concatenate([*held, np.empty(0, int)]).astype(np.uint16)
    return ps.open_tokens(flat, np.concatenate([[0], np.cumsum(lengths)]))


def store(folder: Path, lengths: list[int], masks: list[np.ndarray] | None = None, shards: int = 1) -> ps.Pipeline:
    """The same documents as a store, with loss masks if given."""
    held, infos = documents(lengths), []
    for number, part in enumerate(np.array_split(np.arange(len(lengths)), shards)):
        with ShardWriter(folder / f"{number:05d}.tokens", vocab_size=1 << 16) as shard:
            runs = None if masks is None else {"loss_runs": Ragged.of([encode_runs(masks[i]) for i in part])}
            shard.add(Ragged.of([held[i] for i in part], np.uint16), runs)
        infos.append(shard.finish())
    write_manifest(folder, infos)
    return ps.open_store(folder)


def check_row(row: dict, lengths: list[int], length: int, labels: str, kept: int | None = None) -> list[int]:
    """One pack against a plain loop; gives its tokens."""
    edges = np.concatenate([[0], np.cumsum(lengths)])
    ids, segments, positions = row["input_ids"].tolist(), row["segment_ids"].tolist(), row["position_ids"].tolist()
    assert len(ids) == len(segments) == length
    used = sum(s > 0 for s in segments)
    assert segments[used:] == [0] * (length - used) and ids[used:] == [0] * (length - used)
    assert positions[used:] == list(range(length - used))
    assert sorted(set(segments[:used])) == list(range(1, max(segments) + 1)) and segments[:used] == sorted(
        segments[:used]
    )
    for t in range(used):
        document = int(np.searchsorted(edges, ids[t] - 1, side="right")) - 1
        first = t == 0 or segments[t] != segments[t - 1]
        last = t + 1 == used or segments[t] != segments[t + 1]
        assert positions[t] == (0 if first else positions[t - 1] + 1)
        if not first:
            assert ids[t] == ids[t - 1] + 1
        if labels == "same":
            assert row["labels"][t] == (-100 if first else ids[t])
        else:
            ended = ids[t] == edges[document + 1] or (last and kept is not None)
            assert row["labels"][t] == (-100 if ended else ids[t] + 1)
    assert (row["labels"][used:] == -100).all()
    return ids[:used]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(lambda n: sum(n) > 0),
    length=st.integers(1, 25),
    overlong=st.sampled_from(["split", "truncate", "drop"]),
    labels=st.sampled_from(["next", "same"]),
    max_docs=st.none() | st.integers(1, 4),
)
def test_every_token_once_and_no_label_leaves_its_document(lengths, length, overlong, labels, max_docs):
    want = {"split": lambda n: n, "truncate": lambda n: min(n, length), "drop": lambda n: n if n <= length else 0}
    kept = [t for d in documents(lengths) for t in d[: want[overlong](len(d))].tolist()]
    pipeline = tokens(lengths).pack(length, overlong=overlong, labels=labels, max_docs=max_docs)
    if not kept:
        with pytest.raises(ps.UsageError, match="at least one token to pack"):
            pipeline.rows()
        return
    rows = pipeline.rows()
    columns = rows.read(np.arange(len(rows)))
    seen: Counter[int] = Counter()
    for i in range(rows_of(columns)):
        row = {k: v[i] for k, v in columns.items()}
        seen.update(check_row(row, lengths, length, labels, None if overlong == "split" else length))
        assert max_docs is None or row["segment_ids"].max() <= max_docs
    assert seen == Counter(kept)


@pytest.mark.parametrize("labels", ["next", "same"])
def test_long_documents_in_long_rows(tmp_path: Path, labels: str) -> None:
    """Where pieces are long they are joined from slices, in one shard or over several."""
    lengths = [900, 300, 2000, 700, 513, 1024, 40, 5000]
    for number, source in enumerate((tokens(lengths), store(tmp_path, lengths, shards=3))):
        rows = source.pack(1024, labels=labels).rows()
        columns = rows.read(np.arange(len(rows)))
        taken = [check_row({k: v[i] for k, v in columns.items()}, lengths, 1024, labels) for i in range(len(rows))]
        assert Counter(t for row in taken for t in row) == Counter(range(1, sum(lengths) + 1)), number
        assert all(v.flags.writeable for v in columns.values())


@pytest.mark.parametrize("labels", ["next", "same"])
def test_concat_cuts_every_length_tokens_and_misses_none(labels: str) -> None:
    lengths = [7, 0, 1, 30, 12, 5]
    rows = tokens(lengths).pack(8, strategy="concat", labels=labels).rows()
    columns = rows.read(np.arange(len(rows)))
    seen = Counter(
        t for i in range(len(rows)) for t in check_row({k: v[i] for k, v in columns.items()}, lengths, 8, labels)
    )
    assert seen == Counter(range(1, sum(lengths) + 1)) and len(rows) == -(-sum(lengths) // 8)


def test_a_store_of_many_shards_gives_what_an_array_gives(tmp_path: Path) -> None:
    lengths = (np.arange(90) * 31 % 57).tolist()
    want = list(tokens(lengths).pack(32).shuffle(seed=2).batch(4).to_numpy(threads=0))
    for shards in (1, 7):
        folder = tmp_path / str(shards)
        folder.mkdir()
        loader = store(folder, lengths, shards=shards).pack(32).shuffle(seed=2).batch(4).to_numpy(threads=0)
        for a, b in zip(want, loader, strict=True):
            assert all(np.array_equal(a[k], b[k]) for k in a)


def test_long_and_short_pieces_are_copied_alike() -> None:
    """Long pieces go by slices, short ones by index; a source of somebody else's by its own gather."""

    class Foreign:
        def __init__(self, inner: TokenArray) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            if name in ("bounds", "ready", "columns") or name.startswith("__"):
                raise AttributeError(name)
            return getattr(self._inner, name)

        def __len__(self) -> int:
            return len(self._inner)

        n_tokens = property(lambda self: self._inner.n_tokens)
        dtype = property(lambda self: self._inner.dtype)
        vocab_size = property(lambda self: self._inner.vocab_size)
        read = gather = lengths = starts = documents_at = fingerprint = describe = locate = None

    for name in ("read", "gather", "lengths", "starts", "documents_at", "fingerprint", "describe", "locate"):
        setattr(Foreign, name, lambda self, *a, name=name: getattr(self._inner, name)(*a))
    for lengths in ([200, 3, 90, 500, 41, 77], [1, 2, 3, 1, 1, 2, 5, 4] * 6):
        flat = np.concatenate(documents(lengths)).astype(np.uint16)
        inner = TokenArray(flat, np.concatenate([[0], np.cumsum(lengths)]))
        for pad_id in (0, 70_000):  # the second does not fit the tokens' own type
            own = ps.Pipeline(inner).pack(64, pad_id=pad_id).rows()
            other = ps.Pipeline(Foreign(inner)).pack(64, pad_id=pad_id).rows()
            a, b = (r.read(np.arange(len(own))) for r in (own, other))
            assert all(np.array_equal(a[k], b[k]) for k in a)
            assert set(a["input_ids"][a["segment_ids"] == 0].tolist()) <= {pad_id}


def test_batches_have_their_sequences_and_the_count_of_labels() -> None:
    lengths = (np.arange(60) * 17 % 23).tolist()
    for batch in tokens(lengths).pack(16).shuffle(seed=1).batch(3, remainder="pad").to_numpy(threads=0):
        cu, positions = batch["cu_seqlens"], batch["position_ids"].reshape(-1)
        assert cu.dtype == np.int32 and cu[0] == 0 and cu[-1] == positions.size
        assert (np.diff(cu) > 0).all() and np.array_equal(np.flatnonzero(positions == 0), cu[:-1])
        assert batch["max_seqlen"] == np.diff(cu).max()
        assert batch["valid_labels"] == (batch["labels"] != -100).sum()
        assert (batch["labels"][batch["segment_ids"] == 0] == -100).all()
        assert "attention_mask" not in batch


def test_the_count_of_labels_is_that_of_all_ranks(tmp_path: Path) -> None:
    lengths = (np.arange(60) * 17 % 23).tolist()
    masks = [np.arange(n) % 3 != 0 for n in lengths]
    for source in (tokens(lengths), store(tmp_path, lengths, masks)):
        for pipeline in (source.pack(16).shuffle(seed=1), source.pack(16).map_batches(lambda c: c).shuffle(seed=1)):
            ranks = [list(pipeline.batch(4).shard(r, 4).to_numpy(threads=0)) for r in range(4)]
            for parts in zip(*ranks, strict=True):
                total = sum(int((p["labels"] != -100).sum()) for p in parts)
                assert [int(p["valid_labels"]) for p in parts] == [total] * 4


def test_static_mode_has_one_shape() -> None:
    lengths = (np.arange(80) * 7 % 13).tolist()
    shapes = set()
    for batch in tokens(lengths).pack(16, static=True, max_docs=3).batch(4).to_numpy(threads=0):
        shapes.add(tuple(v.shape for v in batch.values()))
        assert batch["max_seqlen"] == 16 and batch["segment_ids"].max() <= 3
        real = np.unique(batch["cu_seqlens"])
        assert np.array_equal(real[:-1], np.flatnonzero(batch["position_ids"].reshape(-1) == 0))
    assert len(shapes) == 1 and (4 * 4 + 1,) in next(iter(shapes))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=8), st.data())
def test_runs_say_what_the_mask_said(masks, data):
    arrays = [np.array(m, bool) for m in masks]
    runs = Ragged.of([encode_runs(a) for a in arrays])
    starts = np.array([data.draw(st.integers(0, len(m))) for m in masks])
    counts = np.array([data.draw(st.integers(0, len(m) - s)) for m, s in zip(masks, starts, strict=True)])
    want = [v for m, s, n in zip(masks, starts, counts, strict=True) for v in m[s : s + n]]
    assert trained(runs, starts, counts).tolist() == want


@pytest.mark.parametrize("verb", ["pack", "concat", "windows", "pad", "budget"])
def test_labels_of_masked_documents_are_what_a_loop_gives(tmp_path: Path, verb: str) -> None:
    lengths = (np.arange(40) * 11 % 19).tolist()
    rng = np.random.default_rng(0)
    masks = [rng.random(n) < 0.5 for n in lengths]
    learnt_tokens = {t for d, m in zip(documents(lengths), masks, strict=True) for t in d[m].tolist()}
    ends = set(np.cumsum(lengths).tolist())
    source = store(tmp_path, lengths, masks, shards=3)
    made = {
        "pack": lambda: source.pack(16).batch(2, remainder="short"),
        "concat": lambda: source.pack(16, strategy="concat").batch(2, remainder="short"),
        "windows": lambda: source.windows(8).shuffle(seed=1).batch(2),
        "pad": lambda: source.batch(3, remainder="short").pad(),
        "budget": lambda: source.shuffle(seed=1).batch_tokens(64),
    }[verb]()
    checked = 0
    for batch in made.to_numpy(threads=0):
        assert "loss_runs" not in batch and batch["labels"].dtype == np.int64
        for token, label in zip(
            batch["input_ids"].reshape(-1).tolist(), batch["labels"].reshape(-1).tolist(), strict=True
        ):
            stops = token == 0 or (verb != "windows" and token in ends)
            want = token + 1 if not stops and token + 1 in learnt_tokens else -100
            assert label == want
            checked += label != -100
    assert checked > 20


def test_mixed_packs_keep_their_sequences() -> None:
    one, two = tokens([5, 9, 30, 2] * 9).pack(16), tokens([3, 3, 40] * 7).pack(16)
    ranks = [
        list(ps.mix([one, two], [0.5, 0.5], stop="first").batch(4).shard(r, 2).to_numpy(threads=0)) for r in range(2)
    ]
    for parts in zip(*ranks, strict=True):
        for batch in parts:
            assert np.array_equal(batch["cu_seqlens"][:-1], np.flatnonzero(batch["position_ids"].reshape(-1) == 0))
            assert batch["valid_labels"] == sum((p["labels"] != -100).sum() for p in parts)


def test_why_names_the_documents() -> None:
    loader = tokens([5, 9, 30, 2]).pack(16).shuffle(seed=1).batch(1).to_numpy(threads=0)
    said, batch = loader.why(1, 0)["from"], loader.batch_at(1)
    assert sum(d["tokens_here"] for d in said["documents"]) == (batch["segment_ids"] > 0).sum()
    first = said["documents"][0]
    assert batch["input_ids"][0, 0] == first["start"] + first["from"] + 1
    pickle.dumps(Pack(16))


def test_other_packs_every_epoch() -> None:
    loader = tokens([4] * 64).pack(8).batch(32).to_numpy(threads=0)
    one, two = next(iter(loader)), next(iter(loader))
    assert not np.array_equal(one["input_ids"], two["input_ids"])


WRONG = {
    "length": (lambda: tokens([3]).pack(0), "an integer of at least 1 for length in .pack()"),
    "strategy": (lambda: tokens([3]).pack(4, strategy="first_fit"), "strategy in .pack(), one of 'best_fit', 'concat'"),
    "overlong": (lambda: tokens([3]).pack(4, overlong="cut"), "overlong in .pack(), one of 'split'"),
    "labels": (lambda: tokens([3]).pack(4, labels="all"), "labels in .pack(), one of 'next', 'same', None"),
    "static": (lambda: tokens([3]).pack(4, static=True), "max_docs in .pack(static=True)"),
    "concat": (lambda: tokens([3]).pack(4, strategy="concat", max_docs=2), 'no static with strategy="concat"'),
    "records": (lambda: ps.from_arrays({"x": [1]}).pack(4).rows(), "tokens right before .pack()"),
    "after shuffle": (lambda: tokens([3]).shuffle().pack(4).rows(), "tokens right before .pack()"),
    "too long": (lambda: tokens([9]).pack(4, overlong="error").rows(), "documents of at most 4 tokens"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_says_what_to_do(name: str) -> None:
    make, text = WRONG[name]
    with pytest.raises((ps.UsageError, ps.DataError)) as caught:
        make()
    assert text in str(caught.value)
