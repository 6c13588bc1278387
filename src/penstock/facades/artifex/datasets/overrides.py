"""What a subclass overrides is used by everything that reads its records.

The datasets here have faster ways than a sample at a time: `read`, which returns columns, and batches made of them. A
subclass that overrides `__getitem__`, `__iter__`, `get_batch` or `collate_fn` gets the ways of `BaseDataset` that call
its method in place of the inherited ones that do not. A `get_batch` without `indices` is called by loaders only if it
calls `super()`, which advances: one of its own may return any records.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

Access = Literal["index", "pass", "batches"]

_NAMES = ("read", "__getitem__", "get_batch", "__iter__", "collate_fn", "batch_at", "samples_at", "fingerprint")
_CALL_READ = ("batch_at", "__iter__")
_CALL_GETITEM = ("read", "samples_at", "batch_at", "__iter__", "fingerprint")
_CALL_ITER = ("read", "samples_at", "batch_at", "fingerprint", "_pass", "_batch_of")
_CALL_COLLATE = ("batch_at", "_batch_of")


def use_own_methods(cls: Any, base: type) -> None:
    """Sets `cls._own_access` and `cls._own_collate`, and the methods of `base` that call those that `cls` defines."""
    own = _defined(cls, base)
    access, inherited = _access(cls, own)
    if access is not None:
        cls._own_access = access
    if "collate_fn" in own:
        cls._own_collate = True
        inherited += _CALL_COLLATE
    for name in inherited:
        if name not in own:
            setattr(cls, name, vars(base)[name])


def _defined(cls: type, base: type) -> set[str]:
    """The methods of a class and of its mixins, which come before the next dataset class."""
    own: set[str] = set()
    for one in cls.__mro__:
        if one is not cls and issubclass(one, base):
            break
        own.update(name for name in _NAMES if name in vars(one))
    return own


def _access(cls: Any, own: set[str]) -> tuple[Access | None, tuple[str, ...]]:
    if "read" in own:
        return "index", _CALL_READ
    if "__getitem__" in own:
        return "index", _CALL_GETITEM
    if "get_batch" in own and "indices" in inspect.signature(cls.get_batch).parameters:
        return None, ()
    if "__iter__" in own:
        return "pass", _CALL_ITER
    return ("batches", ()) if "get_batch" in own and _calls_super(cls.get_batch) else (None, ())


def _calls_super(function: Any) -> bool:
    """Whether a method has a `super()` without arguments: it then closes over its class."""
    return "__class__" in getattr(getattr(function, "__code__", None), "co_freevars", ())
