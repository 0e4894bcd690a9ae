"""What surrounds a sweep: proxies, shared memory, room on the disks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.doctor.finding import Finding

GB = 10**9
DISK_NEEDED, DISK_COMFORTABLE = 1 * GB, 10 * GB
SHARED_MEMORY_COMFORTABLE = 512 << 20
"""A Ray of our own takes 256 MiB of it for objects; a container has 64 MiB unless it asks for more."""


def proxies() -> Iterator[Finding]:
    """Whether a proxy would be asked for what is on this machine: the MLflow server, Ray's dashboard."""
    from requests.utils import get_environ_proxies

    hosts = ("127.0.0.1", "localhost")
    caught = [h for h in hosts if {"http", "all"} & get_environ_proxies(f"http://{h}", no_proxy=None).keys()]
    if caught:
        text = f"http_proxy or all_proxy is set, and no_proxy leaves out {' and '.join(caught)}: a server here is not reached"
        yield Finding("proxy", "note", text, "export no_proxy=127.0.0.1,localhost${no_proxy:+,$no_proxy}")
    else:
        yield Finding("proxy", "ok", "none stands before 127.0.0.1")


def shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Room for Ray's objects. With too little Ray uses the disk instead."""
    if not folder.is_dir():
        return
    size = shutil.disk_usage(folder).total
    small = size < SHARED_MEMORY_COMFORTABLE
    remedy = "start the container with --shm-size=1g, else Ray keeps its objects on disk" if small else ""
    yield Finding("shared memory", "note" if small else "ok", f"{size / GB:.2g} GB in {folder}", remedy)


def disks(places: Mapping[str, Path]) -> Iterator[Finding]:
    """Free room, one line a file system."""
    shared: dict[int, list[tuple[str, Path]]] = {}
    for what, path in places.items():
        there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
        shared.setdefault(there.stat().st_dev, []).append((what, there))
    for group in shared.values():
        yield room(shutil.disk_usage(group[0][1]).free, " and ".join(f"{what} ({path})" for what, path in group))


def room(free: int, what: str) -> Finding:
    """Whether `free` bytes are enough."""
    text = f"{free / GB:.1f} GB free for {what}"
    if free < DISK_NEEDED:
        return Finding("disk", "fault", text, "make room, or set TMPDIR or MLFLOW_TRACKING_URI to a larger disk")
    if free < DISK_COMFORTABLE:
        return Finding("disk", "note", text, "make room before a long sweep")
    return Finding("disk", "ok", text)
