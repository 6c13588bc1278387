"""Everything public that holds data or settings pickles, deep-copies, and reaches other processes.

The tables are compared with the library: a new reader, verb, step or node fails `tests/resume/test_law_is_complete.py`,
a new public class, factory or output fails here, until it is in a table.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import penstock as ps
from penstock.augment import Flip, Rotate
from penstock.core.columns import Ragged
from penstock.engine.output import Output
from tests.plan.test_pickling import digest
from tests.resume.test_law_is_complete import concrete, pipelines

HOW: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "protocol 2": lambda value: pickle.loads(pickle.dumps(value, 2)),
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
    "deepcopy": copy.deepcopy,
}
TEXTS = [f"text number {i} of some" for i in range(30)]
RECORDS = [{"n": i, "text": f"record {i}"} for i in range(30)]

__all__ = ["pipelines"]  # a fixture


def sees(value: Any, depth: int = 0) -> Any:
    """A value, or the first items of what has items, as plain data that can be compared between processes."""
    if isinstance(value, ps.Pipeline):
        return digest(value)
    if isinstance(value, ps.CachedLoader | ps.BaseDataset):
        return [sees(value.get_batch(indices=[3, 1])), value.fingerprint() if hasattr(value, "fingerprint") else ""]
    if isinstance(value, dict):
        return {str(name): sees(item, depth + 1) for name, item in value.items()}
    if isinstance(value, str | int | float | bool | None | Path):
        return str(value)
    if isinstance(value, Ragged):
        return [row.tolist() for row in value]
    if hasattr(value, "__array__"):
        return [str(np.asarray(value).dtype), np.asarray(value).tolist()]
    if isinstance(value, ps.PromptEngine):
        return sees(value(RECORDS[2]))
    if hasattr(value, "encode"):
        return sees(value.encode(["some text"] if isinstance(value, ps.BulkEncoder) else "some text"), depth + 1)
    if isinstance(value, list | tuple):
        return [sees(item, depth + 1) for item in value]
    if depth < 3 and hasattr(value, "__iter__"):
        return [sees(item, depth + 1) for item in itertools.islice(value, 3)]
    if hasattr(value, "__getitem__"):
        return [sees(value[i], depth + 1) for i in (0, 3)]
    return repr(value)


def _images() -> Any:
    return ps.SyntheticImageDataset(ps.ImageModalityConfig(height=4, width=4), dataset_size=12, rngs=2)


def _twice(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": record["n"] * 2}


def _folder() -> Path:
    path = Path(tempfile.mkdtemp())
    (path / "a.txt").write_text("\n".join(TEXTS))
    return path


def _paired() -> Any:
    data = {"image": [np.full((2, 2, 1), i) for i in range(6)], "other": np.arange(6)}
    return ps.MultiModalPairedDataset([("image", "other")], data)


def _capibara() -> Any:
    return ps.CapibaraDataLoader(
        tokenizer="bytes", dataset_name=TEXTS, batch_size=6, max_length=12, seed=5, cache_dir=_folder()
    )


CLASSES: dict[str, Callable[[], Any]] = {
    "Pipeline": lambda: ps.from_records(RECORDS).map(_twice).shuffle(seed=3).batch(4),
    "Loader": lambda: ps.from_records(RECORDS).shuffle(seed=3).batch(4).to_numpy(threads=2),
    "Ragged": lambda: Ragged.of([[1, 2], [3]]),
    "Limits": lambda: ps.Limits(pixels=100),
    "BulkEncoder": lambda: ps.BulkEncoder(ps.as_tokenizer("bytes")),
    "Augment": lambda: ps.Augment(Flip(), Rotate(10), seed=3),
    "Boxes": lambda: ps.Boxes(labels="label"),
    "Keypoints": lambda: ps.Keypoints(pairs=((0, 1),)),
    "Interleave": lambda: ps.Interleave(ps.as_tokenizer("bytes"), {"image": 300}),
    "ImageTokens": lambda: ps.ImageTokens(patch=8),
    "AudioTokens": lambda: ps.AudioTokens(hop=80),
    "CapibaraConfig": ps.CapibaraConfig,
    "DataLoaderConfig": ps.DataLoaderConfig,
    "CapibaraDataLoader": _capibara,
    "PromptEngine": lambda: ps.PromptEngine("bytes", "{text}!"),
    "OutputSchema": ps.OutputSchema,
    "DataLoaderBuilder": lambda: ps.DataLoaderBuilder().with_dataset(RECORDS).with_batch_size(2).build(),
    "PreprocessedDataset": lambda: ps.PreprocessedDataset(RECORDS, _twice),
    "StreamingPreprocessedDataset": lambda: ps.StreamingPreprocessedDataset(RECORDS, _twice, buffer_size=6, seed=4),
    "TransformerDataset": lambda: ps.TransformerDataset(_folder() / "a.txt", "bytes", seq_length=8),
    "MicroTransformerTokenizer": ps.MicroTransformerTokenizer,
    "AudioModalityConfig": ps.AudioModalityConfig,
    "SyntheticAudioDataset": lambda: ps.SyntheticAudioDataset(ps.AudioModalityConfig(duration=0.01), rngs=2),
    "BaseDataset": _images,
    "CachedDataset": lambda: ps.CachedDataset(None, [np.full(2, i) for i in range(6)], preprocess=lambda x: x * 2),
    "BaseModalityConfig": ps.BaseModalityConfig,
    "ModalityConfiguration": lambda: ps.ModalityConfiguration("a", "text", {"b": 1}),
    "MemoryEfficientDataset": lambda: ps.MemoryEfficientDataset(
        None, [f"{i}" for i in range(6)], load=lambda path: np.full(2, int(path))
    ),
    "SubsetDataset": lambda: ps.SubsetDataset(_images(), [7, 5, 3, 1]),
    "TransformDataset": lambda: ps.TransformDataset(None, _images(), [lambda s: {**s, "images": s["images"] * 0.5}]),
    "ValidatedDataset": lambda: ps.ValidatedDataset(_images(), validate=lambda sample: True),
    "MNISTLikeDataset": lambda: ps.MNISTLikeDataset(dataset_size=6, rngs=1),
    "ImageModality": lambda: ps.ImageModality(ps.ImageModalityConfig(height=4), rngs=1).config,
    "ImageModalityConfig": lambda: ps.ImageModalityConfig(height=4),
    "ImageRepresentation": lambda: next(iter(ps.ImageRepresentation)),
    "SyntheticImageDataset": _images,
    "CachedLoader": lambda: ps.CachedLoader(_images(), 4, seed=8),
    "PrefetchDataLoader": lambda: ps.PrefetchDataLoader(_images(), 3, seed=6),
    "MultiModalPairedDataset": _paired,
    "MultiModalDataset": lambda: ps.MultiModalDataset(["image", "text"], 6, image_shape=(4, 4, 1), rngs=3),
    "SimpleTextDataset": lambda: ps.SimpleTextDataset(texts=TEXTS),
    "SyntheticTextDataset": lambda: ps.SyntheticTextDataset(dataset_size=6, rngs=3),
    "GPTDatasetV1": lambda: ps.GPTDatasetV1(" ".join(TEXTS), "bytes", max_length=8, stride=5),
}
RETURNED: dict[str, Callable[[], Any]] = {
    "create_dataloaders": lambda: ps.create_dataloaders(
        _folder() / "a.txt", _folder() / "a.txt", "bytes", batch_size=2, seq_length=8, pin_memory=False
    )[0],
    "create_dataloader": lambda: ps.create_dataloader(CLASSES["GPTDatasetV1"](), batch_size=4, seed=7),
    "create_preprocessed_dataset": lambda: ps.create_preprocessed_dataset(RECORDS, _twice),
    "create_dataset": lambda: ps.create_dataset(txt=" ".join(TEXTS), tokenizer="bytes", max_length=8, stride=4),
    "create_audio_dataset": lambda: ps.create_audio_dataset(config=ps.AudioModalityConfig(duration=0.01)),
    "create_image_dataset": lambda: ps.create_image_dataset("mnist_like", dataset_size=6, rngs=2),
    "create_text_dataset": lambda: ps.create_text_dataset(dataset_size=6, rngs=2),
    "create_synthetic_multi_modal_dataset": lambda: ps.create_synthetic_multi_modal_dataset(
        ["image"], 6, image_shape=(4, 4, 1), rngs=2
    ),
    "create_simple_data_loader": lambda: ps.create_simple_data_loader(_images(), 3, seed=4),
    "create_multi_epoch_data_loader": lambda: ps.create_multi_epoch_data_loader(_images(), 3, 2, seed=6),
    "create_multi_modal_loader": lambda: ps.create_multi_modal_loader(
        [{"images": i} for i in range(12)], [{"text_tokens": 9 * i} for i in range(10)], 2, align=False, seed=1
    ),
    "create_training_pipeline": lambda: ps.create_training_pipeline(_images(), 3, seed=4),
    "create_causal_lm_collate": lambda: _Applied(ps.create_causal_lm_collate(0, return_tensors="np")),
    "create_collate_fn": lambda: _Applied(ps.create_collate_fn(0, return_tensors="np")),
    "create_fim_collate": lambda: _Applied(ps.create_fim_collate(0, 7, 8, 9, seed=3, return_tensors="np")),
    "create_mlm_collate": lambda: _Applied(ps.create_mlm_collate(0, 9, 50, seed=3, return_tensors="np")),
    "create_preference_collate": lambda: _Applied(
        ps.create_preference_collate(0, return_tensors="np"), "prompt", "chosen", "rejected"
    ),
    "create_seq2seq_collate": lambda: _Applied(ps.create_seq2seq_collate(0, return_tensors="np")),
    "split_dataset": lambda: ps.split_dataset(_images())[0],
    "as_tokenizer": lambda: ps.as_tokenizer("bytes"),
    "to_dataset": lambda: ps.from_records(RECORDS).shuffle(seed=3).to_dataset(),
    "to_dataset, iterable": lambda: ps.from_records(RECORDS).shuffle(seed=3).to_dataset("iterable"),
    "to_torch": lambda: ps.from_arrays({"x": range(9)}).shuffle(seed=3).batch(2).to_torch(),
    "to_jax": lambda: ps.from_arrays({"x": range(9)}).shuffle(seed=3).batch(2).to_jax(threads=0),
    "to_numpy, child processes": lambda: ps.from_arrays({"x": range(9)}).shuffle(seed=3).batch(2).to_numpy(workers=1),
    "as_tuples": lambda: ps.from_arrays({"x": range(9), "y": range(9)}).batch(2).to_torch().as_tuples("y", "x"),
}


class _Applied:
    """A collate function as what it makes of two rows."""

    def __init__(self, collate: Any, *columns: str) -> None:
        self.collate, self.columns = collate, columns or ("input_ids", "labels")

    def __iter__(self) -> Iterator[Any]:
        yield self.collate([{name: list(range(5, 5 + n)) for name in self.columns} for n in (3, 1)])


def test_tables_are_complete() -> None:
    public = {name: getattr(ps, name) for name in ps.__all__}
    classes = {n for n, o in public.items() if inspect.isclass(o) and not issubclass(o, BaseException)}
    assert CLASSES.keys() == classes
    assert {name for name in public if name.startswith(("create_", "split_"))} - RETURNED.keys() == set()


def test_every_output_is_made_by_something_here(pipelines: list[ps.Pipeline]) -> None:
    """Outputs that the tables do not name are those of row loaders, tuples, child processes and facades."""
    inside = {"row_loader.RowBatches", "tuples.TupleOutput", "child.HostOutput", "pass_order.PassBatches"}
    inside |= {"collate.SameLabels", "collate.CollateOutput"}
    assert concrete(Output) - inside == {"numpy.NumpyOutput", "torch.TorchOutput", "jax.JaxOutput"}


def test_pipelines_of_every_reader_and_verb(pipelines: list[ps.Pipeline]) -> None:
    for pipeline in pipelines:
        expected = digest(pipeline)
        for how in HOW.values():
            again = how(pipeline)
            assert again == pipeline
            assert digest(again) == expected, pipeline


@pytest.mark.parametrize("name", CLASSES | RETURNED)
def test_objects(name: str) -> None:
    make = (CLASSES | RETURNED)[name]
    expected = json.dumps(sees(make()))
    assert " at 0x" not in expected
    for how in HOW.values():
        assert json.dumps(sees(how(make()))) == expected


@pytest.mark.parametrize("start", ["spawn", "forkserver"])  # never fork
def test_everything_reaches_other_processes(start: str, pipelines: list[ps.Pipeline]) -> None:
    objects = [make() for make in (CLASSES | RETURNED).values()]
    with multiprocessing.get_context(start).Pool(2) as pool:
        found = pool.map(sees, [*pipelines, *objects], chunksize=20)
    expected = [sees(value) for value in [*pipelines, *(make() for make in (CLASSES | RETURNED).values())]]
    assert list(map(json.dumps, found)) == list(map(json.dumps, expected))
