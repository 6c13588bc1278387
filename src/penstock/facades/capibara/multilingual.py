"""One or several languages as one pipeline of rows, and counts of what was delivered of each.

Each language has its own token store, shuffled separately; `penstock.mix` draws from them in exact proportion. Counts
are computed from the order, so prefetched batches are never counted.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.facades.capibara.config import DataLoaderConfig
from penstock.facades.capibara.languages import Language, LanguagePlan, Stretch, plan_languages
from penstock.facades.capibara.resolve import resolve_dataset
from penstock.facades.capibara.texts import (
    by_language,
    column_names,
    full_mask,
    is_rows,
    only_tokens,
    row_lengths,
    tokens_of,
)
from penstock.pipeline import Pipeline
from penstock.preparation.cache import cache_folder
from penstock.read import concat, mix
from penstock.sources.hf import HFDataset
from penstock.sources.hf_stream import HFStream
from penstock.sources.records import data_kind
from penstock.storage.filesystem import scheme


def find_datasets(settings: DataLoaderConfig) -> dict[str, Pipeline] | HFStream:
    """Resolves `dataset_name`: a stream, or one pipeline per language by name; a single one is called "all"."""
    data = settings.dataset_name
    several = data_kind(data) == "mapping"  # a DatasetDict is one: its keys are splits
    ask: dict[str, Any] = {
        "split": settings.split,
        "streaming": settings.streaming and not several,
        "data_dir": settings.data_dir,
        "text_field": settings.text_field,
        "every_field": settings.language_field is not None,
        "by_line": settings.layout == "documents",
        "seed": settings.seed if settings.shuffle else None,
        "buffer": settings.shuffle_buffer,
        "storage_options": settings.storage_options,
    }
    named: dict[str, Pipeline] = {}
    for name, one in data.items() if several else [("all", data)]:
        found = resolve_dataset(one, **ask)
        if isinstance(found, Pipeline):
            if isinstance(origin := found.definition.origin, HFDataset):
                folder = None if scheme(settings.cache_dir or "") else settings.cache_dir
                origin.recall_fingerprint(cache_folder(folder) / "ids")
            named[str(name)] = found
        elif several:
            raise UsageError(
                "datasets with random access, to mix them",
                got=f"a stream for {name!r}",
                fix="load it without streaming",
            )
        else:
            return found
    if settings.language_field and not several:
        named = by_language(named["all"], settings.language_field)
    if not named:
        raise UsageError("at least one language", got=repr(data)[:80])
    if len(named) > 1 and settings.batch_tokens is not None:
        raise UsageError(
            "one language with batch_tokens=",
            got=f"{len(named)}: {', '.join(named)}",
            fix="batch_size= with several languages, or mix the texts before they are tokenised",
        )
    return named


class LanguageMixture:
    """The pipeline of all languages, and counts of the rows and tokens delivered of each since `start`."""

    def __init__(self, named: dict[str, Pipeline], tokenizer: Any, settings: DataLoaderConfig) -> None:
        self._settings = settings
        self._tokens = {name: tokens_of(pipeline, tokenizer, settings) for name, pipeline in named.items()}
        self._rows = {name: _rows(pipeline, settings) for name, pipeline in self._tokens.items()}
        self.plan = None if len(named) == 1 else self._plan()
        self.pipeline = self._mixed()
        self.start(0)

    def _plan(self) -> LanguagePlan:
        return plan_languages(
            [Language(name, len(lengths), int(lengths.sum())) for name, lengths in self._lengths.items()],
            self._settings.sampling,
            temperature=self._settings.temperature,
            max_repeats=self._settings.max_repeats,
            train_tokens=self._settings.train_tokens,
        )

    def _mixed(self) -> Pipeline:
        seed = self._settings.seed
        rows = [rows.shuffle(seed) if self._settings.shuffle else rows for rows in self._rows.values()]
        if self.plan is not None and not self._settings.shuffle and self.plan.is_everything:
            return concat(rows)  # as in an evaluation: draws in proportion meet every row only about once
        return rows[0] if self.plan is None else mix(rows, self.plan.weights, seed=seed).then(Stretch(self.plan.rows))

    @cached_property
    def _full(self) -> dict[str, NDArray[np.int64]]:
        """Tokens of each document, before truncation; of rows that were made by the user, tokens of each row."""
        fixed = self._settings.layout == "windows"
        return {
            name: np.full(len(self._rows[name].rows()), self._settings.max_length, np.int64)
            if fixed or is_rows(tokens)
            else row_lengths(tokens)
            for name, tokens in self._tokens.items()
        }

    @cached_property
    def _lengths(self) -> dict[str, NDArray[np.int64]]:
        """Tokens of each row."""
        return {name: np.minimum(full, self._settings.max_length) for name, full in self._full.items()}

    def check(self, epochs: int) -> None:
        """Raises if this many epochs would repeat a language more often than `max_repeats`."""
        if self.plan is not None:
            self.plan.check(epochs)

    def start(self, step: int) -> None:
        """Starts counting at a step."""
        self._counts = {name: [0, 0] for name in self._tokens}
        self._counted = step

    def stats(self, loader: Loader) -> dict[str, Any]:
        """Returns rows and tokens delivered of each language, over all processes; costs about 50 ns a row."""
        for picks in loader.order(self._counted, loader.step):
            leaf = picks.column("leaf")
            for number, (name, lengths) in enumerate(self._lengths.items()):
                records = picks.record[leaf == number]
                self._counts[name][0] += len(records)
                self._counts[name][1] += int(lengths[records].sum())
        self._counted = loader.step
        facts: dict[str, Any] = {
            "rows": {name: rows for name, (rows, _) in self._counts.items()},
            "tokens": {name: tokens for name, (_, tokens) in self._counts.items()},
        }
        if self.plan is not None:
            facts["passes_per_epoch"] = self.plan.passes()
        if self._settings.layout == "documents":
            facts["cut_tokens"] = {
                name: int(full.sum() - self._lengths[name].sum()) for name, full in self._full.items()
            }
        return facts


def _rows(pipeline: Pipeline, settings: DataLoaderConfig) -> Pipeline:
    """Documents or windows of tokens."""
    if is_rows(pipeline):
        return pipeline if "attention_mask" in column_names(pipeline) else pipeline.map_batches(full_mask)
    if settings.layout == "windows":
        return pipeline.windows(settings.max_length).map_batches(full_mask)
    if settings.batch_tokens is not None or column_names(pipeline) == {"input_ids"}:
        return pipeline
    return pipeline.map_batches(only_tokens)
