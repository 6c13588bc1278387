"""From texts to a token store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import changed, explained
from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline
from penstock.read.common import OnError, PathLike

if TYPE_CHECKING:
    from penstock.preparation.run import Prepared
    from penstock.sources.base import TextSource


@explained
def prepare(
    source: Pipeline | TextSource, tokenizer: Any, out: PathLike, *, field: str = "text",
    keep: Sequence[str] | None = (), eos: bool | int = True, engine: Literal["auto", "reference"] = "auto",
    shard_tokens: int = 1 << 25, group_bytes: int = 256 << 20, on_error: OnError | None = None,
    budget: int | float | None = None, threads: int | None = None, show_progress: bool | None = None,
    restart: bool = False, add_special_tokens: bool | None = None,
    allowed_special: Collection[str] | None = None, disallowed_special: Collection[str] | None = None,
    storage_options: Mapping[str, Any] | None = None, single_writer: bool = False,
    cluster: Literal["ray"] | None = None, address: str | None = None,
) -> Prepared:  # fmt: skip
    """Tokenizes texts into a token store in the folder or URL `out`. Run again after an interruption, it resumes.

    Uses a few chunks of 4 MB and one open shard of memory. The arguments are those of `Pipeline.tokenize`, and:

    Args:
        keep: columns that stay in the store beside the tokens of their document; default none, None for all others.
        group_bytes: the input is cut into groups of this size by names and sizes of files; each has its own shards.
        restart: replace a store of other data or settings in `out`.
        storage_options: of the storage of `out`, if it is a URL. Files there are created once, never overwritten.
        single_writer: nothing else writes to `out`: needed if its storage ignores conditional puts (asked first).
        cluster: "ray" makes the groups on the Ray cluster at `address`, or on one started here; the same bytes. All
            nodes must see the input and `out`. Each task uses `threads` processors, 1 by default.

    >>> import tempfile
    >>> ps.prepare(ps.from_texts(["one", "two"]), "bytes", tempfile.mkdtemp()).documents
    2
    """
    from penstock.preparation import run
    from penstock.preparation.tokenize import text_source
    from penstock.sources.base import TextSource

    settings = changed(
        prepare, eos=eos, engine=engine, shard_tokens=shard_tokens, group_bytes=group_bytes,
        on_error=on_error, budget=budget, threads=threads, show_progress=show_progress, restart=restart,
        add_special_tokens=add_special_tokens, allowed_special=allowed_special, disallowed_special=disallowed_special,
        storage_options=storage_options, single_writer=single_writer, cluster=cluster, address=address,
    )  # fmt: skip
    if not isinstance(source, Pipeline | TextSource):
        raise UsageError(
            "a pipeline of texts to prepare",
            got=repr(source)[:80],
            fix="prepare(penstock.read_text(paths), ...), or read_jsonl(paths) or another reader",
        )
    if keep != () and not isinstance(source, Pipeline):
        got = type(source).__name__
        raise UsageError(
            "a pipeline of records for keep=", got=got, fix="prepare(penstock.read_jsonl(paths, field=None))"
        )
    if isinstance(source, Pipeline):
        source.definition.refuse_shard("prepare()")
    texts = text_source(source.definition, field, settings, keep) if isinstance(source, Pipeline) else source
    return run.prepare(texts, tokenizer, out, **settings)
