"""The fluent interface: one short method per verb, by family. What a verb means is in `penstock.steps`, one file each.

Each method imports its step when it is called, so a program loads only the steps that it uses.
"""

from __future__ import annotations

from penstock.core.arguments import explained_class
from penstock.pipeline.batches import BatchVerbs
from penstock.pipeline.config import ConfigVerbs
from penstock.pipeline.media import MediaVerbs
from penstock.pipeline.order import OrderVerbs
from penstock.pipeline.other_names import OtherNames
from penstock.pipeline.outputs import Outputs
from penstock.pipeline.rows import RowVerbs
from penstock.pipeline.text import TextVerbs
from penstock.pipeline.writing import WriteVerbs

__all__ = ["Pipeline"]


@explained_class
class Pipeline(OrderVerbs, RowVerbs, TextVerbs, MediaVerbs, BatchVerbs, WriteVerbs, ConfigVerbs, Outputs, OtherNames):
    """A source and the steps applied to its rows. Immutable: each verb returns a new pipeline.

    Verbs in the order they are usually written: source, `tokenize`, `windows` or `pack` (or `decode_images`,
    `decode_audio`), `map`, `filter`, `shuffle`, `batch`, `pad`, then an output: `to_numpy`, `to_torch`, `to_jax`.

    >>> import penstock as ps
    >>> loader = ps.from_arrays({"x": range(10)}).shuffle(seed=7).batch(5).to_numpy(threads=0)
    >>> [sorted(b["x"].tolist()) for b in loader] != [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    True
    """

    __slots__ = ()
