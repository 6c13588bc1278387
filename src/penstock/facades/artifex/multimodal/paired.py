"""A dataset of arrays of several modalities, paired by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.arguments import explained_class
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.base import BaseDataset


@explained_class
class MultiModalPairedDataset(BaseDataset):
    """Row i of every modality is record i; `pairs` lists the modalities to compare.

    Samples hold every modality, `alignment_scores` if passed, and `pairs`; batches the same with a first axis of rows.

    >>> data = {"image": np.zeros((3, 4, 4, 1)), "text": np.zeros((3, 5), int)}
    >>> dataset = MultiModalPairedDataset([("image", "text")], data, alignments=np.ones(3))
    >>> dataset.get_batch(2)["image"].shape, float(dataset[0]["alignment_scores"])
    ((2, 4, 4, 1), 1.0)
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        data: Mapping[str, Any],
        alignments: Any = None,
        split: str = "train",
        *,
        rngs: Any = None,
    ) -> None:
        super().__init__(None, split, rngs=rngs)
        if not data:
            raise UsageError("data: arrays by modality", got="none", fix='data={"image": images, "text": tokens}')
        self.data = {str(name): np.asarray(values) for name, values in data.items()}
        self.pairs = [self._pair(pair) for pair in pairs]
        self.alignments = None if alignments is None else np.asarray(alignments)
        named = dict(self.data) | ({} if self.alignments is None else {"alignment_scores": self.alignments})
        reserved = {"alignment_scores", "pairs"} & set(self.data)
        if reserved:
            raise UsageError("modalities under other names than 'alignment_scores' and 'pairs'", got=f"{reserved}")
        first = next(iter(self.data))
        self._rows = 0 if self.data[first].ndim == 0 else len(self.data[first])
        for name, values in named.items():
            if values.ndim == 0 or len(values) != self._rows:
                count = "no rows" if values.ndim == 0 else f"{len(values)} rows"
                raise UsageError(
                    f"{self._rows} rows in every modality, as {first!r} has",
                    got=f"{name!r} has {count}",
                    where="MultiModalPairedDataset",
                    fix="pass arrays with the same number of rows",
                )

    def _pair(self, pair: Sequence[str]) -> tuple[str, str]:
        if isinstance(pair, str) or len(pair) != 2 or not all(name in self.data for name in pair):
            raise UsageError(
                f"pairs of two modalities out of {sorted(self.data)}", got=repr(pair), fix='pairs=[("image", "text")]'
            )
        return pair[0], pair[1]

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: NDArray[np.int64]) -> Columns:
        chosen = self.check_indices(indices)
        columns: Columns = {name: values[chosen] for name, values in self.data.items()}
        if self.alignments is not None:
            columns["alignment_scores"] = self.alignments[chosen]
        return columns

    def sample_from(self, columns: Columns, row: int) -> dict[str, Any]:
        return {**super().sample_from(columns, row), "pairs": list(self.pairs)}

    def batch_from(self, columns: Columns) -> dict[str, Any]:
        return {**super().batch_from(columns), "pairs": list(self.pairs)}

    def fingerprint(self) -> str:
        parts: list[Any] = ["paired", repr(self.pairs)]
        for name, values in self.data.items():
            parts += [name, values]
        return hashing.content_id([*parts, self.alignments])
