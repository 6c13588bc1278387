"""One meaning per verb: a prepared store holds the records that a loader delivers, in order, without the refilled ones.

Random pipelines of verbs are prepared and compared with two oracles that share no code with dropping:

- a model in plain Python decides what becomes of each record: kept, rejected, skipped with a ledger entry, or an error.
  The order and the random draws come from the pipeline's twin: the same verbs without filters and without anything bad,
  read through a loader, so that nothing is ever refilled;
- the loader over the pipeline itself, of which the rows that were not refilled must be the same.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, reject, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.codecs.audio import wav
from penstock.preparation import pipeline_texts
from penstock.read.config import _verbs
from tests.codecs.media_files import encoded_video, tone
from tests.resume.calls import calls

FILES = {
    "png": cv2.imencode(".png", np.zeros((6, 5, 3), np.uint8))[1].tobytes(),
    "wav": wav.encode(tone(0.02, 8000)[:, 0], 8000),
    "mp4": encoded_video(4, 4, "mp4", 8, 8),
    "cls": b"7",
}
BROKEN, NULL, POISON = "broken line", "null text", "a map raises"
COLUMNS = ["text", "n", "fate"]
NOT_A_STRING = "a string in column 'text'"


@dataclass(frozen=True)
class Verb:
    """One verb with its argument; `random` draws per record, `batched` works on columns."""

    name: str
    argument: int = 0
    random: bool = False
    batched: bool = False


@dataclass(frozen=True)
class Data:
    """Records of a file of JSON lines or of arrays: what is wrong with each, "" for nothing."""

    name: str
    fates: tuple[str, ...]

    @property
    def is_file(self) -> bool:
        return self.name.startswith("f")


@dataclass(frozen=True)
class Pipe:
    """A pipeline as data: a file or several pipelines (`how`), and verbs."""

    origin: Data | tuple[Pipe, ...]
    verbs: tuple[Verb, ...]
    weights: tuple[float, ...] = ()
    seed: int = 0
    stop: str = "all"
    how: str = "mix"

    @property
    def rejects(self) -> bool:
        """Whether rows may be rejected at its end; an exact filter leaves them out before."""
        below = any(p.rejects for p in self.origin) if isinstance(self.origin, tuple) else False
        return self._at_end(below, "filter", "skip_errors", "dedup")

    @property
    def moves(self) -> bool:
        """Whether an exact filter may not follow: a shuffle, a mixture, or a bad record that it would meet."""
        if isinstance(self.origin, Data):
            below = any(self.origin.fates)
        else:
            below = self.how == "mix" or any(p.moves for p in self.origin)
        return below or any(v.name in ("shuffle", "window_shuffle") for v in self.verbs)

    @property
    def draws(self) -> bool:
        """Whether rows may not be cached: a function draws random numbers."""
        below = any(p.draws for p in self.origin) if isinstance(self.origin, tuple) else False
        return below or any(v.random and v.name in ("map", "map_batches") for v in self.verbs)

    @property
    def filters(self) -> bool:
        below = any(p.filters for p in self.origin) if isinstance(self.origin, tuple) else False
        return self._at_end(below, "filter", "dedup")

    def _at_end(self, found: bool, *names: str) -> bool:
        for verb in self.verbs:
            found = (found or verb.name in names) and verb.name != "exact"
        return found


# The functions of the verbs. Each appends to the text, so that a text tells what was done to it.


def grow(record: dict[str, Any]) -> dict[str, Any]:
    if record["fate"] == POISON:
        raise ValueError("poison")
    return record | {"text": record["text"] + "+"}


def _random_grow(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return grow(record) | {"text": f"{grow(record)['text']}{rng.integers(10**6)}"}


_random_grow.__qualname__ = "grow"


def grow_rows(columns: Any) -> Any:
    return columns | {"text": [t if t is None else f"{t}*" for t in columns["text"]]}


def random_rows(columns: Any, keys: Any) -> Any:
    return columns | {
        "text": [t if t is None else f"{t}*{k % 997}" for t, k in zip(columns["text"], keys, strict=True)]
    }


def keeps(n: Any, residue: int) -> Any:
    return n % 7 != residue


def with_files(columns: Any) -> Any:
    """The columns, and a picture, a recording, a film and a part of a shard in each row."""
    made = {f"a.{kind}": [data] * len(columns["text"]) for kind, data in FILES.items()}
    return columns | made


def decoded(pipeline: ps.Pipeline, verb: Verb) -> ps.Pipeline:
    """The verb of media on a column that is made for it, and all columns as before."""
    files = pipeline.map_batches(with_files)
    if verb.name == "decode_images":
        files = files.decode_images(4, column="a.png")
    elif verb.name == "decode_audio":
        files = files.decode_audio(8000, column="a.wav", duration=0.01)
    elif verb.name == "decode_video":
        files = files.decode_video(2, (8, 8), column="a.mp4")
    else:
        files = files.decode_parts("a.cls")
    return files.select(*COLUMNS)


def applied(pipeline: ps.Pipeline, verb: Verb) -> ps.Pipeline:
    """The verb on a real pipeline."""
    if verb.name.startswith("decode"):
        return decoded(pipeline, verb)
    if verb.name == "shuffle" and verb.random:
        return pipeline.shuffle(verb.argument, block=4, window=2, lanes=2 if verb.batched else None)
    if verb.name == "dedup":
        return pipeline.dedup("n" if verb.random else "text")
    residue = verb.argument
    if verb.name == "map":
        return pipeline.map(_random_grow if verb.random else grow)
    if verb.name == "map_batches":
        return pipeline.map_batches(random_rows if verb.random else grow_rows)
    if verb.name == "filter" and verb.batched:
        return pipeline.filter(lambda c: keeps(c["n"], residue), batched=True)
    if verb.name == "filter":
        return pipeline.filter(lambda r: keeps(r["n"], residue))
    if verb.name == "skip_errors":
        return pipeline.skip_errors()
    if verb.name == "zip":
        other = ps.from_arrays({"other": np.arange(len(pipeline.rows()))})
        return pipeline.zip(other).drop("other") if verb.random else pipeline.zip(other).select(*COLUMNS)
    if verb.name == "enumerate":
        return pipeline.enumerate("number").drop("number")
    if verb.name == "exact":
        return pipeline.filter(lambda r: keeps(r["n"], residue), exact=True)
    if verb.name == "flat_map":
        return pipeline.flat_map(lambda r: [r, r], 2 if verb.random else None)
    if verb.name == "split":
        return pipeline.split({"most": 0.8, "rest": None}, seed=residue, shuffle=verb.random)["most"]
    if verb.name == "cache":
        return pipeline.cache(memory=1 << 20 if verb.random else None)
    if verb.name == "unbatch":
        batches = pipeline.batch(residue, remainder="short" if verb.random else "drop")
        return (batches.rebatch(3) if verb.batched and verb.random else batches).unbatch()
    if verb.name == "rename":
        return pipeline.rename({"n": "fate", "fate": "n"}).rename({"fate": "n", "n": "fate"})
    return getattr(pipeline, verb.name)(verb.argument)  # type: ignore[no-any-return]


def pipeline_of(pipe: Pipe, folder: Path, twin: bool) -> ps.Pipeline:
    """The pipeline; as `twin` without filters, and over data of which nothing is bad.

    Filters before an exact filter are exact in the twin too: what comes after counts the rows that are left.
    """
    last = max((i for i, verb in enumerate(pipe.verbs) if verb.name == "exact"), default=-1)
    if isinstance(pipe.origin, Data) and not pipe.origin.is_file:
        rows = [json.loads(line(pipe.origin, n, twin)) for n in range(len(pipe.origin.fates))]
        made = ps.from_arrays({name: [row[name] for row in rows] for name in COLUMNS})
    elif isinstance(pipe.origin, Data):
        path = folder / f"{pipe.origin.name}{'-twin' if twin else ''}.jsonl"
        path.write_text("".join(line(pipe.origin, n, twin) + "\n" for n in range(len(pipe.origin.fates))))
        made = ps.read_jsonl(path, fields=COLUMNS)
    else:
        parts = [pipeline_of(p, folder, twin) for p in pipe.origin]
        made = combined(pipe, parts)
    for i, verb in enumerate(pipe.verbs):
        if twin and verb.name == "filter" and i < last:
            made = applied(made, replace(verb, name="exact"))
        elif not (twin and verb.name in ("filter", "skip_errors")):
            made = applied(made, verb)
    return made


def combined(pipe: Pipe, parts: list[ps.Pipeline]) -> ps.Pipeline:
    if pipe.how == "concat":
        return ps.concat(parts)
    if pipe.how == "interleave":
        ends = ("continue", "stop", "restart")
        return ps.interleave(parts, at_end=ends[pipe.seed % 3])  # type: ignore[arg-type]
    return ps.mix(parts, pipe.weights, seed=pipe.seed, stop=pipe.stop)  # type: ignore[arg-type]


def line(data: Data, n: int, twin: bool) -> str:
    fate = "" if twin else data.fates[n]
    if fate == BROKEN:
        return "{"
    return json.dumps({"text": None if fate == NULL else f"{data.name}:{n}", "n": n, "fate": fate})


# The model.


class Raises(Exception):
    """A bad record that nothing skips."""


def outcome(pipe: Pipe, name: str, n: int, skips: bool, above: bool) -> tuple[str, str | None]:
    """What becomes of record `n` of the file `name`: "kept", "rejected", or "skipped" and for which reason.

    `above`: an outer pipeline skips what fails here. `skips`: records without a text are skipped.
    """
    chain: list[tuple[Verb, bool]] = []  # the verbs the record goes through, and whether an error there is skipped
    fate = follow(pipe, name, n, chain, above)
    if fate == BROKEN:
        return skipped(chain[0][1], "valid JSON")
    for verb, caught in chain:
        if verb.name == "filter" and not keeps(n, verb.argument):
            return "rejected", None
        if verb.name == "map" and fate in (POISON, NULL):
            return skipped(caught, f"grow raised {'ValueError' if fate == POISON else 'TypeError'} in .map()")
    return ("kept", None) if fate != NULL else skipped(skips, NOT_A_STRING)


def skipped(caught: bool, reason: str) -> tuple[str, str]:
    if not caught:
        raise Raises(reason)
    return "skipped", reason


def follow(pipe: Pipe, name: str, n: int, chain: list[tuple[Verb, bool]], above: bool) -> str | None:
    """Fills `chain` with the verbs from the record's file to the end; its fate, or None if it is not from here."""
    after = [above or any(v.name == "skip_errors" for v in pipe.verbs[i:]) for i in range(len(pipe.verbs) + 1)]
    if isinstance(pipe.origin, Data):
        fate = pipe.origin.fates[n] if pipe.origin.name == name else None
    else:
        found = (follow(p, name, n, chain, after[0]) for p in pipe.origin)
        fate = next((f for f in found if f is not None), None)
    if fate is not None:
        if not chain:
            chain.append((Verb("read"), after[0]))
        chain += zip(pipe.verbs, after, strict=False)
    return fate


# Random pipelines.


@st.composite
def pipes(draw: Any, depth: int = 2, names: Iterator[int] | None = None) -> Pipe:
    names = names if names is not None else iter(range(100))
    origin: Any
    extra: dict[str, Any] = {}
    if depth and draw(st.booleans()):
        count = draw(st.integers(1, 3))
        origin = tuple(draw(pipes(depth=depth - 1, names=names)) for _ in range(count))
        weights = tuple(draw(st.sampled_from([1.0, 2.0, 3.5])) for _ in range(count))
        extra = {"weights": weights, "seed": draw(st.integers(0, 3)), "stop": draw(st.sampled_from(["all", "first"]))}
        extra["how"] = draw(st.sampled_from(["mix", "mix", "concat", "interleave"]))
    else:
        kind = draw(st.sampled_from(["f", "a"]))
        fate = st.sampled_from(["", "", "", "", POISON, BROKEN if kind == "f" else NULL])
        fates = draw(st.lists(fate, min_size=12, max_size=40)) if draw(st.booleans()) else [""] * 20
        # The first line of a file says of which type its fields are, so it is a good one.
        origin = Data(f"{kind}{next(names)}", ("", *fates[1:]))
    pipe = Pipe(origin, (), **extra)
    for _ in range(draw(st.integers(0, 5))):
        pipe = replace(pipe, verbs=(*pipe.verbs, draw(verbs(pipe))))
    return pipe


CONTENT = ["map", "map", "map_batches", "filter", "skip_errors", "skip_errors", "rename"]
IN_PLACE = ["zip", "enumerate"]  # refused after what rejects rows
COUNTED = ["flat_map", "split"]  # refused after what rejects or reorders rows
MEDIA = ["decode_parts", "decode_images", "decode_audio", "decode_video"]
POSITIONS = ["shuffle", "window_shuffle", "take", "skip", "repeat", "sample", "unbatch"]  # refused after a filter
NAMES = {*CONTENT, *IN_PLACE, *COUNTED, *MEDIA, *POSITIONS, "exact", "dedup", "cache"}


@st.composite
def verbs(draw: Any, pipe: Pipe) -> Verb:
    names = CONTENT + (MEDIA if draw(st.integers(0, 3)) == 0 else [])
    names = names if pipe.rejects else names + IN_PLACE
    settled = isinstance(pipe.origin, Data) or not any(branch.rejects for branch in pipe.origin)
    names = [*names, "exact", "exact"] if settled and not pipe.moves else names
    if not pipe.rejects and not pipe.moves:
        names = names + COUNTED + ([] if pipe.draws else ["cache", "cache"])
        # Where no two rows are the same, the twin keeps all of them too.
        names += ["dedup"] if isinstance(pipe.origin, Data) and all(v.name != "flat_map" for v in pipe.verbs) else []
    name = draw(st.sampled_from(names if pipe.filters else names + POSITIONS))
    argument = {
        "filter": st.integers(1, 6),
        "take": st.integers(6, 30),
        "sample": st.integers(1, 12),
        "exact": st.integers(1, 6),
        "window_shuffle": st.integers(1, 9),
        "unbatch": st.integers(1, 4),
        "skip": st.integers(0, 3),
    }
    drawn = draw(argument.get(name, st.integers(1, 2)))
    return Verb(name, drawn, random=draw(st.booleans()), batched=draw(st.booleans()))


def texts_of(folder: Path) -> list[str]:
    rows = ps.open_store(folder).rows()
    return [bytes(ids[:-1].tolist()).decode() for ids in rows.read(np.arange(len(rows)))["input_ids"]]


def ledger_of(folder: Path) -> list[tuple[str, int, str]]:
    path = folder / "skipped.jsonl"
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return sorted(entry_of(json.loads(line)) for line in lines)


def entry_of(entry: dict[str, Any]) -> tuple[str, int, str]:
    if entry["file"] == "arrays":
        return "arrays", entry["record"], entry["reason"]
    return Path(entry["file"]).stem, entry["record"] - 1, entry["reason"]


@pytest.fixture(params=[1024, 7], ids=["one block", "many blocks"])
def rows_per_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    monkeypatch.setattr(pipeline_texts, "ROWS", request.param)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    return int(request.param)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(pipe=pipes(), on_error=st.sampled_from([None, "skip"]), rank=st.integers(0, 1))
def test_a_store_holds_what_a_loader_delivers(rows_per_block: int, pipe: Pipe, on_error: Any, rank: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        check(pipe, on_error, rank, folder)
    finally:
        shutil.rmtree(folder)


def check(pipe: Pipe, on_error: Any, rank: int, folder: Path) -> None:
    skips = on_error == "skip" or any(v.name == "skip_errors" for v in pipe.verbs)
    try:
        order = pipeline_of(pipe, folder, twin=True).batch(1, remainder="short").to_numpy(threads=0)
    except ps.UsageError:
        reject()  # .skip() of more rows than there are
    documents: list[str] = []
    entries: list[tuple[str, int, str]] = []
    raises = False
    for batch in order:
        text = batch["text"][0]
        name, n = text.split("+")[0].split("*")[0].split(":")
        try:
            what, reason = outcome(pipe, name, int(n), skips, on_error == "skip")
        except Raises:
            raises = True
            break
        if what == "kept":
            documents.append(text)
        elif reason is not None:
            entries.append((name if name.startswith("f") else "arrays", int(n), reason))
    event("raises" if raises else "empty" if not documents else "stored")
    pipeline = pipeline_of(pipe, folder, twin=False)
    arguments = {} if on_error is None else {"on_error": on_error}
    prepare = lambda p, out: ps.prepare(p, "bytes", out, show_progress=False, **arguments)  # noqa: E731
    if raises or not documents:
        with pytest.raises((ps.DataError, ps.UserCodeError)):
            prepare(pipeline, folder / "out")
        return
    with pytest.raises(ps.UsageError, match="not sharded"):
        prepare(pipeline.shard(rank, 2), folder / "out")
    made = prepare(pipeline, folder / "out")
    assert texts_of(folder / "out") == documents
    assert made.skipped == len(entries)
    assert ledger_of(folder / "out") == sorted(entries)
    delivered(pipeline.skip_errors() if on_error == "skip" else pipeline, documents, entries)


def delivered(pipeline: ps.Pipeline, documents: list[str], entries: list[tuple[str, int, str]]) -> None:
    """The loader's own rows, without the refilled ones and those without a text, are the documents."""
    loader = pipeline.batch(1, remainder="short").to_numpy(threads=0)
    try:
        texts = [(step, batch["text"][0]) for step, batch in enumerate(loader)]
        first = [text for step, text in texts if not loader.why(step)["refused_before"] and text is not None]
    except (ps.DataError, ps.UserCodeError):  # no replacement, or one that is bad: a preparation needs none
        event("the loader has no replacement")
        return
    assert first == documents
    noted = {entry_of(vars_of(entry)) for entry in loader.ledger.entries}
    assert {entry for entry in entries if entry[2] != NOT_A_STRING} <= noted


def vars_of(entry: Any) -> dict[str, Any]:
    return {"file": entry.file, "record": entry.record, "reason": entry.reason}


# Every verb is in the random pipelines, or refused before a preparation.

REFUSED: dict[str, Callable[[ps.Pipeline], ps.Pipeline]] = {
    "batch": lambda p: p.batch(2),
    "bucket": lambda p: p.bucket([4, 8], batch_size=2),
    "batch_tokens": lambda p: p.batch_tokens(64),
    "pad": lambda p: p.pad(),
    "shard": lambda p: p.shard(0, 2),
    "windows": lambda p: p.windows(4),
    "pack": lambda p: p.pack(8),
    "tokenize": lambda p: p.tokenize("bytes", keep=[], show_progress=False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_verbs_that_make_no_records_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    tokens = ps.from_texts(["a text", "another"]).tokenize("bytes", show_progress=False)
    made = REFUSED[name](ps.from_texts(["a", "b"]) if name == "tokenize" else tokens)
    with pytest.raises(ps.UsageError):
        ps.prepare(made, "bytes", tmp_path / "out", show_progress=False)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_every_verb_is_in_the_random_pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    clean = pipeline_of(Pipe(Data("a0", ("",) * 20), ()), tmp_path, twin=False)
    variants = [(random, batched) for random in (False, True) for batched in (False, True)]
    made = [applied(clean, Verb(name, 2, *how)) for name in NAMES for how in variants]
    used = {name for pipeline in made for name in calls(pipeline)}
    assert set(_verbs()) - REFUSED.keys() - used == {"concat"}  # of `combined`
