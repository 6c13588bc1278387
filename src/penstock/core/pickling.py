"""The user's own functions on their way to a worker process.

A function of a script or notebook, a lambda or a closure cannot be pickled by name; cloudpickle carries its code. This
is the user's code between the user's own processes, never anything read from data.
"""

from __future__ import annotations

import pickle
from types import FunctionType, MethodType
from typing import Any

from penstock.core.optional import need


class _Shipped:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (need("cloudpickle", extra="all").dumps(self.value),)


def shipped(state: dict[str, Any]) -> dict[str, Any]:
    """An object's state for `__getstate__`: functions in it pickle by their code; they arrive as themselves.

    >>> pickle.loads(pickle.dumps(shipped({"double": lambda x: 2 * x})))["double"](4)
    8
    """
    return {k: _Shipped(v) if isinstance(v, FunctionType | MethodType) else v for k, v in state.items()}
