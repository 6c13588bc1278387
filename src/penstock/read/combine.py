"""One pipeline of several: media with their captions, and mixtures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from penstock.core.arguments import explained
from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline
from penstock.read.common import begin

if TYPE_CHECKING:
    pass


@explained
def pair(
    media: Pipeline, captions: Pipeline | Mapping[str, str], *, on: str = "key",
    key: Callable[[str], str] | None = None, missing: Literal["error", "drop"] = "error",
) -> Pipeline:  # fmt: skip
    """Joins media with their captions by key. Steps come after the pair.

    Args:
        captions: a dict, or a pipeline with a column `on`.
        key: the key of a media path; default the path without its extension, or the bare name.
        missing: "drop" leaves out media without a caption.

    >>> media = ps.from_arrays({"key": ["a", "b"], "bytes": [b"1", b"2"]})
    >>> ps.pair(media, {"b": "a boat"}, missing="drop").peek()
    [{'key': 'b', 'text': 'a boat', 'bytes': b'2'}]
    """
    from penstock.sources.base import Source
    from penstock.sources.pairs import Pairs

    if media.definition.steps or not isinstance(media.definition.origin, Source):
        raise UsageError("a plain source of media in pair()", got="one with steps", fix="pair first, then decode")
    known = captions if isinstance(captions, Mapping) else captions.rows()
    pairs = begin(Pairs.of(media.definition.origin, known, on=on, key=key, missing=missing))
    rank, world = media.definition.rank, media.definition.world
    return pairs.shard(rank, world) if media.definition.sharded else pairs


@explained
def mix(
    pipelines: Sequence[Pipeline] | Mapping[str, Pipeline],
    weights: Sequence[float] | Mapping[str, float] | None = None, *,
    seed: int = 0, stop: Literal["never", "first", "all"] = "never",
) -> Pipeline:  # fmt: skip
    """Draws rows from several pipelines in exact proportion to `weights` (default: to their sizes).

    Args:
        pipelines: a list, or a dict of names and pipelines. Names are shown in the plan and by `loader.why`; the rows
            are those of the list of its values.
        weights: a list, or with named pipelines a dict of the same names.
        stop: an epoch ends "never", or when the "first" pipeline or "all" of them have been read once.

    >>> mixed = ps.mix([ps.from_texts(["a"]), ps.from_texts(["b"])], [3, 1])
    >>> sorted(row["text"] for row in mixed.peek(4))
    ['a', 'a', 'a', 'b']
    """
    from penstock.plan.combine import definitions_of, mixed, names_of

    names = names_of(pipelines, "mix")
    branches = definitions_of(list(pipelines.values()) if isinstance(pipelines, Mapping) else pipelines, "mix")
    return Pipeline(mixed(branches, weights, seed, stop, names))


@explained
def concat(pipelines: Sequence[Pipeline]) -> Pipeline:
    """Reads several pipelines one after another, as one. A `.shuffle()` after it shuffles all rows together.

    All must have the same columns and an end. `penstock.mix` draws from them in proportion instead.

    >>> both = ps.concat([ps.from_texts(["a", "b"]), ps.from_texts(["c"])])
    >>> [row["text"] for row in both.peek()]
    ['a', 'b', 'c']
    """
    from penstock.plan.combine import concatenated, definitions_of

    return Pipeline(concatenated(definitions_of(pipelines, "concat")))


@explained
def zip(pipelines: Sequence[Pipeline]) -> Pipeline:  # noqa: A001 - users write ps.zip
    """Puts the columns of several pipelines side by side: row i of each. `penstock.pair` joins by a key instead.

    Their lengths must be equal and their columns different. Rows that are shuffled before are paired as shuffled;
    `.shuffle()` after it keeps the pairs.

    >>> ps.zip([ps.from_texts(["a"]), ps.from_arrays({"label": [1]})]).peek()
    [{'text': 'a', 'label': np.int64(1)}]
    """
    from penstock.plan.combine import definitions_of, zipped

    return Pipeline(zipped(definitions_of(pipelines, "zip")))


@explained
def interleave(
    pipelines: Sequence[Pipeline], *, at_end: Literal["continue", "stop", "restart"] = "continue"
) -> Pipeline:
    """Takes one row of each pipeline in turn.

    Args:
        at_end: what to do where a pipeline ends: "continue" with the others until all have ended (each row once),
            "stop" the epoch, or "restart" it, until the longest has been read.

    >>> rows = ps.interleave([ps.from_texts(["a", "b", "c"]), ps.from_texts(["1"])])
    >>> [row["text"] for row in rows.peek()]
    ['a', '1', 'b', 'c']
    """
    from penstock.plan.combine import definitions_of, interleaved

    return Pipeline(interleaved(definitions_of(pipelines, "interleave"), at_end))
