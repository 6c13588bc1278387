"""Verbs that end a pipeline in files: `write`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import explained_methods
from penstock.pipeline.base import Verbs

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from penstock.preparation.write_rows import Written


@explained_methods
class WriteVerbs(Verbs):
    """`write`."""

    __slots__ = ()

    def write(
        self, path: str | os.PathLike[str],
        format: Literal["parquet", "webdataset", "jsonl", "arrow", "store"] = "parquet",  # noqa: A002
        *, shard_rows: int = 10_000, compression: Literal["gz", "zstd"] | None = None,
        parts: Mapping[str, str] | None = None, restart: bool = False, show_progress: bool | None = None,
        storage_options: Mapping[str, Any] | None = None, single_writer: bool = False,
        vocab_size: int | None = None,
    ) -> Written:  # fmt: skip
        """Writes the rows of the first epoch as files, in a folder or URL. Run again after an interruption it resumes.

        Rejected records are left out. A shard appears complete or not at all; the same pipeline writes the same bytes.

        Args:
            format: "store" is a token store: rows with `input_ids` are its documents, with their other columns; texts
                need `.tokenize()` before, or `penstock.prepare`. "webdataset" is tar shards; a column is a part named
                by `parts`, or by what it holds (`.txt`, `.cls`, `.npy`, `.json`, `.jpg`...); `key` names the records.
            shard_rows: rows of a file. One is held in memory.
            compression: of JSON lines.
            parts: {"image": "jpg", "caption": "txt"}.
            restart: delete what another pipeline wrote there.
            single_writer: nothing else writes to the URL `path`: needed if its storage ignores conditional puts.
            vocab_size: of a token store: checked for every id, and sets the type that holds them.

        >>> from tempfile import mkdtemp
        >>> folder = mkdtemp()
        >>> ps.from_records([{"text": "one"}, {"text": "two"}]).write(folder, "jsonl").rows
        2
        >>> ps.read_jsonl(folder).peek(1)
        [{'text': 'one'}]
        """
        from penstock.preparation.write_rows import write

        return write(
            self.definition, path, format, shard_rows=shard_rows, compression=compression, parts=parts,
            restart=restart, show_progress=show_progress, storage_options=storage_options, single_writer=single_writer,
            vocab_size=vocab_size,
        )  # fmt: skip
