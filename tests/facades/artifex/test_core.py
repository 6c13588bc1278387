"""Every dataset is a source of the core: same rows for any number of threads and after resume, and no JAX needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.facades.artifex.audio.config import AudioModalityConfig
from penstock.facades.artifex.audio.synthetic import SyntheticAudioDataset
from penstock.facades.artifex.datasets.split import split_dataset
from penstock.facades.artifex.image.mnist_like import MNISTLikeDataset
from penstock.facades.artifex.image.modality import ImageModalityConfig
from penstock.facades.artifex.image.synthetic import SyntheticImageDataset
from penstock.facades.artifex.multimodal.paired import MultiModalPairedDataset
from penstock.facades.artifex.multimodal.synthetic import MultiModalDataset
from penstock.facades.artifex.text.dataset import SimpleTextDataset
from penstock.facades.artifex.text.synthetic import SyntheticTextDataset
from penstock.pipeline import Pipeline
from penstock.sources.base import Source
from penstock.testing import assert_elastic

ROOT = Path(__file__).parents[3]
SMALL = ImageModalityConfig(height=8)
DATASETS = {
    "images": lambda seed: SyntheticImageDataset(SMALL, 30, "circles", rngs=seed),
    "digits": lambda seed: MNISTLikeDataset(SMALL, 30, rngs=seed),
    "texts": lambda seed: SyntheticTextDataset(None, 30, rngs=seed),
    "strings": lambda seed: SimpleTextDataset(None, [f"text {i + seed}" for i in range(30)]),
    "audio": lambda seed: SyntheticAudioDataset(AudioModalityConfig(duration=0.05, n_mels=8), 30, rngs=seed),
    "multi": lambda seed: MultiModalDataset(["image", "text"], 30, image_shape=(8, 8, 1), rngs=seed),
    "paired": lambda seed: MultiModalPairedDataset(
        [("a", "b")], {"a": np.arange(30) + seed, "b": np.arange(60).reshape(30, 2)}
    ),
    "split": lambda seed: split_dataset(SyntheticImageDataset(SMALL, 40, rngs=seed), 0.75)[0],
}


@pytest.mark.parametrize("name", DATASETS)
def test_pipeline_over_a_dataset(name):
    dataset = DATASETS[name](0)
    assert isinstance(dataset, Source)
    assert len(dataset) == 30

    def batches(threads, start=None):
        loader = Pipeline(DATASETS[name](0)).shuffle(seed=7).batch(7, remainder="short").to_numpy(threads=threads)
        if start:
            loader.load_state_dict(start)
        return loader, [{k: np.asarray(v).tolist() for k, v in batch.items()} for batch in loader]

    loader, expected = batches(0)
    assert [len(next(iter(b.values()))) for b in expected] == [7, 7, 7, 7, 2]
    assert batches(3)[1] == expected
    part = Pipeline(dataset).shuffle(seed=7).batch(7, remainder="short").to_numpy(threads=0)
    run = iter(part)
    next(run), next(run)
    assert batches(2, part.state_dict())[1] == expected[2:]
    facts = loader.why(0, 0)
    assert facts["record"] in range(30)
    assert facts["from"]["row"] in range(40)


def test_worlds_threads_and_batch_sizes_cut_the_same_sequence():
    assert_elastic(lambda size: Pipeline(DATASETS["digits"](0)).shuffle(seed=3).batch(size))


@pytest.mark.parametrize("name", DATASETS)
def test_fingerprints_tell_data_apart(name):
    make = DATASETS[name]
    assert make(0).fingerprint() == make(0).fingerprint() != make(1).fingerprint()
    assert make(0).describe()["records"] == 30


def test_reading_needs_no_jax():
    code = """
import sys
import numpy as np
from penstock.pipeline import Pipeline
from penstock.facades.artifex.image.synthetic import SyntheticImageDataset
from penstock.facades.artifex.text.synthetic import SyntheticTextDataset
from penstock.facades.artifex.audio.synthetic import SyntheticAudioDataset
from penstock.facades.artifex.multimodal.synthetic import MultiModalDataset
from penstock.facades.artifex.loaders import cached, epochs, multimodal, pipeline, preprocess
made = SyntheticImageDataset(rngs=3), SyntheticTextDataset(), SyntheticAudioDataset(), MultiModalDataset(["text"])
for dataset in made:
    for batch in Pipeline(dataset).shuffle(1).batch(4).to_numpy(threads=0):
        break
assert not {"jax", "torch", "flax"} & set(sys.modules), "a framework was imported"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spoiled = code.replace("assert not", "import jax\nassert not")
    assert subprocess.run([sys.executable, "-c", spoiled], capture_output=True, check=False).returncode != 0


DIGESTS = """
import numpy as np
from penstock.core.hashing import content_id
from tests.facades.artifex.test_stable import content
print(*content(), sep="\\n")
"""


@pytest.mark.parametrize("salt", ["0", "12345"])
def test_the_same_in_another_process(salt):
    from tests.facades.artifex.test_stable import content

    environment = {**os.environ, "PYTHONHASHSEED": salt}
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == content()
