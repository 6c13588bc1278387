"""Converts a dataset's `rngs=` argument to one integer seed, and to named streams of JAX keys.

Accepts None (seed 0), an integer, a JAX random key, and any object with named streams such as `nnx.Rngs`. Only the
base key of a stream is read, never its counter: the data does not depend on other draws from it. `nnx.Rngs(7)`,
`jax.random.key(7)` and `7` are the same seed.
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
    """Returns the integer seed of `rngs`.

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
    stream = next((s for name in ("sample", "default", "params") if (s := getattr(rngs, name, None)) is not None), None)
    if stream is None:
        raise UsageError("rngs: a seed, a random key or an object with streams", got=type(rngs).__name__, fix=_FIX)
    key: Any = getattr(stream, "key", None)
    if key is None and callable(stream):
        return _of_key(stream())
    read = getattr(key, "get_value", None)  # a framework's variable that holds the key
    return _of_key(read() if callable(read) else getattr(key, "value", key))


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
