"""Hugging Face datasets by object, folder and name. Never waits long for a network that is not there.

The local cache is asked first and without the network. The hub is asked only if offline mode is off (`HF_HUB_OFFLINE`,
`HF_DATASETS_OFFLINE`) and its host answers within a few seconds.
"""

from __future__ import annotations

import os
import re
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.pipeline import Pipeline
from penstock.sources.hf import HFDataset, choose_split
from penstock.sources.hf_stream import HFStream

if TYPE_CHECKING:
    from penstock.facades.capibara.resolve import Ask

REACH_SECONDS = 3.0
_NAME = re.compile(r"(?P<repo>[\w.-]{1,96}(/[\w.-]{1,96})?)(:(?P<config>[\w.-]{1,96}))?")
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def open_dataset(data: Any, ask: Ask) -> Pipeline | HFStream:
    """The split of a dataset that is asked for, as a pipeline or a stream."""
    datasets = _module()
    data = choose_split(data, ask.split)
    if isinstance(data, datasets.Dataset) and ask.streaming:
        data = data.to_iterable_dataset()
    if isinstance(data, datasets.IterableDataset):
        return HFStream(data, seed=ask.seed, buffer=ask.buffer)
    return Pipeline(HFDataset(data))


def find(name: str, ask: Ask) -> Any:
    """A dataset by name: the local cache, then the hub. None, and a line in `ask.tried`, if it is not there."""
    found = _NAME.fullmatch(name)
    if found is None:
        ask.tried.append("Hugging Face: not a dataset's name")
        return None
    if find_spec("datasets") is None:
        ask.tried.append("Hugging Face: the package 'datasets' is not installed (pip install 'penstock-data[hf]')")
        return None
    repo, config = found["repo"], found["config"]
    cached = _cached(repo, config, ask)
    if cached is not None:
        return cached
    if reason := _unreachable():
        ask.tried.append(f"Hugging Face hub: {reason}")
        return None
    try:
        return _module().load_dataset(repo, config, split=ask.split, streaming=ask.streaming)
    except Exception as error:  # many kinds: not there, gated, several configs, no such split
        surface(error)
        ask.tried.append(f"Hugging Face hub: {_short(error)}")
        return None


def _cached(repo: str, config: str | None, ask: Ask) -> Any:
    """From the cache of earlier downloads, which `datasets` reads without the network."""
    datasets = _module()
    cache = need("datasets.packaged_modules.cache.cache", extra="hf").Cache
    where = str(datasets.config.HF_DATASETS_CACHE)
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_error()  # it warns that it reads the cache, which is what was asked for
    try:
        builder = cache(
            repo_id=repo, dataset_name=repo.rpartition("/")[2], config_name=config, version="auto", hash="auto"
        )
        splits = list(builder.info.splits or ())
        if ask.split.partition("[")[0] not in splits:
            raise UsageError(
                "a split of the dataset",
                got=repr(ask.split),
                where=f"{repo} in {where}",
                fix=f"split= one of {', '.join(map(repr, splits))}",
            )
        return builder.as_dataset(split=ask.split)
    except UsageError:
        raise
    except Exception as error:  # several kinds, all meaning that it cannot be read from the cache
        surface(error)
        ask.tried.append(f"Hugging Face cache {where}: {_short(error)}")
        return None
    finally:
        datasets.logging.set_verbosity(verbosity)


def _unreachable() -> str:
    """Why the hub is not asked; empty if it answers."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in ("1", "TRUE", "YES", "ON"):
            return f"not asked, since {name} is set"
    datasets = _module()
    if datasets.config.HF_HUB_OFFLINE:
        return "not asked, since offline mode is on"
    if any(os.environ.get(name) for name in _PROXIES):
        return ""  # the proxy knows
    parts = urlsplit(datasets.config.HF_ENDPOINT)
    host, port = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=REACH_SECONDS).close()
    except OSError as error:
        return f"{host} cannot be reached ({error})"
    return ""


def _module() -> Any:
    return need("datasets", extra="hf", purpose="for Hugging Face datasets")


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
