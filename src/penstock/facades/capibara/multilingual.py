"""One or several languages as one pipeline of rows, and what was given of each.

Each language has a token store of its own, shuffled by itself; `penstock.mix` draws from them in proportion, exact at
every block. What was given is worked out from the order, so that prefetched batches are never counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.facades.capibara.config import DataLoaderConfig
from penstock.facades.capibara.languages import Language, LanguagePlan, Stretch, plan_languages
from penstock.facades.capibara.resolve import resolve_dataset
from penstock.facades.capibara.texts import by_language, full_mask, is_rows, only_tokens, row_lengths, tokens_of
from penstock.pipeline import Pipeline
from penstock.plan.build import build
from penstock.read import mix
from penstock.sources.hf_stream import HFStream

COUNT_ROWS = 1 << 18


def open_languages(found: Any, tokenizer: Any, settings: DataLoaderConfig) -> Spoken:
    """The languages of a dict of datasets, of a column, or a single one that is called "all"."""
    named = _named(found, settings)
    if len(named) > 1 and settings.batch_tokens is not None:
        raise UsageError(
            "one language with batch_tokens=",
            got=f"{len(named)}: {', '.join(named)}",
            fix="batch_size= with several languages, or mix the texts before they are tokenised",
        )
    tokens = {name: tokens_of(pipeline, tokenizer, settings) for name, pipeline in named.items()}
    rows = {name: _rows(pipeline, settings) for name, pipeline in tokens.items()}
    spoken = Spoken(tokens, rows, settings)
    if settings.shuffle:
        rows = {name: pipeline.shuffle(settings.seed) for name, pipeline in rows.items()}
    if len(rows) == 1:
        (spoken.pipeline,) = rows.values()
        return spoken
    plan = plan_languages(
        [spoken.language(name) for name in rows],
        settings.sampling,
        temperature=settings.temperature,
        max_repeats=settings.max_repeats,
        train_tokens=settings.train_tokens,
    )
    spoken.plan = plan
    spoken.pipeline = mix(list(rows.values()), plan.weights, seed=settings.seed).then(Stretch(plan.rows))
    return spoken


def _named(found: Any, settings: DataLoaderConfig) -> dict[str, Pipeline]:
    if isinstance(found, Pipeline):
        return by_language(found, settings.language_field) if settings.language_field else {"all": found}
    if not isinstance(found, Mapping) or not found:
        raise UsageError("at least one language", got=repr(found)[:80])
    named: dict[str, Pipeline] = {}
    for name, one in found.items():
        pipeline = resolve_dataset(
            one,
            split=settings.split,
            data_dir=settings.data_dir,
            text_field=settings.text_field,
            by_line=settings.layout == "documents",
        )
        if isinstance(pipeline, HFStream):
            raise UsageError(
                "datasets that are read by number, to mix them", got=f"a stream for {name!r}", fix="load it whole"
            )
        named[str(name)] = pipeline
    return named


def _rows(pipeline: Pipeline, settings: DataLoaderConfig) -> Pipeline:
    """Documents or windows of tokens."""
    if is_rows(pipeline):
        return pipeline if "attention_mask" in pipeline.peek(1)[0] else pipeline.map_batches(full_mask)
    if settings.layout == "windows":
        return pipeline.windows(settings.max_length).map_batches(full_mask)
    if settings.batch_tokens is not None or pipeline.peek(1)[0].keys() == {"input_ids"}:
        return pipeline
    return pipeline.map_batches(only_tokens)


class Spoken:
    """The pipeline of all languages, and counts of what was given of each."""

    pipeline: Pipeline
    plan: LanguagePlan | None = None  # of several languages

    def __init__(self, tokens: dict[str, Pipeline], rows: dict[str, Pipeline], settings: DataLoaderConfig) -> None:
        self._tokens, self._rows, self._settings = tokens, rows, settings
        self._known: dict[str, NDArray[np.int64]] = {}
        self._counts = {name: [0, 0] for name in tokens}
        self._counted = 0

    def language(self, name: str) -> Language:
        """Rows and tokens of a language."""
        lengths = self._lengths(name)
        return Language(name, len(lengths), int(lengths.sum()))

    def _lengths(self, name: str) -> NDArray[np.int64]:
        """Tokens of each row."""
        if name not in self._known:
            width = self._settings.max_length
            if self._settings.layout == "windows" or is_rows(self._tokens[name]):
                self._known[name] = np.full(len(self._rows[name].rows()), width, np.int64)
            else:
                self._known[name] = np.minimum(row_lengths(self._tokens[name]), width)
        return self._known[name]

    def check(self, epochs: int) -> None:
        """Raises if so many epochs would repeat a language more often than allowed."""
        if self.plan is not None:
            self.plan.check(epochs)

    def begin(self, loader: Loader) -> None:
        """Counts from the loader's present place on."""
        self._counts = {name: [0, 0] for name in self._counts}
        self._counted = loader.step

    def stats(self, loader: Loader) -> dict[str, Any]:
        """Rows and tokens given of each language, over all processes, since `begin`; costs about 50 ns a row."""
        self._count(loader)
        facts: dict[str, Any] = {
            "rows": {name: rows for name, (rows, _) in self._counts.items()},
            "tokens": {name: tokens for name, (_, tokens) in self._counts.items()},
        }
        if self.plan is not None:
            facts["passes_per_epoch"] = self.plan.passes()
        if self._settings.layout == "documents":
            facts["cut_tokens"] = {name: self._cut(name) for name in self._tokens}
        return facts

    def _cut(self, name: str) -> int:
        """Tokens beyond `max_length` of their documents, which no row holds."""
        if is_rows(self._tokens[name]):
            return 0
        return int(row_lengths(self._tokens[name]).sum() - self._lengths(name).sum())

    def _count(self, loader: Loader) -> None:
        cuts, root, names = loader._cuts, build(loader.definition).root, list(self._counts)
        step = self._counted
        while step < loader.step:
            ends = (loader.step, cuts.epoch_end(step) or loader.step, cuts.stage_end(step))
            first, last = cuts.at(step), cuts.at(min(ends) - 1)
            stop = last.offset + last.rows
            for lo in range(first.offset, stop, COUNT_ROWS):
                picks = root.pick(np.arange(lo, min(stop, lo + COUNT_ROWS)), first.epoch)
                leaf = picks.column("leaf")
                for number, name in enumerate(names):
                    records = picks.record[leaf == number]
                    self._counts[name][0] += len(records)
                    self._counts[name][1] += int(self._lengths(name)[records].sum())
            step = min(ends)
        self._counted = step
