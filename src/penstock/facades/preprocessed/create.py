"""`create_preprocessed_dataset`: the map-style or the streaming wrapper, as asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.arguments import explained_call
from penstock.core.errors import UsageError
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset
from penstock.sources.records import data_kind

_MAP = {"cache_enabled", "cache_bytes", "skip_errors", "storage_options", "return_tensors"}
_STREAM = {"buffer_size", "skip_errors", "seed", "rank", "world_size", "storage_options"}


@explained_call
def create_preprocessed_dataset(
    hf_dataset: Any, prompt_engine: Callable[..., Any], streaming: bool = False, **options: Any
) -> PreprocessedDataset | StreamingPreprocessedDataset:
    """Records through a prompt engine, by number or (`streaming=True`) as a stream.

    `options` are those of `PreprocessedDataset` (cache_enabled, cache_bytes, skip_errors, return_tensors,
    storage_options) or of `StreamingPreprocessedDataset` (buffer_size, skip_errors, seed, rank, world_size,
    storage_options).

    >>> len(create_preprocessed_dataset([{"n": 1}], lambda r: {"x": r["n"]}))
    1
    >>> list(create_preprocessed_dataset([{"n": 1}], lambda r: {"x": r["n"]}, streaming=True))
    [{'x': 1}]
    """
    known, other, name = (_STREAM, _MAP, "True") if streaming else (_MAP, _STREAM, "False")
    wrong = sorted(set(options) - known)
    if wrong:
        swap = f"; {', '.join(o for o in wrong if o in other)} go with streaming={not streaming}"
        raise UsageError(
            f"options among {', '.join(sorted(known))} with streaming={name}",
            got=", ".join(wrong),
            where="create_preprocessed_dataset()",
            fix="leave them out" + (swap if set(wrong) & other else ""),
        )
    if streaming:
        return StreamingPreprocessedDataset(hf_dataset, prompt_engine, **options)
    if data_kind(hf_dataset) in ("hf stream", "iterator", "stream", "other"):
        raise UsageError(
            "records that can be read by number when streaming=False",
            got=f"a {type(hf_dataset).__name__}, which has no length",
            where="create_preprocessed_dataset()",
            fix="pass streaming=True, or load the data without streaming",
        )
    return PreprocessedDataset(hf_dataset, prompt_engine, **options)
