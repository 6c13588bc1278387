"""Every reader, verb, step and kind of node is in a pipeline that the tests of the law run."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import penstock as ps
from penstock import Pipeline
from penstock.plan.branches import Combined
from penstock.plan.build import build
from penstock.plan.definition import Definition, OfPipeline
from penstock.read.config import _readers, _verbs
from penstock.steps.base import Step
from penstock.steps.media import DecodedMedia
from penstock.steps.node import ContentNode, Node, WrapperNode
from penstock.steps.renumbered import Renumbered

from .calls import calls
from .pipelines import PIPELINES, WHOLE
from .readers import FACADES, MEDIA, READERS, make_files
from .test_law_packed import PACKED, PLANNED
from .verbs import VERBS

# Not in loaders: `prepare` and `tokenize` read texts and counts of rows through these, in one pass.
PREPARATION = {"_Counts", "_Texts", "CountRows", "TextOfColumn", "TextOfRecord", "AllColumns", "TokenRows"}
BASES = {WrapperNode.__name__, ContentNode.__name__, Renumbered.__name__, DecodedMedia.__name__}
DERIVED = {"_Each"}  # how `.bucket()` and `.batch_tokens()` say what a batch is; no step of a pipeline


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Pipeline]]:
    root = tmp_path_factory.mktemp("complete")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(root / "cache"))
        make_files(root)
        made = [make(12) for table in (PIPELINES, WHOLE, VERBS, PACKED) for make in table.values()]
        made += [make(False) for make in PLANNED.values()]
        made += [make(root, 12) for table in (READERS, MEDIA, FACADES) for make in table.values()]
        yield made


def definitions(of: Definition) -> Iterator[Definition]:
    yield of
    inner = of.origin.branches if isinstance(of.origin, Combined) else ()
    for definition in (of.origin.definition,) if isinstance(of.origin, OfPipeline) else inner:
        yield from definitions(definition)


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.inputs():
        yield from nodes(child)


def concrete(base: type) -> set[str]:
    """Names of all classes in the library that derive from `base` and can be made."""
    for module in pkgutil.walk_packages(ps.__path__, "penstock."):
        if ".cli" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, left = set(), [base]
    while left:
        left += (below := left.pop().__subclasses__())
        found |= {one for one in below if not inspect.isabstract(one) and one.__module__.startswith("penstock.")}
    return {f"{one.__module__.rpartition('.')[2]}.{one.__qualname__}" for one in found}


def named(found: set[type]) -> set[str]:
    return {f"{one.__module__.rpartition('.')[2]}.{one.__qualname__}" for one in found}


def short(names: set[str]) -> set[str]:
    return {name for name in names if name.rpartition(".")[2] not in PREPARATION | BASES | DERIVED}


def test_every_reader_and_verb(pipelines: list[Pipeline]) -> None:
    used = {name for pipeline in pipelines for name in calls(pipeline)}
    assert set(_readers()) - used == set()
    # A rank's rows are what assert_elastic compares: it makes each pipeline for every rank of a world.
    assert set(_verbs()) - used == {"shard"}


def test_every_step(pipelines: list[Pipeline]) -> None:
    every = [one for pipeline in pipelines for one in definitions(pipeline.definition)]
    used = {type(step) for definition in every for step in definition.steps}
    assert short(concrete(Step) - named(used)) == set()


def test_every_kind_of_node(pipelines: list[Pipeline]) -> None:
    roots = [build(one).root for pipeline in pipelines for one in definitions(pipeline.definition)]
    used = {type(node) for root in roots for node in nodes(root)}
    assert short(concrete(Node) - named(used)) == set()
