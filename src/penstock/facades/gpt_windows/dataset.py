"""Sliding windows for GPT training: `GPTDatasetV1`, `create_dataset`, `create_dataloader`.

Sample i is `(tokens[i * stride : i * stride + max_length], the same one token on)`, while a full target exists. The
text is tokenised once and kept as small integers; windows are cut out when asked for, so overlap costs no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.arguments import explained_call, explained_class
from penstock.core.errors import UsageError
from penstock.pipeline import Pipeline
from penstock.sources.arrays import Texts
from penstock.sources.token_stream import token_stream
from penstock.tokenizers.duck import with_any_ids
from penstock.tokenizers.resolve import with_end_of_text
from penstock.torch_data.default_collate import TupleRow
from penstock.torch_data.framework import data
from penstock.torch_data.loaders import CoreDataLoader
from penstock.torch_data.windows import WindowDataset, core_dataloader, whole_number


@explained_class
class GPTDatasetV1(WindowDataset):
    """`(inputs, targets)` pairs over one text, as a torch `Dataset`.

    With a tiktoken encoding, `<|endoftext|>` in the text is its special token, as `allowed_special={"<|endoftext|>"}`
    makes it; another policy: pass `penstock.as_tokenizer(encoding, allowed_special=...)`.

    >>> dataset = GPTDatasetV1("hello world", "bytes", max_length=4, stride=2)
    >>> len(dataset), [t.tolist() for t in dataset[0]]
    (4, [[104, 101, 108, 108], [101, 108, 108, 111]])
    """

    def __init__(self, txt: str, tokenizer: Any, max_length: int = 256, stride: int = 128) -> None:
        if not isinstance(txt, str):
            raise UsageError("txt, a string", got=type(txt).__name__, fix="read the file first: open(path).read()")
        self.max_length, self.stride = whole_number(max_length), whole_number(stride)
        tokens = token_stream(Texts([txt]), with_end_of_text(with_any_ids(tokenizer)), eos=False)
        super().__init__(Pipeline(tokens).windows(self.max_length, self.stride))

    def pair(self, tensors: dict[str, Any]) -> list[Any]:
        return [tensors["input_ids"], tensors["labels"]]  # a list, as torch collates pairs

    def row(self, tensors: dict[str, Any], i: int) -> TupleRow:
        return TupleRow((tensors["input_ids"][i], tensors["labels"][i]))

    @property
    def input_ids(self) -> Sequence[Any]:
        """The inputs of every window, cut when asked for."""
        return _Side(self, 0)

    @property
    def target_ids(self) -> Sequence[Any]:
        """The targets of every window, cut when asked for."""
        return _Side(self, 1)


class _Side(Sequence[Any]):
    def __init__(self, dataset: GPTDatasetV1, side: int) -> None:
        self.dataset, self.side = dataset, side

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.dataset[index][self.side]


_DATASETS = {"gpt_v1": GPTDatasetV1}


@explained_call
def create_dataset(dataset_type: str = "gpt_v1", *arguments: Any, **options: Any) -> GPTDatasetV1:
    """A dataset by the name of its kind, with the arguments of that kind.

    >>> len(create_dataset("gpt_v1", txt="abcdefgh", tokenizer="bytes", max_length=4, stride=2))
    2
    """
    if dataset_type not in _DATASETS:
        fix = 'create_dataset("gpt_v1", txt, tokenizer, max_length, stride)'
        raise UsageError(f"a dataset_type among {sorted(_DATASETS)}", got=repr(dataset_type)[:80], fix=fix)
    return _DATASETS[dataset_type](*arguments, **options)


@explained_call
def create_dataloader(
    dataset: Any,
    batch_size: int = 4,
    shuffle: bool = True,
    drop_last: bool = True,
    num_workers: int = 0,
    *,
    seed: int = 0,
    pin_memory: bool = False,
    rank: int | None = None,
    world: int | None = None,
    **options: Any,
) -> Any:
    """A real `torch.utils.data.DataLoader` of `(inputs, targets)`; each pass is another order, and it resumes exactly.

    `num_workers` are threads; the order depends on `seed`, not on `torch.manual_seed`. `options` are further arguments
    of torch's DataLoader: `collate_fn`, `generator` (its seed), `prefetch_factor`, `timeout`. A dataset of another
    make gets torch's own DataLoader.
    """
    if isinstance(dataset, WindowDataset):
        return core_dataloader(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            num_workers=num_workers,
            pin_memory=pin_memory,
            rank=rank,
            world=world,
            **options,
        )
    if rank is not None or world is not None:
        raise UsageError(
            "a dataset of penstock with rank= and world=",
            got=f"a {type(dataset).__name__}, for which torch's own DataLoader is made",
            fix="DataLoaderBuilder().with_dataset(dataset).with_distributed(rank, world_size)",
        )
    return data.DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        num_workers=num_workers,
        pin_memory=pin_memory,
        **options,
    )


__all__ = ["CoreDataLoader", "GPTDatasetV1", "create_dataloader", "create_dataset"]
