"""Sends a plan to child processes in an unnamed file; `core.pickling` says how functions are pickled.

Large arrays in the definition are mapped copy-on-write, so N children hold them once.
"""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any, NamedTuple

from penstock.core.errors import MissingExtra, UsageError
from penstock.core.pickling import culprit, dump
from penstock.engine.output import Output
from penstock.engine.processes.ring import ALIGN, unnamed_file
from penstock.plan.definition import Definition
from penstock.plan.step_ranges import StepRanges


class ChildJob(NamedTuple):
    """The work of all children of one loader."""

    definition: Definition
    ranges: StepRanges
    output: Output
    pad: bool
    threads: int
    ahead: int
    max_bytes: int


def write_payload(job: ChildJob) -> int:
    """Writes a job into an unnamed file and returns its descriptor; `read_payload` reads it."""
    body, buffers = _dump(job)
    spans, at = [], 0
    for buffer in buffers:
        spans.append((at, buffer.nbytes))
        at += -(-buffer.nbytes // ALIGN) * ALIGN
    head = pickle.dumps((body, spans))
    fd = unnamed_file("penstock-plan")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(len(head).to_bytes(8, "little") + head)
            base = _base(len(head))
            for (start, _), buffer in zip(spans, buffers, strict=True):
                file.seek(base + start)
                file.write(buffer)
            file.truncate(max(base + at, file.tell()))
    except OSError:
        os.close(fd)
        raise
    return fd


def read_payload(fd: int) -> Any:
    """The job that `write_payload` wrote; its arrays are mapped, not read."""
    view = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    os.close(fd)
    size = int.from_bytes(view[:8], "little")
    body, spans = pickle.loads(view[8 : 8 + size])
    base = _base(size)
    return pickle.loads(body, buffers=[view[base + at : base + at + n] for at, n in spans])


def _base(head: int) -> int:
    return -(-(8 + head) // ALIGN) * ALIGN


def _dump(job: ChildJob) -> tuple[bytes, list[memoryview]]:
    try:
        return dump(job)
    except MissingExtra:
        raise
    except Exception as error:
        raise UsageError(
            "steps and sources that can be sent to a child process",
            got=f"{type(error).__name__}: {error}",
            where=culprit((job.definition.origin, *job.definition.steps, job.output)),
            fix="open files, locks and clients inside the function instead of before it, or use isolate=False",
        ) from error
