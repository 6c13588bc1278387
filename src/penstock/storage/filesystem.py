"""Finds, opens and reads files by path or URL.

Local paths use the operating system directly; s3, gs and az URLs obstore, others fsspec, from an allow-list of schemes.
Chained URLs (`a::b`) and commands (`pipe:`) are refused, and only regular files are opened, so a named pipe or a
device cannot block a reader.
"""

from __future__ import annotations

import glob as globbing
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

from penstock.core.errors import (
    DataError,
    FileMissing,
    PenstockError,
    StorageError,
    UsageError,
)
from penstock.core.os_errors import storage_error
from penstock.core.signals import surface
from penstock.storage.braces import expand_braces
from penstock.storage.positioned_file import ReadFile
from penstock.storage.schemes import OBJECTS, SCHEMES
from penstock.storage.suffixes import ends_in

Options = Mapping[str, Any] | None
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe is refused, not waited for
_EXTRAS = {"http": "http", "https": "http", "s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "hf": "hf"}
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/(?!/)", re.IGNORECASE)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class Stamp(NamedTuple):
    """Size and `tag` of a file. `tag` is its modification time or ETag; empty if the storage has neither."""

    size: int
    tag: str


def scheme(path: str) -> str:
    """Returns the scheme of a URL, checked against the allow-list; "" for a local path.

    >>> scheme("s3://bucket/a.jsonl"), scheme("data/a.jsonl")
    ('s3', '')
    """
    match = _URL.match(path)
    if path.startswith("pipe:") or (match and "::" in path) or re.match(r"[A-Za-z0-9+.-]+::", path):
        raise UsageError(
            "a plain path or URL",
            got=repr(path),
            fix="name the file itself; commands (pipe:) and chained URLs (::) are not supported",
        )
    if not match:
        collapsed = _COLLAPSED.match(path)
        if collapsed:
            raise UsageError(
                "a URL as str",
                got=f"{path!r}: pathlib.Path turned :// into :/",
                fix=f"pass the str {path.replace(':/', '://', 1)!r}",
            )
        return ""
    name = match[1].lower()
    if name not in SCHEMES:
        raise UsageError(
            "a path or a URL with a known scheme",
            got=repr(path),
            fix=f"use one of {', '.join(SCHEMES)}, or a local path",
        )
    return "" if name in ("file", "local") else name


def local(path: str) -> str:
    """Returns a local path without its `file://` or `local://`."""
    return _URL.sub("", path, count=1) if path.startswith(("file://", "local://")) else path


def local_only(path: str | os.PathLike[str], what: str) -> str:
    """Returns a local path without its `file://`; raises if it is a URL of another scheme.

    `what` names the argument, for the error. For folders that are written to and files that are mapped into memory.

    >>> local_only("file:///data/corpus", "out"), local_only("corpus", "out")
    ('/data/corpus', 'corpus')
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UsageError(f"{what}: a path as str", got=repr(text), fix="decode it with os.fsdecode")
    if found := scheme(text):
        raise UsageError(
            f"{what}: a local path",
            got=repr(text),
            fix=f"use a local path and copy with your storage's own tool, or mount {found}:// as a folder",
        )
    return local(text)


def filesystem(path: str, options: Options = None) -> Any:
    """Returns the fsspec filesystem of a URL."""
    from penstock.storage import fsspec_files  # here: local files need none of it

    scheme(path)
    return fsspec_files.find(path, options).files(path)


def expand(paths: Paths, storage_options: Options = None, suffixes: Sequence[str] = ()) -> list[str]:
    """Lists the files of paths, globs, folders and URLs.

    The files of a glob or folder are sorted by name; several arguments keep their order; a file that is found by two
    of them is listed once. Folders are searched recursively without hidden files, for names that end in one of
    `suffixes`.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in "ba": _ = (folder / f"{name}.txt").write_text(name)
    >>> [os.path.basename(p) for p in expand(folder / "*.txt")]
    ['a.txt', 'b.txt']
    """
    return list(expand_stamped(paths, storage_options, suffixes))


def expand_stamped(
    paths: Paths, storage_options: Options = None, suffixes: Sequence[str] = ()
) -> dict[str, Stamp | None]:
    """Lists files as `expand` does, with the stamps that a listing of an object store has; None for other files."""
    items = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not items:
        raise UsageError("at least one path", got="an empty list", fix="name a file, a folder, a glob or a URL")
    found: dict[str, Stamp | None] = {}
    named = _without_braces(items)
    if len(set(named)) < len(named):
        again = Counter(named).most_common(1)[0]
        raise UsageError(
            "each path of a list once", got=f"{again[0]!r} {again[1]} times",
            fix="name it once; .repeat(), or penstock.concat([...]) of several pipelines, reads it again",
        )  # fmt: skip
    for path in named:
        matches: dict[str, Stamp | None]
        if scheme(path) in OBJECTS:
            from penstock.storage import object_reader  # here: local files need none of it

            listed = object_reader.expand(path, storage_options, suffixes)
            matches = {url: Stamp(size, tag) for url, size, tag in listed}
        else:
            remote = bool(scheme(path))
            names = _expand_remote(path, storage_options, suffixes) if remote else _expand_local(path, suffixes)
            matches = dict.fromkeys(names)
        if not matches:
            raise nothing_at(path, suffixes)
        found.update(matches)
    return found


def nothing_at(path: str, suffixes: Sequence[str] = ()) -> FileMissing:
    """The error for a path or pattern at which no file is found."""
    plain = not globbing.has_magic(path)
    absent = plain and not scheme(path) and not os.path.lexists(local(path))
    wanted = f" ending in {_in_words(suffixes)}" if suffixes and plain and not absent else ""
    return FileMissing(
        f"files{wanted} at {path!r}",
        got="no such file or folder" if absent else "nothing matches",
        where=f"looked in {_looked_in(path)}",
        fix="check the spelling and the current folder; ** in a glob includes subfolders",
    )


def _in_words(suffixes: Sequence[str]) -> str:
    """Each suffix once, those of compressed files in two words.

    >>> _in_words([".json", ".json.gz", ".csv", ".json"])
    '.json .csv (also compressed)'
    """
    plain = [suffix for suffix in dict.fromkeys(suffixes) if suffix.rpartition(".")[0] not in suffixes]
    return " ".join(plain) + (" (also compressed)" if len(plain) < len(set(suffixes)) else "")


def _without_braces(items: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Paths with braces as the paths that they stand for; a file whose name has braces stays."""
    paths: list[str] = []
    for item in items:
        path = os.fspath(item)
        if not isinstance(path, str):
            raise UsageError("a path as str", got=repr(path), fix="decode it with os.fsdecode")
        plain = "{" not in path or (not scheme(path) and os.path.lexists(local(path)))
        paths += [path] if plain else expand_braces(path)
    return paths


def stamps(found: Mapping[str, Stamp | None], storage_options: Options = None) -> list[Stamp]:
    """The stamps of files that `expand_stamped` has found; those that a listing had cost no request."""
    return [stamp(path, storage_options, fresh=False) if known is None else known for path, known in found.items()]


def _looked_in(path: str) -> str:
    if scheme(path):
        return path
    folder = os.path.abspath(os.path.dirname(local(path).partition("*")[0]) or ".")
    return folder if os.path.isdir(folder) else f"{folder} (which does not exist)"


def _expand_local(path: str, suffixes: Sequence[str]) -> list[str]:
    path = local(path)
    if path.startswith("~") and not os.path.lexists(path):
        path = os.path.expanduser(path)
    if os.path.isdir(path):
        return _walk(path, suffixes)
    if os.path.lexists(path):  # a file name may contain glob characters
        check_regular(path)
        return [path]
    matches: list[str] = []
    for match in sorted(globbing.glob(path, recursive=True)):
        matches += _walk(match, suffixes) if os.path.isdir(match) and not path.endswith("**") else [match]
    return [match for match in matches if os.path.isfile(match)]


def _walk(folder: str, suffixes: Sequence[str]) -> list[str]:
    """The files below a folder, without those that are hidden; links to folders are not followed, links to files are.

    Of names that do not end right nothing is asked, and of others what the listing says: no `stat` for each file.
    """
    ends, found, folders = tuple(suffixes), [], [folder]
    while folders:
        for entry in _entries(folders.pop()):
            if entry.name.startswith("."):
                continue
            if _is(entry.is_dir):
                folders += [] if entry.is_symlink() else [entry.path]
            elif ends_in(entry.name, ends) and _is(entry.is_file):
                found.append(entry.path)
    return sorted(found)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What a folder holds; nothing if it may not be listed."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a loop of links, for example
        return False


def _expand_remote(path: str, options: Options, suffixes: Sequence[str]) -> list[str]:
    from penstock.storage import fsspec_files

    magic = globbing.has_magic(path.partition("?")[0] if scheme(path).startswith("http") else path)
    full = fsspec_files.listed(path, options, magic)
    for match in full:
        scheme(match)  # a listing is untrusted: it must not lead to another scheme
    ends = tuple(suffixes)
    return full if magic or full == [path] else [match for match in full if ends_in(match, ends)]


def check_regular(path: str, handle: int | None = None) -> os.stat_result:
    """Returns the stat of a local file; raises if it is missing, unreadable, a pipe, a device or a folder."""
    with _reading(path):
        found = os.stat(path if handle is None else handle)
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, device or socket"
        raise DataError("a regular file", got=kind, where=path, fix="name a file")
    return found


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Whatever a storage library raises is a StorageError of this path."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        surface(error)
        if isinstance(error, OSError):
            raise storage_error(error, path) from error
        fix = "try again; if it stays so, check the path, your access to it and the storage options"
        got = f"{type(error).__name__}: {error}"
        raise StorageError("a file that can be read", got=got, where=path, fix=fix) from error


class _RemoteFile(ReadFile):
    """A remote file whose failures are StorageErrors that name it; without a buffer of its own."""

    def __init__(self, path: str, file: Any) -> None:
        self.name, self._file = path, file

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int | None = -1) -> bytes:
        with _reading(self.name):
            return bytes(self._file.read(size))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_read(
    path: str, storage_options: Options = None, *, expected: Stamp | None = None, verify: bool = True
) -> BinaryIO:
    """Opens a file for reading bytes, unbuffered if it is local.

    With the stamp that an object is `expected` to have, opening costs no request, and reads fail if it was replaced.
    An object that is read to its end is compared with its ETag where that is an MD5, unless the caller does (`verify`).
    """
    with _reading(path):
        if not scheme(path):
            check_regular(local(path))
            return cast(BinaryIO, open(local(path), "rb", buffering=0))
        if scheme(path) in OBJECTS:
            from penstock.storage import object_reader

            size, tag = (None, "") if expected is None else expected
            return cast(BinaryIO, object_reader.ObjectFile(path, storage_options, size=size, tag=tag, verify=verify))
        from penstock.storage import fsspec_files, object_reader

        info = fsspec_files.describe(path, storage_options)
        if info.get("size") is not None and info.get("partial", True):
            return cast(BinaryIO, object_reader.ObjectFile(path, storage_options, size=int(info["size"])))
        opened = fsspec_files.call(lambda files: files.open(path, "rb"), path, storage_options)
        return cast(BinaryIO, _RemoteFile(path, opened))


def stamp(path: str, storage_options: Options = None, *, fresh: bool = True) -> Stamp:
    """Returns size and modification tag of a file, to detect later changes.

    `fresh=False` uses the cached listing of a remote folder instead of one request per file.
    """
    if not scheme(path):
        found = check_regular(local(path))
        return Stamp(found.st_size, str(found.st_mtime_ns))
    if scheme(path) in OBJECTS:
        from penstock.storage import object_reader

        return Stamp(*object_reader.head(path, storage_options))
    from penstock.storage import fsspec_files

    info = fsspec_files.describe(path, storage_options, fresh=fresh)
    marks = (info.get(k) for k in ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created"))
    return Stamp(fsspec_files.size_of(info, path), next((str(m) for m in marks if m), ""))


def is_object(path: str) -> bool:
    """Whether a path is the URL of an object store."""
    return scheme(path) in OBJECTS


def checked_by_reads(path: str, expected: Stamp) -> bool:
    """Whether reads of a file with an `expected` stamp notice that it was replaced: objects that have an ETag."""
    if scheme(path) not in OBJECTS:
        return False
    from penstock.storage import object_reader

    return object_reader.is_tag(expected.tag)


def check_unchanged(path: str, before: Stamp, storage_options: Options = None, *, now: Stamp | None = None) -> None:
    """Raises if the stamp of a file (`now`, or looked up) is another than when it was opened."""
    now = stamp(path, storage_options) if now is None else now
    if now != before:
        raise DataError(
            "the file as it was when it was opened",
            got=f"it changed ({before.size} bytes then, {now.size} now)",
            where=path,
            fix="make the source again, and let nothing write to its files",
        )


def size(path: str, storage_options: Options = None) -> int:
    """Returns the size of a file in bytes."""
    return stamp(path, storage_options).size


def read_ranges(
    path: str, ranges: Sequence[tuple[int, int]], storage_options: Options = None, *, expected: Stamp | None = None
) -> list[bytes]:
    """Reads byte ranges [start, stop) of a file, each complete or an error; remote requests are concurrent.

    An object that has another ETag, or a local file that has another stamp, than the `expected` one is an error.
    """
    if not scheme(path):
        with _reading(path):
            handle = os.open(local(path), _READ)
        try:
            found = check_regular(path, handle)
            if expected is not None:
                check_unchanged(path, expected, now=Stamp(found.st_size, str(found.st_mtime_ns)))
            return [read_at(handle, start, stop, path) for start, stop in ranges]
        finally:
            os.close(handle)
    from penstock.storage import object_reader

    tag = expected.tag if expected is not None and scheme(path) in OBJECTS else ""
    return object_reader.read_ranges(path, ranges, storage_options, tag=tag)


def read_at(handle: int, start: int, stop: int, path: str) -> bytes:
    """Reads bytes [start, stop) of an open local file without moving its position, so that threads can share it."""
    data = _pread(handle, stop - start, start)
    while len(data) < stop - start and (more := _pread(handle, stop - start - len(data), start + len(data))):
        data += more
    return _exact(data, start, stop, path)


if hasattr(os, "pread"):
    _pread = os.pread
else:  # Windows: one position per descriptor, so reads are serialised
    import threading

    _turn = threading.Lock()

    def _pread(handle: int, length: int, offset: int, /) -> bytes:
        with _turn:
            os.lseek(handle, offset, os.SEEK_SET)
            return os.read(handle, length)


def _exact(data: bytes, start: int, stop: int, path: str) -> bytes:
    if len(data) != stop - start:
        raise DataError(
            f"bytes {start} to {stop}",
            got=f"{len(data)} of {stop - start} bytes",
            where=path,
            fix="the file was truncated or replaced; open it again",
        )
    return data
