"""Sends a plan to child processes in an unnamed file; `core.pickling` says how functions are pickled.

Large arrays in the definition are mapped copy-on-write, so N children hold them once. Data in memory is moved into
memory that they share with this process: it is there once altogether, unless the user keeps the original too.
"""

from __future__ import annotations

import mmap
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.core.errors import MissingExtra, StorageError, UsageError
from penstock.core.pickling import culprit, dump
from penstock.core.shared_memory import moved, shared_part, unnamed_file
from penstock.engine.output import Output
from penstock.engine.processes.ring import ALIGN
from penstock.plan.branches import Combined
from penstock.plan.definition import Definition, OfPipeline
from penstock.plan.step_ranges import StepRanges
from penstock.sources.base import FileSource, MemorySource, Source

_LEAST_MOVED = 4 << 20  # bytes
_one_at_a_time = threading.Lock()
_OWN = "memory://"  # a filesystem that each process has for itself


class ChildJob(NamedTuple):
    """The work of all children of one loader."""

    definition: Definition
    ranges: StepRanges
    output: Output
    pad: bool
    threads: int
    ahead: int
    max_bytes: int
    measured: bool = False  # whether the seconds of each verb are wanted


class Payload(NamedTuple):
    """A job for children: the descriptor of its file, and those of the shared memory that it refers to.

    `held` keeps that memory, whose descriptors are closed with its last array.
    """

    fd: int
    shared: tuple[int, ...]
    held: tuple[memoryview, ...]


def write_payload(job: ChildJob) -> Payload:
    """Writes a job into an unnamed file; `read_payload` reads it. What is in shared memory already is not copied."""
    sources = list(_sources(job.definition))
    for source in sources:
        _refuse_own_memory(source)
    body, buffers = _dump(job, sources)
    spans: list[tuple[int, int, int]] = []  # descriptor (-1: this file), first byte, bytes
    at, own = 0, []
    for buffer in buffers:
        if (found := shared_part(buffer)) is not None:
            spans.append((*found, buffer.nbytes))
            continue
        spans.append((-1, at, buffer.nbytes))
        own.append((at, buffer))
        at += -(-buffer.nbytes // ALIGN) * ALIGN
    head = pickle.dumps((body, spans))
    fd = unnamed_file("penstock-plan")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(len(head).to_bytes(8, "little") + head)
            base = _base(len(head))
            for start, buffer in own:
                file.seek(base + start)
                file.write(buffer)
            file.truncate(max(base + at, file.tell()))
    except OSError:
        os.close(fd)
        raise
    held = tuple(buffer for buffer, (shared, _, _) in zip(buffers, spans, strict=True) if shared >= 0)
    return Payload(fd, tuple({shared for shared, _, _ in spans if shared >= 0}), held)


def read_payload(fd: int) -> Any:
    """The job that `write_payload` wrote; its arrays are mapped, not read."""
    view = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    os.close(fd)
    size = int.from_bytes(view[:8], "little")
    body, spans = pickle.loads(view[8 : 8 + size])
    base = _base(size)
    shared = {fd: memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ)) for fd in {fd for fd, _, _ in spans} if fd >= 0}
    parts = [view[base + at : base + at + n] if fd < 0 else shared[fd][at : at + n] for fd, at, n in spans]
    return pickle.loads(body, buffers=parts)


def _sources(definition: Definition) -> Iterator[Source]:
    """The sources of a pipeline, and of those it consists of."""
    origin = definition.origin
    if isinstance(origin, Combined):
        for branch in origin.branches:
            yield from _sources(branch)
    elif isinstance(origin, OfPipeline):
        yield from _sources(origin.definition)
    else:
        yield origin


def _refuse_own_memory(source: Source) -> None:
    """Refuses files that only this process can see."""
    places = source.paths if isinstance(source, FileSource) else source.locate(0).values()
    for place in places:
        if isinstance(place, str) and place.startswith(_OWN):
            raise UsageError(
                "files that a child process can open",
                got=f"{place}: memory of this process",
                where="isolate= or workers=",
                fix="leave them out: threads see the same memory; or write the files to a disk or an object store",
            )


def _share(sources: list[Source]) -> None:
    """Moves what sources hold into memory that children map."""
    holders = [source for source in sources if isinstance(source, MemorySource)]
    with _one_at_a_time:  # a second copy would close the descriptor of the first, which a payload may name
        found = moved([source.in_memory() for source in holders], _LEAST_MOVED)
        if found is not None:
            for source, values in zip(holders, found, strict=True):
                source.use_moved(values)


def _base(head: int) -> int:
    return -(-(8 + head) // ALIGN) * ALIGN


def _dump(job: ChildJob, sources: list[Source]) -> tuple[bytes, list[memoryview]]:
    try:
        _share(sources)
        return dump(job)
    except (MissingExtra, StorageError):
        raise
    except Exception as error:
        raise UsageError(
            "steps and sources that can be sent to a child process",
            got=f"{type(error).__name__}: {error}",
            where=culprit((job.definition.origin, *job.definition.steps, job.output)),
            fix="open files, locks and clients inside the function instead of before it, or use isolate=False",
        ) from error
