"""What to write instead of a method that a pipeline does not have, for people who come from other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import NoSuchVerb

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNTERPARTS: dict[str, str] = {
    # HF datasets
    "add_column": '.map(lambda row: {**row, "name": ...}), or .enumerate() for row numbers',
    "batched": ".batch(size)",
    "cast": '.map(...), or types={"column": "float"} of the reader',
    "cast_column": '.map(...), or types={"column": "float"} of the reader',
    "class_encode_column": ".map(lambda row: {**row, 'label': names.index(row['label'])})",
    "column_names": "list(pipeline.peek()[0])",
    "columns": "list(pipeline.peek()[0])",
    "features": ".peek(), which shows rows with their types",
    "head": ".peek(n)",
    "iter": ".batch(size).to_numpy()",
    "num_rows": "len(pipeline.rows())",
    "push_to_hub": ".to_hf(), then push_to_hub() of its result",
    "remove_columns": '.drop("name")',
    "reshard": "nothing: the rows of a rank do not depend on files",
    "rename_column": '.rename({"old": "new"})',
    "rename_columns": '.rename({"old": "new"})',
    "save_to_disk": ".write(path)",
    "schema": ".peek(), which shows rows with their types",
    "select_columns": '.select("name")',
    "set_format": ".to_torch(), .to_numpy() or .to_jax()",
    "set_transform": ".map(function)",
    "shape": "len(pipeline.rows()), and .peek() for the columns",
    "sort": ".bucket(...) for rows of similar length in a batch; an order of your own comes from the source",
    "to_csv": '.write("folder", format="jsonl")',
    "to_dict": "pipeline.rows(), which are read by number",
    "to_json": '.write("folder", format="jsonl")',
    "to_list": "list(pipeline.rows())",
    "to_pandas": ".to_hf().to_pandas()",
    "to_tf_dataset": ".batch(size).to_numpy()",
    "to_parquet": '.write("folder", format="parquet")',
    "train_test_split": '.split({"train": 0.9, "test": 0.1})',
    "unique": ".dedup(), or a set of pipeline.rows()",
    "with_format": ".to_torch(), .to_numpy() or .to_jax()",
    "with_transform": ".map(function)",
    # pandas, Polars, Spark, Ray Data
    "collect": "list(pipeline.rows())",
    "count": "len(pipeline.rows())",
    "drop_columns": '.drop("name")',
    "explode": ".flat_map(lambda row: [{**row, ...} for ...])",
    "group_by": ".bucket(...) for rows of similar length; other groups are made before from_records(table)",
    "limit": ".take(n)",
    "persist": ".cache()",
    "where": ".filter(lambda row: ...)",
    "with_columns": '.map(lambda row: {**row, "name": ...})',
    "describe": "print(pipeline); penstock stats on the command line for lengths and values",
    "first": "pipeline.rows()[0]",
    "join": "penstock.pair(...)",
    "order_by": ".bucket(...) for rows of similar length in a batch; an order of your own comes from the source",
    "show": ".peek(n)",
    "tail": "pipeline.rows()[-n:]",
    "union": "penstock.concat([...])",
    # tf.data
    "apply": "function(pipeline)",
    "as_numpy_iterator": ".batch(size).to_numpy()",
    "bucket_by_sequence_length": ".bucket(...)",
    "cardinality": "len(pipeline.rows())",
    "concatenate": "penstock.concat([...])",
    "from_tensor_slices": 'penstock.from_arrays({"x": array})',
    "ignore_errors": ".skip_errors()",
    "interleave": "penstock.interleave([...])",
    "padded_batch": '.batch(size).pad(to="longest")',
    "prefetch": "prefetch= of .to_torch(), .to_numpy() or .to_jax(); the default reads ahead already",
    "ragged_batch": ".batch(size)",
    "reduce": "a loop over .to_numpy(): a loader computes no statistics",
    "save": ".write(path), or .cache()",
    "snapshot": ".cache(...)",
    "take_while": "none, because a row would depend on rows before it; .filter(function, exact=True) keeps some",
    "window": ".windows(length)",
    "with_options": "arguments of .to_torch(), .to_numpy() or .to_jax()",
    # Grain
    "mix": "penstock.mix([...])",
    "map_with_index": ".enumerate().map(function)",
    "random_map": ".map(function) with a parameter rng",
    "seed": ".shuffle(seed=...)",
    "slice": ".skip(n).take(m)",
    "source": "penstock.from_dataset(...)",
    "to_iter_dataset": ".batch(size).to_numpy()",
    # WebDataset
    "decode": ".decode_images(...), .decode_audio(...) or .decode_video(...)",
    "mcached": ".cache(memory=bytes)",
    "rsample": ".sample(n)",
    "unbatched": ".unbatch()",
    "map_dict": ".map(function)",
    "map_tuple": ".map(function)",
    "rename_keys": '.rename({"old": "new"})',
    "to_tuple": '.batch(size).to_torch().as_tuples("image", "label")',
    "with_epoch": ".take(rows)",
    "with_length": ".take(rows)",
    "cycle": ".repeat()",
    # Transformers
    "apply_chat_template": "penstock.prepare_prompts(records, engine, folder): docs/how-to/instructions.md",
    "group_by_length": ".bucket(...)",
    # torchvision, Albumentations
    "augment": ".map_batches(Augment(...)) after .batch(size)",
    "normalize": ".decode_images(size, mean=..., std=...)",
    "random_crop": '.decode_images(size, crop="random")',
    "resize": ".decode_images(size)",
    "transform": ".map(function), or .map_batches(Augment(...)) after .batch(size)",
    # lhotse
    "resample": ".decode_audio(sample_rate=...)",
    # PyTorch
    "chain": "penstock.concat([...])",
    "random_split": '.split({"train": 0.9, "test": 0.1})',
    "cuda": '.to_torch(device="cuda")',
    "collate": '.pad(to="longest"), or .map_batches(function)',
    "collate_fn": '.pad(to="longest"), or .map_batches(function)',
    "load_state_dict": "loader = pipeline.batch(size).to_torch(); loader.load_state_dict(state)",
    "sampler": ".shuffle(...), .shard(...) or penstock.mix(...)",
    "set_epoch": "nothing: a loader reshuffles each epoch by itself",
    "state_dict": "loader = pipeline.batch(size).to_torch(); loader.state_dict()",
    "to": '.to_torch(device="cuda")',
}

_RECORDS, _ARRAYS, _STREAM = "from_records(records)", 'from_arrays({"x": array})', "from_stream(function)"
_CLASS = "from_dataset(rows), with the class for it in docs/how-to/other-formats.md"
READERS: dict[str, str] = {
    **dict.fromkeys(("from_arrow", "from_pandas", "from_polars", "from_df", "from_list", "from_dicts"), _RECORDS),
    **dict.fromkeys(("from_dict", "from_numpy", "from_tensors", "from_tensor_slices"), _ARRAYS),
    **dict.fromkeys(("from_generator", "from_iterable", "IterableDataset"), _STREAM),
    **dict.fromkeys(("read_lmdb", "read_hdf5", "read_h5", "read_zarr", "read_lance"), _CLASS),
    **dict.fromkeys(("from_torch", "Dataset"), "from_dataset(dataset)"),
    **dict.fromkeys(("load_dataset", "from_huggingface", "load_from_disk"), "from_hf(name_or_folder)"),
    **dict.fromkeys(("read_webdataset", "WebDataset"), "read_tar(paths)"),
    **dict.fromkeys(("read_feather", "read_ipc"), "read_arrow(paths)"),
    **dict.fromkeys(("ImageFolder", "read_folder"), "read_images(root)"),
    **dict.fromkeys(("read_ndjson", "read_json_lines"), "read_jsonl(paths)"),
    **dict.fromkeys(("read_tsv", "read_table"), "read_csv(paths)"),
    **dict.fromkeys(("concatenate_datasets", "chain"), "concat([...])"),
    "DataLoader": "from_dataset(dataset).batch(n).to_torch()",
    "TFRecordDataset": "read_tfrecords(paths)",
    "interleave_datasets": "interleave([...]), or mix([...], weights)",
    "join": 'pair(media, captions, on="key")',
}
_ELSE = "docs/how-to/coming-from.md names the counterparts of other libraries; help(penstock.Pipeline) lists the verbs"


def no_such_name(name: str, known: Iterable[str]) -> AttributeError:
    """The error for `penstock.<name>`, which does not exist."""
    fix = f"penstock.{READERS[name]}" if name in READERS else " or ".join(f"penstock.{n}" for n in _near(name, known))
    if name.startswith("_") or not fix:
        return AttributeError(f"module 'penstock' has no attribute {name!r}")
    return NoSuchVerb("a name of penstock", got=f"penstock.{name}", fix=fix)


class OtherNames:
    """Answers unknown names with what to write instead."""

    __slots__ = ()

    if not TYPE_CHECKING:  # so that type checkers refuse unknown names too

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):  # a property's own AttributeError is not about a name
                return object.__getattribute__(self, name)
            raise NoSuchVerb("a verb of pipelines", got=f".{name}", fix=_advice(type(self), name))

        def __getitem__(self, place: Any) -> Any:
            fix = "pipeline.rows()[n] reads one row, .skip(n).take(m) makes a pipeline of some"
            if isinstance(place, str):
                fix = f".select({place!r}) makes a pipeline of one column"
            raise NoSuchVerb("a verb of pipelines", got=f"pipeline[{place!r}]", fix=fix)


def _advice(kind: type, name: str) -> str:
    near = _near(name, (verb for verb in dir(kind) if verb[0] != "_"))
    return COUNTERPARTS.get(name) or " or ".join(f".{verb}()" for verb in near) or _ELSE


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Names that differ by a slip: nearness alone made `.concat()` of `.count`."""
    from difflib import get_close_matches

    return get_close_matches(name, known, 2, 0.8)
