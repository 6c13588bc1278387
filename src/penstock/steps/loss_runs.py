"""Loss masks as runs: which tokens of a document are trained on, in a few numbers per document.

The column `loss_runs` of a token store holds the lengths of a document's alternating runs of masked and trained tokens,
masked first (0 if the document starts with a trained token). Tokens after the last run are masked. Each function makes
a handful of NumPy calls, whatever the number of documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from penstock.collate.tokens import IGNORE as IGNORE  # noqa: PLC0414 - read as loss_runs.IGNORE by the steps
from penstock.core.columns import Columns, Ragged
from penstock.order.ragged_index import I64, prefix
from penstock.sources.base import ColumnReader

RUNS = "loss_runs"

ReadRuns = Callable[[I64], Ragged]


def encode_runs(trained: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """The runs of one document.

    >>> encode_runs(np.array([False, False, True, True, False])).tolist(), encode_runs(np.array([True])).tolist()
    ([2, 2], [0, 1])
    """
    edges = np.flatnonzero(np.diff(trained, prepend=False, append=False))
    return np.diff(edges, prepend=0).astype(np.uint32)


class TrainedSpans(NamedTuple):
    """Spans of trained tokens: the piece of each, and where in the piece it begins and ends."""

    piece: I64
    begin: I64
    end: I64


def trained_spans(runs: Ragged, starts: I64, lengths: I64) -> TrainedSpans:
    """The spans of trained tokens of some pieces, in order; for pieces see `trained`."""
    counts = runs.lengths
    values = runs.values[runs.offsets[0] : runs.offsets[-1]].astype(np.int64)
    at = np.arange(len(values)) - np.repeat(runs.offsets[:-1] - runs.offsets[0], counts)
    ends = np.cumsum(values)
    before = np.concatenate([[0], ends])[runs.offsets[:-1] - runs.offsets[0]]
    trained = at % 2 == 1
    piece = np.repeat(np.arange(len(counts)), counts)[trained]
    end = ends[trained] - before[piece] - starts[piece]
    begin = np.clip(end - values[trained], 0, lengths[piece])
    end = np.clip(end, 0, lengths[piece])
    kept = begin < end
    return TrainedSpans(piece[kept], begin[kept], end[kept])


def trained(runs: Ragged, starts: I64, lengths: I64) -> NDArray[np.bool_]:
    """True for tokens that are trained on, for all pieces one after another.

    Piece i is `lengths[i]` tokens of the document whose runs are row i, from its token `starts[i]` on.

    >>> trained(Ragged.of([[2, 2], [0, 1]]), np.array([1, 0]), np.array([4, 2])).tolist()
    [False, True, True, False, True, False]
    """
    edges = prefix(lengths)
    piece, begin, end = trained_spans(runs, starts, lengths)
    change = np.zeros(int(edges[-1]) + 1, np.int8)
    change[edges[piece] + begin] = 1
    change[edges[piece] + end] -= 1  # spans never overlap, so no index repeats
    return np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)


def trained_counts(runs: Ragged, starts: I64, lengths: I64) -> I64:
    """The number of trained tokens in each piece, computed without looking at each token.

    >>> trained_counts(Ragged.of([[2, 2], [0, 1]]), np.array([3, 0]), np.array([4, 2])).tolist()
    [1, 1]
    """
    piece, begin, end = trained_spans(runs, starts, lengths)
    out = np.zeros(len(lengths), np.int64)
    np.add.at(out, piece, end - begin)
    return out


def runs_of(source: Any) -> ReadRuns | None:
    """A function that reads the runs of some documents of a source; None if it has none."""
    if not isinstance(source, ColumnReader) or RUNS not in source.columns:
        return None
    return lambda documents: cast("Ragged", source.column(RUNS, documents))


def with_labels(columns: Columns) -> Columns:
    """Documents with `labels` in place of their runs: the next token where it is trained on, -100 elsewhere.

    >>> made = with_labels({"input_ids": Ragged.of([[5, 6, 7], [8]]), "loss_runs": Ragged.of([[1, 2], [0, 1]])})
    >>> made["labels"].tolist()
    [[6, 7, -100], [-100]]
    """
    ids, runs = columns["input_ids"], columns[RUNS]
    out = {name: column for name, column in columns.items() if name != RUNS}
    if isinstance(ids, Ragged) and isinstance(runs, Ragged):
        values = ids.values[ids.offsets[0] : ids.offsets[-1]]
        offsets = ids.offsets - ids.offsets[0]
        labels = np.full(len(values), IGNORE, np.int64)
        labels[:-1] = values[1:]
        lengths = np.diff(offsets)
        labels[~trained(runs, np.ones(len(lengths), np.int64), lengths)] = IGNORE
        labels[offsets[1:][lengths > 0] - 1] = IGNORE
        out["labels"] = Ragged(labels, offsets)
    return out


def count_labels(columns: Columns) -> int:
    """Labels of a batch other than -100."""
    labels = columns.get("labels")
    if labels is None:
        return 0
    return int(np.count_nonzero(np.asarray(labels.values if isinstance(labels, Ragged) else labels) != IGNORE))
