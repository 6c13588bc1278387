"""Writes `facade_states.json`: a state of each kind of loader and dataset of the facades, and the batches after it.

The file holds states as the code before the restructuring (commit 9028c50) wrote them. Do not write it again: it shows
that states saved by released code still load.

PYTHONPATH=/path/to/old/src python tests/golden/make_facade_states.py
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

PATH = Path(__file__).with_name("facade_states.json")
TEXTS = [f"text number {i} of some" for i in range(40)]
RECORDS = [{"n": i, "text": f"record {i}"} for i in range(40)]


def engine(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": record["n"] * 3}


def plain(value: Any) -> Any:
    """A batch as JSON."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "__array__") else value


def _capibara(**settings: Any) -> Callable[[str], Any]:
    def make(folder: str) -> Any:
        data = settings.get("data", TEXTS)
        options = {k: v for k, v in settings.items() if k != "data"}
        data = data() if callable(data) else data
        return ps.CapibaraDataLoader(
            tokenizer="bytes", dataset_name=data, batch_size=6, max_length=12, seed=5, cache_dir=folder, **options
        )

    return make


def _hf_stream() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"text": TEXTS}).to_iterable_dataset(num_shards=3)


def _built(dataset: Callable[[], Any], **options: Any) -> Callable[[str], Any]:
    def make(folder: str) -> Any:
        builder = ps.DataLoaderBuilder().with_dataset(dataset()).with_batch_size(4)
        builder = builder.with_shuffle().with_seed(3) if options.get("shuffle") else builder
        return builder.build()

    return make


def _images(count: int = 10) -> Any:
    return ps.SyntheticImageDataset(ps.ImageModalityConfig(height=4, width=4), dataset_size=count, rngs=2)


class _Batches:
    """Batches of `get_batch`, for what is not iterated."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.state_dict, self.load_state_dict = made.state_dict, made.load_state_dict

    def __iter__(self) -> Any:
        while True:
            yield self.made.get_batch(3)


def _stream() -> Any:
    return ps.StreamingPreprocessedDataset(RECORDS, engine, buffer_size=6, seed=4)


LOADERS: dict[str, Callable[[str], Any]] = {
    "gpt windows": lambda folder: ps.create_dataloader(
        ps.GPTDatasetV1(" ".join(TEXTS), "bytes", max_length=8, stride=5), batch_size=4, seed=7
    ),
    "builder, map": _built(lambda: ps.PreprocessedDataset(RECORDS, engine), shuffle=True),
    "builder, list": _built(lambda: [{"x": i} for i in range(30)], shuffle=True),
    "builder, stream": _built(_stream),
    "stream dataset": lambda folder: _stream(),
    "capibara": _capibara(),
    "capibara languages": _capibara(data=lambda: {"de": TEXTS[:25], "sw": TEXTS[25:]}),
    "capibara stream": _capibara(data=_hf_stream, shuffle_buffer=8),
    "artifex simple": lambda folder: ps.create_simple_data_loader(_images(), 3, seed=6),
    "artifex training": lambda folder: ps.create_training_pipeline(_images(), 2, seed=6),
    "artifex epochs": lambda folder: ps.create_multi_epoch_data_loader(_images(), 3, 3, seed=6),
    "artifex prefetch": lambda folder: ps.PrefetchDataLoader(_images(), 3, seed=6),
    "artifex unaligned": lambda folder: ps.create_multi_modal_loader(
        [{"images": i} for i in range(12)], [{"text_tokens": 9 * i} for i in range(10)], 2, align=False, seed=1
    ),
    "artifex dataset": lambda folder: _Batches(_images()),
    "artifex cached": lambda folder: _Batches(ps.CachedLoader([{"x": i} for i in range(10)], 4, seed=8)),
}


def state_of(make: Callable[[str], Any], folder: str) -> dict[str, Any]:
    """The state after two steps, and the three steps that follow."""
    loader = make(folder)
    running = iter(loader)
    _ = next(running), next(running)
    state = json.loads(json.dumps(loader.state_dict()))
    return {"state": state, "after": plain(list(islice(running, 3)))}


def after(make: Callable[[str], Any], folder: str, state: dict[str, Any]) -> Any:
    """The three steps that follow a state."""
    loader = make(folder)
    loader.load_state_dict(state)
    return json.loads(json.dumps(plain(list(islice(loader, 3)))))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PATH.write_text(
            json.dumps({name: state_of(make, folder) for name, make in LOADERS.items()}, separators=(",", ":")) + "\n"
        )
