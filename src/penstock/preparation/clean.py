"""`clean`: deletes what interrupted or concurrent preparations left beside a token store.

Uploads are single requests, so there are no parts of unfinished uploads to abort.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import UsageError
from penstock.preparation.commit import is_leftover, read_store, sweep, writing
from penstock.preparation.journal import JOB, SKIPPED
from penstock.preparation.output import SCRATCH, Output, checked_place


def clean(
    place: str | os.PathLike[str], *, unfinished: bool = False, older_than: float = 0.0,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:  # fmt: skip
    """Deletes leftovers in the folder or URL of a store and returns their names; the store itself is kept.

    Without a store there is only an unfinished preparation, which the same `prepare` would resume: it is deleted with
    `unfinished=True`, if no other process is working on it. With `older_than` (seconds) younger leftovers are kept, and
    an unfinished preparation that wrote something in that time is refused.
    """
    if not 0 <= older_than < math.inf:
        raise UsageError("older_than in seconds, 0 or more", got=repr(older_than), fix="older_than=24 * 3600")
    before = time.time() - older_than if older_than else math.inf
    output = Output(checked_place(place), storage_options)
    manifest = read_store(output)
    if manifest is None:
        found = output.files()
        names = [name for name in found if is_leftover(name)]
        if JOB not in names:
            raise UsageError(
                "a token store, or an unfinished preparation of one", got="neither", where=output.place,
                fix="pass the folder or URL that was the output of `penstock prepare`",
            )  # fmt: skip
        if not unfinished:
            raise UsageError(
                "a finished token store",
                got="an unfinished preparation",
                where=output.place,
                fix="run the same `penstock prepare` again to resume it; or, if nothing works on it, delete it with "
                "unfinished=True (--unfinished)",
            )
        young = [name for name in names if found[name].modified >= before]
        if young:
            last = max(young, key=lambda name: found[name].modified)
            raise UsageError(
                f"an unfinished preparation that wrote nothing in the last {older_than:,.0f} s",
                got=f"{last}, written {max(0, time.time() - found[last].modified):,.0f} s ago",
                where=output.place,
                fix="it may still be running: try again later, or without older_than (--older-than)",
            )
    with writing(output, single_writer=True):
        if manifest is not None:
            left = sweep(output, manifest, before)
        else:
            left = [*names, *([SKIPPED] if output.exists(SKIPPED) else [])]
            output.delete(left)
        if not output.remote and not older_than:
            output.remove_folder("done")
            output.remove_folder(SCRATCH)
    return left
