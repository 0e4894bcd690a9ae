"""What a store in one SQLite file needs beyond what MLflow does: one maker of its tables, and commits that wait for little.

MLflow leaves SQLite's journal as it is: a commit waits some four times for the disk, and waits while anybody reads. With a
write-ahead log (https://www.sqlite.org/wal.html) it waits once, and `mlflow ui` reads beside it. The mode belongs to the file,
so only a file that is new is given it. It needs memory that its processes share, which no network's file system has.

MLflow makes five commits of a run, and each keeps all others waiting while it waits for the disk. Who writes runs can have that
wait once for all five, and keep nobody waiting.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from runner.paths import sync, writing

LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems of one machine, as Linux calls them."""

MOUNTS = Path("/proc/self/mounts")


def file_of(uri: str) -> Path | None:
    """The file of a store in one; None for a store in memory, or of another kind."""
    scheme, _, path = uri.partition(":///")
    return Path(path) if scheme == "sqlite" and not is_in_memory(uri) else None


def is_in_memory(uri: str) -> bool:
    """Whether SQLite keeps a store in this process alone: it has no file, or only a name like `file:x?mode=memory`."""
    scheme, _, rest = uri.partition("://")
    name, _, options = rest.removeprefix("/").partition("?")
    if scheme.partition("+")[0] != "sqlite":
        return False
    return name in ("", ":memory:", "file::memory:", "file:") or "mode=memory" in options.lower()


@contextmanager
def opening(uri: str) -> Iterator[None]:
    """Around the first look at a store. Two processes that meet a new file would both make its tables, and one of them fail."""
    file = file_of(uri)
    if file is None or not file.parent.is_dir():
        yield
        return
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks is no worse off than before
            fcntl.flock(folder, fcntl.LOCK_EX)
        if not file.exists() and file_system(file.parent) in LOCAL:
            _begin(file)
        yield
    finally:
        os.close(folder)


def _begin(file: Path) -> None:
    """An empty file with a write-ahead log. Where that cannot be, MLflow makes its own file, or says why not."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")


def waiting_later(uri: str) -> Callable[[], None]:
    """Have this process's commits not wait for the disk from now on: what is returned waits for all until then, at once.

    A commit is there for everybody before that, and stays if this process is killed. Only a machine without power can lose it.
    """
    file = file_of(uri)
    if file is None:
        return lambda: None
    from sqlalchemy import Engine, event

    log = file.with_name(f"{file.name}-wal")  # SQLite holds no locks on it, which closing it here would give up

    def wait() -> None:
        with writing(log), suppress(FileNotFoundError):  # all of it is in the database by now, or there is no such log
            sync(log)

    event.listen(Engine, "connect", _wait_later)
    return wait


def _wait_later(db: Any, _: Any) -> None:
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    if mode == "wal":  # without one, a commit that did not wait could break the file
        db.execute("PRAGMA synchronous = NORMAL")


def file_system(folder: Path) -> str:
    """The kind that a folder lies on; empty where Linux does not tell."""
    folder, depth, found = folder.resolve(), 0, ""
    with suppress(OSError):
        for line in MOUNTS.read_text().splitlines():
            _, mounted, kind, *_ = line.split()
            at = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mounted))  # a blank is \040 there
            if folder.is_relative_to(at) and len(at.parts) >= depth:  # of two in one place the later one is seen
                depth, found = len(at.parts), kind
    return found
