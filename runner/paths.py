"""Every file and folder that the runner keeps beside MLflow's, and how it writes them: wholly or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.errors import InfrastructureLost, RequestError

STATE_VARIABLE = "SWEEP_RUNNER_STATE"
"""Environment variable: another folder for it."""

STATE = Path(os.environ.get(STATE_VARIABLE, ".runner")).expanduser()
"""In the folder where the command is run, as MLflow's default store is."""

SPOOL = STATE / "spool"
"""Outcomes on their way to MLflow, a folder per sweep."""

SWEEP_ID = re.compile(r"[0-9a-f]{8}")

TEMPORARY = ".tmp"
"""What ends so was never finished."""


def spool_of(sweep_id: str) -> Path:
    """A sweep's folder there. Raises RequestError for an id that is none, as a record that others can write may hold."""
    if not SWEEP_ID.fullmatch(sweep_id):
        raise RequestError(f"a sweep's id is 8 hex digits, not {sweep_id[:40]!r}")
    return SPOOL / sweep_id


def here() -> str:
    """The current folder; empty where it is gone, as a job's may be that another process cleared away."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def search_folders() -> tuple[str, ...]:
    """Where a user's own families are looked for: the current folder, where there is one."""
    return tuple(filter(None, (here(),)))


def demand_writable(path: Path, what: str) -> None:
    """Raises RequestError where a folder or file cannot be written, or one that is missing could not be made.

    The kernel is asked, not the mode bits alone: it also knows of read-only mounts. Nothing is written for it.
    """
    there = path.absolute()
    while not os.path.exists(there):  # noqa: PTH110 - Path.exists raises where a folder on the way is closed
        there = there.parent
    fit = os.path.isdir(there) or there == path.absolute()  # noqa: PTH112
    if not (fit and os.access(there, os.W_OK)):
        why = "it is read-only, or belongs to somebody else" if fit else "it is no folder"
        raise RequestError(f"{what} {path} cannot be written: {there}: {why}")


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file that is there wholly or not at all, also after a crash. Raises InfrastructureLost when the disk is full."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        sync(path.parent)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses while the block runs into InfrastructureLost with one line."""
    try:
        yield
    except OSError as error:
        raise InfrastructureLost(f"cannot write {path}: {error.strerror or error}: make room or mend the disk") from error


def sync(path: Path) -> None:
    """Wait until a file's content is on disk, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
