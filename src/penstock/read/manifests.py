"""Manifests: files of records that name images or recordings, with captions, labels and whatever else they hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.arguments import changed
from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline
from penstock.read.common import OnError, PathLike, begin, skipping

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.limits import Limits


def from_manifest(
    path: Any, reader: Callable[..., Pipeline], out: str, *, path_column: str | None, media_root: PathLike | None,
    on_error: OnError, budget: int | float | None, limits: Limits | None, storage_options: Mapping[str, Any] | None,
    unused: dict[str, Any],
) -> Pipeline | None:  # fmt: skip
    """The records of a manifest with the files that they name in the column `out`; None if `path` is no manifest.

    `unused` are arguments of `reader` that a manifest does not have.
    """
    from penstock.core.limits import LIMITS
    from penstock.sources import media_paths
    from penstock.sources.base import ColumnSource
    from penstock.steps.open_media import OpenMedia

    found = media_paths.manifest_format(path)
    if found is None:
        if path_column is not None or media_root is not None:
            raise UsageError(
                "path_column= and media_root= with a manifest: JSON lines, CSV, JSON or Parquet with paths",
                got=repr(path)[:80], fix="leave them out: files of folders, lists and patterns are named by the caller",
            )  # fmt: skip
        return None
    if wrong := changed(reader, **unused):
        raise UsageError(
            f"no {next(iter(wrong))}= with a manifest", got=f"{next(iter(wrong))}={next(iter(wrong.values()))!r}"[:80],
            where=os.fspath(path), fix="columns of the manifest are kept; use .filter() and .map()",
        )  # fmt: skip
    source = media_paths.open_manifest(path, found, limits or LIMITS, storage_options)
    facts = source.describe()
    columns = list(source.columns if isinstance(source, ColumnSource) else facts.get("fields", []))
    column = media_paths.path_column(columns, path_column, os.fspath(path))
    root = os.fspath(media_root) if media_root is not None else media_paths.folder_url(os.fspath(path))
    options = tuple((storage_options or {}).items())
    step = OpenMedia(column, root, out, out == "bytes", limits=limits or LIMITS, storage_options=options)
    return skipping(begin(source).then(step), on_error, budget)
