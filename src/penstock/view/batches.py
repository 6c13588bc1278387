"""One batch of any step as plain data: what each row holds, and where it comes from.

The batch is the loader's own (`loader.look`), computed once; of a loader for torch or JAX the tensors are copied to
NumPy. Only rows that are shown are explained. `markup` of it: `view.batch_html`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.core.columns import Ragged
from penstock.core.errors import PenstockError, UsageError
from penstock.core.sizes import size
from penstock.engine.loader import Loader
from penstock.engine.tuples import TupleOutput
from penstock.markup.visible import excerpt, figure, number_of
from penstock.pipeline import Pipeline
from penstock.plan.definition import class_names
from penstock.sources.base import Source
from penstock.tokenizers import as_tokenizer
from penstock.tokenizers.base import Tokenizer
from penstock.tokenizers.known import known_tokenizer
from penstock.view import batch_media as media
from penstock.view import batch_tokens as tokens
from penstock.view.media import as_text, media_kind

MOST_ROWS = 64
_MOST_TEXT = 2000
_BATCH = 8  # rows of a batch of a pipeline without .batch()


@dataclass(frozen=True)
class Value:
    """Another column of a row, as text."""

    name: str
    text: str


@dataclass(frozen=True)
class Row:
    """One row of a batch. `why` is None where only the batch is known."""

    number: int
    tokens: list[tokens.TokenRow]
    pictures: list[media.Picture]
    sounds: list[media.Sound]
    values: list[Value]
    why: dict[str, Any] | None


@dataclass(frozen=True)
class Column:
    """Name, dtype and shape of a column; `of_batch`: it belongs to the batch, not to rows."""

    name: str
    dtype: str
    shape: str
    of_batch: bool
    text: str = ""


@dataclass(frozen=True)
class Shown:
    """A batch, or some rows of it. `step` is None for a batch without its loader."""

    total: int
    rows: list[Row]
    columns: list[Column]
    step: int | None = None
    epoch: int | None = None
    steps_per_epoch: int | None = None
    epoch_end: int | None = None
    tokenizer: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def fill(self) -> float | None:
        """The share of token positions in the rows shown that are not padding."""
        rows = [row for one in self.rows for row in one.tokens]
        places = sum(row.total for row in rows)
        return sum(row.filled for row in rows) / places if places else None


def loader_of(target: Loader[Any] | Pipeline, batch: int | None = None) -> tuple[Loader[Any], list[str]]:
    """The loader of a pipeline, and what had to be assumed for it."""
    if isinstance(target, Loader):
        return target, []
    if not isinstance(target, Pipeline):
        raise UsageError(
            "a pipeline or a loader", got=type(target).__name__, fix="show(loader, step=0), or show(batch) of a dict"
        )
    if target.definition.batch is not None:
        return target.to_numpy(threads=0), []
    size = target.rows().size
    rows = batch or (_BATCH if size is None else max(1, min(_BATCH, size)))
    note = f"the pipeline has no .batch(): rows are shown in batches of {rows}"
    return target.batch(rows, remainder="short").to_numpy(threads=0), [note]


def batch_of(
    target: Loader[Any] | Pipeline, step: int = 0, *, first: int = 0, rows: int = MOST_ROWS, tokenizer: Any = None
) -> Shown:
    """The batch of a step of a loader or pipeline, of which rows `first` to `first + rows` are described.

    >>> import penstock as ps
    >>> shown = batch_of(ps.from_texts(["abcdefgh"]).tokenize("bytes").windows(4).batch(1), 0)
    >>> shown.rows[0].tokens[0].pieces, shown.rows[0].why["from"]["documents"][0]["document"]
    (['a', 'b', 'c', 'd'], 0)
    """
    loader, notes = loader_of(target)
    look = loader.look(step)
    definition = loader.definition
    chosen = tokenizer_of(look.sources, tokenizer)
    names = loader.output.names if isinstance(loader.output, TupleOutput) else None
    arrays = as_arrays(look.batch, names, look.rows)
    wanted = range(min(first, look.rows), min(look.rows, first + rows))
    found = _rows(arrays, wanted, look.rows, chosen, definition, look.ids)
    rows_shown = [_explained(row, look.why, look.encoded) for row in found]
    return Shown(
        look.rows, rows_shown, _columns(arrays, look.rows), step, look.epoch, steps_of(loader),
        look.epoch_end, None if chosen is None else chosen.name, notes,
    )  # fmt: skip


def batch_alone(batch: Any, *, first: int = 0, rows: int = MOST_ROWS, tokenizer: Any = None) -> Shown:
    """A batch of any loader, of which nothing else is known."""
    if not isinstance(batch, Mapping | list | tuple) or not len(batch):
        raise UsageError("a batch: a dict or a tuple of arrays", got=type(batch).__name__)
    arrays = as_arrays(batch, None, None)
    total = max((len(c) for c in arrays.values() if isinstance(c, Ragged) or c.ndim), default=0)
    sizes = [len(c) for c in arrays.values() if isinstance(c, Ragged) or (c.ndim and c.ndim > 1)]
    total = sizes[0] if sizes else total
    chosen = None if tokenizer is None else as_tokenizer(tokenizer)
    wanted = range(min(first, total), min(total, first + rows))
    found = _rows(arrays, wanted, total, chosen, None, frozenset())
    return Shown(total, found, _columns(arrays, total), tokenizer=None if chosen is None else chosen.name)


def tokenizer_of(sources: list[Source], named: Any = None) -> Tokenizer | None:
    """The tokenizer to show tokens with: the named one, or that of the store where it is known in this process."""
    if named is not None:
        return as_tokenizer(named)
    identities = [source.describe().get("tokenizer") for source in sources]
    found = {str(i.get("sha256")): i for i in identities if isinstance(i, Mapping)}
    return known_tokenizer(next(iter(found.values()))) if len(found) == 1 else None


def as_arrays(batch: Any, names: tuple[str, ...] | None, rows: int | None) -> dict[str, Any]:
    """The columns of a batch of any framework as NumPy arrays, `Ragged`, or object arrays of Python values."""
    if isinstance(batch, Mapping):
        named = dict(batch) | dict(getattr(batch, "side", {}))  # what `to_jax()` keeps beside the arrays
    else:
        named = dict(zip(names or tuple(str(i) for i in range(len(batch))), batch, strict=True))
    return {str(name): _array(value, rows) for name, value in named.items()}


def _array(value: Any, rows: int | None) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.is_nested:
            return Ragged.of([np.asarray(one) for one in value.unbind()])
        value = value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, Ragged):
        return value
    if isinstance(value, list | tuple):
        made = np.empty(len(value), object)
        for i, one in enumerate(value):
            made[i] = one
        return made
    array = np.asarray(value)
    if array.dtype.kind == "V":  # bfloat16 of ml_dtypes
        array = array.astype(np.float32)
    if rows is not None and array.ndim > 1 and len(array) != rows and array.shape[0] * array.shape[1] == rows:
        array = array.reshape(rows, *array.shape[2:])  # micro-batches of `to_jax(micro_batches=)`
    return array


def steps_of(loader: Loader[Any]) -> int | None:
    """The steps of an epoch; None for an endless one."""
    try:
        return len(loader)
    except TypeError:
        return None


def _of_rows(column: Any, total: int) -> bool:
    return (isinstance(column, Ragged) or column.ndim > 0) and len(column) == total


def _columns(arrays: dict[str, Any], total: int) -> list[Column]:
    made = []
    for name, column in arrays.items():
        mine = not _of_rows(column, total)
        if isinstance(column, Ragged):
            shape = f"{number_of(len(column), 'row')} of {_range(column.lengths)}"
        else:
            shape = " × ".join(f"{n:,}" for n in column.shape) or "one number"
        kind = "objects" if column.dtype == object else str(column.dtype)
        made.append(Column(name, kind, shape, mine, _text(column, name, {}) if mine else ""))
    return made


def _range(lengths: Any) -> str:
    if not len(lengths):
        return "0"
    low, high = int(lengths.min()), int(lengths.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _rows(
    arrays: dict[str, Any], wanted: range, total: int, tokenizer: Tokenizer | None, definition: Any, ids: frozenset[str]
) -> list[Row]:
    mine = {name: column for name, column in arrays.items() if _of_rows(column, total)}
    used: set[str] = set()
    by_tokens, by_pictures, by_sounds = [], [], []
    for name in tokens.token_columns(mine, ids):
        used |= {name, *tokens.beside(mine, name).values()}
        used |= {"position_ids"} if name == "input_ids" else set()
        by_tokens.append(tokens.token_rows(mine, name, wanted, tokenizer))
    for name, rate in media.sound_columns(mine, definition).items():
        used.add(name)
        by_sounds.append(media.sounds(mine, name, rate, wanted))
    for name in media.picture_columns({n: c for n, c in mine.items() if n not in used}):
        used.add(name)
        by_pictures.append(media.pictures(mine, name, wanted, definition))
    classes = {} if definition is None else class_names(definition)
    rest = {name: column for name, column in mine.items() if name not in used}
    return [
        Row(
            number,
            [rows[i] for rows in by_tokens],
            [rows[i] for rows in by_pictures],
            [rows[i] for rows in by_sounds],
            [Value(name, _text(column[number], name, classes)) for name, column in rest.items()],
            None,
        )
        for i, number in enumerate(wanted)
    ]


def _of_bytes(value: bytes) -> str:
    """Bytes that are text, as text; others by what they are and how many."""
    if kind := media_kind(value):
        return f"encoded {kind}, {size(len(value))}"
    text = as_text(value)
    return f"{len(value):,} bytes" if text is None else _text(text, "", {})


def _text(value: Any, name: str, classes: Mapping[str, tuple[str, ...]]) -> str:
    if isinstance(value, str):  # escaped where it is shown, which keeps its lines
        return value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, bytes | bytearray | memoryview):
        return _of_bytes(bytes(value))
    if isinstance(value, Ragged):
        return repr(value)
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return _numbers(np.asarray(value), classes.get(name, ()))
    return excerpt(figure(value) if not isinstance(value, dict) else repr(value), _MOST_TEXT)


def _numbers(array: Any, names: tuple[str, ...]) -> str:
    if array.ndim == 0:
        plain = array.item()
        known = isinstance(plain, int) and not isinstance(plain, bool) and 0 <= plain < len(names)
        return f"{figure(plain)} ({names[plain]})" if known else figure(plain)
    if array.size <= 16 or array.dtype.kind not in "biuf":
        return excerpt(figure(array.tolist()), 400)
    low, mean, high = array.min(), array.astype(np.float64).mean(), array.max()
    shape = " × ".join(f"{n:,}" for n in array.shape)
    return f"{shape} of {array.dtype}, {figure(low.item())} to {figure(high.item())}, mean {figure(float(mean))}"


def _explained(row: Row, why: Any, encoded: Any) -> Row:
    facts = why(row.number)
    if not row.pictures:
        return replace(row, why=facts)
    try:
        files = encoded(row.number)
    except PenstockError:  # the batch was delivered; only the picture of the file is missing
        files = {}
    parts = facts["from"].get("zipped", [facts["from"]])
    own = next((part for part in parts if "crop" in part), facts["from"])
    made = [media.with_file(p, files[p.name], own) if p.name in files else p for p in row.pictures]
    return replace(row, why=facts, pictures=made)
