"""Penstock feeds training: text, images and audio into NumPy, PyTorch and JAX.

The batch of step n is a pure function of (data, plan, seed, n). Names are resolved when first used: importing penstock
imports no framework and nothing but NumPy at most.

>>> import penstock as ps
>>> loader = ps.from_arrays({"x": range(6)}).batch(3).to_numpy()
>>> [batch["x"].tolist() for batch in loader]
[[0, 1, 2], [3, 4, 5]]
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock._version import __version__ as __version__

_HOMES = {
    "core.errors": (
        "BadRecords DataError LimitError MissingExtra PenstockError RecordError StageError StateError StoreError "
        "UsageError UserCodeError WorkerDied"
    ),
    "facades.artifex.audio.config": "AudioModalityConfig",
    "facades.artifex.audio.synthetic": "SyntheticAudioDataset create_audio_dataset",
    "augment": "Augment carry_keys",
    "facades.artifex.augment": (
        "augment_audio augment_audio_batch augment_audio_batch_jit augment_batch augment_batch_jit augment_image "
        "augment_image_batch augment_text_batch augment_text_batch_jit augment_text_tokens"
    ),
    "collate.causal_lm": "create_causal_lm_collate create_collate_fn",
    "collate.fim": "create_fim_collate",
    "collate.mlm": "create_mlm_collate",
    "collate.preference": "create_preference_collate",
    "collate.schema": "OutputSchema",
    "collate.seq2seq": "create_seq2seq_collate",
    "facades.capibara.config": "CapibaraConfig DataLoaderConfig",
    "facades.capibara.loader": "CapibaraDataLoader",
    "facades.capibara.resolve": "register_dataset resolve_dataset",
    "core.columns": "Ragged",
    "facades.artifex.datasets.base": "BaseDataset",
    "facades.artifex.datasets.cached": "CachedDataset",
    "facades.artifex.datasets.config": "BaseModalityConfig ModalityConfiguration",
    "facades.artifex.datasets.memory": "MemoryEfficientDataset",
    "facades.artifex.datasets.split": "SubsetDataset split_dataset",
    "facades.artifex.datasets.transformed": "TransformDataset",
    "facades.artifex.datasets.validated": "ValidatedDataset validate_sample",
    "engine.loader": "Loader",
    "facades.artifex.image.mnist_like": "MNISTLikeDataset create_image_dataset",
    "facades.artifex.image.modality": "ImageModality ImageModalityConfig ImageRepresentation",
    "facades.artifex.image.synthetic": "SyntheticImageDataset",
    "facades.artifex.loaders.cached": "CachedLoader",
    "facades.artifex.loaders.multi_epoch": "create_multi_epoch_data_loader",
    "facades.artifex.loaders.multimodal": "create_multi_modal_loader",
    "facades.artifex.loaders.pad": "pad_batch",
    "facades.artifex.loaders.pipeline": "create_training_pipeline",
    "facades.artifex.loaders.prefetch": "PrefetchDataLoader",
    "facades.artifex.loaders.preprocess": "convert_to_float16 preprocess_batch vectorized_preprocessing",
    "facades.artifex.loaders.simple": "create_simple_data_loader",
    "chat.interleave": "AudioTokens ImageTokens Interleave",
    "facades.artifex.multimodal.paired": "MultiModalPairedDataset",
    "facades.artifex.multimodal.synthetic": "MultiModalDataset create_synthetic_multi_modal_dataset",
    "facades.preprocessed.builder": "DataLoaderBuilder",
    "pipeline": "Pipeline mix",
    "preparation.prompts": "prepare_prompts",
    "read": (
        "from_arrays from_hf from_texts from_tfds open_dolma open_megatron open_nanogpt open_store open_tokens pair "
        "prepare read_audio read_images read_jsonl read_parquet read_tar read_text"
    ),
    "facades.preprocessed.create": "create_preprocessed_dataset",
    "facades.gpt_windows.dataset": "GPTDatasetV1 create_dataloader create_dataset",
    "facades.micro_transformer.dataset": "TransformerDataset create_dataloaders",
    "facades.micro_transformer.tokenizer": "MicroTransformerTokenizer",
    "facades.preprocessed.dataset": "PreprocessedDataset",
    "chat.engine": "PromptEngine",
    "facades.artifex.text.dataset": "SimpleTextDataset",
    "facades.preprocessed.streaming": "StreamingPreprocessedDataset",
    "facades.artifex.text.synthetic": "SyntheticTextDataset create_text_dataset",
    "tokenizers": "BulkEncoder as_tokenizer",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(import_module(f"penstock.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
