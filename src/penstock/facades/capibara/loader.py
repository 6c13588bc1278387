"""`CapibaraDataLoader`: a dataset's name in, dicts of JAX arrays out. A thin shell over the core.

The name is resolved, its texts are tokenised once into a cache, and the rest is a pipeline: shuffle, batch, pad, place.
So everything the core promises holds: the batch of step n does not depend on threads, ranks or resume point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.core.cpus import usable_cores
from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.facades.capibara import collate as collating
from penstock.facades.capibara.config import DataLoaderConfig, settings_of
from penstock.facades.capibara.fill import Fill
from penstock.facades.capibara.multilingual import LanguageMixture, find_datasets
from penstock.facades.capibara.stream import StreamLoader
from penstock.order.shard import find_rank
from penstock.outputs.jax import JaxOutput, share_of
from penstock.pipeline import Pipeline
from penstock.sources.hf_stream import HFStream
from penstock.steps.budget import BatchTokens
from penstock.tokenizers import as_tokenizer

SHAPES = 4  # padded lengths of token-budget batches, unless they are given


class CapibaraDataLoader:
    """Batches of a named dataset for JAX: `input_ids`, `attention_mask` and `labels`, int32, of one shape.

    `labels[t]` is the token after `input_ids[t]`, and -100 where there is none. Whatever is not given is taken from
    `config`, else from the defaults of `DataLoaderConfig`. `dataset_name` is a name, a path, a dataset object, or a
    dict of them, one for each language. `sharding` places the global batch over a mesh.

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
            # Without a sharding JAX may not have begun yet, and asking it would begin it.
            rank, world = find_rank() if sharding is None else share_of(sharding)
        self._share = rank, world
        self._output = JaxOutput(sharding, micro_batches=self.settings.micro_batches)
        self._languages: LanguageMixture | None = None
        self._loader: Loader | StreamLoader = self._open()

    # What the document names: both may be overridden.

    def _data_generator(self) -> Iterator[dict[str, Any]]:
        """Yields the batches of an epoch, from the current place on: dicts of `input_ids`, `attention_mask`, `labels`.

        An override may change or leave out batches of `super()._data_generator()`; the state follows those it takes.
        """
        yield from self._loader

    def _collate_fn(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch from a list of examples: padded to `max_length`, as JAX arrays.

        When it is overridden, every batch is made by it, in the loader's threads; examples have `input_ids`,
        `attention_mask` and `labels` as NumPy arrays of their own length.
        """
        made = collating.collate(batch, self.settings.max_length, self.pad_id)
        return {name: self._output.jax.numpy.asarray(array) for name, array in made.items()}

    # The loader.

    def __iter__(self) -> Iterator[dict[str, Any]]:
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
        """The number of the batch that comes next, counted over all epochs."""
        return self._loader.step

    @property
    def epoch(self) -> int:
        """The epoch of the batch that comes next."""
        return self._loader.epoch

    def batch_at(self, step: int) -> dict[str, Any]:
        """The very batch of a past or future step. The loader's place does not move."""
        batch: dict[str, Any] = self._loader.batch_at(step)
        return batch

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Which record, offsets and random key made a row of this process's batch `step`."""
        return self._loader.why(step, row)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as plain JSON, the same in every process. Orbax and `json` save it as it is."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved state; processes, threads and batch size may differ from those it was saved with."""
        self._loader.load_state_dict(dict(state))
        if self._languages is not None and isinstance(self._loader, Loader):
            self._languages.start(self._loader.step)

    def stats(self) -> dict[str, Any]:
        """Seconds per stage, waits, a verdict; rows and tokens given since the start or restore, by language."""
        facts = self._loader.stats()
        if isinstance(self._loader, StreamLoader):
            return facts | {"tokens": {"all": self._loader.tokens}}
        return facts | (self._languages.stats(self._loader) if self._languages is not None else {})

    def __repr__(self) -> str:
        s = self.settings
        name = s.dataset_name if isinstance(s.dataset_name, str) else type(s.dataset_name).__name__
        return f"CapibaraDataLoader({name!r}, batch_size={s.batch_size}, max_length={s.max_length}, step={self.step})"

    # How it is put together.

    def _open(self) -> Loader | StreamLoader:
        named = find_datasets(self.settings)
        if isinstance(named, HFStream):
            return self._stream(named)
        self._languages = LanguageMixture(named, self.tokenizer, self.settings)
        return self._batched(self._languages.pipeline)

    def _stream(self, stream: HFStream) -> StreamLoader:
        s = self.settings
        if s.batch_tokens is not None or s.layout != "documents" or s.language_field is not None:
            raise UsageError(
                "a stream in batches of documents, of one language",
                got="batch_tokens=, layout= or language_field= with a stream",
                fix="leave streaming=True out: the data is then prepared once and read by number",
            )
        own = _is_own(self, "_collate_fn")
        pad = Fill(s.max_length, self.pad_id) if own else None
        return StreamLoader(stream, self.tokenizer, s, self._placed(), pad, *self._share)

    def _placed(self) -> Any:
        if _is_own(self, "_collate_fn"):
            return self._output
        return collating.CollateOutput(self._output, self._collate_fn, self.settings.max_length)

    def _batched(self, pipeline: Pipeline) -> Loader:
        s = self.settings
        pipeline = self._sharded(pipeline)
        if s.batch_tokens is not None:
            pipeline = pipeline.then(self._budget(s.batch_tokens))
        else:
            pipeline = pipeline.batch(s.batch_size, remainder=s.remainder)
            if s.layout == "documents" and _is_own(self, "_collate_fn"):
                pipeline = pipeline.then(Fill(s.max_length, self.pad_id))
        threads = min(s.num_workers, max(1, usable_cores() - 1))  # more would take time from the training step
        return Loader(pipeline.definition, self._placed(), threads=threads, prefetch=s.prefetch)

    def _sharded(self, pipeline: Pipeline) -> Pipeline:
        """Shards a pipeline by `rank`, `world` or `sharding`, unless it has a shard already; raises if they differ."""
        own = pipeline.definition.rank, pipeline.definition.world
        if own == (0, 1):
            return pipeline.shard(*self._share)
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
    """Whether a method is this class's, not an override."""
    return getattr(type(loader), name) is getattr(CapibaraDataLoader, name) and name not in loader.__dict__


def _pad_id(settings: DataLoaderConfig, tokenizer: Any) -> int:
    """As told, else the tokenizer's pad token, else its end token, else 0; the mask says what is padding."""
    told = (settings.pad_id, getattr(tokenizer, "pad_id", None), getattr(tokenizer, "eos_id", None))
    return next((int(one) for one in told if one is not None), 0)
