"""Verbs of text and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.core.arguments import changed, explained_methods
from penstock.pipeline.base import Verbs

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence
    from typing import Self


@explained_methods
class TextVerbs(Verbs):
    """`tokenize`, `windows`, `pack`, `pad`."""

    __slots__ = ()

    def tokenize(
        self, tokenizer: Any, *, field: str = "text", keep: Sequence[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None, eos: bool | int = True,
        on_error: Literal["raise", "skip"] | None = None, budget: int | float | None = None,
        engine: Literal["auto", "reference"] = "auto", threads: int | None = None, shard_tokens: int = 1 << 25,
        show_progress: bool | None = None, add_special_tokens: bool | None = None,
        allowed_special: Collection[str] | None = None, disallowed_special: Collection[str] | None = None,
    ) -> Self:  # fmt: skip
        """Tokenizes the column `field` into a token store, once: later runs find it in the cache, by content.

        Args:
            tokenizer: what `penstock.as_tokenizer` accepts, as are `add_special_tokens` and the two after it.
            keep: columns that stay beside the tokens of their document; default all others. They are stored with the
                tokens, so that no step before runs again. `.pad()` and batches of documents have them; `.windows()`
                and `.pack()`, whose rows are not documents, only those in `columns=`. `keep=[]` stores tokens alone.
            eos: append the tokenizer's end token to each document, or this id, or nothing with False.
            on_error: "skip" leaves out bad records, at most `budget`; as does `.skip_errors(budget)` before it.
            engine: "reference" does not use the fast engine (which is compared with the tokenizer before use).

        >>> from tempfile import mkdtemp
        >>> ps.from_texts(["hi", "you"]).tokenize("bytes", cache_dir=mkdtemp()).peek(1)[0]["input_ids"].tolist()
        [104, 105, 256]
        """
        from penstock.preparation.tokenize import tokenized

        settings = changed(
            TextVerbs.tokenize, eos=eos, on_error=on_error, budget=budget, engine=engine, threads=threads,
            shard_tokens=shard_tokens, show_progress=show_progress, add_special_tokens=add_special_tokens,
            allowed_special=allowed_special, disallowed_special=disallowed_special,
        )  # fmt: skip
        return self._new(tokenized(self.definition, tokenizer, field, keep, cache_dir, settings))

    def windows(self, length: int, stride: int | None = None, *, columns: Sequence[str] = ()) -> Self:
        """Cuts the token stream into windows of `length` tokens, `stride` apart (default: no overlap), with `labels`.

        Args:
            columns: columns of the store with a number for each token or each document, cut as `input_ids` are.

        >>> ps.open_tokens([5, 6, 7, 8, 9]).windows(2).peek(1)
        [{'input_ids': array([5, 6]), 'labels': array([6, 7])}]
        """
        from penstock.steps.windows import Windows

        return self.then(Windows(length, stride, columns))

    def pack(
        self, length: int, *, strategy: Literal["best_fit", "concat"] = "best_fit",
        overlong: Literal["split", "truncate", "drop", "error"] = "split", max_docs: int | None = None,
        labels: Literal["next", "same"] | None = "next", static: bool = False, pad_id: int = 0,
        columns: Sequence[str] | Mapping[str, int | float] = (),
    ) -> Self:  # fmt: skip
        """Packs several documents into each row of `length` tokens; `segment_ids` keep them apart.

        Args:
            strategy: "best_fit" keeps documents in one piece where they fit, "concat" cuts the stream.
            overlong: what to do with documents longer than a row.
            labels: "next" shifts them by one within each document, "same" does not, None leaves them out.
            static: fixed shapes for `cu_seqlens`, for compiled programs.
            columns: columns of the store that are cut and padded as `input_ids` are: a number for each token (weights,
                tags), or for each document, repeated. Padding is 0, of `labels` (with `labels=None`) -100; or
                `{"tags": -1}`. Value t belongs to `input_ids[t]`, also where labels are those of the next token.

        >>> ps.open_tokens([5, 6, 7, 8, 9], [0, 3, 5]).pack(5).peek(1)[0]["segment_ids"].tolist()
        [1, 1, 1, 2, 2]
        """
        from penstock.steps.pack import Pack

        return self.then(Pack(length, strategy, overlong, max_docs, labels, static, pad_id, columns))

    def pad(
        self, to: int | Literal["longest"] = "longest", *, pad_id: int = 0, side: Literal["right", "left"] = "right",
        multiple: int | None = None, truncate: bool = False, labels: bool = True, columns: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """Pads ragged rows to one length, with `attention_mask` and `labels` (-100 where there is no next token).

        Args:
            to: a length, or "longest" of the global batch, rounded up to `multiple`.
            truncate: cut longer rows instead of raising.
            labels: make `labels` from `input_ids` where the rows have none.
            columns: columns besides tokens, mask and labels that differ in length: padded even where the rows of a
                batch are equally long by chance.

        >>> batch = ps.open_tokens([5, 6, 7], [0, 2, 3]).pad().batch(2).to_numpy().batch_at(0)
        >>> batch["input_ids"].tolist(), batch["labels"].tolist()
        ([[5, 6], [7, 0]], [[6, -100], [-100, -100]])
        """
        from penstock.steps.pad import Pad

        return self.then(Pad(to, pad_id, side, multiple, truncate, labels, columns))
