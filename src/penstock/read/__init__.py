"""Where pipelines begin: `read_*` for files, `from_*` for data in memory, `open_*` for tokens; `mix` and `pair`.

Each function imports its source when it is called, so a program loads only the formats that it reads.
"""

from penstock.read.combine import concat, interleave, mix, pair, zip  # noqa: A004 - users write ps.zip
from penstock.read.config import from_config
from penstock.read.files import (
    read_array_record,
    read_arrow,
    read_audio,
    read_csv,
    read_images,
    read_json,
    read_jsonl,
    read_mds,
    read_parquet,
    read_tar,
    read_text,
    read_tfrecords,
    read_videos,
)
from penstock.read.memory import from_arrays, from_dataset, from_hf, from_records, from_stream, from_texts, from_tfds
from penstock.read.to_store import prepare
from penstock.read.tokens import open_dolma, open_mds, open_megatron, open_nanogpt, open_store, open_tokens

__all__ = [
    "concat",
    "from_arrays",
    "from_config",
    "from_dataset",
    "from_hf",
    "from_records",
    "from_stream",
    "from_texts",
    "from_tfds",
    "interleave",
    "mix",
    "open_dolma",
    "open_mds",
    "open_megatron",
    "open_nanogpt",
    "open_store",
    "open_tokens",
    "pair",
    "prepare",
    "read_array_record",
    "read_arrow",
    "read_audio",
    "read_csv",
    "read_images",
    "read_json",
    "read_jsonl",
    "read_mds",
    "read_parquet",
    "read_tar",
    "read_text",
    "read_tfrecords",
    "read_videos",
    "zip",
]
