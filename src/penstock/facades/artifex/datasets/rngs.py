"""Converts a dataset's `rngs=` argument to one integer seed, and to named streams of JAX keys.

Accepts None (seed 0), an integer, a JAX random key, and any object with named streams such as `nnx.Rngs`. A fresh
`nnx.Rngs(7)`, `jax.random.key(7)` and `7` are the same seed. A dataset draws once from the stream `sample` (or
`default`, or `params`) of an object with counters, as a layer does: a second dataset made from the same `nnx.Rngs` has
another seed. The same program draws the same seeds in every process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.outputs.arrays import is_jax_array, jax_key, key_words

_FIX = "rngs=0, rngs=nnx.Rngs(0) or rngs=jax.random.key(0)"


def seed_of(rngs: Any) -> int:
    """Returns the integer seed that `rngs` has now, and does not draw from it where it can be read without.

    >>> seed_of(None), seed_of(7)
    (0, 7)
    """
    if rngs is None:
        return 0
    if isinstance(rngs, Streams):
        return rngs.seed
    if isinstance(rngs, int | np.integer) and not isinstance(rngs, bool):
        return int(rngs)
    if is_jax_array(rngs):  # checked first: an object with streams may have every attribute
        return _of_key(rngs)
    stream = _stream(rngs)
    key: Any = getattr(stream, "key", None)
    if key is None and callable(stream):
        return _of_key(stream())
    base, drawn = _of_key(_value(key)), _count(stream)
    return randomness.key(base, "draw", drawn) >> 1 if drawn else base


def next_seed(rngs: Any) -> int:
    """Returns the seed of a new dataset, and advances the stream it was drawn from if that counts its draws.

    >>> streams = Streams(7)
    >>> next_seed(streams), next_seed(streams)
    (7, 7)
    """
    seed = seed_of(rngs)
    if has_streams(rngs) and getattr(stream := _stream(rngs), "key", None) is not None:
        stream()
    return seed


def has_streams(rngs: Any) -> bool:
    """Whether `rngs` is an object with named streams of its own, such as `nnx.Rngs`."""
    plain = rngs is None or isinstance(rngs, int | np.integer | Streams) or is_jax_array(rngs)
    return not plain and getattr(rngs, "sample", getattr(rngs, "default", getattr(rngs, "params", None))) is not None


def as_streams(rngs: Any) -> Any:
    """Returns an object with named streams as it is, and `Streams` for a seed or a key."""
    return rngs if has_streams(rngs) or isinstance(rngs, Streams) else Streams(rngs)


def draws_of(rngs: Any) -> dict[str, int]:
    """The number of keys drawn from each stream, where the object counts them."""
    if isinstance(rngs, Streams):
        return rngs.state_dict()
    return {str(name): _count(stream) for name, stream in _items(rngs)}


def set_draws(rngs: Any, counts: dict[str, int]) -> None:
    """Sets the number of keys drawn from each stream; streams that the object does not have are left out."""
    if isinstance(rngs, Streams):
        rngs.load_state_dict(counts)
        return
    for name, stream in _items(rngs):
        if name in counts:
            stream.count[...] = counts[name]


def _items(rngs: Any) -> list[tuple[str, Any]]:
    items = getattr(type(rngs), "items", None)  # of the class: the object may return a stream for any name
    return [(name, s) for name, s in items(rngs) if getattr(s, "count", None) is not None] if callable(items) else []


def _stream(rngs: Any) -> Any:
    stream = next((s for name in ("sample", "default", "params") if (s := getattr(rngs, name, None)) is not None), None)
    if stream is None:
        raise UsageError("rngs: a seed, a random key or an object with streams", got=type(rngs).__name__, fix=_FIX)
    return stream


def _value(variable: Any) -> Any:
    """The array in a framework's variable."""
    read = getattr(variable, "get_value", None)
    return read() if callable(read) else getattr(variable, "value", variable)


def _count(stream: Any) -> int:
    count = _value(getattr(stream, "count", None))
    return 0 if count is None else int(np.asarray(count))


def _of_key(key: Any) -> int:
    if not is_jax_array(key) or getattr(key.dtype, "kind", "u") != "u":
        raise UsageError("a JAX random key", got=type(key).__name__, where="rngs", fix=_FIX)
    found = key_words(key)
    if len(found) <= 2:
        return int(sum(word << (32 * place) for place, word in enumerate(reversed(found))))
    return randomness.key(*found)


class Streams:
    """Named streams of JAX keys from one seed. Every name exists; each call returns the next key.

    >>> rngs = Streams(0)
    >>> "sample" in rngs, bool((rngs.sample() == rngs.sample()).all())
    (True, False)
    """

    def __init__(self, rngs: Any = None) -> None:
        self.seed = seed_of(rngs)
        self._draws: dict[str, int] = {}
        self._lock = threading.Lock()

    def next_key(self, name: str = "default") -> Any:
        """Returns the next key of a stream."""
        with self._lock:
            draw = self._draws.get(name, 0)
            self._draws[name] = draw + 1
        return jax_key(self.seed, "stream", name, draw)

    def __call__(self) -> Any:
        return self.next_key()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __getitem__(self, name: str) -> Callable[[], Any]:
        return lambda: self.next_key(name)

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def state_dict(self) -> dict[str, int]:
        """Returns the number of keys drawn from each stream."""
        return dict(self._draws)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._draws = {str(name): int(count) for name, count in state.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self.seed, "_draws": dict(self._draws)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"Streams({self.seed})"
