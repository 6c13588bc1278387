"""A thread-safe least-recently-used cache that computes each value once, also when several threads ask for it.

Costs one lock per lookup. Pickles as an empty cache, so that a plan sent to another process stays small.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

V = TypeVar("V")


class LruCache(Generic[V]):
    """Keeps the `size` most recently used values.

    >>> squares = LruCache[int](size=2)
    >>> [squares.get(n, lambda n=n: n * n) for n in (1, 2, 3)], squares.get(3, lambda: -1)
    ([1, 4, 9], 9)
    >>> squares.get(1, lambda: -1)  # evicted by 3, so it is computed again
    -1
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, Future[V]] = OrderedDict()

    def get(self, name: Hashable, build: Callable[[], V]) -> V:
        """Returns the value of `name`, computed by `build` if it is not cached. A second thread waits for the first."""
        with self._lock:
            held = self._held.get(name)
            if held is not None:
                self._held.move_to_end(name)
            else:
                mine: Future[V] = Future()
                self._held[name] = mine
                while len(self._held) > self.size:
                    self._held.popitem(last=False)
        if held is not None:
            return held.result()
        try:
            value = build()
        except BaseException as error:
            with self._lock:  # failures are not cached: the next call tries again
                if self._held.get(name) is mine:
                    del self._held[name]
            mine.set_exception(error)
            raise
        mine.set_result(value)
        return value

    def __len__(self) -> int:
        return len(self._held)

    def __reduce__(self) -> tuple[type[LruCache[V]], tuple[int]]:
        return type(self), (self.size,)
