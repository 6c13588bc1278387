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
    "_errors": (
        "BadRecords DataError LimitError MissingExtra PenstockError RecordError StageError StateError StoreError "
        "UsageError UserCodeError WorkerDied"
    ),
    "audio.config": "AudioModalityConfig",
    "audio.synthetic": "SyntheticAudioDataset create_audio_dataset",
    "augment": "Augment carry_keys",
    "augment.guide": (
        "augment_audio augment_audio_batch augment_audio_batch_jit augment_batch augment_batch_jit augment_image "
        "augment_image_batch augment_text_batch augment_text_batch_jit augment_text_tokens"
    ),
    "batching.collate": "create_causal_lm_collate create_collate_fn",
    "batching.fim": "create_fim_collate",
    "batching.mlm": "create_mlm_collate",
    "batching.preference": "create_preference_collate",
    "batching.schema": "OutputSchema",
    "batching.seq2seq": "create_seq2seq_collate",
    "capibara.config": "CapibaraConfig DataLoaderConfig",
    "capibara.loader": "CapibaraDataLoader",
    "capibara.resolve": "register_dataset resolve_dataset",
    "columns": "Ragged",
    "datasets.base": "BaseDataset",
    "datasets.cached": "CachedDataset",
    "datasets.config": "BaseModalityConfig ModalityConfiguration",
    "datasets.memory": "MemoryEfficientDataset",
    "datasets.split": "SubsetDataset split_dataset",
    "datasets.transformed": "TransformDataset",
    "datasets.validated": "ValidatedDataset validate_sample",
    "engine.loader": "Loader",
    "image.mnist_like": "MNISTLikeDataset create_image_dataset",
    "image.modality": "ImageModality ImageModalityConfig ImageRepresentation",
    "image.synthetic": "SyntheticImageDataset",
    "loaders.cached": "CachedLoader",
    "loaders.multi_epoch": "create_multi_epoch_data_loader",
    "loaders.multimodal": "create_multi_modal_loader",
    "loaders.pad": "pad_batch",
    "loaders.pipeline": "create_training_pipeline",
    "loaders.prefetch": "PrefetchDataLoader",
    "loaders.preprocess": "convert_to_float16 preprocess_batch vectorized_preprocessing",
    "loaders.simple": "create_simple_data_loader",
    "multimodal.interleave": "AudioTokens ImageTokens Interleave",
    "multimodal.paired": "MultiModalPairedDataset",
    "multimodal.synthetic": "MultiModalDataset create_synthetic_multi_modal_dataset",
    "outputs.builder": "DataLoaderBuilder",
    "pipeline": "Pipeline mix",
    "preparation.prompts": "prepare_prompts",
    "read": (
        "from_arrays from_hf from_texts from_tfds open_dolma open_megatron open_nanogpt open_store open_tokens prepare "
        "read_jsonl read_parquet read_text"
    ),
    "read_media": "pair read_audio read_images read_tar",
    "text.create_preprocessed": "create_preprocessed_dataset",
    "text.gpt_dataset": "GPTDatasetV1 create_dataloader create_dataset",
    "text.micro_dataset": "TransformerDataset create_dataloaders",
    "text.micro_tokenizer": "MicroTransformerTokenizer",
    "text.preprocessed": "PreprocessedDataset",
    "text.prompts.engine": "PromptEngine",
    "text.simple": "SimpleTextDataset",
    "text.streaming": "StreamingPreprocessedDataset",
    "text.synthetic": "SyntheticTextDataset create_text_dataset",
    "text.tokenizers": "BulkEncoder as_tokenizer",
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
