"""`CapibaraDataLoader`: batches of a named dataset as dicts of JAX arrays.

The name is resolved, its texts are tokenised once into a cache, and the rest is a pipeline of the core: shuffle, batch,
pad. The batch of step n does not depend on threads, ranks or resume point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.core.arguments import explained_class
from penstock.core.cpus import usable_cores
from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.engine.rank_guard import refuse_unsharded
from penstock.engine.stream_loader import StreamLoader
from penstock.facades.capibara import collate as collating
from penstock.facades.capibara.collate import Fill
from penstock.facades.capibara.config import DataLoaderConfig, settings_of
from penstock.facades.capibara.multilingual import LanguageMixture, find_datasets
from penstock.facades.capibara.stream import stream_loader
from penstock.facades.capibara.texts import column_names, is_rows
from penstock.order.shard import find_rank
from penstock.outputs.jax import JaxOutput, share_of
from penstock.pipeline import Pipeline
from penstock.sources.hf_stream import HFStream
from penstock.steps.budget import BatchTokens
from penstock.tokenizers import as_tokenizer

SHAPES = 4  # padded lengths of token-budget batches without shapes=


@explained_class
class CapibaraDataLoader:
    """Batches of a named dataset for JAX: `input_ids`, `attention_mask` and `labels`, int32, of one shape.

    `labels[t]` is the token after `input_ids[t]`, and -100 where there is none; with `labels="same"` it is
    `input_ids[t]`, for models that shift labels themselves. Arguments override `config`, which
    overrides the defaults of `DataLoaderConfig`. `dataset_name` is a name, a path, a dataset object, or a dict of them,
    one per language. `sharding` places the global batch over a mesh.

    >>> import tempfile
    >>> settings = DataLoaderConfig(max_length=4, shuffle=False, eos=False, pad_id=0, cache_dir=tempfile.mkdtemp())
    >>> loader = CapibaraDataLoader(settings, tokenizer="bytes", dataset_name=["hi", "you"], batch_size=2)
    >>> batch = next(iter(loader))
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[104, 105, 0, 0], [121, 111, 117, 0]], [[105, -100, -100, -100], [111, 117, -100, -100]])
    """

    def __init__(
        self,
        config: Any = None,
        tokenizer: Any = None,
        dataset_name: Any = None,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        *,
        sharding: Any = None,
        rank: int | None = None,
        world: int | None = None,
        **settings: Any,
    ) -> None:
        named = {"dataset_name": dataset_name, "batch_size": batch_size, "shuffle": shuffle}
        self.config = config
        self.settings = settings_of(config, {k: v for k, v in named.items() if v is not None} | settings)
        self.tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
        self.pad_id = _pad_id(self.settings, self.tokenizer)
        if (rank is None) != (world is None):
            raise UsageError("both rank and world, or neither", got=f"rank={rank!r}, world={world!r}")
        self._own_share = rank is not None or sharding is not None
        if rank is None or world is None:
            # Without a sharding JAX may not be initialised yet, and asking it would initialise it.
            rank, world = find_rank() if sharding is None else share_of(sharding)
        self._share = rank, world
        own = self.settings.labels == "shifted" or not _is_own(self, "_collate_fn")
        kind = JaxOutput if own else collating.SameLabels
        self._output = kind(sharding, micro_batches=self.settings.micro_batches)
        self._languages: LanguageMixture | None = None
        self._loader: Loader | StreamLoader = self._open()

    # Named in the document: both may be overridden.

    def _data_generator(self) -> Iterator[dict[str, Any]]:
        """Yields the batches of an epoch from the current position: dicts of `input_ids`, `attention_mask`, `labels`.

        An override may change or skip batches of `super()._data_generator()`; the state counts those it takes.
        """
        yield from self._loader

    def _collate_fn(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns a batch of a list of examples: padded to `max_length`, as JAX arrays.

        An override makes every batch, in the loader's threads; examples have `input_ids`,
        `attention_mask` and `labels` as NumPy arrays of their own length.
        """
        same = self.settings.labels == "same"
        made = collating.collate(batch, self.settings.max_length, self.pad_id, same)
        return {name: self._output.jax.numpy.asarray(array) for name, array in made.items()}

    # The loader.

    def __iter__(self) -> Iterator[dict[str, Any]]:
        own = isinstance(self._loader, Loader) and self._loader.definition.sharded
        refuse_unsharded(
            own or self._own_share or self._share[1] > 1, "rank= and world=, or sharding=", "rank=0, world=1"
        )
        if self._languages is not None:
            self._languages.check(self._loader.epoch + 1)
        if _is_own(self, "_data_generator"):
            return iter(self._loader)
        return self._data_generator()

    def __len__(self) -> int:
        """Batches in one epoch."""
        return len(self._loader)

    @property
    def step(self) -> int:
        """The number of the next batch, counted over all epochs."""
        return self._loader.step

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._loader.epoch

    def batch_at(self, step: int) -> dict[str, Any]:
        """Returns the batch of any step. The loader's position does not change."""
        batch: dict[str, Any] = self._loader.batch_at(step)
        return batch

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Returns the provenance of a row of this process's batch `step`: record, offsets and random key."""
        return self._loader.why(step, row)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as plain JSON, the same in every process, for Orbax or `json`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a saved state; processes, threads and batch size may have changed."""
        self._loader.load_state_dict(dict(state))
        if self._languages is not None and isinstance(self._loader, Loader):
            self._languages.start(self._loader.step)

    def stats(self) -> dict[str, Any]:
        """Returns seconds per stage, waits, a verdict, and rows and tokens by language since the start or restore."""
        facts = self._loader.stats()
        if isinstance(self._loader, StreamLoader):
            return facts | {"tokens": {"all": self._loader.tokens}}
        return facts | (self._languages.stats(self._loader) if self._languages is not None else {})

    def __repr__(self) -> str:
        s = self.settings
        name = s.dataset_name if isinstance(s.dataset_name, str) else type(s.dataset_name).__name__
        return f"CapibaraDataLoader({name!r}, batch_size={s.batch_size}, max_length={s.max_length}, step={self.step})"

    # Construction.

    def _open(self) -> Loader | StreamLoader:
        named = find_datasets(self.settings)
        if isinstance(named, HFStream):
            return self._stream(named)
        if self.settings.labels == "same":
            _refuse_own_labels(named)
        self._languages = LanguageMixture(named, self.tokenizer, self.settings)
        return self._batched(self._languages.pipeline)

    def _stream(self, stream: HFStream) -> StreamLoader:
        s = self.settings
        if s.batch_tokens is not None or s.layout != "documents" or s.language_field is not None:
            raise UsageError(
                "a stream in batches of documents, of one language",
                got="batch_tokens=, layout= or language_field= with a stream",
                fix="leave streaming=True out: the data is then prepared once, with random access",
            )
        own = _is_own(self, "_collate_fn")
        pad = Fill(s.max_length, self.pad_id) if own else None
        return stream_loader(stream, self.tokenizer, s, self._placed(), pad, *self._share)

    def _placed(self) -> Any:
        if _is_own(self, "_collate_fn"):
            return self._output
        same = self.settings.labels == "same"
        return collating.CollateOutput(self._output, self._collate_fn, self.settings.max_length, same)

    def _batched(self, pipeline: Pipeline) -> Loader:
        s = self.settings
        pipeline = self._sharded(pipeline)
        if s.batch_tokens is not None:
            pipeline = pipeline.then(self._budget(s.batch_tokens))
        else:
            pipeline = pipeline.batch(s.batch_size, remainder=s.remainder)
            if s.layout == "documents" and _is_own(self, "_collate_fn"):
                pipeline = pipeline.then(Fill(s.max_length, self.pad_id))
        threads = min(s.num_workers, max(1, usable_cores() - 1))  # one core is left for the training step
        return Loader(pipeline.definition, self._placed(), threads=threads, prefetch=s.prefetch)

    def _sharded(self, pipeline: Pipeline) -> Pipeline:
        """Shards a pipeline by `rank`, `world` or `sharding`, unless it has a shard already; raises if they differ."""
        own = pipeline.definition.rank, pipeline.definition.world
        if own == (0, 1):
            found = self._own_share or self._share != own
            return pipeline.shard(*self._share) if found else pipeline
        if own != self._share and (self._own_share or self._share != (0, 1)):
            raise UsageError(
                "one shard",
                got=f"rank {own[0]} of {own[1]} in the pipeline and rank {self._share[0]} of {self._share[1]} here",
                fix="leave .shard() out of the pipeline",
            )
        return pipeline

    def _budget(self, tokens: int) -> BatchTokens:
        s = self.settings
        shapes = s.shapes or [n for i in reversed(range(SHAPES)) if (n := s.max_length >> i)]
        return BatchTokens.of(tokens, sorted(set(shapes)), static=True, overlong="truncate", pad_id=self.pad_id)


def _is_own(loader: CapibaraDataLoader, name: str) -> bool:
    """Whether a method is not overridden."""
    return getattr(type(loader), name) is getattr(CapibaraDataLoader, name) and name not in loader.__dict__


def _refuse_own_labels(named: Mapping[str, Pipeline]) -> None:
    """Labels that rows bring are used as they are: `labels="same"` would replace them."""
    for name, pipeline in named.items():
        found = {"labels", "loss_mask"} & (set() if is_rows(pipeline) else column_names(pipeline))
        if found:
            raise UsageError(
                'rows without labels of their own for labels="same"',
                got=f"a column {sorted(found)[0]!r} in {name!r}",
                fix="leave labels= out: labels that rows bring are used as they are",
            )


def _pad_id(settings: DataLoaderConfig, tokenizer: Any) -> int:
    """The configured id, else the tokenizer's pad or end token, else 0; `attention_mask` says what is padding."""
    ids = (settings.pad_id, getattr(tokenizer, "pad_id", None), getattr(tokenizer, "eos_id", None))
    return next((int(one) for one in ids if one is not None), 0)
