"""The tokens of a batch, as plain data: text, loss mask, segments and padding of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.collate.tokens import IGNORE
from penstock.core.columns import Ragged
from penstock.tokenizers.base import Tokenizer
from penstock.tokenizers.pieces import pieces

Arrays = dict[str, Any]
Shift = Literal["next", "same", "other"]

MOST_TOKENS = 1024  # of a row that are shown
_PLAIN = ("input_ids", "inputs", "tokens", "text_tokens", "token_ids")
_BESIDE = {"labels": "labels", "attention_mask": "attention_mask", "segments": "segment_ids", "loss": "loss_mask"}


@dataclass(frozen=True)
class TokenRow:
    """The tokens of one row. `trained`: whether a token is one that the model is trained to predict; None: unknown.

    `segments` are the numbers of documents in a pack, 0 for padding. `beyond` is the number of labels that are tokens
    after the end of the row. `total` counts all positions of the row; at most `MOST_TOKENS` of them are here.
    """

    name: str
    ids: list[int]
    pieces: list[str] | None
    trained: list[bool] | None
    labels: list[int] | None
    segments: list[int] | None
    padding: list[bool]
    total: int
    filled: int
    n_trained: int | None
    beyond: int
    shift: Shift | None
    special: dict[int, str]
    spans: list[int]  # tokens of each segment of the row, padding last, for the picture of a pack

    @property
    def fill(self) -> float:
        """The share of positions that are not padding."""
        return self.filled / self.total if self.total else 0.0


def token_columns(batch: Arrays, ids: frozenset[str]) -> list[str]:
    """The columns that hold tokens to be shown as text: those the plan calls token ids, or of usual names."""
    names = [n for n in batch if (n in ids or n in _PLAIN or n.endswith("input_ids")) and "labels" not in n]
    return [name for name in names if _whole_rows(batch[name])]


def beside(batch: Arrays, name: str) -> dict[str, str]:
    """The columns that belong to a column of tokens: `chosen_input_ids` has `chosen_labels`."""
    prefix = name[: -len("input_ids")] if name.endswith("input_ids") else ""
    own = {role: prefix + column for role, column in _BESIDE.items()}
    if name == "inputs":
        own["labels"] = "targets" if "targets" in batch else "labels"
    return {role: column for role, column in own.items() if column in batch and column != name}


def _whole_rows(column: Any) -> bool:
    if isinstance(column, Ragged):
        return column.dtype.kind in "iu"
    return isinstance(column, np.ndarray) and column.ndim == 2 and column.dtype.kind in "iu"


def token_rows(batch: Arrays, name: str, rows: range, tokenizer: Tokenizer | None) -> list[TokenRow]:
    """The rows `rows` of the column `name`."""
    near = beside(batch, name)
    shift = _shift(batch[name], batch[near["labels"]]) if "labels" in near else None
    return [_row(batch, name, near, row, shift, tokenizer) for row in rows]


def _row(
    batch: Arrays, name: str, near: dict[str, str], row: int, shift: Shift | None, tokenizer: Tokenizer | None
) -> TokenRow:
    ids = np.asarray(batch[name][row])
    parts = {role: np.asarray(batch[column][row]) for role, column in near.items()}
    parts = {role: values for role, values in parts.items() if values.shape == ids.shape}
    labels, segments = parts.get("labels"), parts.get("segments")
    padding = np.zeros(len(ids), bool)
    if "attention_mask" in parts:
        padding |= parts["attention_mask"] == 0
    if segments is not None:
        padding |= segments == 0
    trained, beyond = _trained(ids, labels, shift)
    if trained is None and "loss" in parts:
        trained = parts["loss"] != 0
    shown = slice(0, MOST_TOKENS)
    numbers = [int(i) for i in ids[shown].tolist()]
    return TokenRow(
        name,
        numbers,
        None if tokenizer is None else pieces(tokenizer, numbers),
        None if trained is None else trained[shown].tolist(),
        None if labels is None else labels[shown].tolist(),
        None if segments is None else segments[shown].tolist(),
        padding[shown].tolist(),
        len(ids),
        int((~padding).sum()),
        None if trained is None else int((trained & ~padding).sum()),
        beyond,
        shift,
        _special(tokenizer),
        _spans(segments, padding),
    )


def _spans(segments: NDArray[Any] | None, padding: NDArray[np.bool_]) -> list[int]:
    """Tokens of each segment in order, and of the padding; one segment where there are none."""
    filled = int((~padding).sum())
    if segments is None:
        return [filled, len(padding) - filled]
    own = segments[~padding]
    edges = np.flatnonzero(np.diff(own, prepend=own[:1] - 1, append=0)) if len(own) else np.zeros(0, np.int64)
    return [*np.diff(np.append(edges[edges < len(own)], len(own))).tolist(), len(padding) - filled]


def _shift(ids: Any, labels: Any) -> Shift:
    """Whether the label of a place is the token there, the token after it, or something else, as most labels are."""
    flat = (ids.values, labels.values) if isinstance(ids, Ragged) and isinstance(labels, Ragged) else (ids, labels)
    a, b = np.asarray(flat[0]), np.asarray(flat[1])
    if a.shape != b.shape or a.shape[-1:] == (0,):
        return "other"
    counts = b != IGNORE
    same = _share(b == a, counts)
    after = _share(b[..., :-1] == a[..., 1:], counts[..., :-1])
    if max(same, after) < 0.5:
        return "other"
    return "next" if after >= same else "same"


def _share(hits: NDArray[np.bool_], counts: NDArray[np.bool_]) -> float:
    found = int(counts.sum())
    return float((hits & counts).sum()) / found if found else 0.0


def _trained(
    ids: NDArray[Any], labels: NDArray[Any] | None, shift: Shift | None
) -> tuple[NDArray[np.bool_] | None, int]:
    """Which tokens are predicted, and how many labels are tokens outside the row."""
    if labels is None or shift is None:
        return None, 0
    counts = labels != IGNORE
    if shift != "next":
        return counts, 0
    trained = np.zeros(len(ids), bool)
    trained[1:] = counts[:-1] & (labels[:-1] == ids[1:])
    return trained, int(counts.sum() - trained.sum())


def _special(tokenizer: Tokenizer | None) -> dict[int, str]:
    """Names of tokens that have no text."""
    if tokenizer is None:
        return {}
    roles = {"eos": tokenizer.eos_id, "bos": tokenizer.bos_id, "pad": tokenizer.pad_id}
    named = {number: f"<{role}>" for role, number in roles.items() if number is not None}
    return named | {number: text for text, number in tokenizer.special_tokens.items()}
