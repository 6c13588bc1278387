"""`to_jax`: dicts of JAX arrays, placed by a device or a sharding.

Placement is started in the loader's threads, `prefetch` batches ahead of use, so that a transfer runs while the step
before it computes. With a sharding over several processes each one passes its own rows and gets the global array;
`share_of` returns which rows those are. Token ids are int32, as JAX has no int64 by default. What is not an array of
one shape (strings, `cu_seqlens`) is beside the batch as NumPy arrays: `outputs.jax_batch`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.buffers import Aligned, Buffers
from penstock.core.columns import Columns, Compact, Ragged
from penstock.core.errors import UsageError
from penstock.core.held_bytes import held_bytes
from penstock.core.optional import need
from penstock.engine.output import Output
from penstock.outputs.arrays import narrowed
from penstock.outputs.floats import cast_floats, ids_dtype, numpy_floats
from penstock.outputs.jax_batch import JaxBatch, jax_batch
from penstock.outputs.numpy import widened
from penstock.outputs.objects import NUMBERS, flat, holds_numbers, lengths_of, nested, resolved
from penstock.plan.branches import Combined
from penstock.plan.definition import Definition
from penstock.steps.rows import Memory

QUICK_BYTES = 4 << 20  # JAX uses larger batches without a copy if it can


class JaxOutput(Output):
    """Arrays of the rows, or with `micro_batches=k` of shape (k, rows / k, ...) for gradient accumulation.

    Micro-batch j holds rows j, j + k, j + 2k...: the same rows for any number of processes and devices.
    """

    name = "jax"

    def __init__(self, sharding: Any = None, ids: Any = np.int32, micro_batches: int = 1, floats: Any = None) -> None:
        self.jax = need("jax", extra="jax", purpose="for .to_jax()")
        if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
            raise UsageError("micro_batches of at least 1", got=repr(micro_batches), fix="micro_batches=4")
        self.memory: Memory = Memory(ids_dtype(ids), Aligned())
        self.sharding, self.micro_batches, self.floats = sharding, micro_batches, numpy_floats(floats)
        self.spread = sharding is not None and self.jax.process_count() > 1
        self._world = share_of(sharding)[1] if self.spread else 1
        self._dropped = self._not_given()
        self._varying: frozenset[str] = frozenset()  # columns of the batch whose length changes: see `shared_by`
        self._by_rank: dict[int, Any] = {}
        self._programs: dict[Any, Any] = {}
        self._guarded = False
        self._quick: Any = None  # set on first use: querying the backend starts it

    def _not_given(self) -> tuple[str, ...]:
        """Columns about all packed rows in order, dropped when rows are split over devices or micro-batches."""
        replicated = getattr(self.sharding, "is_fully_replicated", True) and self.micro_batches == 1
        return ("cu_seqlens", "max_seqlen") if self.spread else () if replicated else ("cu_seqlens",)

    @property
    def expands(self) -> bool:  # type: ignore[override]
        """Whether batches are made on the device from compact columns.

        Not over several devices: there the arrays are placed one by one, whatever the axes of the mesh are.
        """
        return self.sharding is None and self.micro_batches == 1 and self.memory.ids == np.int32

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        wide = widened(columns, ids, *self.memory)
        return {name: _narrow(name, column, self.memory.buffers) for name, column in wide.items()}

    def deliver(self, columns: Columns) -> dict[str, Any]:
        """Places all columns on their devices, in one call. The transfer continues after this returns."""
        arrays: dict[str, Any] = {}
        side: dict[str, Any] = {}
        deep = False
        for name, column in columns.items():
            if name in self._dropped:
                continue
            if column.dtype.kind in NUMBERS or holds_numbers(column):
                (side if name in self._varying else arrays)[name] = self._checked(name, column)
                continue
            found = resolved(name, np.asarray(column), "JAX")
            if not isinstance(found, dict) and holds_numbers(found):
                arrays[name] = self._checked(name, narrowed(found, name))
            elif isinstance(found, dict):
                deep = True
                leaves = flat(name, found).items()
                arrays.update({path: self._checked(name, narrowed(leaf, name)) for path, leaf in leaves})
            else:
                side[name] = self._checked(name, found)
        made = nested(self._placed(arrays)) if deep else self._placed(arrays)
        return jax_batch(made, side) if side else made

    def _placed(self, arrays: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any]
        if self.floats is not None:
            arrays = {name: cast_floats(column, self.floats, name) for name, column in arrays.items()}
        if self.spread:
            made = {name: self._global(column) for name, column in arrays.items()}
        elif self.sharding is None:
            made = self._here(arrays)
        else:
            made = self.jax.device_put(arrays, {name: self._sharding(c.ndim) for name, c in arrays.items()})
        return made

    def expand(self, small: Compact) -> dict[str, Any]:
        """Expands a few small arrays by their recipe, on the device, with a program that is compiled once."""
        program = self._programs.get(small.recipe)
        if program is None:
            recipe, xp = small.recipe, self.jax.numpy
            program = self._programs[recipe] = self.jax.jit(lambda arrays: recipe.expand(xp, arrays))
        made: dict[str, Any] = self._allowed(program, dict(small))
        return made

    def _allowed(self, program: Any, arrays: Any) -> Any:
        """The program's result, also if JAX is configured to refuse implicit transfers: this one is intended."""
        if not self._guarded:
            try:
                return program(arrays)
            except RuntimeError as error:  # checking first would cost as much as a small batch
                if "transfer" not in str(error):
                    raise
                self._guarded = True
        with self.jax.transfer_guard("allow"):
            return program(arrays)

    def _here(self, arrays: dict[str, Any]) -> Any:
        """On the default device. Where that is the CPU, small batches go through a jitted identity.

        It copies, but takes half the time of `device_put` (50 against 100 us for three columns of 256 KB), and leaves
        the memory free for the next batch.
        """
        if self._quick is None:
            self._quick = _identity(self.jax) or False
        if self._quick and sum(array.nbytes for array in arrays.values()) <= QUICK_BYTES:
            made = self._allowed(self._quick, arrays)
            if all(isinstance(array, self.jax.Array) for array in made.values()):  # not so under disable_jit
                return made
        return self.jax.device_put(arrays)

    def _checked(self, name: str, column: Any) -> Any:
        if isinstance(column, Ragged):
            raise UsageError(
                f"rows of equal length in column {name!r} for JAX",
                got=lengths_of(column),
                fix=".pad(to=n) or .pack(...) before .to_jax()",
            )
        return self._micro(name, column) if self.micro_batches > 1 and column.ndim else column

    def _global(self, column: Any) -> Any:
        """The array over all processes; `column` holds this one's rows."""
        rows = 1 if self.micro_batches > 1 else 0  # the axis that is split over processes
        global_shape = tuple(n * self._world if axis == rows else n for axis, n in enumerate(column.shape))
        return self.jax.make_array_from_process_local_data(self._sharding(column.ndim), column, global_shape)

    def _micro(self, name: str, column: Any) -> Any:
        parts = self.micro_batches
        if len(column) % parts:
            raise UsageError(
                f"a batch that {parts} micro-batches can share equally",
                got=f"{len(column)} rows in {name!r}",
                fix='a multiple of it in .batch(), and remainder="drop" or "pad"',
            )
        return np.ascontiguousarray(column.reshape(-1, parts, *column.shape[1:]).swapaxes(0, 1))

    def _sharding(self, axes: int) -> Any:
        """The sharding for arrays of n axes: a mask has fewer than an image, a count none."""
        known = self._by_rank.get(axes)
        if known is None:
            known = self.sharding
            spec = getattr(known, "spec", None)
            if spec is not None:
                parts = (None, *spec) if self.micro_batches > 1 and axes else tuple(spec)
                known = type(known)(known.mesh, type(spec)(*parts[:axes]))
            self._by_rank[axes] = known
        return known

    def nbytes(self, batch: dict[str, Any]) -> int:
        return held_bytes(batch) + (held_bytes(batch.side) if isinstance(batch, JaxBatch) else 0)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("jax", "_quick", "_programs")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, jax=need("jax", extra="jax"), _quick=None, _programs={})


def _identity(jax: Any) -> Any:
    """A jitted function that returns its arguments as arrays on the default device; None off the CPU."""

    def place(arrays: Any) -> Any:
        return arrays

    return jax.jit(place) if jax.default_backend() == "cpu" else None


def share_of(sharding: Any = None) -> tuple[int, int]:
    """The `(rank, world)` for `.shard()` under which this process reads the rows that its devices hold.

    Processes whose devices hold the same rows (a model spread over processes) get the same rank. Without a sharding, or
    with one that has no mesh, each process has rows of its own.

    >>> share_of()
    (0, 1)
    """
    jax = need("jax", extra="jax", purpose="for .to_jax()")
    me, processes = jax.process_index(), jax.process_count()
    spec = getattr(sharding, "spec", None)
    if processes == 1 or spec is None:
        return me, processes
    devices = sharding.mesh.size
    places = sharding.devices_indices_map((devices,) * max(1, len(spec)))
    held: dict[int, set[int]] = {}
    for device, index in places.items():
        held.setdefault(device.process_index, set()).update(range(*index[0].indices(devices)))
    blocks = sorted({tuple(sorted(rows)) for rows in held.values()})
    if [row for block in blocks for row in block] != list(range(devices)) or len({len(b) for b in blocks}) > 1:
        raise UsageError(
            "a mesh in which each process holds one stretch of the rows",
            got=f"axis {spec[0] if len(spec) else None!r} of {sharding.mesh}",
            fix="make the mesh with jax.make_mesh or from jax.devices(): both order devices by process",
        )
    return blocks.index(tuple(sorted(held[me]))), len(blocks)


def _narrow(name: str, column: Any, buffers: Buffers) -> Any:
    return column if isinstance(column, Ragged) else narrowed(column, name, buffers.cast)


def shared_by(definition: Definition, output: JaxOutput) -> Definition:
    """The definition for this process's share of a sharding over several processes, unless `.shard()` has set it.

    Tells the output which columns cannot be part of its batches, because their length changes from batch to batch.
    """
    output._varying = _varying(definition)
    if not output.spread or definition.world > 1:
        return definition
    return definition.share(*share_of(output.sharding))


def _varying(definition: Definition) -> frozenset[str]:
    origin = definition.origin
    inner = [_varying(branch) for branch in origin.branches] if isinstance(origin, Combined) else []
    return frozenset().union(*inner, *(step.varying_columns for step in definition.steps))
