"""Real processes that know each other, as a launcher starts them."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

SECONDS = 300


def _rank(function: Callable[..., Any], arguments: tuple[Any, ...], rank: int, world: int, port: int, out: Any) -> None:
    warnings.simplefilter("ignore")
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "1"}
    torch.set_num_threads(1)
    try:
        answer = function(rank, *arguments)
    except BaseException:
        answer = traceback.format_exc()
    out.send(answer)
    out.close()
    os._exit(0)  # what a process group leaves running is not waited for


def on_ranks(function: Callable[..., Any], *arguments: Any, world: int = 2) -> list[Any]:
    """What `function(rank, *arguments)` gives in each of `world` processes; a traceback where it raises."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    started = []
    for rank in range(world):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(function, arguments, rank, world, port, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        return [answers.recv() if answers.poll(SECONDS) else "no answer" for _, answers in started]
    finally:
        for process, answers in started:
            answers.close()
            process.kill()
            process.join()
