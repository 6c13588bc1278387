"""Pipelines that begin with data in memory, or with a dataset of another library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.arguments import explained
from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline
from penstock.read.common import OnError, PathLike, begin

if TYPE_CHECKING:
    import datasets


@explained
def from_texts(texts: Sequence[str]) -> Pipeline:
    """Begins with strings in memory: each is a record `{"text": ...}`.

    >>> ps.from_texts(["one", "two"]).peek(1)
    [{'text': 'one'}]
    """
    from penstock.sources.arrays import Texts

    return begin(Texts(texts))


@explained
def from_arrays(columns: Mapping[str, Any]) -> Pipeline:
    """Begins with columns in memory (arrays, lists, `Ragged`), one row per record.

    >>> ps.from_arrays({"x": [1, 2], "y": [[1, 2], [3, 4]]}).peek(1)
    [{'x': np.int64(1), 'y': array([1, 2])}]
    """
    from penstock.sources.arrays import Arrays

    return begin(Arrays(columns))


@explained
def from_records(records: Any, columns: Sequence[str] | None = None) -> Pipeline:
    """Begins with records in memory: a list of dicts, or a table of pandas, Polars or Arrow, one row per record.

    Each column gets one type from all records. A field that a record lacks is None; among numbers that is refused.

    Args:
        records: also a list of named tuples, dataclasses or tuples; any object with the Arrow C stream interface.
        columns: read only these; of tuples, the names of their items.

    >>> ps.from_records([{"text": "one", "n": 1}, {"text": "two", "n": 2}]).peek(1)
    [{'text': 'one', 'n': np.int64(1)}]
    """
    from penstock.sources.record_source import records_source

    return begin(records_source(records, columns))


@explained
def from_dataset(
    dataset: Any, columns: Sequence[str] | None = None, *, version: str | None = None, on_error: OnError = "raise",
    budget: int | float | None = None,
) -> Pipeline:  # fmt: skip
    """Begins with any dataset that has `len(dataset)` and `dataset[i]`, such as a torch Dataset.

    A record may be a dict, tuple, named tuple, dataclass, string or array; tensors become arrays. A field's type is
    that of the first record: arrays are stacked, lists of numbers are ragged. One Python call per record, from many
    threads at once; one for many records if the dataset has `__getitems__(numbers)`, as torch names it.

    Args:
        columns: the fields to read; of tuples, the names of their items (default "0", "1", ...); of records that are
            one value, its name (default "text" of strings, "bytes", "image" of Pillow images, "data" of anything else).
        version: names the content for the fingerprint. Without it, and without an attribute `fingerprint` of the
            dataset, every record is read once to make one.
        on_error, budget: as in `read_text`.

    >>> pairs = [(0.5, 3), (1.5, 4)]
    >>> ps.from_dataset(pairs, ["x", "label"]).peek(1)
    [{'x': np.float64(0.5), 'label': np.int64(3)}]
    """
    from penstock.sources.record_source import dataset_source

    return begin(dataset_source(dataset, columns, version), on_error, budget)


@explained
def from_stream(
    stream: Callable[[], Iterable[Any]] | Iterable[Any], columns: Sequence[str] | None = None, *,
    length: int | None = None, version: str | None = None, buffer: int = 10_000, on_error: OnError = "raise",
    budget: int | float | None = None,
) -> Pipeline:  # fmt: skip
    """Begins with a stream: a generator function, or an iterable that can be read again. Records come in its order.

    The promise is narrower than elsewhere: the stream must give the same records each time. Resuming reads over what
    came before; every rank reads all of it and keeps its rows. A `.shuffle()` far from the stream's order is refused.

    Args:
        columns: as in `from_dataset`.
        length: the number of records; by default one pass counts them.
        version: names the content for the fingerprint, which otherwise knows the function's code only.
        buffer: records that are held, for threads that ask out of order; fewer where they are more than 64 MiB.
        on_error, budget: as in `read_text`.

    >>> def numbers():
    ...     for i in range(10):
    ...         yield {"n": i}
    >>> ps.from_stream(numbers).batch(4).to_numpy().batch_at(1)["n"].tolist()
    [4, 5, 6, 7]
    """
    from penstock.sources.stream import StreamSource

    source = StreamSource(stream, columns, length=length, version=version, buffer=buffer)
    return begin(source, on_error, budget)


@explained
def from_hf(dataset: datasets.Dataset | PathLike, split: str | None = None, *, config: str | None = None) -> Pipeline:
    """Begins with a Hugging Face dataset: each row is a record, read from its Arrow table in blocks.

    Images and audio stay encoded, for `.decode_images(224, column="image")`. `.classes` are the names of its labels.

    Args:
        dataset: a `datasets.Dataset`; or the name of one on the hub or in the cache; or a folder: of `save_to_disk`, or
            of Parquet, JSON, CSV, image or audio files. What `load_dataset` opens by name, it downloads.
        split: of a dataset by name or folder; needed if there are several.
        config: the configuration (subset) of a dataset by name.

    >>> import datasets
    >>> ps.from_hf(datasets.Dataset.from_dict({"x": [1, 2]})).peek(1)
    [{'x': np.int64(1)}]
    """
    from penstock.sources.hf import HFDataset

    if isinstance(dataset, str | os.PathLike):
        from penstock.sources.hf import load_named

        return begin(HFDataset(load_named(dataset, split, config)))
    if split is not None or config is not None:
        raise UsageError(
            "split= and config= with the name of a dataset", got=type(dataset).__name__, fix="dataset[split]"
        )
    return begin(HFDataset(dataset))


@explained
def from_tfds(folder: PathLike | Any, split: str = "train", *, decoders: Mapping[str, Any] | None = None) -> Pipeline:
    """Begins with a prepared TensorFlow dataset: its folder, name, builder or data source. Needs no TensorFlow.

    Args:
        split: also cut, as "train[:10%]".
        decoders: `{"image": tfds.decode.SkipDecoding()}` keeps images encoded, for `.decode_images(column="image")`.
    """
    from penstock.sources.tfds import TFDSource

    return begin(TFDSource.open(folder, split, decoders))
