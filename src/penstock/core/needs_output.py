"""What a pipeline answers when it is used as a loader: which output to add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import ArgumentError


class NeedsOutput:
    """A class whose objects are neither iterated nor counted, because a batch size and an output are missing."""

    __slots__ = ()

    if not TYPE_CHECKING:  # so that type checkers refuse `for batch in pipeline` too

        def __iter__(self) -> None:
            raise ArgumentError(
                "an output before iterating over a pipeline",
                got="for ... in pipeline",
                fix="for batch in pipeline.batch(32).to_numpy(): ... (or .to_torch(), .to_jax()); .peek() shows rows",
            )

        def __len__(self) -> int:
            raise ArgumentError(
                "an output before counting the batches of a pipeline",
                got="len(pipeline)",
                fix="len(pipeline.batch(32).to_numpy()) counts batches, len(pipeline.rows()) rows",
            )

        def __bool__(self) -> bool:
            return True
