"""Pipelines that begin with tokens: our stores and the token files of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import explained
from penstock.pipeline import Pipeline
from penstock.read.common import PathLike, Paths, begin

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike


@explained
def open_store(
    path: PathLike, *, verify: Literal["first-touch", "open", "off"] = "first-touch",
    storage_options: Mapping[str, Any] | None = None, cache_dir: PathLike | None = None, cache_bytes: int | None = None,
) -> Pipeline:  # fmt: skip
    """Opens a token store (a folder or a URL) that `penstock prepare` wrote. Reads one small file, whatever its size.

    Args:
        verify: when page checksums are compared: at the first read of a page, all when opening, or never.
        storage_options: credentials, endpoint, region of an object store; without them the environment's are used.
        cache_dir: where pages of a remote store are kept, shared by all processes of the machine.
        cache_bytes: how large that may become; default 64 GiB, or a tenth of the free disk if that is less.

    >>> import tempfile
    >>> made = ps.prepare(ps.from_texts(["hi"]), "bytes", tempfile.mkdtemp())
    >>> ps.open_store(made.path).peek()[0]["input_ids"].tolist()
    [104, 105, 256]
    """
    from penstock.store.opening import open_token_store

    return begin(open_token_store(path, verify, storage_options, cache_dir, cache_bytes))


@explained
def open_tokens(tokens: ArrayLike, documents: ArrayLike | None = None, vocab_size: int | None = None) -> Pipeline:
    """Opens tokens in memory or memory-mapped.

    Args:
        documents: offsets at which documents begin, and the end; default one document.

    >>> [row["input_ids"].tolist() for row in ps.open_tokens([5, 6, 7], [0, 2, 3]).peek()]
    [[5, 6], [7]]
    """
    from penstock.sources.tokens import TokenArray

    return begin(TokenArray(tokens, documents, vocab_size))


@explained
def open_megatron(
    prefix: PathLike, *, vocab_size: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> Pipeline:
    """Opens Megatron's `.bin` and `.idx` without conversion.

    Args:
        prefix: the path or URL without extension, or either file.
        storage_options: credentials, endpoint... of URLs, as in `read_text`.

    >>> import penstock as ps, tempfile
    >>> out = tempfile.mkdtemp() + "/corpus"
    >>> _ = ps.convert(ps.open_tokens([5, 6, 7], [0, 2, 3]), out, to="megatron", show_progress=False)
    >>> [row["input_ids"].tolist() for row in ps.open_megatron(out).peek()]
    [[5, 6], [7]]
    """
    from penstock.sources import megatron

    return begin(megatron.open_megatron(prefix, vocab_size=vocab_size, storage_options=storage_options))


@explained
def open_nanogpt(
    path: Paths, *, dtype: DTypeLike = "uint16", eos_id: int | None = None, vocab_size: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Opens `.bin` files of nanoGPT or llm.c without conversion.

    Args:
        path: a path or URL, or a list of them, one after another.
        dtype: of files without a header.
        eos_id: the id that ends each document; opening then reads all tokens once. Without it a file is a document.

    >>> import tempfile, numpy as np
    >>> path = tempfile.mkdtemp() + "/train.bin"
    >>> np.array([5, 6, 0, 7], np.uint16).tofile(path)
    >>> [row["input_ids"].tolist() for row in ps.open_nanogpt(path, eos_id=0).peek()]
    [[5, 6, 0], [7]]
    """
    from penstock.sources import nanogpt

    more: dict[str, Any] = {"eos_id": eos_id, "vocab_size": vocab_size, "storage_options": storage_options}
    return begin(nanogpt.open_nanogpt(path, dtype=dtype, **more))


@explained
def open_dolma(
    paths: Paths, *, dtype: DTypeLike | None = None, ends: Paths | None = None, eos_id: int | None = None,
    vocab_size: int | None = None, storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Opens token arrays as Dolma and OLMo write them, without conversion.

    Args:
        dtype: of the tokens, which the files do not state.
        ends: a CSV per file with the start and end of each document; or `eos_id`; else a file is a document.

    >>> import tempfile, numpy as np
    >>> path = tempfile.mkdtemp() + "/part-0.npy"
    >>> np.array([5, 6, 0, 7], np.uint32).tofile(path)
    >>> [row["input_ids"].tolist() for row in ps.open_dolma(path, dtype="uint32", eos_id=0).peek()]
    [[5, 6, 0], [7]]
    """
    from penstock.sources import dolma

    more: dict[str, Any] = {"eos_id": eos_id, "vocab_size": vocab_size, "storage_options": storage_options}
    return begin(dolma.open_dolma(paths, dtype=dtype, ends=ends, **more))


@explained
def open_mds(
    paths: Paths, column: str | None = None, *, dtype: DTypeLike | None = None, split: str | None = None,
    vocab_size: int | None = None, verify: Literal["first-touch", "open", "off"] = "first-touch",
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Opens the token ids of MosaicML MDS datasets without conversion: each sample is a document.

    Args:
        column: the column of ids; default "tokens" or "input_ids", or the only one.
        dtype: of ids in a column of bytes, which does not state it. LLM Foundry writes int64.

    The other arguments are those of `read_mds`.

    >>> import penstock as ps, tempfile
    >>> out = tempfile.mkdtemp() + "/mds"
    >>> _ = ps.convert(ps.open_tokens([5, 6, 7], [0, 2, 3]), out, to="mds", show_progress=False)
    >>> [row["input_ids"].tolist() for row in ps.open_mds(out).peek()]
    [[5, 6], [7]]
    """
    from penstock.sources.mds_tokens import open_tokens

    more: dict[str, Any] = {"split": split, "verify": verify, "storage_options": storage_options}
    return begin(open_tokens(paths, column, dtype=dtype, vocab_size=vocab_size, **more))
