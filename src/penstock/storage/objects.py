"""Writes, lists and deletes files by path or URL. A file is created once and never overwritten.

Local paths, `s3://`, `gs://` and `az://`. What others must not see half-written is put in one request; a second writer
of the same name is refused by the storage itself, if it honours conditional puts (`honours_create_only` asks it).
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import DataError, UsageError
from penstock.core.optional import need
from penstock.core.os_errors import storage_error, storage_errors
from penstock.storage import filesystem, metrics, object_client, object_reader, retry
from penstock.storage.filesystem import Options
from penstock.storage.object_options import SMALL_WRITE
from penstock.storage.object_requests import Read, read_many
from penstock.storage.schemes import OBJECTS

SMALL = 64 << 20  # the limit of `read_all` unless another is asked for


class Listed(NamedTuple):
    """A file of a listing: its URL or path, size, ETag or modification time, and when it was written (since 1970)."""

    url: str
    size: int
    tag: str
    modified: float


def join(base: str | os.PathLike[str], *names: str) -> str:
    """Joins names to a URL with "/", to a local path as the system does.

    >>> join("s3://bucket/corpus/", "manifest.json"), join("corpus", "manifest.json")
    ('s3://bucket/corpus/manifest.json', 'corpus/manifest.json')
    """
    text = os.fspath(base)
    if filesystem.scheme(text):
        return "/".join([text.rstrip("/"), *names])
    return os.path.join(filesystem.local(text), *names)


def _writable(url: str) -> None:
    kind = filesystem.scheme(url)
    if kind not in OBJECTS:
        raise UsageError(
            f"a local path or a URL of {', '.join(OBJECTS)}", got=repr(url),
            fix=f"{kind}:// can be read, not written",
        )  # fmt: skip


def put_new(url: str, data: bytes | os.PathLike[str], storage_options: Options = None) -> bool:
    """Creates a file from bytes or from a local file. Returns False if there is already one of this name.

    >>> import tempfile
    >>> path = join(tempfile.mkdtemp(), "a")
    >>> put_new(path, b"1"), put_new(path, b"2"), read_all(path)
    (True, False, b'1')
    """
    if not filesystem.scheme(url):
        return _put_local(filesystem.local(url), data)
    _writable(url)
    return _put_object(url, data, storage_options)


def _put_object(url: str, data: bytes | os.PathLike[str], options: Options) -> bool:
    """One conditional put. If its answer is lost, the next try finds an object: it is ours if its bytes are."""
    obstore = need("obstore", extra="s3")
    bucket, key = object_client.find(url, options)
    with storage_errors(os.fspath(data) if not isinstance(data, bytes) else url):
        size = len(data) if isinstance(data, bytes) else os.stat(data).st_size
    client = bucket.client("small write" if size <= SMALL_WRITE else "write")
    content, lost = data if isinstance(data, bytes) else Path(data), False

    def put() -> bool:
        nonlocal lost
        try:
            obstore.put(client, key, content, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError as error:
            if retry.status(error) == 409 and not exists(url, options):
                raise  # S3 answers so to creates at the same moment, also where none has succeeded
            return lost and _same(url, data, size, options)
        except Exception as error:
            lost |= retry.status(error) is None or retry.status(error) == 500
            raise
        metrics.add(bucket.kind, metrics.Counters(bytes=size))
        return True

    return retry.call(put, url, "written", bucket.policy)


def _same(url: str, data: bytes | os.PathLike[str], size: int, options: Options) -> bool:
    if filesystem.size(url, options) != size:
        return False
    with filesystem.open_read(url, options) as theirs:
        if isinstance(data, bytes):
            return theirs.read() == data
        with open(data, "rb") as ours:
            while block := ours.read(8 << 20):
                if theirs.read(len(block)) != block:
                    return False
    return True


def _put_local(path: str, data: bytes | os.PathLike[str]) -> bool:
    """A temporary file linked to its name: the link fails if the name is taken, so nothing is overwritten."""
    with storage_errors(path, "written"):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        temporary = f"{path}.{secrets.token_hex(8)}.tmp"
        try:
            with open(temporary, "xb") as file:
                content = data if isinstance(data, bytes) else Path(data).read_bytes()
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
    return True


def read_all(url: str, storage_options: Options = None, *, limit: int = SMALL) -> bytes:
    """Reads a small file completely; raises if it is larger than `limit` bytes."""
    if filesystem.scheme(url) in OBJECTS:
        (data,) = read_many([Read(url, limit=limit)], storage_options)
        return data
    _check_limit(filesystem.size(url, storage_options), limit, url)
    with filesystem.open_read(url, storage_options) as file:
        parts = []
        while part := file.read(1 << 20):
            parts.append(part)
        return b"".join(parts)


def _check_limit(size: int, limit: int, url: str) -> None:
    if size > limit:
        raise DataError(f"a file of at most {limit:,} bytes", got=f"{size:,} bytes", where=url)


def exists(url: str, storage_options: Options = None) -> bool:
    """Whether there is a file of this name."""
    try:
        filesystem.stamp(url, storage_options)
    except FileNotFoundError:
        return False
    return True


def list_files(prefix: str | os.PathLike[str], storage_options: Options = None) -> list[Listed]:
    """Lists all files of a folder and its subfolders, sorted by name; nothing if there is no such folder."""
    text = os.fspath(prefix)
    if not filesystem.scheme(text):
        return _list_local(filesystem.local(text))
    _writable(text)
    _, key = object_client.find(text, storage_options, folder=True)
    root = text[: len(text) - len(key)] if key else text.rstrip("/") + "/"
    return [
        Listed(root + one.key, one.size, one.tag, one.modified) for one in object_reader.listing(text, storage_options)
    ]


def _list_local(folder: str) -> list[Listed]:
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            try:
                facts = os.stat(path)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                raise storage_error(error, path) from error
            if stat.S_ISREG(facts.st_mode):
                found.append(Listed(path, facts.st_size, str(facts.st_mtime_ns), facts.st_mtime))
    return sorted(found)


def delete(urls: Iterable[str], storage_options: Options = None) -> None:
    """Deletes files; one that does not exist is not an error."""
    for url in urls:
        if not filesystem.scheme(url):
            with storage_errors(url, "deleted"):
                Path(filesystem.local(url)).unlink(missing_ok=True)
        else:
            _writable(url)
            with suppress(FileNotFoundError):
                _delete_object(url, storage_options)


def _delete_object(url: str, options: Options) -> None:
    obstore = need("obstore", extra="s3")
    bucket, key = object_client.find(url, options)
    client = bucket.client("small write")
    retry.call(lambda: obstore.delete(client, key), url, "deleted", bucket.policy)


def honours_create_only(prefix: str, storage_options: Options = None) -> bool:
    """Whether the storage refuses to create a file that exists: two puts of a fresh name, which is deleted again."""
    probe = join(prefix, f".penstock-probe-{secrets.token_hex(8)}")
    first = put_new(probe, b"1", storage_options)  # what may not be written to is said here
    try:
        return first and not put_new(probe, b"2", storage_options)
    finally:
        delete([probe], storage_options)
