"""The batch of `to_jax()` where some columns are not arrays of one shape: texts, paths, `cu_seqlens` of packed rows.

It is a dict of the arrays, and a JAX pytree of them alone, so it goes into `jax.jit` as it is, and another text does
not compile again. `batch["path"]` also finds what is beside the arrays, in `batch.side`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock.core.errors import UsageError
from penstock.core.optional import need


class _NotInTheTree(UsageError, KeyError):
    """Also a KeyError."""

    __str__ = UsageError.__str__


class JaxBatch(dict[str, Any]):
    """A dict of JAX arrays; `side` holds the other columns as NumPy arrays. Made by `jax_batch`."""

    __slots__ = ("_names", "side")

    def __init__(self, arrays: dict[str, Any], side: dict[str, Any], names: tuple[str, ...] | None = None) -> None:
        super().__init__(arrays)
        self.side = side
        self._names = tuple(side) if names is None else names

    def __missing__(self, name: str) -> Any:
        if name in self.side:
            return self.side[name]
        if name in self._names:
            raise _NotInTheTree(
                f"arrays inside a jitted function or in what it returns, where {name!r} is not",
                got=f"batch[{name!r}]",
                fix=f"read batch[{name!r}] from the loader's batch, before the call"
                + ("; inside use segment_ids, or .pack(static=True, max_docs=n)" if name == "cu_seqlens" else ""),
            )
        raise KeyError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return jax_batch, (dict(self), self.side)


def jax_batch(arrays: dict[str, Any], side: dict[str, Any]) -> JaxBatch:
    """A batch of `arrays`, with other columns beside it."""
    _register()
    return JaxBatch(arrays, side)


@cache
def _register() -> None:
    """Makes the class a pytree, once. The names of side columns are part of its structure, their values are not."""
    tree = need("jax", extra="jax").tree_util

    def parts(batch: JaxBatch) -> tuple[list[Any], tuple[Any, ...]]:
        names = tuple(sorted(batch))
        return [batch[name] for name in names], (names, batch._names)

    def keyed(batch: JaxBatch) -> tuple[list[Any], tuple[Any, ...]]:
        values, structure = parts(batch)
        return [(tree.DictKey(name), value) for name, value in zip(structure[0], values, strict=True)], structure

    def rebuilt(structure: tuple[Any, ...], values: Any) -> JaxBatch:
        return JaxBatch(dict(zip(structure[0], values, strict=True)), {}, structure[1])

    tree.register_pytree_with_keys(JaxBatch, keyed, rebuilt, parts)
