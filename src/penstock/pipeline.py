"""The fluent interface: one short method per verb. What a verb means is in `penstock.steps`, one file each.

Each method imports its step when it is called, so a program loads only the steps that it uses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import NeedsOutput, changed, explained_methods

if TYPE_CHECKING:
    import os

    import jax
    import torch
    from numpy.typing import DTypeLike, NDArray

    from penstock.core.functions import BatchFunction, Predicate, RecordFunction
    from penstock.core.limits import Limits
    from penstock.engine.loader import Loader
    from penstock.plan.definition import Definition
    from penstock.plan.row_source import RowSource
    from penstock.sources.base import Source
    from penstock.steps.base import Step


@explained_methods
class Pipeline(NeedsOutput):
    """A source and the steps applied to its rows. Immutable: each verb returns a new pipeline.

    Verbs in the order they are usually written: source, `tokenize`, `windows` or `pack` (or `decode_images`,
    `decode_audio`), `map`, `filter`, `shuffle`, `batch`, `pad`, then an output: `to_numpy`, `to_torch`, `to_jax`.

    >>> import penstock as ps
    >>> loader = ps.from_arrays({"x": range(10)}).shuffle(seed=7).batch(5).to_numpy(threads=0)
    >>> [sorted(b["x"].tolist()) for b in loader] != [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    True
    """

    __slots__ = ("definition",)
    definition: Definition

    def __init__(self, origin: Source | Definition) -> None:
        from penstock.plan.definition import Definition

        if not isinstance(origin, Definition) and not hasattr(origin, "read"):
            from penstock.sources.record_source import adapted

            origin = adapted(origin)
        definition = origin if isinstance(origin, Definition) else Definition(origin)
        object.__setattr__(self, "definition", definition)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a pipeline is immutable: each verb returns a new one")

    def __reduce__(self) -> tuple[type[Pipeline], tuple[Definition]]:
        return Pipeline, (self.definition,)

    def then(self, step: Step) -> Pipeline:
        """Adds a step of your own; see docs/how-to/write-a-step.md.

        >>> from penstock.steps.limit import Take
        >>> ps.from_texts(["a", "b"]).then(Take(1)).peek()
        [{'text': 'a'}]
        """
        return Pipeline(self.definition.then(step))

    # Order.

    def shuffle(self, seed: int = 0, *, block: int | None = None, window: int | None = None) -> Pipeline:
        """Shuffles all rows, in a different order each epoch. Costs no memory: the order is computed, not stored.

        Args:
            seed: the run's seed, also for random crops and maps.
            block, window: read blocks of consecutive records, shuffled within a window, where random access is slow.

        >>> sorted(int(row["x"]) for row in ps.from_arrays({"x": range(4)}).shuffle(seed=7).peek(4))
        [0, 1, 2, 3]
        """
        from penstock.steps.shuffle import Shuffle

        return self.then(Shuffle(seed, block, window))

    def take(self, count: int) -> Pipeline:
        """Keeps the first `count` rows.

        >>> [int(row["x"]) for row in ps.from_arrays({"x": range(9)}).take(2).peek()]
        [0, 1]
        """
        from penstock.steps.limit import Take

        return self.then(Take(count))

    def skip(self, count: int) -> Pipeline:
        """Drops the first `count` rows.

        >>> [int(row["x"]) for row in ps.from_arrays({"x": range(9)}).skip(7).peek()]
        [7, 8]
        """
        from penstock.steps.limit import Skip

        return self.then(Skip(count))

    def repeat(self, times: int | None = None) -> Pipeline:
        """Makes `times` passes in one epoch, or endless ones; a batch may hold rows of two passes.

        >>> [int(row["x"]) for row in ps.from_arrays({"x": range(2)}).repeat(2).peek()]
        [0, 1, 0, 1]
        """
        from penstock.steps.limit import Repeat

        return self.then(Repeat(times))

    def shard(self, rank: int | None = None, world: int | None = None) -> Pipeline:
        """Keeps this rank's rows of each batch; by default rank and world size come from torch, JAX or the environment.

        >>> ps.from_arrays({"x": range(8)}).shard(1, 2).batch(4).to_numpy().batch_at(0)["x"].tolist()
        [2, 3]
        """
        return Pipeline(self.definition.share(rank, world))

    # Content.

    def tokenize(
        self, tokenizer: Any, *, field: str = "text", cache_dir: str | os.PathLike[str] | None = None,
        eos: bool | int = True, on_error: Literal["raise", "skip"] | None = None, budget: int | float | None = None,
        engine: Literal["auto", "reference"] = "auto", threads: int | None = None, shard_tokens: int = 1 << 25,
        show_progress: bool | None = None, add_special_tokens: bool | None = None,
        allowed_special: Collection[str] | None = None, disallowed_special: Collection[str] | None = None,
    ) -> Pipeline:  # fmt: skip
        """Tokenizes the column `field` into a token store, once: later runs find it in the cache, by content.

        Args:
            tokenizer: what `penstock.as_tokenizer` accepts, as are `add_special_tokens` and the two after it.
            eos: append the tokenizer's end token to each document, or this id, or nothing with False.
            on_error: "skip" leaves out bad records, at most `budget`; as does `.skip_errors(budget)` before it.
            engine: "reference" does not use the fast engine (which is compared with the tokenizer before use).

        >>> from tempfile import mkdtemp
        >>> ps.from_texts(["hi", "you"]).tokenize("bytes", cache_dir=mkdtemp()).peek(1)[0]["input_ids"].tolist()
        [104, 105, 256]
        """
        from penstock.preparation.tokenize import tokenized

        settings = changed(
            Pipeline.tokenize, eos=eos, on_error=on_error, budget=budget, engine=engine, threads=threads,
            shard_tokens=shard_tokens, show_progress=show_progress, add_special_tokens=add_special_tokens,
            allowed_special=allowed_special, disallowed_special=disallowed_special,
        )  # fmt: skip
        return Pipeline(tokenized(self.definition, tokenizer, field, cache_dir, settings))

    def windows(self, length: int, stride: int | None = None) -> Pipeline:
        """Cuts the token stream into windows of `length` tokens, `stride` apart (default: no overlap), with `labels`.

        >>> ps.open_tokens([5, 6, 7, 8, 9]).windows(2).peek(1)
        [{'input_ids': array([5, 6]), 'labels': array([6, 7])}]
        """
        from penstock.steps.windows import Windows

        return self.then(Windows(length, stride))

    def pack(
        self, length: int, *, strategy: Literal["best_fit", "concat"] = "best_fit",
        overlong: Literal["split", "truncate", "drop", "error"] = "split", max_docs: int | None = None,
        labels: Literal["next", "same"] | None = "next", static: bool = False, pad_id: int = 0,
    ) -> Pipeline:  # fmt: skip
        """Packs several documents into each row of `length` tokens; `segment_ids` keep them apart.

        Args:
            strategy: "best_fit" keeps documents in one piece where they fit, "concat" cuts the stream.
            overlong: what to do with documents longer than a row.
            labels: "next" shifts them by one within each document, "same" does not, None leaves them out.
            static: fixed shapes for `cu_seqlens`, for compiled programs.

        >>> ps.open_tokens([5, 6, 7, 8, 9], [0, 3, 5]).pack(5).peek(1)[0]["segment_ids"].tolist()
        [1, 1, 1, 2, 2]
        """
        from penstock.steps.pack import Pack

        return self.then(Pack(length, strategy, overlong, max_docs, labels, static, pad_id))

    def decode_images(
        self, size: int | tuple[int, int], *, crop: Literal["random", "center"] | None = "center",
        scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float | None = None, share: float = 1.0, mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0, dtype: Literal["float32", "uint8"] = "float32",
        mode: Literal["RGB", "L", "RGBA"] = "RGB", layout: Literal["NHWC", "NCHW"] = "NHWC",
        exif: Literal["apply", "ignore"] = "apply",
        method: Literal["antialias", "pillow", "linear", "nearest"] = "antialias", strict: bool = True,
        column: str = "bytes", out: str = "image", masks: str | Sequence[str] = (), limits: Limits | None = None,
    ) -> Pipeline:  # fmt: skip
        """Decodes images to one size. Crop and flip are drawn before decoding, so only the pixels needed are decoded.

        Args:
            size: a side, or (height, width).
            crop: "center" is the largest centred box, "random" a random resized crop, None resizes the full image.
            scale, ratio: of a random crop: its share of the area, and its width / height.
            flip: probability of a mirror image; default 0.5 with a random crop, else 0.
            share: part of the sides that a center crop keeps; 0.875 is common in evaluation.
            mean, std: float32 pixels are `(pixels / 255 - mean) / std`.
            exif, strict: turn images upright; treat damaged image data as a bad record.
            masks: columns of masks that get the crop and flip of their image, as class numbers (n, height, width).

        >>> import cv2, numpy as np
        >>> png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
        >>> ps.from_arrays({"bytes": [png]}).decode_images(4, crop=None).peek(1)[0]["image"].shape
        (4, 4, 3)
        """
        from penstock.core.limits import LIMITS
        from penstock.steps.decode_images import DecodeImages

        return self._decoded(DecodeImages.of(
            size, crop=crop, scale=scale, ratio=ratio, flip=flip, share=share, mean=mean, std=std, dtype=dtype,
            mode=mode, layout=layout, exif=exif, method=method, strict=strict, column=column, out=out,
            masks=masks, limits=limits or LIMITS,
        ))  # fmt: skip

    def decode_audio(
        self, sample_rate: int = 16000, *, duration: float | None = None,
        offset: Literal["random", "start"] = "random", mono: bool = True, channels: int = 2,
        features: Literal["log_mel", "mel", "mfcc"] | None = None, n_mels: int = 80, n_mfcc: int = 20,
        n_fft: int = 400, hop: int = 160, mask: bool = False, column: str = "audio", out: str = "audio",
        limits: Limits | None = None,
    ) -> Pipeline:  # fmt: skip
        """Decodes audio to float32 samples at one rate, or to features. Only the slice that is needed is read.

        Args:
            duration: seconds of each row; None keeps full recordings, as ragged rows.
            mono: average the channels; with False rows have `channels` of them.
            features: "mel", "log_mel" or "mfcc" instead of samples, with `n_mels`, `n_mfcc`, `n_fft`, `hop`.
            mask: add a column `mask`, True where there is sound.

        >>> import numpy as np
        >>> from penstock.codecs.audio import wav
        >>> sound = ps.from_arrays({"audio": [wav.encode(np.zeros(800), 8000)]})
        >>> sound.decode_audio(8000, duration=0.05, offset="start").peek(1)[0]["audio"].shape
        (400,)
        """
        from penstock.core.limits import LIMITS
        from penstock.steps.decode_audio import DecodeAudio

        return self._decoded(DecodeAudio(
            sample_rate, duration, offset, mono, channels, features, n_mels, n_mfcc, n_fft, hop, mask, column, out,
            limits=limits or LIMITS,
        ))  # fmt: skip

    def _decoded(self, step: Step) -> Pipeline:
        """Adds a decoder; after `skip_errors`, records that it cannot decode are skipped too."""
        policy = next((s for s in reversed(self.definition.steps) if s.name == "skip_errors"), None)
        return self.then(step) if policy is None else self.then(step).then(policy)

    def decode_parts(self, *parts: str) -> Pipeline:
        """Decodes text, JSON, numbers and arrays in the parts of tar records; by default all whose extension says how.

        >>> ps.from_arrays({"key": ["a"], "cls": [b"7"]}).decode_parts("cls").peek(1)
        [{'key': 'a', 'cls': np.int64(7)}]
        """
        from penstock.steps.decode_parts import DecodeParts

        return self.then(DecodeParts(parts or None))

    def map(self, function: RecordFunction, *, version: str | None = None) -> Pipeline:
        """Applies `function(record) -> record` to each record. One Python call per record; `map_batches` is faster.

        Args:
            function: a parameter called `rng` gets a NumPy generator keyed by (seed, epoch, record).
            version: names what the function's source does not show, for the fingerprint.

        >>> ps.from_texts(["a"]).map(lambda record: {"text": record["text"] * 2}).peek()
        [{'text': 'aa'}]
        """
        from penstock.steps.map import Map

        return self.then(Map(function, version))

    def map_batches(self, function: BatchFunction, *, whole: bool = False, version: str | None = None) -> Pipeline:
        """Applies `function(columns) -> columns` to blocks of rows; each row must be independent of the others.

        Args:
            function: a parameter called `keys` gets a random key per row; see `penstock.randomness`.
            whole: after `.batch()`: pass the global batch on every rank, so that rows may be mixed.

        >>> ps.from_arrays({"x": [1, 2]}).map_batches(lambda columns: {"x": columns["x"] * 2}).peek(1)
        [{'x': np.int64(2)}]
        """
        from penstock.steps.map_batches import MapBatches

        return self.then(MapBatches(function, whole, version))

    def filter(self, function: Predicate, *, batched: bool = False, version: str | None = None) -> Pipeline:
        """Keeps records for which `function` returns True, or with `batched` the rows of its mask for a block of rows.

        A loader refills the place of a rejected row, so that other rows keep theirs; `prepare` and `tokenize` drop it.

        >>> {row["text"] for row in ps.from_texts(["a", "b"]).filter(lambda record: record["text"] > "a").peek()}
        {'b'}
        """
        from penstock.steps.filter import Filter

        return self.then(Filter(function, batched, version))

    def skip_errors(self, budget: int | float | None = None) -> Pipeline:
        """Replaces bad records by others and lists them in `loader.ledger`.

        More than `budget` of them (a count, or a fraction of the rows) are an error; None allows any number.

        >>> numbers = ps.from_texts(["1", "x"]).map(lambda record: {"x": int(record["text"])})
        >>> {int(row["x"]) for row in numbers.skip_errors(budget=1).peek()}
        {1}
        """
        from penstock.steps.skip_errors import SkipErrors

        return self.then(SkipErrors(budget))

    def pad(
        self, to: int | Literal["longest"] = "longest", *, pad_id: int = 0, side: Literal["right", "left"] = "right",
        multiple: int | None = None, truncate: bool = False, labels: bool = True,
    ) -> Pipeline:  # fmt: skip
        """Pads ragged rows to one length, with `attention_mask` and `labels` (-100 where there is no next token).

        Args:
            to: a length, or "longest" of the global batch, rounded up to `multiple`.
            truncate: cut longer rows instead of raising.
            labels: make `labels` from `input_ids` where the rows have none.

        >>> batch = ps.open_tokens([5, 6, 7], [0, 2, 3]).pad().batch(2).to_numpy().batch_at(0)
        >>> batch["input_ids"].tolist(), batch["labels"].tolist()
        ([[5, 6], [7, 0]], [[6, -100], [-100, -100]])
        """
        from penstock.steps.pad import Pad

        return self.then(Pad(to, pad_id, side, multiple, truncate, labels))

    def batch(
        self, size: int | None = None, *, per_rank: int | None = None,
        remainder: Literal["drop", "pad", "short"] = "drop", balance: bool = False,
    ) -> Pipeline:  # fmt: skip
        """Makes batches of `size` rows over all ranks together, or of `per_rank` on each.

        Args:
            remainder: the last rows of an epoch: "drop" them, "pad" the batch (column `valid`), or make it "short".
            balance: assign packed rows to ranks by the cost of their attention.

        >>> [len(b["x"]) for b in ps.from_arrays({"x": range(5)}).batch(2, remainder="short").to_numpy()]
        [2, 2, 1]
        """
        from penstock.steps.batch import Batch

        return self.then(Batch(size, per_rank, remainder, balance))

    def bucket(
        self, boundaries: Sequence[int], batch_size: int | None = None, *, sizes: Sequence[int] | None = None,
        remainder: Literal["drop", "pad", "short"] = "drop", balance: bool = False, pad_id: int = 0,
        side: Literal["right", "left"] = "right",
    ) -> Pipeline:  # fmt: skip
        """Makes batches of documents of similar length, padded to the bucket's boundary; instead of `.batch()`.

        Args:
            boundaries: longest length of each bucket; one more bucket holds what is longer.
            batch_size, sizes: rows of a batch, one number for all buckets or one for each. Keeps 4 bytes a record.

        >>> documents = ps.open_tokens(range(9), [0, 1, 2, 5, 9])
        >>> [b["input_ids"].shape for b in documents.bucket([2, 4], batch_size=2).to_numpy()]
        [(2, 2), (2, 4)]
        """
        from penstock.steps.bucket import Bucket

        return self.then(Bucket.of(boundaries, batch_size, sizes, remainder, balance, pad_id, side))

    def batch_tokens(
        self, budget: int, *, shapes: Sequence[int] | None = None, max_rows: int | None = None, multiple: int = 1,
        static: bool = False, overlong: Literal["error", "truncate", "drop"] = "error", balance: bool = False,
        pad_id: int = 0, side: Literal["right", "left"] = "right", ranks: int | None = None,
    ) -> Pipeline:  # fmt: skip
        """Makes batches of at most `budget` tokens over all ranks, padding counted; instead of `.batch()`.

        Args:
            shapes: lengths to pad to; otherwise the longest row, rounded up to `multiple`.
            static: always the same number of rows for a length, for compiled programs.
            ranks: number of ranks for which the budget holds even with the rows that only complete their shares.

        >>> documents = ps.open_tokens(range(9), [0, 1, 2, 5, 9])
        >>> max(b["input_ids"].size for b in documents.batch_tokens(8).to_numpy()) <= 8
        True
        """
        from penstock.steps.budget import BatchTokens

        return self.then(BatchTokens.of(
            budget, shapes, max_rows=max_rows, multiple=multiple, static=static, overlong=overlong, balance=balance,
            pad_id=pad_id, side=side, ranks=ranks,
        ))  # fmt: skip

    # Outputs. The loader's options are described once, in `to_numpy`.

    def to_numpy(
        self, *, ids: DTypeLike = "int64", threads: int | None = None, prefetch: int = 3, max_bytes: int = 512 << 20,
        timeout: float | None = None, isolate: bool = False, workers: int = 0,
        on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> Loader[dict[str, NDArray[Any]]]:  # fmt: skip
        """Returns a loader of dicts of NumPy arrays. Columns that are still ragged are `penstock.Ragged`.

        Args:
            ids: dtype of token ids and labels.
            threads: threads of this process that compute batches; 0: when asked for; None: as many as help.
            prefetch: batches ready ahead of use, at most `max_bytes` of them.
            timeout: seconds to wait for a batch before raising; None: warn only.
            workers, isolate: child processes instead of threads; `isolate=True` is `workers=1`.
            on_worker_death: "restart" computes the lost batches again.

        >>> next(iter(ps.from_arrays({"x": range(4)}).batch(2).to_numpy(threads=0)))
        {'x': array([0, 1])}
        """
        from penstock.engine.loader import Loader
        from penstock.outputs.numpy import NumpyOutput

        return Loader(
            self.definition, NumpyOutput(ids), threads=threads, prefetch=prefetch, max_bytes=max_bytes,
            timeout=timeout, isolate=isolate, workers=workers, on_worker_death=on_worker_death,
        )  # fmt: skip

    def to_torch(
        self, *, device: torch.device | str | int | None = None, pin_memory: bool = False, ids: DTypeLike = "int64",
        threads: int | None = None, prefetch: int = 3, max_bytes: int = 512 << 20, timeout: float | None = None,
        isolate: bool = False, workers: int = 0, on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> Loader[dict[str, torch.Tensor]]:  # fmt: skip
        """Returns a loader of dicts of torch tensors; columns of strings are lists. Other options: see `to_numpy`.

        `device` is where tensors are placed; `pin_memory` makes that copy asynchronous.

        >>> next(iter(ps.from_arrays({"x": range(4)}).batch(2).to_torch(threads=0)))
        {'x': tensor([0, 1])}
        """
        from penstock.outputs.torch import TorchOutput
        from penstock.outputs.torch_loader import TorchLoader

        return TorchLoader(
            self.definition, TorchOutput(device, pin_memory, ids), threads=threads, prefetch=prefetch,
            max_bytes=max_bytes, timeout=timeout, isolate=isolate, workers=workers, on_worker_death=on_worker_death,
        )  # fmt: skip

    def to_jax(
        self, *, sharding: jax.sharding.Sharding | Any | None = None, ids: DTypeLike = "int32",
        micro_batches: int = 1, threads: int | None = None, prefetch: int = 3, max_bytes: int = 512 << 20,
        timeout: float | None = None, isolate: bool = False, workers: int = 0,
        on_worker_death: Literal["raise", "restart"] = "raise",
    ) -> Loader[dict[str, jax.Array]]:  # fmt: skip
        """Returns a loader of dicts of JAX arrays. Other options: see `to_numpy`.

        Args:
            sharding: a sharding or a device; over several processes each one reads the rows that its devices hold.
            micro_batches: with k, arrays of shape (k, rows / k, ...) for gradient accumulation.

        >>> next(iter(ps.from_arrays({"x": range(4)}).batch(2).to_jax(threads=0)))["x"].tolist()
        [0, 1]
        """
        from penstock.engine.loader import Loader
        from penstock.outputs.jax import JaxOutput, shared_by

        output = JaxOutput(sharding, ids, micro_batches)
        return Loader(
            shared_by(self.definition, output), output, threads=threads, prefetch=prefetch, max_bytes=max_bytes,
            timeout=timeout, isolate=isolate, workers=workers, on_worker_death=on_worker_death,
        )  # fmt: skip

    # Inspection.

    def rows(self) -> RowSource:
        """Returns the rows of the first epoch as a sequence: `len`, and `read(indices)` for many at once."""
        from penstock.plan.row_source import RowSource

        return RowSource(self.definition)

    def peek(self, rows: int = 5) -> list[dict[str, Any]]:
        """Returns the first rows of the first epoch as dicts."""
        from penstock.plan.describe import peek

        return peek(self.definition, rows)

    def fingerprint(self) -> str:
        """Returns a hash that is equal for pipelines with the same rows in the same order."""
        return self.definition.fingerprint()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.definition.parts() == other.definition.parts()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __repr__(self) -> str:
        from penstock.plan.describe import show

        return show(self.definition)
