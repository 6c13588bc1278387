"""The loader whose batches the viewer shows: the one that was opened, or that of a plain pipeline over the data.

Of a path there is no pipeline yet: tokens are cut into windows, images and audio are decoded, other records are taken
as they are; all shuffled with the session's seed, in batches of its size. Records that cannot be read are skipped, as
the Data page lists them. The page says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.pipeline import Pipeline
from penstock.plan.definition import Definition
from penstock.sources.formats import Options
from penstock.steps.shuffle import Shuffle
from penstock.view.batches import loader_of
from penstock.view.session import Session
from penstock.view.targets import MEDIA, open_media

_SIDE, _RATE = 224, 16000


def loader_for(session: Session, seed: int | None = None) -> tuple[Loader[Any], list[str]]:
    """The loader of a session, or the same with another seed; and what was assumed to make it."""
    if seed is None and session.loader is not None:
        return session.loader, []
    pipeline, notes = pipeline_for(session)
    if seed is not None:
        reseeded = with_seed(pipeline.definition, seed)
        if reseeded == pipeline.definition:
            notes = [*notes, f"seed {seed} changes nothing: the pipeline has no .shuffle(), or this seed already"]
        pipeline = Pipeline(reseeded)
    loader, assumed = loader_of(pipeline, session.choices.batch)
    return loader, [*notes, *assumed]


def with_seed(definition: Definition, seed: int) -> Definition:
    """The same pipeline with another seed in its shuffles.

    >>> import penstock as ps
    >>> with_seed(ps.from_arrays({"x": range(9)}).shuffle(seed=7).definition, 8).seed
    8
    """
    steps = [replace(step, seed=seed) if isinstance(step, Shuffle) else step for step in definition.steps]
    return replace(definition, steps=tuple(steps))


def pipeline_for(session: Session) -> tuple[Pipeline, list[str]]:
    """The pipeline of a session, and what was assumed to make it."""
    if session.pipeline is not None:
        return session.pipeline, []
    choices, found, path = session.choices, session.format, session.path
    if found is None or path is None:
        raise UsageError("a path, a pipeline or a loader", got=session.title)
    verb = ""
    if found.name in MEDIA:
        rows = Pipeline(open_media([path], found, choices.storage_options))
        if found.name == "images":
            rows, verb = rows.decode_images(_SIDE), f".decode_images({_SIDE})"
        elif found.name == "audio":
            rows, verb = rows.decode_audio(_RATE, column="bytes"), f".decode_audio({_RATE})"
    elif found.kind == "tokens":
        options = Options(dtype=choices.dtype, eos_id=choices.split_id, storage_options=choices.storage_options)
        source = found.open(path, options)
        length = max(1, min(choices.window, int(source.n_tokens) - 1))
        rows, verb = Pipeline(source).windows(length), f".windows({length})"
    else:
        options = Options(every_field=True, by=choices.by or "line", storage_options=choices.storage_options)
        options = replace(options, split=choices.split or options.split, field=choices.field or options.field)
        rows = Pipeline(found.open([path] if found.one_pass else path, options))
    size = rows.rows().size
    batch = choices.batch if size is None else max(1, min(choices.batch, size))
    rows, verb = rows.shuffle(choices.seed), f"{verb}.shuffle(seed={choices.seed})"
    if found.kind != "tokens":
        rows, verb = rows.skip_errors(), f"{verb}.skip_errors()"
    note = f"{found.title}, shown as {verb}.batch({batch}); open a pipeline or its configuration to see its own batches"
    return rows.batch(batch, remainder="short"), [note]
