"""The groups of a preparation as tasks of a Ray cluster, one task for each.

A task reads its range of the input, writes its shards to the output and answers with a few bytes: no data goes through
Ray's object store, only the job (source, tokenizer, functions), once. Ray starts a task again if its process or node is
lost; it continues after the shards that are already there. Costs about 4 s to start a cluster on this machine, and 1 s
in each process for its first task.
"""

from __future__ import annotations

import os
import re
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from penstock._version import __version__
from penstock.core.errors import FileMissing, PenstockError, UsageError, WorkerDied
from penstock.core.optional import need
from penstock.preparation.group import Job, make_group
from penstock.preparation.journal import Done
from penstock.storage.filesystem import scheme

RETRIES = 5  # of a task whose process or node was lost
_SECONDS = 1.0  # between looks at the size of the cluster
_WANTED = 2  # tasks for each processor of the cluster that are submitted, so that none waits for the driver
_ANSWER_SECONDS = 5.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # preface and empty settings
_kept: dict[str, Job] = {}  # the last job of this worker process: a tokenizer takes a second to load

Answer = tuple[int, PenstockError | Literal["made", "finished"] | list[Done]]
"""A group, and its error, or that its shards are committed, or that another run has finished the store; or its records,
of which the last is not committed."""


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module `ray`, connected: as it is, or to `address`, or to a cluster that is started on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns that this will change
    ray = need("ray", extra="ray", purpose='for cluster="ray"')
    if ray.is_initialized():
        yield ray
        return
    named = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS", "auto")
    try:
        _check_address(ray, named)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray's own start
            # "local": without it Ray would connect to any cluster that happens to run on this machine.
            found = address or os.environ.get("RAY_ADDRESS") or "local"
            ray.init(address=found, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(
            "a Ray cluster to connect to",
            got=f"{type(error).__name__}: {str(error)[:300]}",
            where="this machine" if named == "auto" else named,
            fix='start one with `ray start --head`, pass its address ("host:6379", "auto"), or leave address out to '
            "start one on this machine",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(ray: Any, address: str | None) -> None:
    """Raises ConnectionError if nothing that could be Ray answers at host:port; Ray itself would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address or "")
    if found is None:
        return  # Ray looks for a cluster itself, or says what is wrong with the address
    hosts = [found[1]]
    if found[1] in ("localhost", "127.0.0.1", "::1"):
        hosts.insert(0, ray.util.get_node_ip_address())  # what Ray makes of it
    said = ""
    for host in hosts:
        try:
            with socket.create_connection((host, int(found[2])), _ANSWER_SECONDS) as connection:
                connection.settimeout(_ANSWER_SECONDS)
                connection.sendall(_HTTP2)
                answer = connection.recv(9)
        except (OSError, OverflowError) as error:
            said = str(error)
        else:
            if answer[3:4] == b"\x04":  # a frame of settings: how every HTTP/2 server begins, and so gRPC
                return
            said = "something answers that is not Ray"
    raise ConnectionError(said)


def made_groups(ray: Any, job: Job, numbers: Sequence[int], cpus: int) -> Iterator[Answer]:
    """Makes these groups on the cluster; yields each when it is done, in any order.

    After an error no further group is begun, and those before it are completed: the first error in the order of the
    input is the same on every cluster.
    """
    task = ray.remote(_task).options(max_retries=RETRIES, retry_exceptions=False, num_cpus=cpus)
    with _picklable(ray):
        shared = ray.put(job)
    todo, folder = iter(numbers), os.getcwd()
    pending: dict[Any, int] = {}
    failed: int | None = None
    try:
        while True:
            room = max(4, _WANTED * int(ray.cluster_resources().get("CPU", 1)) // cpus) - len(pending)
            for number in () if failed is not None else _some(todo, room):
                pending[task.remote([shared], __version__, number, folder)] = number
            if not pending or (failed is not None and min(pending.values()) > failed):
                return
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=_SECONDS)
            for reference in ready:
                number = pending.pop(reference)
                answer = _answer(ray, reference, number)
                if answer != "made":
                    failed = number if failed is None else min(failed, number)
                yield number, answer
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def _some(numbers: Iterator[int], count: int) -> Iterator[int]:
    for _, number in zip(range(count), numbers, strict=False):
        yield number


def _answer(ray: Any, reference: Any, number: int) -> PenstockError | Literal["made", "finished"]:
    try:
        answer: PenstockError | Literal["made", "finished"] = ray.get(reference)
        return answer
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        raise cause from error
    except ray.exceptions.RayError as error:
        return WorkerDied(
            f"group {number} to be made on the cluster",
            got=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}",
            where=f"Ray, after {RETRIES} retries",
            fix="look at Ray's logs; a process that ends on one group may need more memory: a smaller group_bytes, or "
            "threads= so that fewer tasks share a node. Run it again to resume",
        )


def _task(shared: list[Any], version: str, number: int, folder: str) -> PenstockError | Literal["made", "finished"]:
    """Runs on the cluster, in the current folder of the driver if the node has it: paths may be relative."""
    with suppress(OSError):
        os.chdir(folder)
    ray = need("ray", extra="ray")
    if version != __version__:
        return UsageError(
            f"penstock {version} on every node, as where the job was started",
            got=f"penstock {__version__}",
            where=f"node {ray.util.get_node_ip_address()}",
            fix="install the same version everywhere",
        )
    key = shared[0].hex()  # not the job's id, which says nothing of the output or the budget
    if key not in _kept:
        _kept.clear()
        _kept[key] = ray.get(shared[0])
    try:
        return "finished" if make_group(_kept[key], number) is None else "made"
    except FileMissing as error:
        if not scheme(error.where):
            error.fix = (
                f"node {ray.util.get_node_ip_address()} does not see this file: every node must see local paths, as in "
                "a shared folder; or pass a URL"
            )
        return error
    except PenstockError as error:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return error


@contextmanager
def _picklable(ray: Any) -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, ray.exceptions.RayError) as error:
        raise UsageError(
            "a source, tokenizer and functions that can be sent to other machines",
            got=str(error).strip().splitlines()[0][:300],
            where='prepare(..., cluster="ray")',
            fix="open files and connections inside of the function, not outside",
        ) from error
