"""What to write instead of a method that a pipeline does not have, for people who come from other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import UsageError

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
    "to_parquet": '.write("folder", format="parquet")',
    "train_test_split": '.split({"train": 0.9, "test": 0.1})',
    "unique": ".dedup(), or a set of pipeline.rows()",
    "with_format": ".to_torch(), .to_numpy() or .to_jax()",
    "with_transform": ".map(function)",
    # tf.data
    "apply": "function(pipeline)",
    "as_numpy_iterator": ".batch(size).to_numpy()",
    "bucket_by_sequence_length": ".bucket(...)",
    "cardinality": "len(pipeline.rows())",
    "concatenate": "penstock.concat([...])",
    "interleave": "penstock.interleave([...])",
    "padded_batch": '.batch(size).pad(to="longest")',
    "prefetch": "prefetch= of .to_torch(), .to_numpy() or .to_jax(); the default reads ahead already",
    "ragged_batch": ".batch(size)",
    "snapshot": ".cache(...)",
    "window": ".windows(length)",
    "with_options": "arguments of .to_torch(), .to_numpy() or .to_jax()",
    # Grain
    "mix": "penstock.mix([...])",
    "random_map": ".map(function) with a parameter rng",
    "seed": ".shuffle(seed=...)",
    "slice": ".skip(n).take(m)",
    "source": "penstock.from_dataset(...)",
    "to_iter_dataset": ".batch(size).to_numpy()",
    # WebDataset
    "decode": ".decode_images(...), .decode_audio(...) or .decode_video(...)",
    "map_dict": ".map(function)",
    "map_tuple": ".map(function)",
    "rename_keys": '.rename({"old": "new"})',
    "to_tuple": '.batch(size).to_torch().as_tuples("image", "label")',
    "with_epoch": ".take(rows)",
    "with_length": ".take(rows)",
    # PyTorch
    "collate": '.pad(to="longest"), or .map_batches(function)',
    "collate_fn": '.pad(to="longest"), or .map_batches(function)',
    "load_state_dict": "loader = pipeline.batch(size).to_torch(); loader.load_state_dict(state)",
    "sampler": ".shuffle(...), .shard(...) or penstock.mix(...)",
    "set_epoch": "nothing: a loader reshuffles each epoch by itself",
    "state_dict": "loader = pipeline.batch(size).to_torch(); loader.state_dict()",
    "to": '.to_torch(device="cuda")',
}


class NoSuchVerb(UsageError, AttributeError):
    """A pipeline has no method of this name; the message names the counterpart or the nearest one."""


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
    from difflib import get_close_matches

    if name in COUNTERPARTS:
        return COUNTERPARTS[name]
    near = get_close_matches(name, [verb for verb in dir(kind) if verb[0] != "_"], 2, 0.6)
    return " or ".join(f".{verb}()" for verb in near) or "help(penstock.Pipeline) lists the verbs"
