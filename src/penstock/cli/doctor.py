"""`penstock doctor`: what is installed, what is missing, and what on this machine limits a loader."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from penstock._version import __version__
from penstock.cli import console
from penstock.cli.arguments import add_json, command
from penstock.core.optional import DISTRIBUTION, install_line

_FEW_FILES, _SMALL_SHM = 1024, 256 << 20
_TOOLS = ("all", "bench", "demo", "dev")  # extras that only join others
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "doctor", "what is installed, what is missing, what limits a loader on this machine", run,
        more="Exit code 0; advice is on lines that begin with '!'.", examples=["", "--json"],
    )  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the facts and the advice that follows from them."""
    machine = _machine()
    facts = {"machine": machine, "extras": _extras(), "advice": list(_advice(machine))}
    return console.result(args, facts, _show)


def _show(facts: dict[str, Any]) -> None:
    rows = {**facts["machine"]}
    for name in ("memory_bytes", "shared_memory_bytes"):
        if rows[name] is not None:
            rows[name] = console.size(rows[name])
    console.table([(name.removesuffix("_bytes").replace("_", " "), value) for name, value in rows.items()])
    console.out()
    console.out("extras" if facts["extras"] else f"extras: unknown, because {DISTRIBUTION} is not installed")
    for extra in facts["extras"]:
        found = ", ".join(f"{name} {version or '(missing)'}" for name, version in extra["packages"].items())
        console.out(f"  {'ok     ' if extra['installed'] else 'missing'}  {extra['name']:<14} {found}")
    if missing := [extra["name"] for extra in facts["extras"] if not extra["installed"]]:
        console.out(f"  to install the missing ones you need: {install_line(','.join(missing))}")
    for line in facts["advice"]:
        console.out(f"! {line}")


def _machine() -> dict[str, Any]:
    return {
        "penstock": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "usable_processors": _usable(),
        "memory_bytes": _memory(),
        "open_files": _open_files(),
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        "jpeg_crops": _jpeg_crops(),
    }


def _jpeg_crops() -> str | None:
    """Which library decodes only the crop of a JPEG, or why none does."""
    if find_spec("simplejpeg") is None:
        return None
    from penstock.codecs.image.jpeg_region import chosen

    library, text = chosen()
    return text if library else f"full width ({text})"


def _usable() -> float:
    """Processors that this process may use: its affinity and the limit of its container."""
    count: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = _read("/sys/fs/cgroup/cpu.max").split()
    if len(text) == 2 and text[0].isdigit() and int(text[1]):
        count = min(count, int(text[0]) / int(text[1]))
    return count


def _memory() -> int | None:
    """Memory of the machine, or of the container if that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _open_files() -> str | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{soft:,} (may be raised to {hard:,})" if hard > soft else f"{soft:,}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(200)
    except OSError:
        return ""


def _extras() -> list[dict[str, Any]]:
    """Each extra of this package, its packages and their versions, from the metadata of the installation."""
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []  # the source folder on PYTHONPATH, not installed
    extras: dict[str, dict[str, str | None]] = {}
    for line in required:
        extra, name = _EXTRA.search(line), re.match(r"[A-Za-z0-9._-]+", line)
        if extra and name and extra[1] not in _TOOLS and name[0] != DISTRIBUTION:
            extras.setdefault(extra[1], {})[name[0]] = _version(name[0])
    return [
        {"name": name, "installed": all(packages.values()), "packages": packages}
        for name, packages in sorted(extras.items())
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _advice(machine: dict[str, Any]) -> Iterator[str]:
    files = re.match(r"[\d,]+", machine["open_files"] or "")
    if files and int(files[0].replace(",", "")) < _FEW_FILES:
        yield "few open files are allowed: ulimit -n 4096 helps sources of many compressed files"
    shared = machine["shared_memory_bytes"]
    if shared is not None and shared < _SMALL_SHM:
        yield f"/dev/shm has {console.size(shared)}: workers= and isolate=True need room for batches (--shm-size=2g)"
    if machine["usable_processors"] < 2:
        yield "one processor: threads=0 is usually fastest"
    if sys.flags.dont_write_bytecode:
        yield "PYTHONDONTWRITEBYTECODE is set: every start compiles the modules again (about 0.15 s)"
