"""Objects are created once, listed, read by ranges and deleted, on a real S3 server."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.errors import DataError, FileMissing, StorageError
from penstock.storage import filesystem, objects


@pytest.fixture(params=["local", "s3"])
def root(request, tmp_path, s3):
    if request.param == "local":
        return str(tmp_path / "made"), None
    return s3.url(tmp_path.name), s3.options


def test_an_object_is_created_once(root):
    base, options = root
    url = objects.join(base, "a", "b.bin")
    assert objects.put_new(url, b"first", options)
    assert not objects.put_new(url, b"second", options)
    assert objects.read_all(url, options) == b"first"
    assert objects.exists(url, options) and not objects.exists(objects.join(base, "other"), options)


def test_a_file_is_put_and_read_by_ranges(root, tmp_path):
    base, options = root
    data = os.urandom(300_000)
    (tmp_path / "local.bin").write_bytes(data)
    url = objects.join(base, "data.bin")
    assert objects.put_new(url, tmp_path / "local.bin", options)
    assert filesystem.stamp(url, options).size == len(data)
    ranges = [(0, 10), (299_990, 300_000), (5, 5), (70_000, 140_001)]
    assert filesystem.read_ranges(url, ranges, options) == [data[a:b] for a, b in ranges]
    with pytest.raises((DataError, StorageError)):
        filesystem.read_ranges(url, [(299_999, 300_001)], options)
    with filesystem.open_read(url, options) as file:
        assert file.read(7) == data[:7]
        file.seek(-5, 2)
        assert file.read() == data[-5:]
        file.seek(100)
        assert file.read(250_000) == data[100:250_100]


def test_one_of_many_writers_wins(root):
    base, options = root
    url = objects.join(base, "race")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: objects.put_new(url, b"%d" % n, options), range(16)))
    assert sum(won) == 1
    assert objects.read_all(url, options) == b"%d" % won.index(True)


def test_listing_deleting_and_globs(root):
    base, options = root
    names = ["a.jsonl", "b.jsonl", "sub/c.jsonl", "sub/.hidden.jsonl", "d.txt"]
    for name in names:
        assert objects.put_new(objects.join(base, *name.split("/")), name.encode(), options)
    listed = objects.list_files(base, options)
    assert [one.url for one in listed] == sorted(objects.join(base, *n.split("/")) for n in names)
    assert [one.size for one in listed] == [len(objects.read_all(one.url, options)) for one in listed]

    def short(found):
        return [f[len(base) + 1 :] for f in found]

    assert short(filesystem.expand(base, options, (".jsonl",))) == ["a.jsonl", "b.jsonl", "sub/c.jsonl"]
    assert short(filesystem.expand(objects.join(base, "*.jsonl"), options)) == ["a.jsonl", "b.jsonl"]
    assert short(filesystem.expand(objects.join(base, "[b-z].*"), options)) == ["b.jsonl", "d.txt"]
    assert short(filesystem.expand(objects.join(base, "a.jsonl"), options)) == ["a.jsonl"]
    with pytest.raises(FileMissing):
        filesystem.expand(objects.join(base, "none*"), options)
    objects.delete([one.url for one in listed] + [objects.join(base, "not-there")], options)
    assert objects.list_files(base, options) == []


def test_the_probe_tells_whether_a_store_honours_create_only(root, tmp_path, unconditional):
    base, options = root
    assert objects.honours_create_only(base, options)
    assert not objects.honours_create_only(unconditional.url("probe"), unconditional.options)
    assert objects.list_files(base, options) == []


def test_a_missing_bucket_is_not_a_missing_key(s3):
    for act in (filesystem.stamp, objects.read_all, filesystem.size):
        with pytest.raises(FileMissing, match="no object of this name"):
            act(s3.url("no-key"), s3.options)
        with pytest.raises(FileMissing, match="no bucket 'no-such-bucket'"):
            act("s3://no-such-bucket/key", s3.options)
    for act in (objects.list_files, filesystem.expand):
        with pytest.raises(FileMissing, match="no bucket 'no-such-bucket'"):
            act("s3://no-such-bucket/folder", s3.options)


def test_errors_name_the_object(s3):
    url = s3.url("no", "such", "object")
    with pytest.raises(FileMissing, match="no/such/object"):
        objects.read_all(url, s3.options)
    with pytest.raises(StorageError, match="no/such/object"):
        objects.read_all(url, s3.options | {"secret_access_key": "wrong"})
    with pytest.raises(StorageError, match="storage_options"):
        objects.read_all(url, s3.options | {"colour": "red"})
    objects.put_new(s3.url("large"), b"12345", s3.options)
    with pytest.raises(DataError, match="at most 4 bytes"):
        objects.read_all(s3.url("large"), s3.options, limit=4)


def _in_child(url, options, answer):
    try:
        answer.put(objects.read_all(url, options))
    except StorageError as error:
        answer.put(str(error))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # where an earlier test has started JAX
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_forked_process_is_refused_and_a_spawned_one_works(s3, tmp_path, method):
    url = s3.url(tmp_path.name, "one")
    objects.put_new(url, b"1", s3.options)
    context = multiprocessing.get_context(method)
    answer = context.Queue()
    child = context.Process(target=_in_child, args=(url, s3.options, answer))
    child.start()
    found = answer.get(timeout=60)
    child.join(60)
    assert found == b"1" if method == "spawn" else "forked" in found and "spawn" in found
