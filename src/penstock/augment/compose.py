"""`Augment`: a list of operations that runs on columns in NumPy, torch or JAX from the same row keys.

In a pipeline it is passed to `.map_batches(augment)`, which makes a key for each row from (seed, epoch, record). On an
accelerator, let `.map_batches(carry_keys)` put the keys into the batch and call `augment.torch(batch)` or
`augment.jax(batch)` in the training loop. The result depends on the record alone: not on batch size, order, threads,
ranks or resume point. Only `Mixup` and `Cutmix` depend on the other rows of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment.arrays import Arrays
from penstock.augment.arrays_jax import jax_arrays
from penstock.augment.arrays_numpy import NUMPY
from penstock.augment.arrays_torch import torch_arrays
from penstock.augment.followers import Followers
from penstock.augment.kinds import AUDIO, TOKENS, Images, Kind
from penstock.augment.masks import check_fill, check_others, names_of
from penstock.augment.operations.base import Op, Shape
from penstock.augment.operations.fit import FiveCrop
from penstock.augment.operations.mix import Mix
from penstock.augment.operations.tokens import change_ragged
from penstock.augment.params import Drawn, draw_all
from penstock.augment.points import Boxes, Keypoints, declared
from penstock.core import randomness
from penstock.core.arguments import explained_call, explained_class
from penstock.core.columns import Column, Columns, Ragged, rows_of, stack, strings
from penstock.core.errors import UsageError
from penstock.core.randomness import U64

KEYS = "augment_keys"
_IN_JIT = "inside of jax.jit: put .map_batches(ps.carry_keys) into the pipeline and call augment.jax(batch)"


@explained_class
class Augment:
    """Operations in order; `augment(columns, keys)` augments on the host.

    Images are uint8 or floats in [0, 1], (N, H, W, C), (N, H, W) or (N, C, H, W); on the host also an object column of
    images of different sizes. `channels_first` is needed where the shape does not tell which axis holds the channels.
    `mean` and `std` declare normalised floats, as `decode_images(mean=, std=)` makes them: operations on values see
    [0, 1]. Other values are refused if an operation clips or fills (inside `jax.jit` they become NaN).

    `masks` names columns of class numbers that geometric operations move with the image, the nearest pixel where they
    resize, `mask_fill` outside. `boxes` and `keypoints` (a name, or `Boxes(...)`, `Keypoints(...)`, or several) move
    too. A mask, boxes or keypoints beside the image must be among them or in `ignore`.

    `image`, `audio` and `tokens` name the columns; by default the usual names are tried. With `Mixup` or `Cutmix`:
    `.batch(n).map_batches(augment, whole=True)`.

    >>> from penstock.augment import Flip
    >>> augment = Augment(Flip(p=1.0), seed=3)
    >>> batch = {"image": np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)}
    >>> augment(batch, augment.keys([17]))["image"].ravel().tolist()
    [3, 2, 1, 0, 7, 6, 5, 4]
    """

    def __init__(
        self,
        *ops: Op,
        seed: int = 0,
        image: str | None = None,
        audio: str | None = None,
        tokens: str | None = None,
        channels_first: bool | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        masks: str | Sequence[str] = (),
        mask_fill: int = 0,
        boxes: str | Boxes | Sequence[Boxes] = (),
        keypoints: str | Keypoints | Sequence[Keypoints] = (),
        ignore: str | Sequence[str] = (),
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
        images = [op for op in ops if op.kind == "image"]
        if any(isinstance(op, FiveCrop) for op in images[:-1]):
            raise UsageError("FiveCrop as the last operation on images", got=repr(images), where="Augment(...)")
        self.ops = ops
        self.seed = seed
        self.names = {"image": image, "audio": audio, "tokens": tokens}
        self.channels_first = channels_first
        self.kinds = (_normalised(mean, std), AUDIO, TOKENS)
        self.ignore = names_of(ignore)
        self.followers = Followers(
            names_of(masks),
            check_fill(mask_fill),
            declared(boxes, Boxes, "Augment(...)"),
            declared(keypoints, Keypoints, "Augment(...)"),
        )
        if self.followers and any(isinstance(op, Mix) for op in ops):
            fix = "leave Mixup and Cutmix out, or mix in .map_batches() yourself"
            expected = "no mixing operations with masks=, boxes= or keypoints="
            raise UsageError(expected, got=repr(self), where="Augment(...)", fix=fix)

    def spec(self) -> dict[str, Any]:
        """The full definition as plain JSON; part of a pipeline's fingerprint.

        >>> from penstock.augment import Flip
        >>> Augment(Flip(), seed=1).spec()["ops"]
        [{'op': 'Flip', 'axis': 'horizontal', 'p': 0.5}]
        """
        ops = [op.spec() for op in self.ops]
        names = {kind: name for kind, name in self.names.items() if name is not None}
        plain = {
            "augment": 1,
            "seed": self.seed,
            "ops": ops,
            "columns": names,
            "channels_first": bool(self.channels_first),
        }
        image = self.kinds[0]
        normalised = {"mean": list(image.mean), "std": list(image.std)} if image.std else {}
        return plain | normalised | self.followers.spec()

    def to_config(self) -> dict[str, Any]:
        """Returns the definition as plain data, for a TOML, YAML or JSON file that `Augment.from_config` reads.

        >>> from penstock.augment import Flip
        >>> Augment(Flip(), seed=1).to_config()
        {'ops': [{'Flip': {'axis': 'horizontal', 'p': 0.5}}], 'seed': 1}
        """
        from penstock.augment.config import augment_config

        return augment_config(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, allow_functions: bool | Collection[str] = False) -> Augment:
        """Makes an `Augment` from plain data; operations may be written by name alone, or without default arguments.

        >>> Augment.from_config({"ops": ["Flip", {"Rotate": {"degrees": 15}}]}).ops[0]
        Flip(axis='horizontal', p=0.5)
        """
        from penstock.augment.config import augment_of

        return augment_of(config, [allow_functions] if isinstance(allow_functions, str) else allow_functions)

    def __repr__(self) -> str:
        return f"Augment({', '.join(map(repr, self.ops))}, seed={self.seed})"

    def keys(self, records: Any, epoch: int = 0) -> U64:
        """Row keys for records by number, for use outside a pipeline."""
        return randomness.keys(randomness.key(self.seed, "rows"), epoch, np.asarray(records, np.int64))

    def params(self, columns: dict[str, Any], keys: Any = None) -> dict[str, tuple[Drawn, ...]]:
        """The parameters that every framework uses, by column name: one dict of arrays per operation."""
        keys = self._keys(columns, keys)
        return {name: self._draw(kind, ops, columns[name], keys) for kind, name, ops in self._work(columns)}

    def drawn(self, columns: dict[str, Any], keys: Any = None) -> dict[str, list[Any]]:
        """What was drawn for the first row, as plain values by column and operation: `drawn` in `loader.why`.

        >>> from penstock.augment import Flip
        >>> augment = Augment(Flip(p=1.0))
        >>> augment.drawn({"image": np.zeros((1, 8, 8, 3), np.uint8)}, augment.keys([0]))
        {'image': [{'op': 'Flip'}]}
        """
        keys = self._keys(columns, keys)[:1]
        out: dict[str, Any] = {}
        for kind, name, ops in self._work(columns):
            column = columns[name]
            row = np.asarray(column[0])[None] if _is_uneven(column) else column[:1]
            pairs = zip(ops, self._draw(kind, ops, row, keys), strict=True)
            out[name] = [{"op": type(op).__name__} | op.describe(p) for op, p in pairs if p["on"][0]]
        return out

    def __call__(self, columns: Columns, keys: Any = None) -> Columns:
        return self.numpy(columns, keys)

    def numpy(self, columns: Columns, keys: Any = None) -> Columns:
        """Augments on the host; other columns pass through."""
        return self._run(NUMPY, columns, keys)

    def torch(self, batch: dict[str, Any], keys: Any = None) -> dict[str, Any]:
        """Augments in torch on the device of each column; NumPy columns become tensors."""
        return self._run(torch_arrays(), batch, keys)

    def jax(self, batch: dict[str, Any], keys: Any = None) -> dict[str, Any]:
        """Augments in JAX, one compiled program per column; NumPy columns become JAX arrays.

        Also inside `jax.jit`, with keys in the batch (`carry_keys`) or as an argument of that form: parameters are then
        drawn on the host, by a callback, when the program runs.
        """
        return self._run(jax_arrays(), batch, keys)

    def _run(self, xp: Arrays, batch: dict[str, Any], keys: Any) -> dict[str, Any]:
        words: Any = keys if keys is not None else batch.get(KEYS)
        later = words is not None and xp.is_traced(words)
        if later and tuple(words.shape) != (rows_of(batch), 2):
            raise UsageError(
                f"keys as carry_keys writes them inside of jax.jit: two 32-bit words for each of {rows_of(batch)} rows",
                got=f"{words.dtype} of shape {tuple(words.shape)}",
                where="Augment",
                fix=_IN_JIT,
            )
        keys = words if later else self._keys(batch, keys)
        out = dict(batch)
        for kind, name, ops in self._work(batch):
            column = batch[name]
            if kind.name == "image":
                self.check_beside(batch, name)
            if _is_uneven(column):
                if kind.name == "image" and self.followers and xp.host:
                    out.update(self._uneven_with_followers(name, batch, keys))
                else:
                    out[name] = self._uneven(xp, kind, ops, name, column, keys)
                continue
            column = xp.asarray(column)
            first = kind.channels_first(column, self.channels_first)
            shape = self._row_shape(kind, ops, column)
            if later:
                drawn = xp.drawn_later(partial(_draw_words, ops, self.seed, shape), keys)
            else:
                drawn = draw_all(ops, keys, self.seed, shape)
            images = kind.check_values(xp, kind.inward(column, first), ops)
            made = xp.run(kind, ops, images, drawn)
            out[name] = xp.contiguous(kind.outward(made, column, first))
            for op, p in zip(ops, drawn, strict=True):
                if isinstance(op, Mix):
                    out.update(_mix_labels(xp, op, out, p))
            if kind.name == "image":
                out.update(self.followers.moved(xp, ops, drawn, batch, shape))
        return out

    def check_beside(self, batch: dict[str, Any], image: str) -> None:
        """Raises for a column that would have to move with `image` and does not."""
        if image not in batch or not any(op.kind == "image" and op.geometric for op in self.ops):
            return
        column, height, width = batch[image], 0, 0
        if not _is_uneven(column):
            kind = self.kinds[0]
            height, width, _ = kind.row_shape(column, kind.channels_first(column, self.channels_first))
        check_others(batch, image, frozenset((*self.followers.columns, *self.ignore, KEYS)), height, width)

    def _uneven_with_followers(self, image: str, batch: dict[str, Any], keys: U64) -> dict[str, Any]:
        """Images of different sizes and what moves with them: each as a batch of one row."""
        pixels = (image, *self.followers.masks)
        names = [image, *(name for name in self.followers.columns if name in batch)]
        alone = Augment.__new__(Augment)
        alone.__dict__.update(self.__dict__, ops=tuple(op for op in self.ops if op.kind == "image"))
        made = []
        for i in range(len(batch[image])):
            one = {name: _one_row(batch[name], i, name in pixels) for name in names}
            made.append(alone.numpy(one, keys[i : i + 1]))
        if not made:
            return {}
        return {
            name: stack([one[name][0] for one in made]) if name in pixels else np.concatenate([m[name] for m in made])
            for name in made[0]
        }

    def _uneven(self, xp: Arrays, kind: Kind, ops: tuple[Any, ...], name: str, column: Column, keys: U64) -> Column:
        """Rows of different sizes: tokens in one go, others each as a batch of one row."""
        if not xp.host:
            raise UsageError(
                f"rows of one shape in column {name!r}",
                got=repr(column)[:60],
                where="Augment on a device",
                fix="pad or crop first, or augment on the host: augment(columns, keys)",
            )
        if isinstance(column, Ragged) and kind.name == "tokens":
            return change_ragged(ops, column, self._draw(kind, ops, column, keys))
        if any(op.mixes for op in ops):
            fix = "Resize or crop to one size in an Augment before"
            raise UsageError("images of one size to mix", got=repr(column)[:60], where="Augment", fix=fix)
        made: list[NDArray[Any]] = []
        for i in range(len(column)):
            row: NDArray[Any] = np.asarray(column[i])[None]
            first = kind.channels_first(row, self.channels_first)
            drawn = self._draw(kind, ops, row, keys[i : i + 1])
            one = xp.run(kind, ops, kind.check_values(xp, kind.inward(row, first), ops), drawn)
            made.append(kind.outward(one, row, first)[0])
        if not made:
            return column
        if kind.name == "audio" and not isinstance(column, Ragged):
            return strings(made)  # rows of one length by chance still are to be padded
        return Ragged.of(made) if isinstance(column, Ragged) else stack(made)

    def _work(self, columns: dict[str, Any]) -> Iterator[tuple[Kind, str, tuple[Op, ...]]]:
        """Which operations go to which column."""
        for kind in self.kinds:
            ops = tuple(op for op in self.ops if op.kind == kind.name)
            if ops:
                yield kind, self._find(kind, columns), ops

    def _find(self, kind: Kind, columns: dict[str, Any]) -> str:
        asked = self.names[kind.name]
        for name in (asked,) if asked else kind.columns:
            if name in columns:
                return name
        raise UsageError(
            f"a column {asked!r}" if asked else f"a column called one of {', '.join(kind.columns)}",
            got=f"columns {sorted(columns)}",
            where=f"Augment, {kind.name} operations",
            fix=f"name it: Augment(..., {kind.name}='...')",
        )

    def _keys(self, columns: dict[str, Any], keys: Any) -> U64:
        keys = columns.get(KEYS) if keys is None else keys
        rows = rows_of(columns)
        made = None if keys is None else np.ascontiguousarray(keys)
        if made is not None and made.dtype != np.uint64 and made.shape == (rows, 2):
            made = _joined(made)
        if made is None or made.dtype != np.uint64 or made.shape != (rows,):
            raise UsageError(
                f"one uint64 key for each of {rows} rows",
                got="no keys" if made is None else f"{made.dtype} of shape {made.shape}",
                where="Augment",
                fix=f"use it in .map_batches(augment), or pass augment.keys(record_numbers, epoch); {_IN_JIT}",
            )
        return made

    def _draw(self, kind: Kind, ops: tuple[Op, ...], column: Any, keys: U64) -> tuple[Drawn, ...]:
        return draw_all(ops, keys, self.seed, self._row_shape(kind, ops, column))

    def _row_shape(self, kind: Kind, ops: tuple[Op, ...], column: Any) -> Shape:
        """Shape of one row as operations see it, if they work on its dtype."""
        for op in ops:
            op.check_dtype(column.dtype)
        return kind.row_shape(column, kind.channels_first(column, self.channels_first))


def _draw_words(ops: tuple[Op, ...], seed: int, shape: Shape, words: NDArray[Any]) -> tuple[Drawn, ...]:
    return draw_all(ops, _joined(words), seed, shape)


def _joined(words: NDArray[Any]) -> U64:
    """Keys from rows of two 32-bit words, as `carry_keys` writes them."""
    wide = words.astype(np.int32).view(np.uint32).astype(np.uint64)
    joined: U64 = wide[:, 0] | (wide[:, 1] << np.uint64(32))
    return joined


def _normalised(mean: float | Sequence[float] | None, std: float | Sequence[float] | None) -> Images:
    if mean is None and std is None:
        return Images()
    pair = (0.0 if mean is None else mean, 1.0 if std is None else std)
    means, stds = (tuple(float(v) for v in np.atleast_1d(np.asarray(one, np.float64))) for one in pair)
    if min(stds) <= 0 or (len(means) != len(stds) and 1 not in (len(means), len(stds))):
        got = f"mean={mean!r}, std={std!r}"
        raise UsageError("mean and std as for decode_images, std above 0", got=got, where="Augment(...)")
    count = max(len(means), len(stds))
    return Images(means * (count // len(means)), stds * (count // len(stds)))


@explained_call
def carry_keys(columns: Columns, keys: U64) -> Columns:
    """For `.map_batches(carry_keys)`: puts row keys into the batch, for `augment.torch(batch)` or `.jax(batch)` later.

    >>> carry_keys({"x": np.zeros(2)}, np.array([1, 2**32], np.uint64))["augment_keys"].tolist()
    [[1, 0], [0, 1]]
    """
    low, high = keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32)
    return {**columns, KEYS: np.stack([low, high], 1).astype(np.uint32).view(np.int32)}


def _one_row(column: Any, row: int, pixels: bool) -> Any:
    """One row as a batch; rows that are arrays of their own stay so, except pixels."""
    if not _is_uneven(column):
        return column[row : row + 1]
    return np.asarray(column[row])[None] if pixels else strings([column[row]])


def _is_uneven(column: Any) -> bool:
    return isinstance(column, Ragged) or (isinstance(column, np.ndarray) and column.dtype == object)


def _mix_labels(xp: Arrays, op: Mix, columns: dict[str, Any], p: Drawn) -> dict[str, Any]:
    if op.labels not in columns:
        raise UsageError(
            f"a column {op.labels!r} to mix along",
            got=f"columns {sorted(columns)}",
            where=f"augment operation {type(op).__name__}",
            fix=f"{type(op).__name__}(labels='your column')",
        )
    return op.mix_labels(xp, columns[op.labels], p)
