"""Penstock feeds training: text, images and audio into NumPy, PyTorch and JAX.

The batch of step n is a pure function of (data, plan, seed, n). Start here:

    open_store                                  a token store that `prepare` wrote
    read_text  read_jsonl  read_parquet         text files, JSON lines, Parquet
    read_csv  read_json  read_arrow             CSV and TSV, JSON arrays, Arrow IPC
    read_array_record  read_tfrecords           ArrayRecord files; TFRecord files of tf.train.Example
    read_tar  read_images  read_audio           tar shards, folders of images, folders of audio
    read_videos                                 folders of videos, for .decode_video()
    read_mds  open_mds                          records, or token ids, of MosaicML MDS datasets
    from_texts  from_arrays  from_records       strings, columns, records and tables in memory
    from_dataset                                anything with len() and [i], such as a torch Dataset
    from_stream                                 a generator function, or an iterable, in its order
    from_config                                 a pipeline from a dict, or a TOML, YAML or JSON file
    from_hf  from_tfds                          datasets of Hugging Face and TensorFlow
    open_tokens  open_megatron                  tokens in memory; token files of other tools
    open_nanogpt  open_dolma
    pair  mix                                   media with captions; several pipelines in proportion
    concat  zip  interleave                     several pipelines one after another, side by side, in turn
    prepare  prepare_prompts                    raw text or prompts to a token store
    convert                                     tokens from and to the formats of other tools
    Pipeline  Loader                            the verbs; what yields batches
    open_viewer  show                           a local web page: data, batches, runs; a batch in a notebook

The other names are grouped by document in docs/reference/names.md. A name is imported when it is first used:
`import penstock` imports no framework, and not even NumPy.

>>> import penstock as ps
>>> loader = ps.from_arrays({"x": range(6)}).batch(3).to_numpy()
>>> [batch["x"].tolist() for batch in loader]
[[0, 1, 2], [3, 4, 5]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._version import __version__ as __version__

if TYPE_CHECKING:  # what type checkers and editors read; tests/meta/test_public.py compares it with the table below
    from penstock.augment import Augment as Augment
    from penstock.augment import Boxes as Boxes
    from penstock.augment import Keypoints as Keypoints
    from penstock.augment import carry_keys as carry_keys
    from penstock.chat.engine import PromptEngine as PromptEngine
    from penstock.chat.interleave import AudioTokens as AudioTokens
    from penstock.chat.interleave import ImageTokens as ImageTokens
    from penstock.chat.interleave import Interleave as Interleave
    from penstock.collate.schema import OutputSchema as OutputSchema
    from penstock.core.columns import Ragged as Ragged
    from penstock.core.errors import ArgumentError as ArgumentError
    from penstock.core.errors import BadRecords as BadRecords
    from penstock.core.errors import DataError as DataError
    from penstock.core.errors import FileMissing as FileMissing
    from penstock.core.errors import LimitError as LimitError
    from penstock.core.errors import MissingExtra as MissingExtra
    from penstock.core.errors import PenstockError as PenstockError
    from penstock.core.errors import RecordError as RecordError
    from penstock.core.errors import StageError as StageError
    from penstock.core.errors import StateError as StateError
    from penstock.core.errors import StorageError as StorageError
    from penstock.core.errors import StoreError as StoreError
    from penstock.core.errors import UsageError as UsageError
    from penstock.core.errors import UserCodeError as UserCodeError
    from penstock.core.errors import WorkerDied as WorkerDied
    from penstock.core.limits import Limits as Limits
    from penstock.engine.loader import Loader as Loader
    from penstock.facades.artifex.audio.config import AudioModalityConfig as AudioModalityConfig
    from penstock.facades.artifex.audio.synthetic import SyntheticAudioDataset as SyntheticAudioDataset
    from penstock.facades.artifex.audio.synthetic import create_audio_dataset as create_audio_dataset
    from penstock.facades.artifex.augment import augment_audio as augment_audio
    from penstock.facades.artifex.augment import augment_audio_batch as augment_audio_batch
    from penstock.facades.artifex.augment import augment_audio_batch_jit as augment_audio_batch_jit
    from penstock.facades.artifex.augment import augment_batch as augment_batch
    from penstock.facades.artifex.augment import augment_batch_jit as augment_batch_jit
    from penstock.facades.artifex.augment import augment_image as augment_image
    from penstock.facades.artifex.augment import augment_image_batch as augment_image_batch
    from penstock.facades.artifex.augment import augment_text_batch as augment_text_batch
    from penstock.facades.artifex.augment import augment_text_batch_jit as augment_text_batch_jit
    from penstock.facades.artifex.augment import augment_text_tokens as augment_text_tokens
    from penstock.facades.artifex.datasets.base import BaseDataset as BaseDataset
    from penstock.facades.artifex.datasets.cached import CachedDataset as CachedDataset
    from penstock.facades.artifex.datasets.config import BaseModalityConfig as BaseModalityConfig
    from penstock.facades.artifex.datasets.config import ModalityConfiguration as ModalityConfiguration
    from penstock.facades.artifex.datasets.memory import MemoryEfficientDataset as MemoryEfficientDataset
    from penstock.facades.artifex.datasets.split import SubsetDataset as SubsetDataset
    from penstock.facades.artifex.datasets.split import split_dataset as split_dataset
    from penstock.facades.artifex.datasets.transformed import TransformDataset as TransformDataset
    from penstock.facades.artifex.datasets.validated import ValidatedDataset as ValidatedDataset
    from penstock.facades.artifex.datasets.validated import validate_sample as validate_sample
    from penstock.facades.artifex.image.mnist_like import MNISTLikeDataset as MNISTLikeDataset
    from penstock.facades.artifex.image.mnist_like import create_image_dataset as create_image_dataset
    from penstock.facades.artifex.image.modality import ImageModality as ImageModality
    from penstock.facades.artifex.image.modality import ImageModalityConfig as ImageModalityConfig
    from penstock.facades.artifex.image.modality import ImageRepresentation as ImageRepresentation
    from penstock.facades.artifex.image.synthetic import SyntheticImageDataset as SyntheticImageDataset
    from penstock.facades.artifex.loaders.cached import CachedLoader as CachedLoader
    from penstock.facades.artifex.loaders.epochs import PrefetchDataLoader as PrefetchDataLoader
    from penstock.facades.artifex.loaders.epochs import (
        create_multi_epoch_data_loader as create_multi_epoch_data_loader,
    )
    from penstock.facades.artifex.loaders.epochs import create_simple_data_loader as create_simple_data_loader
    from penstock.facades.artifex.loaders.multimodal import create_multi_modal_loader as create_multi_modal_loader
    from penstock.facades.artifex.loaders.pipeline import create_training_pipeline as create_training_pipeline
    from penstock.facades.artifex.loaders.preprocess import convert_to_float16 as convert_to_float16
    from penstock.facades.artifex.loaders.preprocess import pad_batch as pad_batch
    from penstock.facades.artifex.loaders.preprocess import preprocess_batch as preprocess_batch
    from penstock.facades.artifex.loaders.preprocess import vectorized_preprocessing as vectorized_preprocessing
    from penstock.facades.artifex.multimodal.paired import MultiModalPairedDataset as MultiModalPairedDataset
    from penstock.facades.artifex.multimodal.synthetic import MultiModalDataset as MultiModalDataset
    from penstock.facades.artifex.multimodal.synthetic import (
        create_synthetic_multi_modal_dataset as create_synthetic_multi_modal_dataset,
    )
    from penstock.facades.artifex.text.dataset import SimpleTextDataset as SimpleTextDataset
    from penstock.facades.artifex.text.synthetic import SyntheticTextDataset as SyntheticTextDataset
    from penstock.facades.artifex.text.synthetic import create_text_dataset as create_text_dataset
    from penstock.facades.capibara.config import CapibaraConfig as CapibaraConfig
    from penstock.facades.capibara.config import DataLoaderConfig as DataLoaderConfig
    from penstock.facades.capibara.loader import CapibaraDataLoader as CapibaraDataLoader
    from penstock.facades.capibara.resolve import register_dataset as register_dataset
    from penstock.facades.capibara.resolve import resolve_dataset as resolve_dataset
    from penstock.facades.gpt_windows.dataset import GPTDatasetV1 as GPTDatasetV1
    from penstock.facades.gpt_windows.dataset import create_dataloader as create_dataloader
    from penstock.facades.gpt_windows.dataset import create_dataset as create_dataset
    from penstock.facades.micro_transformer.dataset import TransformerDataset as TransformerDataset
    from penstock.facades.micro_transformer.dataset import create_dataloaders as create_dataloaders
    from penstock.facades.micro_transformer.tokenizer import MicroTransformerTokenizer as MicroTransformerTokenizer
    from penstock.facades.preprocessed.builder import DataLoaderBuilder as DataLoaderBuilder
    from penstock.facades.preprocessed.collate import create_causal_lm_collate as create_causal_lm_collate
    from penstock.facades.preprocessed.collate import create_collate_fn as create_collate_fn
    from penstock.facades.preprocessed.collate import create_fim_collate as create_fim_collate
    from penstock.facades.preprocessed.collate import create_mlm_collate as create_mlm_collate
    from penstock.facades.preprocessed.collate import create_preference_collate as create_preference_collate
    from penstock.facades.preprocessed.collate import create_seq2seq_collate as create_seq2seq_collate
    from penstock.facades.preprocessed.create import create_preprocessed_dataset as create_preprocessed_dataset
    from penstock.facades.preprocessed.dataset import PreprocessedDataset as PreprocessedDataset
    from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset as StreamingPreprocessedDataset
    from penstock.pipeline import Pipeline as Pipeline
    from penstock.preparation.convert import convert as convert
    from penstock.preparation.prompts import prepare_prompts as prepare_prompts
    from penstock.read import from_arrays as from_arrays
    from penstock.read import from_hf as from_hf
    from penstock.read import from_texts as from_texts
    from penstock.read import from_tfds as from_tfds
    from penstock.read import mix as mix
    from penstock.read import open_dolma as open_dolma
    from penstock.read import open_mds as open_mds
    from penstock.read import open_megatron as open_megatron
    from penstock.read import open_nanogpt as open_nanogpt
    from penstock.read import open_store as open_store
    from penstock.read import open_tokens as open_tokens
    from penstock.read import pair as pair
    from penstock.read import prepare as prepare
    from penstock.read import read_audio as read_audio
    from penstock.read import read_images as read_images
    from penstock.read import read_jsonl as read_jsonl
    from penstock.read import read_mds as read_mds
    from penstock.read import read_parquet as read_parquet
    from penstock.read import read_tar as read_tar
    from penstock.read import read_text as read_text
    from penstock.read.combine import concat as concat
    from penstock.read.combine import interleave as interleave
    from penstock.read.combine import zip as zip  # noqa: A004
    from penstock.read.config import from_config as from_config
    from penstock.read.files import read_array_record as read_array_record
    from penstock.read.files import read_arrow as read_arrow
    from penstock.read.files import read_csv as read_csv
    from penstock.read.files import read_json as read_json
    from penstock.read.files import read_tfrecords as read_tfrecords
    from penstock.read.files import read_videos as read_videos
    from penstock.read.memory import from_dataset as from_dataset
    from penstock.read.memory import from_records as from_records
    from penstock.read.memory import from_stream as from_stream
    from penstock.tokenizers import BulkEncoder as BulkEncoder
    from penstock.tokenizers import as_tokenizer as as_tokenizer
    from penstock.view.server import open_viewer as open_viewer
    from penstock.view.show import show as show
else:
    from importlib import import_module

    _GROUPS = {  # title: {module: names}, in the order of docs/reference/names.md
        "Where to begin": {
            "read": (
                "open_store read_text read_jsonl read_parquet read_tar read_images read_audio read_mds from_texts "
                "from_arrays from_hf from_tfds open_tokens open_megatron open_nanogpt open_dolma open_mds pair mix "
                "prepare"
            ),
            "read.files": "read_csv read_json read_arrow read_array_record read_tfrecords read_videos",
            "read.memory": "from_records from_dataset from_stream",
            "read.config": "from_config",
            "read.combine": "concat zip interleave",
            "pipeline": "Pipeline",
            "preparation.prompts": "prepare_prompts",
            "preparation.convert": "convert",
            "engine.loader": "Loader",
            "view.server": "open_viewer",
            "view.show": "show",
        },
        "More of the core": {
            "core.columns": "Ragged",
            "core.limits": "Limits",
            "tokenizers": "as_tokenizer BulkEncoder",
            "augment": "Augment Boxes Keypoints carry_keys",
            "chat.interleave": "Interleave ImageTokens AudioTokens",
        },
        "Errors": {
            "core.errors": (
                "PenstockError UsageError ArgumentError MissingExtra StateError StorageError FileMissing "
                "LimitError DataError RecordError BadRecords StoreError StageError UserCodeError WorkerDied"
            ),
        },
        "Document 000, Capibara": {
            "facades.capibara.config": "CapibaraConfig DataLoaderConfig",
            "facades.capibara.loader": "CapibaraDataLoader",
            "facades.capibara.resolve": "register_dataset resolve_dataset",
        },
        "Document 001, preprocessed datasets and collation": {
            "chat.engine": "PromptEngine",
            "collate.schema": "OutputSchema",
            "facades.preprocessed.builder": "DataLoaderBuilder",
            "facades.preprocessed.collate": "create_causal_lm_collate create_collate_fn create_fim_collate "
            "create_mlm_collate create_preference_collate create_seq2seq_collate",
            "facades.preprocessed.create": "create_preprocessed_dataset",
            "facades.preprocessed.dataset": "PreprocessedDataset",
            "facades.preprocessed.streaming": "StreamingPreprocessedDataset",
        },
        "Document 002, micro-transformer": {
            "facades.micro_transformer.dataset": "TransformerDataset create_dataloaders",
            "facades.micro_transformer.tokenizer": "MicroTransformerTokenizer",
        },
        "Document 003, Artifex guide": {
            "facades.artifex.audio.config": "AudioModalityConfig",
            "facades.artifex.audio.synthetic": "SyntheticAudioDataset create_audio_dataset",
            "facades.artifex.augment": (
                "augment_audio augment_audio_batch augment_audio_batch_jit augment_batch augment_batch_jit "
                "augment_image augment_image_batch augment_text_batch augment_text_batch_jit augment_text_tokens"
            ),
            "facades.artifex.datasets.base": "BaseDataset",
            "facades.artifex.datasets.cached": "CachedDataset",
            "facades.artifex.datasets.config": "BaseModalityConfig ModalityConfiguration",
            "facades.artifex.datasets.memory": "MemoryEfficientDataset",
            "facades.artifex.datasets.split": "SubsetDataset split_dataset",
            "facades.artifex.datasets.transformed": "TransformDataset",
            "facades.artifex.datasets.validated": "ValidatedDataset validate_sample",
            "facades.artifex.image.mnist_like": "MNISTLikeDataset create_image_dataset",
            "facades.artifex.image.modality": "ImageModality ImageModalityConfig ImageRepresentation",
            "facades.artifex.image.synthetic": "SyntheticImageDataset",
            "facades.artifex.loaders.cached": "CachedLoader",
            "facades.artifex.loaders.epochs": (
                "PrefetchDataLoader create_multi_epoch_data_loader create_simple_data_loader"
            ),
            "facades.artifex.loaders.multimodal": "create_multi_modal_loader",
            "facades.artifex.loaders.pipeline": "create_training_pipeline",
            "facades.artifex.loaders.preprocess": (
                "convert_to_float16 pad_batch preprocess_batch vectorized_preprocessing"
            ),
            "facades.artifex.multimodal.paired": "MultiModalPairedDataset",
            "facades.artifex.multimodal.synthetic": "MultiModalDataset create_synthetic_multi_modal_dataset",
            "facades.artifex.text.dataset": "SimpleTextDataset",
            "facades.artifex.text.synthetic": "SyntheticTextDataset create_text_dataset",
        },
        "Document 004, sliding windows": {
            "facades.gpt_windows.dataset": "GPTDatasetV1 create_dataloader create_dataset",
        },
    }
    _HOME = {
        name: module for modules in _GROUPS.values() for module, names in modules.items() for name in names.split()
    }
    __all__ = ["__version__", *_HOME]  # noqa: PLE0604

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            from penstock.pipeline.other_names import no_such_name

            raise no_such_name(name, _HOME)
        value = getattr(import_module(f"penstock.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__
