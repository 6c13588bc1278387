"""A program loads what it uses: no step, output, source or engine before a verb asks for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent
FAMILIES = "".join(path.read_text() for path in (SOURCE / "pipeline").glob("*.py"))
VERBS = set(re.findall(r"from penstock\.steps\.(\w+) import", FAMILIES)) - {"base"}
WINDOWS = "p = ps.open_tokens(range(99)).windows(4).shuffle(seed=7).batch(4)"


def ours(code: str) -> set[str]:
    """Our modules, without `penstock.`, that are loaded after `code` in a fresh interpreter."""
    shown = "print(*(m.removeprefix('penstock.') for m in sys.modules if m.startswith('penstock.')))"
    script = f"import penstock as ps, sys\n{code}\n{shown}"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


def steps(code: str) -> set[str]:
    return {name.removeprefix("steps.") for name in ours(code) if name.startswith("steps.")} & VERBS


def test_looking_a_name_up_loads_its_module_alone() -> None:
    few = {"_version", "core", "core.arguments", "core.errors", "core.signals", "plan", "plan.inspection"}
    loaded = ours("ps.open_store")
    assert {name for name in loaded if name.partition(".")[0] not in ("pipeline", "read")} <= few
    assert ours("ps.Pipeline.windows, ps.UsageError") <= ours("ps.open_store")


def test_a_pipeline_loads_the_steps_that_it_uses() -> None:
    assert len(VERBS) > 12
    assert steps(WINDOWS) == {"windows", "shuffle", "batch"}


def test_a_loader_loads_its_own_output() -> None:
    code = f"{WINDOWS}\nnext(iter(p.to_numpy(threads=0)))"
    assert steps(code) == {"windows", "shuffle", "batch"}
    loaded = ours(code)
    assert {name for name in loaded if name.startswith("outputs.")} == {"outputs.numpy", "outputs.floats"}
    unused = (
        "preparation",
        "facades",
        "torch_data",
        "cli",
        "view",
        "testing",
        "tokenizers",
        "codecs",
        "chat",
        "augment",
    )
    assert {name for name in loaded if name.startswith(unused)} == set()


def test_a_reader_loads_its_own_source() -> None:
    formats = {"sources.text", "sources.jsonl", "sources.parquet", "sources.tar", "sources.folders", "sources.tokens"}
    assert ours("ps.from_texts(['a'])") & formats == set()
    assert ours("ps.open_tokens([1])") & formats == {"sources.tokens"}


REMOTE = ("storage.object", "storage.page", "storage.retry", "storage.hedge", "storage.aws", "store.remote")


def remote(loaded: set[str]) -> set[str]:
    """Modules that only read from object stores and other remote storage."""
    return {name for name in loaded if name.startswith(REMOTE)}


def test_a_local_store_loads_nothing_that_reads_remote_ones(tmp_path: Path) -> None:
    store = penstock.prepare(penstock.from_texts(["a text of some bytes"]), "bytes", tmp_path / "store").path
    opened = WINDOWS.replace("ps.open_tokens(range(99))", f"ps.open_store({str(store)!r})")
    for code in (WINDOWS, opened):
        loaded = ours(code)
        assert remote(loaded) == set()
        assert loaded & {"sources.formats", "sources.splits", "sources.compressed"} == set()
    listed = "next(iter(p.to_numpy(threads=0))); import penstock.storage.filesystem as f; f.expand('.')"
    assert remote(ours(f"{opened}; {listed}")) == set()


def test_a_pipeline_of_tokens_reads_no_configuration_and_mixes_nothing() -> None:
    shown = "print(*sys.modules)"
    script = f"import sys\nimport penstock as ps\n{WINDOWS}\n{shown}"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(out.stdout.split()) & {"tomllib", "difflib", "socket", "fractions"} == set()


def test_this_test_can_fail() -> None:
    assert remote(ours("import penstock.store.remote_store")) >= {"storage.page_cache", "storage.object_client"}
    assert "steps.pack" in ours("import penstock.steps.pack")
    assert steps("ps.open_tokens(range(99)).pack(8)") >= {"pack"}
