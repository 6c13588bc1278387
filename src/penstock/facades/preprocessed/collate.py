"""The public collate functions: rows to a padded batch of torch tensors, NumPy or JAX arrays.

Each `create_*` function returns a callable. It takes a list of rows (mappings from name to list, NumPy, torch or JAX
array, or scalar; a bare list or array is `input_ids`) or a dict of columns, and returns a dict. The callables are plain
data: they can be printed and pickled into workers. How columns are padded is described in `penstock.collate.batch`.

Arguments that all of them share
- `pad_token_id`, `label_pad_token_id`: what pads tokens and labels.
- `padding_side`, `truncation_side`: "right" or "left".
- `max_length`: fixes the width of every batch and truncates longer rows; without it a batch is as wide as its longest
  row. `pad_to_multiple_of` rounds the width up.
- `return_tensors`: True or "pt" for torch, False or "np" for NumPy, "jax" for JAX.
- `schema`: an `OutputSchema` with the dtypes of the batch.
- `pad_values`: what other columns are padded with, by name (0 unless given). A column named here is padded whatever its
  length; otherwise a column is padded if it is as long as `input_ids` in every row.
- `stack_columns`: columns that are never padded. Name those of a fixed length of their own (a box, a multi-hot vector
  in `labels`), which may be as long as the tokens by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from penstock.collate.causal_lm import CausalCollate, PadCollate
from penstock.collate.fim import FimCollate
from penstock.collate.layout import Side
from penstock.collate.mlm import MADE_BY_MLM, MlmCollate
from penstock.collate.options import CollateOptions, Convert
from penstock.collate.preference import PreferenceCollate
from penstock.collate.schema import OutputSchema
from penstock.collate.seq2seq import TARGET_COLUMNS, Seq2SeqCollate
from penstock.collate.tokens import IGNORE, TOKEN_COLUMNS
from penstock.core.arguments import explained_call
from penstock.core.errors import UsageError
from penstock.outputs.arrays import jax_array, torch_tensor

Tensors = bool | None | Literal["pt", "np", "jax"]

_CONVERTERS: dict[Any, Convert | None] = {
    True: torch_tensor,
    "pt": torch_tensor,
    "torch": torch_tensor,
    False: None,
    None: None,
    "np": None,
    "numpy": None,
    "jax": jax_array,
}


def _converter(return_tensors: Tensors) -> Convert | None:
    if return_tensors not in _CONVERTERS:
        raise UsageError(
            "`return_tensors` to be True or 'pt' (torch), False or 'np' (NumPy), or 'jax'",
            got=repr(return_tensors),
            fix="use one of these",
        )
    return _CONVERTERS[return_tensors]


@explained_call
def create_collate_fn(
    pad_token_id: int,
    label_pad_token_id: int = IGNORE,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    *,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
    make_labels: bool = False,
    padding: bool = True,
) -> PadCollate:
    """Returns a collate function that pads. With `padding=False`, rows of different lengths are refused instead.

    Rows without labels get none, unless `make_labels` copies them from `input_ids`. Labels are in all rows or in none;
    None counts as missing. The other arguments are described at the top of this module.

    >>> collate = create_collate_fn(pad_token_id=0, return_tensors="np")
    >>> batch = collate([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}])
    >>> {name: value.tolist() for name, value in batch.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'input_ids': [[5, 6, 7], [8, 0, 0]], 'attention_mask': [[1, 1, 1], [1, 0, 0]],
     'labels': [[-100, 6, 7], [8, -100, -100]]}
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, _converter(return_tensors),
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns, padding=padding,
    )  # fmt: skip
    return PadCollate(options, make_labels)


@explained_call
def create_causal_lm_collate(
    pad_token_id: int,
    label_pad_token_id: int = IGNORE,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    *,
    shift: bool = True,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
) -> CausalCollate:
    """Returns a collate function for autoregressive training.

    With `shift=True`, `labels[t]` is the token after `input_ids[t]`, so that a training loop computes
    `cross_entropy(logits, labels)` without slicing. Models of the transformers library shift inside their own loss: use
    `shift=False` for them, which puts `labels[t]` at the position of `input_ids[t]`. Rows bring `labels` unshifted, one
    integer per token, with `label_pad_token_id` where the loss is masked; rows without labels train on every token.

    >>> collate = create_causal_lm_collate(pad_token_id=0, return_tensors="np")
    >>> collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])["labels"].tolist()
    [[6, 7, -100], [9, -100, -100]]
    >>> collate([{"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}])["labels"].tolist()
    [[-100, 7, -100]]
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, _converter(return_tensors),
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns, token_labels=True,
    )  # fmt: skip
    return CausalCollate(options, shift)


@explained_call
def create_seq2seq_collate(
    pad_token_id: int,
    label_pad_token_id: int = IGNORE,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    *,
    decoder_start_token_id: int | None = None,
    max_target_length: int | None = None,
    target_padding_side: Side = "right",
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
) -> Seq2SeqCollate:
    """Returns a collate function for encoder-decoder training.

    Rows have `input_ids` for the encoder and `labels` for the decoder, each of its own length. The batch has
    `input_ids`, `attention_mask`, `labels`, `decoder_input_ids` (labels shifted right, behind `decoder_start_token_id`,
    which defaults to `pad_token_id` as in T5) and `decoder_attention_mask`, which is 1 where there is a label.
    `max_length` fixes the encoder's width, `max_target_length` the decoder's. Rows without labels, to generate from,
    get the encoder's columns alone.

    >>> collate = create_seq2seq_collate(pad_token_id=0, return_tensors="np")
    >>> batch = collate([{"input_ids": [5, 6], "labels": [7, 8, 1]}, {"input_ids": [9], "labels": [1]}])
    >>> batch["decoder_input_ids"].tolist(), batch["labels"].tolist()
    ([[0, 7, 8], [0, 1, 0]], [[7, 8, 1], [1, -100, -100]])
    >>> batch["decoder_attention_mask"].tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, _converter(return_tensors),
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns,
        token_labels=True, own=TOKEN_COLUMNS | TARGET_COLUMNS,
    )  # fmt: skip
    start = pad_token_id if decoder_start_token_id is None else decoder_start_token_id
    return Seq2SeqCollate(options, start, max_target_length, target_padding_side)


@explained_call
def create_mlm_collate(
    pad_token_id: int,
    mask_token_id: int,
    vocab_size: int,
    *,
    special_token_ids: Sequence[int] = (),
    probability: float = 0.15,
    mask_share: float = 0.8,
    random_share: float = 0.1,
    seed: int = 0,
    epoch: int = 0,
    label_pad_token_id: int = IGNORE,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
) -> MlmCollate:
    """Returns a collate function for masked-language-model training.

    Each token is chosen with `probability`. Of the chosen, `mask_share` become `mask_token_id`, `random_share` become
    another ordinary token, the rest stay. Labels hold the originals of the chosen and `label_pad_token_id` elsewhere.
    Special tokens are never chosen and never drawn as replacements: those in `special_token_ids`, padding, the mask
    token, and those that a row's `special_tokens_mask` marks. Labels that rows bring are ignored.

    A row is identified by its `index` or `record` column, or else by its content. An `epoch` column, or `at_epoch(n)`,
    changes the choices.

    >>> collate = create_mlm_collate(0, mask_token_id=4, vocab_size=100, special_token_ids=[1, 2], return_tensors="np")
    >>> rows = [{"index": 7, "input_ids": [1, *range(10, 30), 2]}, {"index": 8, "input_ids": [1, 50, 51, 2]}]
    >>> one, two = collate(rows), collate(rows[::-1])
    >>> bool((one["input_ids"] == two["input_ids"][::-1]).all())
    True
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, _converter(return_tensors),
        pad_to_multiple_of, truncation_side, schema, pad_values or {}, stack_columns,
        token_labels=True, own=TOKEN_COLUMNS | MADE_BY_MLM,
    )  # fmt: skip
    special = tuple(special_token_ids)
    return MlmCollate(options, mask_token_id, vocab_size, special, probability, mask_share, random_share, seed, epoch)


@explained_call
def create_fim_collate(
    pad_token_id: int,
    prefix_token_id: int,
    middle_token_id: int,
    suffix_token_id: int,
    *,
    eos_token_id: int | None = None,
    rate: float = 0.5,
    spm_rate: float = 0.5,
    learn: Literal["all", "middle"] = "all",
    shift: bool = True,
    seed: int = 0,
    epoch: int = 0,
    label_pad_token_id: int = IGNORE,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    pad_to_multiple_of: int | None = None,
    schema: OutputSchema | None = None,
    pad_values: Mapping[str, Any] | None = None,
    stack_columns: Collection[str] = (),
) -> FimCollate:
    """Returns a collate function for fill-in-the-middle training.

    A fraction `rate` of the documents is split at two random places into prefix, middle and suffix. A fraction
    `spm_rate` of those becomes `<pre><suf> suffix <mid> prefix middle`, the others
    `<pre> prefix <suf> suffix <mid> middle`. An `eos_token_id` at the end of a row stays at the end. With `max_length`,
    a document is truncated to leave space for the three tokens. `learn="middle"` keeps labels only on the middle and
    the end token of rearranged rows. `shift` as in `create_causal_lm_collate`.

    What a row's `attention_mask` marks as padding at its ends is removed first. Labels that a row brings, unshifted,
    move with their tokens, and so does every column as long as `input_ids`; at the three tokens it holds its number in
    `pad_values`, or 0.

    >>> collate = create_fim_collate(0, 101, 102, 103, rate=1.0, spm_rate=0.0, shift=False, return_tensors="np")
    >>> row = collate([{"index": 3, "input_ids": list(range(1, 9))}])["input_ids"][0].tolist()
    >>> row[0], sorted(row) == [*range(1, 9), 101, 102, 103]
    (101, True)
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, _converter(return_tensors),
        pad_to_multiple_of, "right", schema, pad_values or {}, stack_columns, token_labels=True,
    )  # fmt: skip
    return FimCollate(
        options, prefix_token_id, middle_token_id, suffix_token_id, eos_token_id,
        rate, spm_rate, learn, shift, seed, epoch,
    )  # fmt: skip


@explained_call
def create_preference_collate(
    pad_token_id: int,
    *,
    layout: Literal["concatenated", "separate"] = "concatenated",
    shift: bool = False,
    label_pad_token_id: int = IGNORE,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: Tensors = True,
    pad_to_multiple_of: int | None = None,
    truncation_side: Side = "right",
    schema: OutputSchema | None = None,
) -> PreferenceCollate:
    """Returns a collate function for preference training.

    `layout="concatenated"`: `input_ids`, `attention_mask`, `labels` of 2B rows, first the B chosen, then the B
    rejected, for one forward pass. `layout="separate"`: `chosen_input_ids`, `rejected_input_ids` and so on, each of B
    rows and of its own width. Labels are the answer's tokens unless the row brings its own; `shift` as in
    `create_causal_lm_collate`. Text fields named prompt, chosen or rejected are left out of the batch; other columns
    pass through, unless their names are the batch's own.

    >>> collate = create_preference_collate(pad_token_id=0, return_tensors="np")
    >>> batch = collate([{"prompt": [1, 2], "chosen": [3, 4], "rejected": [5]}])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 2, 3, 4], [1, 2, 5, 0]], [[-100, -100, 3, 4], [-100, -100, 5, -100]])
    """
    options = CollateOptions(
        pad_token_id, label_pad_token_id, padding_side, max_length, _converter(return_tensors),
        pad_to_multiple_of, truncation_side, schema, token_labels=True,
    )  # fmt: skip
    return PreferenceCollate(options, layout, shift)
