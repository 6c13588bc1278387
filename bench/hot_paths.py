"""The hot paths, each beside a frozen plain implementation, measured in processor time.

`bench/against.py` compares them between two source trees; `tests/bench_gate` compares each with its plain
implementation and fails when a change makes it slow. The paths use only public names, so that older trees can run them.
Do not improve the plain implementations: they are the unit in which the others are measured.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import penstock as ps

LENGTH, ROWS, PACK = 1024, 32, 4096
RATE, CLIPS = 16_000, 32
SIDE, IMAGES = 224, 16


class HotPath(NamedTuple):
    """What one path yields, item by item, and the plain implementation of the same work."""

    ours: Callable[[Path], Iterable[Any]]
    plain: Callable[[Path], Iterable[Any]]
    least: int = 8  # items of one measurement


def one_thread() -> None:
    """Keeps torch to one thread: those that spin would count as work."""
    import torch

    torch.set_num_threads(1)


class Cost(NamedTuple):
    """Seconds per item: of all processors, and of the clock."""

    cpu: float
    wall: float


def measure(items: Iterable[Any], seconds: float = 0.25, least: int = 8) -> Cost:
    """Takes items for about `seconds` of processor time, after a few to warm up; one that ends is begun again."""
    if not sum(1 for _ in islice(iter(items), min(least, 3))):
        raise ValueError("nothing to measure")
    count, wall, cpu = 0, time.perf_counter(), time.process_time()
    while count < least or time.process_time() - cpu < seconds:
        for _ in items:
            count += 1
            if count >= least and not count & 3 and time.process_time() - cpu > seconds:
                break
    return Cost((time.process_time() - cpu) / count, (time.perf_counter() - wall) / count)


def write_data(folder: Path, tokens: int = 8_000_000, images: int = 48, texts: int = 1500) -> None:
    """Writes what the paths read: a token store, JPEG and WAV files, JSON lines, and a tokenizer."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6, 1.1, tokens // 700), 1, 32_768).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "tokens.npy", rng.integers(0, 50_257, offsets[-1]).astype(np.uint16))
    _write_store(folder / "store", *_arrays(folder))
    _write_media(folder, images, rng)
    words = np.array([f"word{i}" for i in range(3000)])
    with (folder / "texts.jsonl").open("w") as file:
        for i in range(texts):
            file.write(json.dumps({"text": " ".join(words[rng.integers(0, 3000, 300)]), "id": i}) + "\n")
    _write_tokenizer(folder)


def _write_store(folder: Path, tokens: Any, offsets: Any) -> None:
    from penstock.core.columns import Ragged
    from penstock.store.manifest import write_manifest
    from penstock.store.writer import ShardWriter

    folder.mkdir()
    shards = []
    for number, part in enumerate(np.array_split(np.arange(len(offsets) - 1), 2)):
        edges = offsets[part[0] : part[-1] + 2]
        with ShardWriter(folder / f"{number:05d}.tokens", vocab_size=50_257) as shard:
            shard.add(Ragged(tokens[edges[0] : edges[-1]], edges - edges[0]))
        shards.append(shard.finish())
    write_manifest(folder, shards)


def _write_media(folder: Path, images: int, rng: np.random.Generator) -> None:
    import soundfile
    from PIL import Image

    (folder / "images").mkdir()
    (folder / "audio").mkdir()
    for i in range(images):
        picture = np.zeros((400, 500, 3))
        for cells in (4, 16, 64, 256):
            noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
            picture += (np.asarray(noise.resize((500, 400), Image.Resampling.BICUBIC)) - 127.5) * (4 / cells) ** 0.4
        file = io.BytesIO()
        Image.fromarray(np.clip(picture + 127.5, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=95)
        (folder / "images" / f"{i:04d}.jpg").write_bytes(file.getvalue())
    for i in range(4 * CLIPS):
        clip = 0.3 * rng.standard_normal(int(rng.uniform(0.5, 2.0) * RATE))
        soundfile.write(folder / "audio" / f"{i:04d}.wav", clip.astype(np.float32), RATE, subtype="PCM_16")


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(folder)[:300], trainer)
    bpe.save(str(folder / "tokenizer.json"))


def _texts(folder: Path) -> list[str]:
    with (folder / "texts.jsonl").open() as file:
        return [json.loads(line)["text"] for line in file]


def _arrays(folder: Path) -> tuple[Any, Any]:
    return np.load(folder / "tokens.npy", mmap_mode="r"), np.load(folder / "offsets.npy")


def _order(count: int) -> Iterator[Any]:
    for seed in range(1_000_000):
        yield from np.random.default_rng(seed).permutation(count).tolist()


# Token ids.


def _windows(threads: int) -> Callable[[Path], Any]:
    return lambda folder: (
        ps.open_store(folder / "store").windows(LENGTH).shuffle(seed=1).batch(ROWS).to_torch(threads=threads)
    )


def plain_windows(folder: Path) -> Iterator[Any]:
    """One gather per batch, with the order known."""
    import torch

    tokens, _ = _arrays(folder)
    view = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)
    starts = np.random.default_rng(1).permutation((len(tokens) - 1) // LENGTH) * LENGTH
    while True:
        for i in range(0, len(starts) - ROWS, ROWS):
            rows = view[starts[i : i + ROWS]]
            yield {
                "input_ids": torch.from_numpy(rows[:, :-1].astype(np.int64)),
                "labels": torch.from_numpy(rows[:, 1:].astype(np.int64)),
            }


def _mixture(folder: Path) -> Any:
    tokens, _ = _arrays(folder)
    parts = [ps.open_tokens(part, vocab_size=50_257).windows(LENGTH) for part in np.array_split(tokens, 4)]
    mixed = ps.mix([part.shuffle(seed=1) for part in parts], [4, 3, 2, 1], seed=2)
    return mixed.batch(ROWS).to_torch(threads=0)


def _packed(folder: Path) -> Any:
    return ps.open_store(folder / "store").pack(PACK).shuffle(seed=1).batch(LENGTH * ROWS // PACK).to_torch(threads=0)


def _documents(folder: Path) -> Any:
    budget = (
        ps.open_store(folder / "store").shuffle(seed=1).batch_tokens(LENGTH * ROWS, multiple=64, overlong="truncate")
    )
    return budget.to_torch(threads=0)


def plain_documents(folder: Path) -> Iterator[Any]:
    """Documents in random order, each copied into its row of a padded batch; as many tokens as a batch of windows."""
    import torch

    tokens, offsets = _arrays(folder)
    order, rows, total = _order(len(offsets) - 1), [], 0
    for i in order:
        row = tokens[offsets[i] : min(offsets[i + 1], offsets[i] + 2 * LENGTH)]
        if rows and total + len(row) > LENGTH * ROWS:
            ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for place, kept, one in zip(ids, mask, rows, strict=True):
                place[: len(one)] = torch.from_numpy(one.astype(np.int64))
                kept[: len(one)] = 1
            yield {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}
            rows, total = [], 0
        rows.append(row)
        total += len(row)


def _jax(folder: Path) -> Iterator[Any]:
    import jax

    loader = ps.open_store(folder / "store").shuffle(seed=1).pad(2048, truncate=True).batch(ROWS).to_jax(threads=0)
    while True:
        for batch in loader:
            yield jax.block_until_ready(batch)


def plain_jax(folder: Path) -> Iterator[Any]:
    """The same columns in NumPy, then one `device_put`."""
    import jax

    tokens, offsets = _arrays(folder)
    order = _order(len(offsets) - 1)
    while True:
        ids = np.zeros((ROWS, 2048), np.int32)
        lengths = np.zeros(ROWS, np.int32)
        for place, i in enumerate(islice(order, ROWS)):
            row = tokens[offsets[i] : offsets[i] + min(2048, offsets[i + 1] - offsets[i])]
            ids[place, : len(row)] = row
            lengths[place] = len(row)
        mask = (np.arange(2048) < lengths[:, None]).astype(np.int32)
        labels = np.where(mask, ids, -100).astype(np.int32)
        yield jax.block_until_ready(jax.device_put({"input_ids": ids, "attention_mask": mask, "labels": labels}))


def _ragged_rows() -> list[list[dict[str, Any]]]:
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.lognormal(np.log(200) - 0.5, 1.0, (8, ROWS)), 1, 2048).astype(int)
    batches = []
    for sizes in lengths:
        ids = [rng.integers(1, 50_000, n).tolist() for n in sizes]
        batches.append([{"input_ids": row, "attention_mask": [1] * len(row), "labels": row} for row in ids])
    return batches


def _collate(_: Path) -> Iterator[Any]:
    collate = ps.create_collate_fn(pad_token_id=0)
    batches = _ragged_rows()
    while True:
        yield from map(collate, batches)


def plain_collate(_: Path) -> Iterator[Any]:
    """`torch.full`, then each row assigned to its slice."""
    import torch

    batches = _ragged_rows()
    while True:
        for rows in batches:
            width = max(len(row["input_ids"]) for row in rows)
            out = {}
            for name, value in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
                out[name] = full = torch.full((len(rows), width), value, dtype=torch.long)
                for i, row in enumerate(rows):
                    full[i, : len(row[name])] = torch.as_tensor(row[name], dtype=torch.long)
            yield out


# Records and media.


def _rows(folder: Path) -> Any:
    return ps.read_jsonl(str(folder / "texts.jsonl")).shuffle(seed=1).batch(ROWS).to_numpy(threads=0)


def plain_rows(folder: Path) -> Iterator[Any]:
    """Lines by offset, in random order, parsed one by one."""
    path = folder / "texts.jsonl"
    ends = np.cumsum([0, *(len(line) for line in path.read_bytes().splitlines(keepends=True))])
    order = _order(len(ends) - 1)
    with path.open("rb") as file:
        while True:
            rows = []
            for i in islice(order, ROWS):
                file.seek(ends[i])
                rows.append(json.loads(file.read(ends[i + 1] - ends[i])))
            yield {"text": [row["text"] for row in rows], "id": np.array([row["id"] for row in rows])}


def _images(folder: Path) -> Any:
    images = ps.read_images(folder / "images", labels=None).shuffle(seed=1)
    return images.decode_images(SIDE, crop="random").batch(IMAGES).to_numpy(threads=0)


def plain_images(folder: Path) -> Iterator[Any]:
    """Full decode of each file, a crop of the middle, a resize."""
    import cv2
    import simplejpeg

    files = sorted((folder / "images").iterdir())
    order = _order(len(files))
    while True:
        out = np.empty((IMAGES, SIDE, SIDE, 3), np.uint8)
        for place, i in zip(out, islice(order, IMAGES), strict=True):
            image = simplejpeg.decode_jpeg(files[i].read_bytes(), "RGB")
            place[:] = cv2.resize(image[50:350, 50:350], (SIDE, SIDE))
        yield out


def _audio(folder: Path) -> Any:
    clips = ps.read_audio(folder / "audio", None).shuffle(seed=1).decode_audio(RATE)
    return clips.batch(CLIPS).pad().to_numpy(threads=0)


def plain_audio(folder: Path) -> Iterator[Any]:
    """`soundfile.read` of each file, copied into its row."""
    import soundfile

    files = sorted((folder / "audio").iterdir())
    order = _order(len(files))
    while True:
        rows = [soundfile.read(files[i], dtype="float32")[0] for i in islice(order, CLIPS)]
        out = np.zeros((CLIPS, max(map(len, rows))), np.float32)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row
        yield out


def _log_mel(folder: Path) -> Any:
    clips = ps.read_audio(folder / "audio", None).shuffle(seed=1)
    return clips.decode_audio(RATE, features="log_mel", mel="whisper").batch(CLIPS).pad().to_numpy(threads=0)


def plain_log_mel(folder: Path) -> Iterator[Any]:
    """Each file read, transformed in one piece, and copied into its row; bands are plain sums, without BLAS."""
    import soundfile

    files = sorted((folder / "audio").iterdir())
    order = _order(len(files))
    window, edges = np.hanning(400), np.arange(80) * 200 // 80
    while True:
        rows = []
        for i in islice(order, CLIPS):
            clip = np.pad(soundfile.read(files[i], dtype="float32")[0], 200, mode="reflect")
            frames = np.lib.stride_tricks.sliding_window_view(clip, 400)[::160] * window
            power = np.abs(np.fft.rfft(frames)) ** 2
            rows.append(np.log10(np.maximum(np.add.reduceat(power, edges, axis=1), 1e-10)))
        out = np.zeros((CLIPS, max(map(len, rows)), 80), np.float32)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row
        yield out


def _prepare(folder: Path) -> Iterator[Any]:
    source, tokenizer = ps.read_jsonl(str(folder / "texts.jsonl")), str(folder / "tokenizer.json")
    while True:
        with tempfile.TemporaryDirectory() as out:
            yield ps.prepare(source, tokenizer, out, show_progress=False)


def plain_prepare(folder: Path) -> Iterator[Any]:
    """Hugging Face's `encode_batch_fast` of all texts, written to one file."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    while True:
        with tempfile.TemporaryDirectory() as out:
            ids = [row.ids for row in tokenizer.encode_batch_fast(_texts(folder))]
            np.concatenate([np.array(row, np.uint16) for row in ids]).tofile(Path(out) / "tokens.bin")
            yield len(ids)


HOT_PATHS = {
    "windows": HotPath(_windows(0), plain_windows, 64),
    "windows, 2 threads": HotPath(_windows(2), plain_windows, 64),
    "mixture": HotPath(_mixture, plain_windows, 64),
    "packed": HotPath(_packed, plain_windows, 64),
    "documents": HotPath(_documents, plain_documents, 32),
    "jax": HotPath(_jax, plain_jax, 32),
    "collate": HotPath(_collate, plain_collate, 32),
    "rows": HotPath(_rows, plain_rows, 32),
    "images": HotPath(_images, plain_images, 4),
    "audio": HotPath(_audio, plain_audio, 8),
    "log mel": HotPath(_log_mel, plain_log_mel, 4),
    "prepare": HotPath(_prepare, plain_prepare, 1),
}
