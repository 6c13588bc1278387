"""The law, on every reader, every media verb and the steps of the facades."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Pipeline
from penstock.testing import assert_elastic, assert_exact_resume
from penstock.testing.resume import assert_same_batches, batches

from .readers import FACADES, MEDIA, READERS, make_files

ALL: dict[str, Callable[[Path, int], Pipeline]] = READERS | MEDIA | FACADES


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("readers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(root / "cache"))
        make_files(root)
        yield root


@pytest.mark.parametrize("name", ALL)
def test_resume_worlds_threads_and_batch_sizes(name: str, files: Path) -> None:
    assert_exact_resume(lambda: ALL[name](files, 12), most=7)
    assert_elastic(lambda b: ALL[name](files, b), batch=24, worlds=(1, 2, 3, 4), threads=(0, 1, 2), most=3)


@pytest.mark.parametrize("name", READERS)
def test_child_processes_make_the_same_batches(name: str, files: Path) -> None:
    make = READERS[name]
    expected = batches(make(files, 12).to_numpy(threads=0), 4)
    assert_same_batches(expected, batches(make(files, 12).to_numpy(workers=1), 4))
