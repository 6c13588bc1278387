"""Every public function that takes a path takes a URL of an object store, or refuses it with a reason before it works.

The functions are found by their signatures: a new one without an entry here fails the first test. Each is called with
a URL on a real SeaweedFS, credentials from the environment, and the result is compared with that of the local path.
"""

from __future__ import annotations

import inspect
import io
import json
import shutil
import tarfile
import tempfile
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.storage import objects
from tests.codecs.media_files import encoded_video

TFRECORDS = Path(__file__).parents[1] / "data" / "tfrecord"
NAMES = ("path", "folder", "root", "prefix", "out", "cache_dir", "data_dir", "data_path", "index", "ends", "source")
# Parameters with such names that take no path.
NO_PATH = {
    ("Loader", "output"), ("create_fim_collate", "prefix_token_id"), ("CachedDataset", "data_source"),
    ("prepare", "source"), ("Pipeline.decode_images", "out"), ("Pipeline.decode_audio", "out"),
    ("Pipeline.decode_video", "out"),
}  # fmt: skip


def takes_path(name: str, parameter: inspect.Parameter) -> bool:
    text = str(parameter.annotation)
    known = name in NAMES or name.endswith(("_path", "_paths", "paths"))
    return "Path" in text or (known and ("str" in text or text == "Any") and "Literal" not in text)


def found() -> set[tuple[str, str]]:
    """Every parameter of the public interface that takes a path: (function, parameter)."""
    out = set()
    for name in ps.__all__:
        thing = getattr(ps, name)
        if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
            continue
        members = {name: thing}
        if inspect.isclass(thing):
            public = inspect.getmembers(thing, inspect.isroutine)
            members |= {f"{name}.{member}": each for member, each in public if not member.startswith("_")}
        for each, function in members.items():
            try:
                parameters = inspect.signature(function).parameters
            except (TypeError, ValueError):
                continue
            out |= {(each, p) for p, facts in parameters.items() if takes_path(p, facts)}
    return out - NO_PATH


class Place:
    """A folder with data, and the same files behind a URL."""

    def __init__(self, folder: Path, url: str, options: dict[str, Any]) -> None:
        self.folder, self.url, self.options = folder, url, options
        texts = [f"{n} words of a text" for n in range(40)]
        (folder / "a.txt").write_text("\n".join(texts) * 9)
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": t, "n": n}) + "\n" for n, t in enumerate(texts)))
        (folder / "config.toml").write_text("batch_size = 3\n")
        (folder / "pipeline.json").write_text('{"source": {"from_texts": {"texts": ["one", "two"]}}}')
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": texts, "n": list(range(40))}), folder / "a.parquet")
        table = pa.table({"text": texts, "n": list(range(40))})
        with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        (folder / "a.csv").write_text("text,n\n" + "".join(f"{text},{n}\n" for n, text in enumerate(texts)))
        shutil.copytree(TFRECORDS, folder / "tfrecord")
        (folder / "all.json").write_text(json.dumps([{"text": text} for text in texts]))
        with tarfile.open(folder / "a.tar", "w") as tar:
            for n, text in enumerate(texts):
                entry = tarfile.TarInfo(f"{n:03}.txt")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text.encode()))
        np.save(folder / "array.npy", np.arange(6.0))
        (folder / "images" / "cat").mkdir(parents=True)
        pillow = pytest.importorskip("PIL.Image")
        pillow.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(folder / "images" / "cat" / "1.png")
        (folder / "sounds").mkdir()
        with wave.open(str(folder / "sounds" / "7_a.wav"), "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(np.arange(800, dtype="<i2").tobytes())
        (folder / "videos").mkdir()
        (folder / "videos" / "a.mp4").write_bytes(encoded_video(5, 10, "mp4"))
        ids = np.arange(300, dtype=np.uint16) % 100
        ids.tofile(folder / "nano.bin")
        ids.tofile(folder / "dolma.npy")
        (folder / "dolma.csv").write_text("0,100\n100,300\n")
        tokens = ps.open_tokens(ids, [0, 120, 300], 100)
        ps.convert(tokens, folder / "meg", "megatron")
        ps.convert(tokens, folder / "mds", "mds")
        ps.convert(tokens, folder / "store")
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                objects.put_new(f"{url}/{path.relative_to(folder)}", path, options)

    def at(self, name: str) -> str:
        return f"{self.url}/{name}"


@pytest.fixture(scope="module")
def place(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    names = {"AWS_ACCESS_KEY_ID": "access_key_id", "AWS_SECRET_ACCESS_KEY": "secret_access_key"}
    with pytest.MonkeyPatch.context() as patch:
        for name, option in names.items():
            patch.setenv(name, s3.options[option])
        patch.setenv("AWS_ENDPOINT_URL", s3.options["endpoint"])
        patch.setenv("AWS_REGION", s3.options["region"])
        patch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Place(tmp_path_factory.mktemp("place"), s3.url("every-path"), s3.options)


def rows(pipeline: Any) -> str:
    return repr(pipeline.peek(5))


def media(name: str, read: Callable[..., ps.Pipeline], root: Any) -> str:
    """What a manifest beside the tests names, below `root`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "manifest.jsonl").write_text(json.dumps({"path": name, "caption": "one"}))
        return rows(read(Path(folder, "manifest.jsonl"), media_root=root))


def sounds(paths: Any, **options: Any) -> ps.Pipeline:
    return ps.read_audio(paths, **options).decode_audio(8000)


def videos(paths: Any, **options: Any) -> ps.Pipeline:
    return ps.read_videos(paths, **options).decode_video(2, (8, 8))


def windows(dataset: Any) -> str:
    return repr([tuple(t.tolist() for t in dataset[n].values()) for n in (0, 5)])


def store(path: str) -> str:
    return repr(ps.open_store(path).definition.origin.fingerprint())


Read = Callable[[str], str]


TEXTS = ["one two", "three", "one two"]


def prompts(source: Any, out: Any) -> str:
    engine = ps.PromptEngine("bytes", "Q: {n} A: {text}", eos=0)
    return ps.prepare_prompts(source, engine, out, show_progress=False).id


def capibara(data: Any, cache_dir: str | None = None) -> str:
    settings = ps.DataLoaderConfig(max_length=8, shuffle=False, cache_dir=cache_dir, pad_id=0)
    loader = ps.CapibaraDataLoader(settings, tokenizer="bytes", dataset_name=data, batch_size=2)
    return repr(next(iter(loader))["input_ids"].tolist())


# What is read: (the file, what is made of its path). The result must be that of the local file.
READS: dict[tuple[str, str], tuple[str, Callable[[Any], str]]] = {
    ("read_text", "paths"): ("a.txt", lambda p: rows(ps.read_text(p, by="line"))),
    ("read_jsonl", "paths"): ("a.jsonl", lambda p: rows(ps.read_jsonl(p))),
    ("read_csv", "paths"): ("a.csv", lambda p: rows(ps.read_csv(p))),
    ("read_tfrecords", "paths"): ("tfrecord/plain.tfrecord", lambda p: rows(ps.read_tfrecords(p))),
    ("read_json", "paths"): ("all.json", lambda p: rows(ps.read_json(p))),
    ("read_arrow", "paths"): ("a.arrow", lambda p: rows(ps.read_arrow(p))),
    ("read_parquet", "paths"): ("a.parquet", lambda p: rows(ps.read_parquet(p))),
    ("read_tar", "paths"): ("a.tar", lambda p: rows(ps.read_tar(p))),
    ("read_images", "root"): ("images", lambda p: rows(ps.read_images(p))),
    ("read_images", "media_root"): ("images", lambda p: media("cat/1.png", ps.read_images, p)),
    ("read_videos", "root"): ("videos", lambda p: rows(ps.read_videos(p, None).decode_video(2, (8, 8)))),
    ("read_videos", "media_root"): ("videos", lambda p: media("a.mp4", videos, p)),
    ("read_audio", "media_root"): ("sounds", lambda p: media("7_a.wav", sounds, p)),
    ("Pipeline.decode_images", "media_root"): (
        "images",
        lambda p: rows(
            ps.from_arrays({"path": ["cat/1.png"]}).decode_images(4, crop=None, column="path", media_root=p)
        ),
    ),
    ("Pipeline.decode_audio", "media_root"): (
        "sounds",
        lambda p: rows(ps.from_arrays({"path": ["7_a.wav"]}).decode_audio(8000, column="path", media_root=p)),
    ),
    ("from_config", "config"): ("pipeline.json", lambda p: rows(ps.from_config(p))),
    ("read_audio", "root"): ("sounds", lambda p: rows(ps.read_audio(p, "name", sample_rate=8000))),
    ("read_mds", "paths"): ("mds", lambda p: rows(ps.read_mds(p))),
    ("open_store", "path"): ("store", lambda p: rows(ps.open_store(p))),
    ("open_mds", "paths"): ("mds", lambda p: rows(ps.open_mds(p).windows(16))),
    ("open_megatron", "prefix"): ("meg", lambda p: rows(ps.open_megatron(p).windows(16))),
    ("open_nanogpt", "path"): ("nano.bin", lambda p: rows(ps.open_nanogpt(p, eos_id=5).windows(16))),
    ("open_dolma", "paths"): ("dolma.npy", lambda p: rows(ps.open_dolma(p, dtype="uint16").pack(32))),
    ("open_dolma", "ends"): (
        "dolma.csv",
        lambda p: rows(ps.open_dolma(str(p).replace(".csv", ".npy"), dtype="uint16", ends=p)),
    ),
    ("prepare_prompts", "source"): ("a.jsonl", lambda p: prompts(p, Path(p.replace("s3://", "/tmp/x")).name)),
    ("convert", "source"): ("meg", lambda p: ""),
    ("TransformerDataset", "data_path"): ("a.txt", lambda p: windows(ps.TransformerDataset(p, "bytes", 8))),
    ("create_dataloaders", "train_path"): (
        "a.jsonl",
        lambda p: repr([b["input_ids"].tolist() for b in ps.create_dataloaders(p, p, "bytes", 4, 8)[1]][:2]),
    ),
    ("create_dataloaders", "val_path"): (
        "a.txt",
        lambda p: repr([b["input_ids"].tolist() for b in ps.create_dataloaders(p, p, "bytes", 4, 8)[1]][:2]),
    ),
    ("MicroTransformerTokenizer.train", "source"): (
        "a.txt",
        lambda p: repr(ps.MicroTransformerTokenizer().train(p, vocab_size=300).encode("a text")),
    ),
    ("MemoryEfficientDataset", "data_paths"): (
        "array.npy",
        lambda p: repr(ps.MemoryEfficientDataset(None, [p])[0]["data"].tolist()),
    ),
    ("CapibaraConfig.load", "path"): ("config.toml", lambda p: repr(ps.DataLoaderConfig.load(p))),
    ("DataLoaderConfig.load", "path"): ("config.toml", lambda p: repr(ps.DataLoaderConfig.load(p))),
}

# What is written: (parameter): a function of the URL that returns what the same call returns for a folder.
WRITES: dict[tuple[str, str], Callable[[Any], str]] = {
    ("prepare", "out"): lambda p: ps.prepare(ps.from_texts(TEXTS), "bytes", p).id + store(p),
    ("prepare_prompts", "out"): lambda p: prompts([{"n": 1, "text": "a"}], p),
    ("convert", "out"): lambda p: repr(
        [ps.convert(ps.open_tokens([5, 6, 7], [0, 2, 3]), f"{p}/{to}", to).tokens for to in ("store", "mds")]
        + [ps.convert(ps.open_tokens([5, 6, 7], [0, 2, 3]), f"{p}/m", "megatron").documents]
        + [rows(ps.open_store(f"{p}/store")), rows(ps.read_mds(f"{p}/mds")), rows(ps.open_megatron(f"{p}/m"))]
    ),
    ("Pipeline.tokenize", "cache_dir"): lambda p: rows(ps.from_texts(TEXTS).tokenize("bytes", cache_dir=p)),
    ("DataLoaderConfig", "cache_dir"): lambda p: capibara(TEXTS, p),
    ("Pipeline.filter", "cache_dir"): lambda p: rows(
        ps.from_texts(TEXTS).filter(lambda r: len(r["text"]) > 5, exact=True, cache_dir=p)
    ),
    ("Pipeline.split", "cache_dir"): lambda p: repr(
        [
            rows(part)
            for part in ps.from_texts(TEXTS * 9).split({"a": 0.7, "b": None}, stratify="text", cache_dir=p).values()
        ]
    ),
    ("Pipeline.flat_map", "cache_dir"): lambda p: rows(
        ps.from_texts(TEXTS).flat_map(lambda r: [{"w": w} for w in r["text"].split()], cache_dir=p)
    ),
    ("Pipeline.unbatch", "cache_dir"): lambda p: rows(
        ps.from_arrays({"x": np.arange(6).reshape(3, 2)}).map(lambda r: {"x": r["x"]}).unbatch(cache_dir=p)
    ),
    ("Pipeline.write", "path"): lambda p: repr(
        [ps.from_texts(TEXTS).write(p, "jsonl") is None, rows(ps.read_jsonl(p))]
    ),
    ("Pipeline.dedup", "cache_dir"): lambda p: rows(ps.from_texts(TEXTS).dedup(cache_dir=p)),
}

# What is refused, before anything is done: a call that must raise a UsageError with the URL in it.
REFUSED: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("open_store", "cache_dir"): lambda p: ps.open_store(p, cache_dir=p).peek(1),
    ("read_tar", "index"): lambda p: ps.read_tar(p, index=p),
    ("from_tfds", "folder"): ps.from_tfds,
    ("Pipeline.to_hf", "cache_dir"): lambda p: ps.from_texts(TEXTS).to_hf(cache_dir=p),
    ("Pipeline.cache", "cache_dir"): lambda p: ps.from_texts(TEXTS).cache(cache_dir=p),
    ("Loader.write_snapshots", "path"): lambda p: ps.from_texts(TEXTS).batch(1).to_numpy().write_snapshots(p),
    ("PrefetchDataLoader.write_snapshots", "path"): lambda p: ps.PrefetchDataLoader(TEXTS, 1).write_snapshots(p),
    ("from_hf", "dataset"): ps.from_hf,
    ("read_array_record", "paths"): ps.read_array_record,
    ("DataLoaderConfig", "data_dir"): lambda p: ps.resolve_dataset("mnist", data_dir=p),
    ("CachedDataset", "cache_dir"): lambda p: ps.CachedDataset(None, [1], p),
    ("CapibaraConfig.save", "path"): lambda p: ps.CapibaraConfig().save(f"{p}.toml"),
    ("DataLoaderConfig.save", "path"): lambda p: ps.DataLoaderConfig().save(f"{p}.toml"),
    ("MicroTransformerTokenizer.from_pretrained", "path"): ps.MicroTransformerTokenizer.from_pretrained,
    ("MicroTransformerTokenizer.save", "folder"): lambda p: ps.MicroTransformerTokenizer().save(p),
    ("MicroTransformerTokenizer.save_pretrained", "folder"): lambda p: ps.MicroTransformerTokenizer().save(p),
}


def test_every_parameter_that_takes_a_path_is_listed() -> None:
    listed = {*READS, *WRITES, *REFUSED}
    assert found() - listed == set(), "add what a URL does there to this file"
    assert listed - found() == set(), "these are gone"


@pytest.mark.parametrize("key", READS, ids=".".join)
def test_a_url_is_read_as_the_local_file(place: Place, key: tuple[str, str], tmp_path: Path) -> None:
    name, call = READS[key]
    if key == ("prepare_prompts", "source"):
        local, remote = (prompts(p, tmp_path / k) for k, p in (("a", str(place.folder / name)), ("b", place.at(name))))
    elif key == ("convert", "source"):
        names = ("meg", "nano.bin", "mds", "store", "a.jsonl", "a.parquet", "a.tar")
        local = remote = ""
        for each in names:
            more: dict[str, Any] = {"tokenizer": "bytes", "field": "txt" if each == "a.tar" else "text"}
            more = more if each.startswith("a.") else {}
            a = ps.convert(str(place.folder / each), tmp_path / f"a-{each}", **more)
            b = ps.convert(place.at(each), tmp_path / f"b-{each}", storage_options=place.options, **more)
            local += store(a.path) + f"{a.documents} "
            remote += store(b.path) + f"{b.documents} "
    else:
        local, remote = call(str(place.folder / name)), call(place.at(name))
    assert local.replace(str(place.folder), place.url) == remote
    assert remote not in ("", "[]")


@pytest.mark.parametrize("key", WRITES, ids=".".join)
def test_a_url_is_written_as_a_folder(place: Place, key: tuple[str, str], tmp_path: Path) -> None:
    url = place.at("written/" + "-".join(key))
    assert WRITES[key](url) == WRITES[key](str(tmp_path / "out"))
    assert objects.list_files(url, place.options)
    if key[1] == "cache_dir":
        before = objects.list_files(url, place.options)
        assert WRITES[key](url) == WRITES[key](str(tmp_path / "out"))  # from the cache
        assert objects.list_files(url, place.options) == before


@pytest.mark.parametrize("key", REFUSED, ids=".".join)
def test_a_url_is_refused_with_a_reason(place: Place, key: tuple[str, str]) -> None:
    name = {"read_tar": "a.tar", "open_store": "store"}.get(key[0], "refused")
    with pytest.raises(ps.UsageError) as caught:
        REFUSED[key](place.at(name))
    assert place.at(name) in str(caught.value) and caught.value.fix
    assert not objects.list_files(place.at("refused"), place.options)


def test_documents_take_urls_as_data(place: Place) -> None:
    """What takes data of any kind: a path, a pipeline, records."""
    url, local = place.at("a.jsonl"), str(place.folder / "a.jsonl")

    def double(record: dict[str, Any]) -> dict[str, Any]:
        return {"n": 2 * int(record["n"])}

    for data in (url, local, ps.read_jsonl(url, fields=["text", "n"], storage_options=place.options)):
        assert [ps.PreprocessedDataset(data, double)[n]["n"] for n in (0, 39)] == [0, 78]
        streamed = ps.create_preprocessed_dataset(data, double, streaming=True)
        assert sorted(row["n"] for row in streamed) == [2 * n for n in range(40)]
    assert rows(ps.resolve_dataset(url)) == rows(ps.resolve_dataset(local))
    assert rows(ps.resolve_dataset(place.at("store"))) == rows(ps.resolve_dataset(str(place.folder / "store")))
    assert capibara(url) == capibara(local)
