"""`open_media`: paths in a column become the files that they name, inside of one folder that the caller trusts.

Data is not trusted, so a path in it is opened only where the caller has said below which folder: a path that leads out
of it (`..`, an absolute path, a link) is a bad record. A file that is missing or cannot be read raises `StorageError`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.core.columns import strings
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.sources.folders import FilePath
from penstock.steps.base import Context, Step
from penstock.steps.media import file_column, located
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import rows_asked
from penstock.storage import filesystem
from penstock.storage.small_files import read_whole

_AT_ONCE = 16


@dataclass(frozen=True)
class OpenMedia(Step):
    """Puts the file that `column` names, below `root`, into the column `out`; with `read` its bytes.

    The folder's own name does not matter: the same data below another folder is the same pipeline.
    """

    changes_content: ClassVar[bool] = True
    column: str
    root: str
    out: str
    read: bool = False
    limits: Limits = field(default=LIMITS, kw_only=True)
    storage_options: tuple[tuple[str, Any], ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.root, str) or not self.root:
            raise UsageError("media_root= the path of a folder, or a URL", got=repr(self.root), fix='media_root="data"')
        if not filesystem.scheme(self.root) and not os.path.isdir(filesystem.local(self.root)):
            raise UsageError("media_root= a folder that exists", got=repr(self.root), fix="check the path")

    @property
    def name(self) -> str:
        return "open_media"

    def spec(self) -> dict[str, Any]:
        return {"column": self.column, "out": self.out, "read": self.read}

    def build(self, child: Node, _: Context) -> Node:
        return _Opened(child, self)


class _Opened(ContentNode):
    def __init__(self, child: Node, step: OpenMedia) -> None:
        super().__init__(child)
        self.step, self.remote = step, bool(filesystem.scheme(step.root))
        self.root = step.root.rstrip("/") if self.remote else os.path.realpath(filesystem.local(step.root))

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        if self.step.column not in columns:
            near = file_column(columns)
            raise UsageError(
                f"a column {self.step.column!r} of paths", got=f"columns {', '.join(columns)}",
                fix=f"name the column of paths: column={near!r}" if near is not None
                else "name the column of paths: column=, or path_column= of a manifest",
            )  # fmt: skip
        with rows_asked(picks, used), located(self.child, used):
            made = strings(self._files(list(columns[self.step.column])))
        return Fetched({**columns, self.step.out: made}, used)

    def _files(self, values: list[Any]) -> list[Any]:
        found: list[Any] = []
        errors: list[RecordError] = []
        for row, value in enumerate(values):
            try:
                found.append(self._place(value))
            except RecordError as error:
                error.row = row
                errors.append(error)
        if errors:
            raise BadRecords(errors)
        if self.remote:
            with ThreadPoolExecutor(_AT_ONCE, "penstock-media") as pool:
                return list(pool.map(lambda place: self._fetched(place) if isinstance(place, str) else place, found))
        if self.step.read:
            return [read_whole(p, self.step.limits, where=p) if isinstance(p, FilePath) else p for p in found]
        return found

    def _place(self, value: Any) -> Any:
        """The path of a file inside of the root; bytes that are there already stay."""
        if isinstance(value, dict):
            if isinstance(value.get("bytes"), bytes):
                return value["bytes"]
            value = value.get("path")
        if isinstance(value, bytes | bytearray | memoryview | FilePath):
            return value
        if not isinstance(value, str) or not value or "\0" in value or len(value) > 4096:
            got = type(value).__name__ if not isinstance(value, str) else repr(value[:80])
            raise RecordError(f"a path in column {self.step.column!r}", got=got, fix="repair the record")
        return self._url(value) if self.remote else FilePath(self._local(value))

    def _local(self, path: str) -> str:
        full = os.path.realpath(os.path.join(self.root, path.replace("/", os.sep)))
        if full != self.root and os.path.commonpath([self.root, full]) == self.root:
            return full
        raise self._outside(path)

    def _url(self, path: str) -> str:
        path = path.removeprefix(f"{self.root}/")
        parts = path.split("/")
        if path.startswith("/") or "\\" in path or "://" in path or ".." in parts or "" in parts:
            raise self._outside(path)
        return f"{self.root}/{path}"

    def _outside(self, path: str) -> RecordError:
        fix = "media_root= a folder that holds all files, if you trust the data"
        return RecordError(f"a path inside of media_root {self.step.root!r}", got=repr(path[:200]), fix=fix)

    def _fetched(self, url: str) -> bytes:
        most = self.step.limits.record_bytes
        with filesystem.open_read(url, dict(self.step.storage_options)) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise RecordError(f"a file of at most {most:,} bytes", got="a larger one", where=url, fix="leave it out")
        return data
