"""Folders for temporary files that are gone with whoever wrote them, whatever ended that.

Who makes one removes it. One whose maker was killed is removed by the next process that makes one: its lock ended with its
maker. A Ray of our own is given one for all its workers, which are killed at the end and could remove nothing themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

WITHIN = "SWEEP_RUNNER_SCRATCH"
"""Environment variable: the folder in which a process makes its own; who started the process removes it."""

PREFIX = "runner-scratch-"
YOUNG = 60.0  # seconds in which a folder may not be locked yet
TRIES = 5  # a compiler that is just being killed may still write


class Scratch:
    """A new folder, until `remove`, or the end of this process."""

    def __init__(self) -> None:
        within = os.environ.get(WITHIN, "")
        if not os.path.isdir(within):  # noqa: PTH112 - an empty name is no folder, and Path("") is the current one
            within = ""
            remove_abandoned()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=within or None))
        lock = os.open(self.folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks: nobody else removes it there
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.remove = weakref.finalize(self, _remove, self.folder, lock, os.getpid())


def remove_abandoned() -> None:
    """Remove the folders whose makers are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or held, or gone meanwhile
            if time.time() - folder.stat().st_ctime < YOUNG:
                continue
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _remove(folder: Path, lock: int, maker: int) -> None:
    if os.getpid() != maker:  # a fork of the maker
        return
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.05)
    os.close(lock)
