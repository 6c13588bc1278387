"""Defaults that verbs and readers show are those of the step, source or loader that they call."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.engine.loader import Loader
from penstock.preparation.run import prepare
from penstock.sources.dolma import open_dolma
from penstock.sources.folders import ImageFolder
from penstock.sources.jsonl import JsonlFiles
from penstock.sources.megatron import open_megatron
from penstock.sources.nanogpt import open_nanogpt
from penstock.sources.pairs import Pairs
from penstock.sources.parquet import ParquetFiles
from penstock.sources.recordings import AudioFolder
from penstock.sources.tar import TarShards
from penstock.sources.text import TextFiles
from penstock.sources.tokens import TokenArray, TokenStore
from penstock.steps.batch import Batch
from penstock.steps.bucket import Bucket
from penstock.steps.budget import BatchTokens
from penstock.steps.decode_audio import DecodeAudio
from penstock.steps.decode_images import DecodeImages
from penstock.steps.filter import Filter
from penstock.steps.limit import Repeat
from penstock.steps.map import Map
from penstock.steps.map_batches import MapBatches
from penstock.steps.pack import Pack
from penstock.steps.pad import Pad
from penstock.steps.shuffle import Shuffle
from penstock.steps.skip_errors import SkipErrors
from penstock.steps.windows import Windows

VERB = penstock.Pipeline
PAIRS: list[tuple[Callable[..., Any], Any]] = [
    (VERB.shuffle, Shuffle), (VERB.repeat, Repeat), (VERB.windows, Windows), (VERB.pack, Pack), (VERB.pad, Pad),
    (VERB.decode_images, DecodeImages), (VERB.decode_audio, DecodeAudio), (VERB.map, Map), (VERB.filter, Filter),
    (VERB.map_batches, MapBatches), (VERB.skip_errors, SkipErrors), (VERB.batch, Batch), (VERB.bucket, Bucket),
    (VERB.batch_tokens, BatchTokens), (VERB.tokenize, prepare), (penstock.prepare, prepare),
    (VERB.to_numpy, Loader), (VERB.to_torch, Loader), (VERB.to_jax, Loader),
    (penstock.read_text, TextFiles), (penstock.read_jsonl, JsonlFiles), (penstock.read_parquet, ParquetFiles),
    (penstock.read_images, ImageFolder), (penstock.read_audio, AudioFolder), (penstock.read_tar, TarShards),
    (penstock.open_store, TokenStore), (penstock.open_tokens, TokenArray), (penstock.open_megatron, open_megatron),
    (penstock.open_nanogpt, open_nanogpt), (penstock.open_dolma, open_dolma), (penstock.pair, Pairs.of),
]  # fmt: skip
OWN = {"limits", "suffixes", "on_error"}  # None stands for the default of the source, or for what the pipeline says


def defaults(function: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(function):
        return {f.name: f.default for f in dataclasses.fields(function)}
    return {p.name: p.default for p in inspect.signature(function).parameters.values()}


def differences(shown: Any, real: Any) -> dict[str, tuple[Any, Any]]:
    mine, theirs = defaults(shown), defaults(real)
    none = (inspect.Parameter.empty, dataclasses.MISSING)
    both = {name: (mine[name], theirs[name]) for name in mine.keys() & theirs.keys() - OWN}
    stated = {name: (a, b) for name, (a, b) in both.items() if a not in none and b not in none}
    return {name: (a, b) for name, (a, b) in stated.items() if a != b}


@pytest.mark.parametrize(("shown", "real"), PAIRS)
def test_defaults_agree(shown: Callable[..., Any], real: Any) -> None:
    assert defaults(shown).keys() & defaults(real).keys(), "nothing to compare"
    assert differences(shown, real) == {}


def test_every_choice_of_a_step_is_offered() -> None:
    """All fields of a step and all options of the loader are arguments of its verb."""
    hidden = {Bucket: {"sizes"}}
    for shown, real in PAIRS[:14] + PAIRS[16:19]:
        missing = defaults(real).keys() - defaults(shown).keys() - hidden.get(real, set())
        assert missing - {"self", "definition", "output"} == set(), shown.__name__


def test_another_default_is_noticed() -> None:
    def verb(seed: int = 1, *, block: int | None = None) -> None: ...

    assert differences(verb, Shuffle) == {"seed": (1, 0)}
