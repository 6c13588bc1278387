"""Remote line and text files: the batches of local files, with few requests, also under faults."""

import gzip
import json
import pickle
import random
from datetime import timedelta

import numpy as np
import pytest
import zstandard

import penstock as ps
from penstock.core.errors import StorageError
from penstock.sources.jsonl import JsonlFiles
from penstock.storage import objects
from penstock.storage.coalesce import PAGE, coalesce, pages
from tests.storage.fault_proxy import Faults

FAULTS = Faults(refuse=0.2, reset=0.05, stall=0.02, wrong=0.005, short=0.01, seed=11)
QUICK = {
    "retry_config": {"backoff": {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05)}},
    "client_options": {"read_timeout": timedelta(seconds=0.3)},
}

# Nothing stalls there; on a machine that is held up, answers take longer than a third of a second, and the more of them
# are given up and requested again, the longer they take.
PATIENT = {"retry_config": QUICK["retry_config"]}


def upload(s3, folder, name):
    """Puts all files of a local folder below `name` in the bucket; returns the URL."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            assert objects.put_new(s3.url(name, *path.relative_to(folder).parts), path, s3.options)
    return s3.url(name)


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    dice = random.Random(1)
    for file in range(4):
        lines = [
            json.dumps({"text": f"{file}-{n} " + "word " * dice.randrange(900), "n": n}) + "\n" * dice.choice([1, 1, 2])
            for n in range(300)
        ]
        (folder / f"part-{file}.jsonl").write_text("".join(lines))
    return folder


def batches(pipeline):
    loader = pipeline.shuffle(seed=3).batch(16).to_numpy(threads=2)
    return [[str(text) for text in batch["text"]] for _, batch in zip(range(74), loader, strict=False)]


def test_an_epoch_is_that_of_local_files_with_few_requests(s3, fault_proxy, corpus, tmp_path):
    url = upload(s3, corpus, tmp_path.name)
    local = ps.read_jsonl(corpus / "*.jsonl")
    remote = ps.read_jsonl(url + "/*.jsonl", storage_options=fault_proxy.options)
    expected = batches(local)
    assert batches(remote) == expected
    # A source that has its index reads each step with as many requests as the plan counts.
    source = JsonlFiles(url + "/*.jsonl", storage_options=fault_proxy.options)
    order = np.random.default_rng(1).permutation(len(source))
    fault_proxy.clear()
    planned = 0
    for at in range(0, len(order), 32):
        files, rows = source.files.split(order[at : at + 32])
        source.read(order[at : at + 32])
        for file in np.unique(files):
            index = source.files.index[file]
            picked = rows[files == file]
            ends = np.append(index.starts[1:], index.end)
            needed = pages(index.starts[picked], ends[picked] - index.starts[picked], PAGE)
            planned += len(coalesce(needed * PAGE, (needed + 1) * PAGE, 1 << 20))
    assert fault_proxy.requests <= 1.2 * planned
    assert fault_proxy.requests < len(order) / 4


def test_under_faults_the_epoch_is_exact_with_few_more_requests(s3, fault_proxy, corpus, tmp_path):
    url = upload(s3, corpus, tmp_path.name)
    order = np.random.default_rng(2).permutation(1200)
    expected = JsonlFiles(str(corpus / "*.jsonl"))
    source = JsonlFiles(url, storage_options=fault_proxy.options | QUICK)
    assert len(source) == len(expected) == 1200
    fault_proxy.clear(Faults())
    for at in range(0, 600, 8):
        source.read(order[at : at + 8])
    clean = fault_proxy.requests
    fault_proxy.clear(FAULTS)
    for at in range(0, 600, 8):
        picked = order[at : at + 8]
        assert source.read(picked)["text"].tolist() == expected.read(picked)["text"].tolist()
    assert fault_proxy.requests <= 1.6 * clean and fault_proxy.made["stall"]
    # Opening and indexing under the same faults, wrong bytes included, finds the same records.
    again = JsonlFiles(url, storage_options=fault_proxy.options | QUICK)
    assert again.fingerprint() == expected.fingerprint()
    assert again.read(order[:50])["text"].tolist() == expected.read(order[:50])["text"].tolist()


def test_wrong_bytes_for_ever_are_an_error_not_a_batch(s3, fault_proxy, corpus, tmp_path):
    url = upload(s3, corpus, tmp_path.name)
    source = JsonlFiles(url, storage_options=fault_proxy.options | QUICK)
    assert len(source) == 1200
    fault_proxy.clear(Faults(wrong=1.0))
    with pytest.raises(StorageError, match="other bytes"):
        source.read(np.arange(5))


def test_the_fingerprint_is_that_of_local_files_and_costs_one_scan(s3, fault_proxy, corpus, tmp_path):
    url = upload(s3, corpus, tmp_path.name)
    source = JsonlFiles(url, storage_options=fault_proxy.options)
    assert source.fingerprint() == JsonlFiles(str(corpus)).fingerprint()
    read = fault_proxy.counts.bytes
    assert read < 1.3 * sum(path.stat().st_size for path in corpus.iterdir())
    source.fingerprint()
    assert len(source) == 1200 and fault_proxy.counts.bytes == read


def test_a_replaced_file_is_refused(s3, corpus, tmp_path):
    url = upload(s3, corpus, tmp_path.name)
    source = JsonlFiles(url, storage_options=s3.options)
    assert len(source) == 1200
    objects.delete([url + "/part-1.jsonl"], s3.options)
    assert objects.put_new(url + "/part-1.jsonl", corpus / "part-0.jsonl", s3.options)
    with pytest.raises(StorageError, match=r"replaced(.|\n)*part-1"):
        source.read(np.arange(300, 310))


def test_compressed_files_and_text_files(s3, fault_proxy, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for n in range(40):
        (folder / f"{n:02}.txt").write_text(f"text {n}\nand more\n\nnext {n}\n" * (n + 1))
    for n in range(3):
        (folder / f"z{n}.txt.gz").write_bytes(gzip.compress(f"compressed {n}\nline\n".encode() * 50))
    url = upload(s3, folder, tmp_path.name)
    fault_proxy.clear(Faults(refuse=0.2, reset=0.05, wrong=0.02, seed=3))
    options = fault_proxy.options | PATIENT
    for by in ("file", "line", "paragraph"):
        local = ps.read_text(folder, by=by)
        remote = ps.read_text(url, by=by, storage_options=options)
        assert batches(remote) == batches(local)
    fault_proxy.clear(Faults())
    source = ps.read_text(url, by="file", storage_options=fault_proxy.options).definition.origin
    fault_proxy.clear()
    source.read(np.arange(43))
    assert fault_proxy.requests == 43


def test_one_pass_reads_are_large(s3, fault_proxy, corpus, tmp_path):
    url = upload(s3, corpus, tmp_path.name)
    source = JsonlFiles(url, storage_options=fault_proxy.options)
    fault_proxy.clear()
    local = [text for chunk in JsonlFiles(str(corpus)).iterate() for text in chunk.texts]
    assert [text for chunk in source.iterate() for text in chunk.texts] == local
    assert fault_proxy.requests <= 4 * 3


def test_a_copy_of_a_compressed_file_is_read_again_after_wrong_bytes(s3, fault_proxy, tmp_path):
    """Each process has a copy of its own: that of a child is made when the index is there already."""
    dice = random.Random(3)
    texts = [f"{n} {dice.randbytes(90).hex()}" for n in range(2000)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (folder := tmp_path / "packed").mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    source = JsonlFiles(upload(s3, folder, tmp_path.name), storage_options=fault_proxy.options | QUICK)
    assert len(source) == 2000
    child = pickle.loads(pickle.dumps(source))
    answers = []

    def once_wrong(method, path, span, head, body):
        answers.append(span)
        return [head + body[:-99] + bytes([body[-99] ^ 1]) + body[-98:]] if len(answers) == 1 else None

    fault_proxy.twist = once_wrong
    assert child.read(np.array([7, 1999]))["text"].tolist() == [texts[7], texts[1999]]
    assert len(answers) > 1


def test_wrong_bytes_of_a_compressed_file_without_a_checksum_are_read_again(s3, fault_proxy, tmp_path):
    """Zstandard frames need not have one: then the ETag says which bytes are right, or two reads that agree."""
    dice = random.Random(3)
    texts = ["".join(dice.choices("abcdef", k=60)) for _ in range(4000)]
    (folder := tmp_path / "packed").mkdir()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (folder / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor(write_checksum=False).compress(lines))
    url = upload(s3, folder, tmp_path.name)
    for wrong in range(1, 5):
        for place in (0.1, 0.5, 0.9):
            answers = []

            def once_wrong(method, path, span, head, body, answers=answers, wrong=wrong, place=place):
                answers.append(span)
                at = int(len(body) * place)
                changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if body else body
                return [head + changed] if method == "GET" and len(answers) == wrong and ".zst" in path else None

            fault_proxy.twist = once_wrong
            source = JsonlFiles(url, storage_options=fault_proxy.options | QUICK)
            assert source.read(np.arange(4000))["text"].tolist() == texts
            copy = pickle.loads(pickle.dumps(source))
            answers.clear()
            assert copy.read(np.arange(4000))["text"].tolist() == texts
