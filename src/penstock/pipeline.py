"""The fluent shell: one line per verb, no logic. Everything a verb means is in `penstock.steps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from penstock.collate.layout import Side
from penstock.engine.loader import Loader
from penstock.outputs.jax import JaxOutput, shared_by
from penstock.outputs.numpy import NumpyOutput
from penstock.outputs.torch import TorchOutput
from penstock.plan.build import mixed
from penstock.plan.definition import Definition, Stop
from penstock.plan.describe import peek, show
from penstock.plan.row_source import RowSource
from penstock.preparation.tokenize import tokenized
from penstock.sources.base import Source
from penstock.steps.base import Step
from penstock.steps.batch import Batch, Remainder
from penstock.steps.bucket import Bucket
from penstock.steps.budget import BatchTokens
from penstock.steps.decode_audio import DecodeAudio
from penstock.steps.decode_images import DecodeImages
from penstock.steps.decode_parts import DecodeParts
from penstock.steps.filter import Filter
from penstock.steps.limit import Repeat, Skip, Take
from penstock.steps.mapping import Map, MapBatches
from penstock.steps.pack import Labels, Overlong, Pack, Strategy
from penstock.steps.pad import Pad
from penstock.steps.shuffle import Shuffle
from penstock.steps.skip_errors import SkipErrors
from penstock.steps.windows import Windows


class Pipeline:
    """A source and what is done to its rows. Immutable: every verb gives a new pipeline.

    >>> import penstock as ps
    >>> loader = ps.from_arrays({"x": range(10)}).shuffle(seed=7).batch(5).to_numpy(threads=0)
    >>> [sorted(b["x"].tolist()) for b in loader] != [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    True
    """

    __slots__ = ("definition",)
    definition: Definition

    def __init__(self, origin: Source | Definition) -> None:
        definition = origin if isinstance(origin, Definition) else Definition(origin)
        object.__setattr__(self, "definition", definition)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a pipeline is immutable: each verb gives a new one")

    def __reduce__(self) -> tuple[type[Pipeline], tuple[Definition]]:
        return Pipeline, (self.definition,)

    def _then(self, step: Step) -> Pipeline:
        return Pipeline(self.definition.then(step))

    # Order.

    def shuffle(self, seed: int = 0, *, block: int | None = None, window: int | None = None) -> Pipeline:
        """Another order every epoch, from `seed`. `block` and `window` keep reads near each other."""
        return self._then(Shuffle(seed, block, window))

    def take(self, count: int) -> Pipeline:
        """The first `count` rows."""
        return self._then(Take(count))

    def skip(self, count: int) -> Pipeline:
        """All but the first `count` rows."""
        return self._then(Skip(count))

    def repeat(self, times: int | None = None) -> Pipeline:
        """Several passes in one epoch, or endless; batches then cross from one pass to the next."""
        return self._then(Repeat(times))

    def shard(self, rank: int | None = None, world: int | None = None) -> Pipeline:
        """This rank's share of every batch. Without arguments it is found from the framework or the environment."""
        return Pipeline(self.definition.share(rank, world))

    # Content.

    def tokenize(self, tokenizer: Any, *, field: str = "text", cache_dir: Any = None, **settings: Any) -> Pipeline:
        """Tokens of the column `field`: prepared once, with a progress bar, in a cache keyed by content.

        `settings` are those of `penstock.prepare`: `eos`, `on_error`, `budget`, `engine`, `threads`, `shard_tokens`.
        """
        return Pipeline(tokenized(self.definition, tokenizer, field, cache_dir, settings))

    def windows(self, length: int, stride: int | None = None) -> Pipeline:
        """Windows of `length` tokens, `stride` apart, with the next tokens as `labels`."""
        return self._then(Windows(length, stride))

    def pack(
        self,
        length: int,
        *,
        strategy: Strategy = "best_fit",
        overlong: Overlong = "split",
        max_docs: int | None = None,
        labels: Labels | None = "next",
        static: bool = False,
        pad_id: int = 0,
    ) -> Pipeline:
        """Several documents to a row of `length` tokens, none leaking into the next; see `steps.pack.Pack`."""
        return self._then(Pack(length, strategy, overlong, max_docs, labels, static, pad_id))

    def decode_images(self, size: int | tuple[int, int], **options: Any) -> Pipeline:
        """Pictures of one size from the column `bytes`; `options` are those of `steps.decode_images.DecodeImages`."""
        return self._decoding(DecodeImages.of(size, **options))

    def decode_audio(self, sample_rate: int = 16000, **options: Any) -> Pipeline:
        """Samples or features from audio files; `options` are those of `steps.decode_audio.DecodeAudio`."""
        return self._decoding(DecodeAudio(sample_rate, **options))

    def _decoding(self, step: Step) -> Pipeline:
        """With this step; where unreadable records are skipped, those that it cannot decode are too."""
        policy = next((s for s in reversed(self.definition.steps) if isinstance(s, SkipErrors)), None)
        decoded = self._then(step)
        return decoded if policy is None else decoded._then(policy)

    def decode_parts(self, *parts: str) -> Pipeline:
        """Text, JSON and numbers from the parts of tar records; without arguments all whose name says how."""
        return self._then(DecodeParts(parts or None))

    def map(self, function: Callable[..., Any], *, version: str | None = None) -> Pipeline:
        """`function(record) -> record`; a parameter `rng` gets a generator keyed by the record."""
        return self._then(Map(function, version))

    def map_batches(self, function: Callable[..., Any], *, whole: bool = False, version: str | None = None) -> Pipeline:
        """`function(columns) -> columns`; a parameter `keys` gets a random key per row."""
        return self._then(MapBatches(function, whole, version))

    def filter(self, function: Callable[..., Any], *, batched: bool = False, version: str | None = None) -> Pipeline:
        """Only records that `function` likes; the place of a refused one is filled, nobody else moves."""
        return self._then(Filter(function, batched, version))

    def skip_errors(self, budget: int | float | None = None) -> Pipeline:
        """Bad records are refused, listed in the ledger and their places filled; past the budget is an error."""
        return self._then(SkipErrors(budget))

    def pad(self, to: int | Literal["longest"] = "longest", **options: Any) -> Pipeline:
        """Rows of equal length: a number, or "longest" of the batch."""
        return self._then(Pad(to, **options))

    def batch(
        self,
        size: int | None = None,
        *,
        per_rank: int | None = None,
        remainder: Remainder = "drop",
        balance: bool = False,
    ) -> Pipeline:
        """`size` rows a step over all ranks together, or `per_rank` on each.

        `balance` deals the packs of a step to ranks by the work their attention is; see `steps.batch.Batch`.
        """
        return self._then(Batch(size, per_rank, remainder, balance))

    def bucket(
        self,
        boundaries: Sequence[int],
        batch_size: int | None = None,
        *,
        sizes: Sequence[int] | None = None,
        remainder: Remainder = "drop",
        balance: bool = False,
        pad_id: int = 0,
        side: Side = "right",
    ) -> Pipeline:
        """Batches of documents of similar length, padded to the bucket's boundary; stands in the place of `.batch()`.

        `balance` deals the rows of a step to ranks by the work their attention is.
        """
        return self._then(Bucket.of(boundaries, batch_size, sizes, remainder, balance, pad_id, side))

    def batch_tokens(self, budget: int, *, shapes: Sequence[int] | None = None, **options: Any) -> Pipeline:
        """Batches of rows of at most `budget` tokens over all ranks, padding counted; in the place of `.batch()`.

        Rows that only fill up the shares of ranks (`valid` is False) come on top, unless `ranks` says for how many the
        budget is to hold. `options` are those of `steps.budget.BatchTokens`: `max_rows`, `multiple`, `static`,
        `overlong`, `balance`, `pad_id`, `side`, `ranks`.
        """
        return self._then(BatchTokens.of(budget, shapes, **options))

    # Outputs.

    def to_numpy(self, *, ids: Any = "int64", **engine: Any) -> Loader:
        """A loader of NumPy arrays."""
        return Loader(self.definition, NumpyOutput(ids), **engine)

    def to_torch(self, *, device: Any = None, pin_memory: bool = False, ids: Any = "int64", **engine: Any) -> Loader:
        """A loader of torch tensors."""
        return Loader(self.definition, TorchOutput(device, pin_memory, ids), **engine)

    def to_jax(self, *, sharding: Any = None, ids: Any = "int32", micro_batches: int = 1, **engine: Any) -> Loader:
        """A loader of JAX arrays. With a sharding over several processes each one reads the rows its devices hold."""
        output = JaxOutput(sharding, ids, micro_batches)
        return Loader(shared_by(self.definition, output), output, **engine)

    # Looking at it.

    def rows(self) -> RowSource:
        """The rows of the first epoch as a sequence: `len`, and `read(indices)` for many at once."""
        return RowSource(self.definition)

    def peek(self, rows: int = 5) -> list[dict[str, Any]]:
        """The first rows as dicts."""
        return peek(self.definition, rows)

    def fingerprint(self) -> str:
        """Equal for pipelines that give the same rows in the same order."""
        return self.definition.fingerprint()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.definition.parts() == other.definition.parts()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __repr__(self) -> str:
        return show(self.definition)


def mix(
    pipelines: Sequence[Pipeline],
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
    stop: Stop = "never",
) -> Pipeline:
    """Rows of several pipelines in proportion to `weights` (default: to their sizes).

    An epoch ends "never", or when the "first" or "all" sources have been given once.
    """
    return Pipeline(mixed([p.definition for p in pipelines], weights, seed, stop))
