"""`Augment`: a list of operations that runs on columns in NumPy, torch or JAX from the same row keys.

In a pipeline it is handed to `.map_batches(augment)`, which gives each row a key made of (seed, epoch, record). On an
accelerator, let `.map_batches(carry_keys)` put the keys into the batch and call `augment.torch(batch)` or
`augment.jax(batch)` in the training loop. All of it depends on the record alone: not on batch size, order, threads,
ranks or resume point. Only `Mixup` and `Cutmix` depend on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment.params import Drawn, draw_all
from penstock.augment.spec import Mix, Op, Shape, TokenMask
from penstock.core import randomness
from penstock.core.columns import Column, Columns, Ragged, rows_of, stack
from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.core.randomness import U64

COLUMNS = {
    "image": ("image", "images"),
    "audio": ("audio", "mel", "features"),
    "tokens": ("input_ids", "text_tokens", "text"),
}
"""Names under which each kind of column is looked for, in this order, when none is given."""

KEYS = "augment_keys"


class Augment:
    """Operations in order; `augment(columns, keys)` augments on the host.

    Images are uint8 or floats in [0, 1], (N, H, W, C), (N, H, W), or with `channels_first` (N, C, H, W); on the host
    also an object column of images of different sizes. `image`, `audio` and `tokens` name the columns; by default the
    usual names are tried. With `Mixup` or `Cutmix`: `.batch(n).map_batches(augment, whole=True)`.

    >>> from penstock.augment import Flip
    >>> augment = Augment(Flip(p=1.0), seed=3)
    >>> batch = {"image": np.arange(4, dtype=np.uint8).reshape(1, 1, 4, 1)}
    >>> augment(batch, augment.keys([17]))["image"].ravel().tolist()
    [3, 2, 1, 0]
    """

    def __init__(
        self,
        *ops: Op,
        seed: int = 0,
        image: str | None = None,
        audio: str | None = None,
        tokens: str | None = None,
        channels_first: bool = False,
    ) -> None:
        for op in ops:
            if not isinstance(op, Op):
                fix = "from penstock.augment import Flip, Noise; Augment(Flip(), Noise())"
                raise UsageError("augment operations", got=repr(op)[:80], where="Augment(...)", fix=fix)
        pairs = [op for op in ops if isinstance(op, Mix) and op.classes is None]
        if len(pairs) > 1:
            raise UsageError(
                "classes= in each of several mixing operations",
                got=f"{len(pairs)} without it",
                where="Augment(...)",
                fix="Mixup(classes=10), Cutmix(classes=10): only one-hot labels can be mixed twice",
            )
        self.ops = ops
        self.seed = seed
        self.names = {"image": image, "audio": audio, "tokens": tokens}
        self.channels_first = channels_first

    def spec(self) -> dict[str, Any]:
        """Everything that decides what it does, as plain JSON; part of a pipeline's fingerprint.

        >>> from penstock.augment import Flip
        >>> Augment(Flip(), seed=1).spec()["ops"]
        [{'op': 'Flip', 'axis': 'horizontal', 'p': 0.5}]
        """
        ops = [op.spec() for op in self.ops]
        names = {kind: name for kind, name in self.names.items() if name is not None}
        return {"augment": 1, "seed": self.seed, "ops": ops, "columns": names, "channels_first": self.channels_first}

    def __repr__(self) -> str:
        return f"Augment({', '.join(map(repr, self.ops))}, seed={self.seed})"

    def keys(self, records: Any, epoch: int = 0) -> U64:
        """Row keys for records by number, for use outside a pipeline."""
        return randomness.keys(randomness.key(self.seed, "rows"), epoch, np.asarray(records, np.int64))

    def params(self, columns: dict[str, Any], keys: Any = None) -> dict[str, tuple[Drawn, ...]]:
        """The parameters that the executions use, by column name: one dict of arrays per operation."""
        keys = self._keys(columns, keys)
        return {name: self._drawn(kind, ops, columns[name], keys) for kind, name, ops in self._work(columns)}

    def __call__(self, columns: Columns, keys: Any = None) -> Columns:
        return self.numpy(columns, keys)

    def numpy(self, columns: Columns, keys: Any = None) -> Columns:
        """On the host; other columns pass through."""
        from penstock.augment import audio_numpy, image_numpy, text_numpy

        kernels = {"image": image_numpy.apply, "audio": audio_numpy.apply, "tokens": text_numpy.apply}
        keys = self._keys(columns, keys)
        out = dict(columns)
        for kind, name, ops in self._work(columns):
            column = columns[name]
            if kind != "tokens" and (isinstance(column, Ragged) or column.dtype == object):
                out[name] = self._one_by_one(kind, ops, column, keys, kernels[kind])
                continue
            drawn = self._drawn(kind, ops, column, keys)
            made = kernels[kind](ops, self._inward(kind, column), drawn)
            out[name] = np.ascontiguousarray(self._outward(kind, made, column)) if kind == "image" else made
            self._labels(ops, out, drawn, image_numpy.mix_labels)
        return out

    def torch(self, batch: dict[str, Any], keys: Any = None) -> dict[str, Any]:
        """Batched torch on the device of each column; NumPy columns become tensors."""
        torch = need("torch", extra="torch", purpose="for Augment.torch()")
        from penstock.augment import audio_torch, image_torch, text_torch

        kernels = {"image": image_torch.apply, "audio": audio_torch.apply, "tokens": text_torch.apply}
        return self._batched(batch, keys, kernels, torch.as_tensor, image_torch.mix_labels)

    def jax(self, batch: dict[str, Any], keys: Any = None) -> dict[str, Any]:
        """One compiled `jit(vmap)` program per column; NumPy columns become JAX arrays."""
        jnp = need("jax.numpy", extra="jax", purpose="for Augment.jax()")
        from penstock.augment import audio_jax, image_jax, text_jax

        kernels = {"image": image_jax.apply, "audio": audio_jax.apply, "tokens": text_jax.apply}
        return self._batched(batch, keys, kernels, jnp.asarray, image_jax.mix_labels)

    def _batched(
        self,
        batch: dict[str, Any],
        keys: Any,
        kernels: dict[str, Callable[..., Any]],
        convert: Callable[[Any], Any],
        mix_labels: Callable[..., dict[str, Any]],
    ) -> dict[str, Any]:
        keys = self._keys(batch, keys)
        out = dict(batch)
        for kind, name, ops in self._work(batch):
            if isinstance(batch[name], Ragged) or _is_object(batch[name]):
                raise UsageError(
                    f"rows of one shape in column {name!r}",
                    got=repr(batch[name])[:60],
                    where="Augment on a device",
                    fix="pad or crop first, or augment on the host: augment(columns, keys)",
                )
            column = convert(batch[name])
            drawn = self._drawn(kind, ops, column, keys)
            out[name] = self._outward(kind, kernels[kind](ops, self._inward(kind, column), drawn), column)
            self._labels(ops, out, drawn, mix_labels)
        return out

    def _work(self, columns: dict[str, Any]) -> Iterator[tuple[str, str, tuple[Op, ...]]]:
        """Which operations go to which column."""
        for kind, usual in COLUMNS.items():
            ops = tuple(op for op in self.ops if op.kind == kind)
            if ops:
                yield kind, self._find(kind, usual, columns), ops

    def _find(self, kind: str, usual: tuple[str, ...], columns: dict[str, Any]) -> str:
        asked = self.names[kind]
        for name in (asked,) if asked else usual:
            if name in columns:
                return name
        raise UsageError(
            f"a column {asked!r}" if asked else f"a column called one of {', '.join(usual)}",
            got=f"columns {sorted(columns)}",
            where=f"Augment, {kind} operations",
            fix=f"name it: Augment(..., {kind}='...')",
        )

    def _keys(self, columns: dict[str, Any], keys: Any) -> U64:
        if keys is None and KEYS in columns:
            words = np.asarray(columns[KEYS]).astype(np.int32).view(np.uint32).astype(np.uint64)
            keys = words[:, 0] | (words[:, 1] << np.uint64(32))
        rows = rows_of(columns)
        made = None if keys is None else np.ascontiguousarray(keys)
        if made is None or made.dtype != np.uint64 or made.shape != (rows,):
            raise UsageError(
                f"one uint64 key for each of {rows} rows",
                got="no keys" if made is None else f"{made.dtype} of shape {made.shape}",
                where="Augment",
                fix="use it in .map_batches(augment), or pass augment.keys(record_numbers, epoch)",
            )
        return made

    def _drawn(self, kind: str, ops: tuple[Op, ...], column: Any, keys: U64) -> tuple[Drawn, ...]:
        if kind == "tokens":
            _check_ids(ops, column)
            shape: Shape = ()
        else:
            shape = tuple(int(n) for n in column.shape[1:])
        if kind == "image":
            shape = self._height_width(shape)
        elif kind == "audio" and not shape:
            raise _flat(kind, column)
        return draw_all(ops, keys, self.seed, shape)

    def _height_width(self, shape: Shape) -> Shape:
        if len(shape) == 2:
            return (*shape, 1)
        if len(shape) != 3:
            raise _flat("image", shape)
        return (shape[1], shape[2], shape[0]) if self.channels_first else shape

    def _inward(self, kind: str, column: Any) -> Any:
        """The layout that kernels know: (N, H, W, C)."""
        if kind != "image":
            return column
        if column.ndim == 3:
            return column[..., None]
        return _permuted(column, (0, 2, 3, 1)) if self.channels_first else column

    def _outward(self, kind: str, made: Any, column: Any) -> Any:
        if kind != "image":
            return made
        if column.ndim == 3:
            return made[..., 0]
        return _permuted(made, (0, 3, 1, 2)) if self.channels_first else made

    def _one_by_one(
        self, kind: str, ops: tuple[Op, ...], column: Column, keys: U64, kernel: Callable[..., Any]
    ) -> Column:
        """Rows of different sizes, each a batch of one."""
        if any(op.mixes for op in ops):
            fix = "Resize or crop to one size in an Augment before"
            raise UsageError("images of one size to mix", got=repr(column)[:60], where="Augment", fix=fix)
        made = []
        for i in range(len(column)):
            row: NDArray[Any] = np.asarray(column[i])[None]
            drawn = self._drawn(kind, ops, row, keys[i : i + 1])
            made.append(self._outward(kind, kernel(ops, self._inward(kind, row), drawn), row)[0])
        if not made:
            return column
        return Ragged.of(made) if isinstance(column, Ragged) else stack(made)

    def _labels(
        self,
        ops: tuple[Op, ...],
        out: dict[str, Any],
        drawn: tuple[Drawn, ...],
        mix: Callable[..., dict[str, Any]],
    ) -> None:
        for op, one in zip(ops, drawn, strict=True):
            if isinstance(op, Mix):
                if op.labels not in out:
                    raise UsageError(
                        f"a column {op.labels!r} to mix along",
                        got=f"columns {sorted(out)}",
                        where=f"augment operation {type(op).__name__}",
                        fix=f"{type(op).__name__}(labels='your column')",
                    )
                out.update(mix(op, out[op.labels], one))


def carry_keys(columns: Columns, keys: U64) -> Columns:
    """For `.map_batches(carry_keys)`: puts row keys into the batch, for `augment.torch(batch)` or `.jax(batch)` later.

    >>> carry_keys({"x": np.zeros(2)}, np.array([1, 2**32], np.uint64))["augment_keys"].tolist()
    [[1, 0], [0, 1]]
    """
    low, high = keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32)
    return {**columns, KEYS: np.stack([low, high], 1).astype(np.uint32).view(np.int32)}


def _is_object(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype == object


def _permuted(array: Any, order: tuple[int, ...]) -> Any:
    return array.permute(order) if hasattr(array, "permute") else array.transpose(order)


def _check_ids(ops: tuple[Op, ...], column: Any) -> None:
    kind = np.dtype(str(column.dtype).removeprefix("torch."))
    for op in ops:
        largest = op.mask_id if isinstance(op, TokenMask) else getattr(op, "vocab_size", 1) - 1
        if kind.kind not in "ui" or largest > np.iinfo(kind).max:
            raise UsageError(
                f"integer tokens that hold ids up to {largest}",
                got=f"{kind}",
                where=f"augment operation {type(op).__name__}",
                fix="give token ids as int32, or a smaller id",
            )


def _flat(kind: str, got: Any) -> UsageError:
    return UsageError(
        "images (N, H, W, C) or (N, H, W)" if kind == "image" else "audio (N, samples) or (N, bands, frames)",
        got=f"rows of shape {getattr(got, 'shape', got)}",
        where=f"Augment, {kind} operations",
        fix=f"name the right column: Augment(..., {kind}='...')",
    )
