"""The micro-transformer's data: `TransformerDataset` and `create_dataloaders`.

All samples of a JSON-lines or text file are tokenised into one continuous sequence. Index i is the `seq_length` tokens
that start at token i, with the same span one token on as `labels`. Training data is shuffled and drops the tail;
validation data does neither.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.arguments import explained_call, explained_class
from penstock.core.errors import PenstockError, UsageError
from penstock.pipeline import Pipeline
from penstock.sources.formats import FORMATS, Options, format_of
from penstock.sources.token_stream import token_stream
from penstock.tokenizers.resolve import as_encoded
from penstock.torch_data.framework import torch
from penstock.torch_data.loaders import CoreDataLoader
from penstock.torch_data.windows import WindowDataset, core_dataloader, whole_number

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@explained_class
class TransformerDataset(WindowDataset):
    """`{"input_ids", "labels"}` for every position of a file, as a torch `Dataset`.

    Texts are tokenised as `tokenizer.encode(text)` does, special tokens that it adds ([CLS], [SEP], BOS) included.

    Args:
        data_path: a text, JSON-lines or Parquet file, a folder or a glob, or a list of them.
        tokenizer: any object with `encode`, or what `penstock.as_tokenizer` accepts.
        is_jsonl: True for JSON lines, False for text, None to decide by the file's name.
        field: the field or column with the text. A text file is one sample.
        storage_options: credentials, endpoint... of URLs; without them the environment's are used.
    """

    def __init__(
        self,
        data_path: Paths,
        tokenizer: Any,
        seq_length: int = 128,
        is_jsonl: bool | None = None,
        *,
        field: str = "text",
        stride: int = 1,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        files = [data_path] if isinstance(data_path, str | os.PathLike) else data_path
        path = [os.fspath(one) for one in files]
        found = format_of(path, storage_options) if is_jsonl is None else FORMATS["jsonl" if is_jsonl else "text"]
        if not found.one_pass:
            raise UsageError(
                "a file of text or JSON lines",
                got=found.title,
                where=", ".join(path[:3]),
                fix=f"write it as JSON lines, or use penstock.{found.read}",
            )
        self.seq_length = whole_number(seq_length)
        try:
            texts = found.open(path, Options(field=field, storage_options=storage_options))
            tokens = token_stream(texts, as_encoded(tokenizer))
            super().__init__(Pipeline(tokens).windows(self.seq_length, whole_number(stride)))
        except PenstockError as error:
            if not any(os.path.basename(one) in str(error) for one in path):
                error.where = f"{', '.join(path[:3])}{': ' * bool(error.where)}{error.where}"
            raise


@explained_call
def create_dataloaders(
    train_path: Paths,
    val_path: Paths,
    tokenizer: Any,
    batch_size: int = 16,
    seq_length: int = 128,
    num_workers: int = 0,
    *,
    is_jsonl: bool | None = None,
    field: str = "text",
    stride: int = 1,
    seed: int = 0,
    pin_memory: bool | None = None,
    rank: int | None = None,
    world: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[CoreDataLoader, CoreDataLoader]:
    """The training and the validation loader, both real `torch.utils.data.DataLoader` objects.

    `num_workers` are threads, on every platform; `options` are further arguments of torch's DataLoader, as in
    `create_dataloader`. `rank` and `world` are data-parallel coordinates: ranks of the same
    tensor- or pipeline-parallel group pass the same ones and see the same data. `storage_options` are for URLs.
    """
    if tokenizer is None:
        raise UsageError("a tokenizer", got="None", fix="MicroTransformerTokenizer.from_pretrained(path), or 'bytes'")
    pin = torch.cuda.is_available() if pin_memory is None else pin_memory
    common: dict[str, Any] = {
        "batch_size": batch_size, "seed": seed, "num_workers": num_workers, "pin_memory": pin, "rank": rank, "world":
        world, **options,
    }  # fmt: skip
    train, val = (
        TransformerDataset(
            path, tokenizer, seq_length, is_jsonl, field=field, stride=stride, storage_options=storage_options
        )
        for path in (train_path, val_path)
    )
    return (
        core_dataloader(train, shuffle=True, drop_last=True, **common),
        core_dataloader(val, shuffle=False, drop_last=False, **common),
    )
