"""`.flat_map()` without a declared count: counts the rows that each record becomes, once, and caches the counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.core.function_globals import globals_id
from penstock.core.function_id import code_id
from penstock.plan.build import build
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptBlock, KeptRows
from penstock.preparation.row_index import cached_array, scan
from penstock.steps.flat_map import CountedFlatMap, CountRows, FlatFunction, FlatMap, RowCounts
from penstock.steps.renumbered import refuse_moved
from penstock.steps.user_functions import check_function

MOST = 1 << 32


def flat_mapped(
    definition: Definition, function: FlatFunction, count: int | Callable[..., Any] | None, version: str | None,
    cache_dir: Any, show: bool | None,
) -> Definition:  # fmt: skip
    """The definition with rows of `function`; they are counted now, unless `count` is a number or they are cached."""
    check_function(function, "flat_map")
    if count is not None and not callable(count):
        return definition.then(FlatMap(function, count, version))
    refuse_moved(build(definition).root, ".flat_map() without a number for count=")
    rows = KeptRows(definition, ".flat_map()", (CountRows(function, count),))

    def find() -> NDArray[Any]:
        counts = np.zeros(rows.size, "<u4")

        def note(block: KeptBlock) -> None:
            if len(block.positions):
                found = np.asarray(block.columns["count"])
                if int(found.min()) < 0 or int(found.max()) >= MOST:
                    raise UsageError("counts of at least 0 in .flat_map()", got=f"{int(found.min())}")
                counts[block.positions] = found

        scan(rows, note, "counting rows", show)
        return counts

    code = [part for one in (function, count) if one is not None for part in (code_id(one), _helpers(one, version))]
    counts = cached_array("flat_map", definition, code, cache_dir, find)
    made = RowCounts(counts.tobytes())
    if not len(counts) or made.edges[-1] == 0:
        raise UsageError("at least one row from .flat_map()", got="none", fix="check what the function returns")
    return definition.then(CountedFlatMap(function, made, version))


def _helpers(function: Any, version: str | None) -> str:
    return globals_id(function, opaque=True) if version is None else version
