"""`unbatch` after `batch`: the same rows without batches. What was applied to batches must not depend on them."""

from __future__ import annotations

from dataclasses import replace

from penstock.core.errors import UsageError
from penstock.plan.build import build
from penstock.plan.definition import Definition
from penstock.steps.batch import Batch
from penstock.steps.limit import Take
from penstock.steps.map_batches import MapBatches
from penstock.steps.pad import Pad


def unbatched(definition: Definition) -> Definition:
    """The definition without its `.batch()`; rows that it dropped at the end of an epoch stay dropped."""
    at = next(i for i, step in enumerate(definition.steps) if step.batch is not None)
    batch, before, after = definition.steps[at], definition.steps[:at], definition.steps[at + 1 :]
    if not isinstance(batch, Batch) or batch.remainder == "pad":
        raise UsageError(
            'rows of .batch() with remainder="drop" or "short" before .unbatch()',
            got=f".{batch.name}()" if not isinstance(batch, Batch) else 'remainder="pad"',
            fix="leave .unbatch() out, or batch at the end only",
        )
    for step in after:
        if (isinstance(step, MapBatches) and step.whole) or (isinstance(step, Pad) and step.to == "longest"):
            raise UsageError(
                f"no .{step.name}() of a global batch before .unbatch(): its rows depend on the others",
                got=str(step),
                fix="put it after the last .batch(); .pad(to=n) and .map_batches() without whole do not depend on them",
            )
    rows = build(replace(definition, steps=before)).root.size
    dropped = 0 if rows is None or batch.remainder == "short" else rows % batch.rows(definition.world)
    kept = () if not dropped or rows is None else (Take(rows - dropped),)
    return replace(definition, steps=(*before, *kept, *after))
