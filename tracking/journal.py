"""Records on their way to MLflow, kept on disk until they are there: one checksummed file each, in order.

A record is written before MLflow is asked and removed after it answered, so a driver killed at any moment loses none.
Replaying one twice does no harm, since the store knows what it holds.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.paths import TEMPORARY, atomic_write, spool_of, writing
from runner.records import SweepInfo, from_dict, versioned
from tracking.reading import reading

HEADER = "header.json"
LOCK = "lock"
SUFFIX = ".record"
DAMAGED = ".damaged"


@dataclass(frozen=True)
class Header:
    """Whose a journal's records are."""

    info: SweepInfo
    planned: int
    flops: float  # of one call
    uri: str  # of the store that they are for, without a password
    host: str = ""  # of the driver that began it last


class Journal:
    """One sweep's records in `folder`. `header` says whose they are and is there before the first record."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.lock: int | None = None  # the file descriptor that holds it: whoever inherits it holds it too
        names = (path.name.partition(".")[0] for path in folder.glob(f"*{SUFFIX}*"))
        self._next = max((int(name) for name in names if name.isdecimal()), default=0) + 1

    def begin(self, header: Header) -> None:
        atomic_write(self.folder / HEADER, _sealed(versioned(header), b""))

    def header(self) -> Header | None:
        """None where it is missing or damaged. Raises Unreadable for one of another version."""
        found = _opened(self.folder / HEADER)
        if found is None:
            return None
        with reading(f"what waits for MLflow in {self.folder}", found[0]):
            return from_dict(Header, found[0])

    def add(self, record: dict[str, Any], blob: bytes = b"") -> Path:
        """Keep a record; it is on disk when this returns."""
        path = self.folder / f"{self._next:08d}{SUFFIX}"
        self._next += 1
        atomic_write(path, _sealed(record, blob))
        return path

    def pending(self) -> list[Path]:
        """The records that are here, oldest first."""
        return sorted(path for path in self.folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())

    @staticmethod
    def read(path: Path) -> tuple[dict[str, Any], bytes] | None:
        """A record and its blob; None where the file does not match its checksum."""
        return _opened(path)

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Whether this process may use the journal: one does at a time, and a dead one's hold ends with it."""
        with contextlib.ExitStack() as stack:
            with writing(self.folder / LOCK):
                self.folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((self.folder / LOCK).open("ab"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self.lock = file.fileno()
            yield True

    def end(self) -> None:
        """Remove the folder once nothing is pending; what is damaged stays for a person to look at."""
        if self.pending():
            return
        for path in (self.folder / HEADER, self.folder / LOCK, *self.folder.glob(f".*{TEMPORARY}")):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def driver_is_gone(sweep_id: str) -> bool:
    """Whether a sweep was driven from this folder on this machine, and nobody drives it now. A journal that cannot be read tells
    nothing.
    """
    with contextlib.suppress(RunnerError, OSError):
        journal = Journal(spool_of(sweep_id))
        header = journal.header()
        if header is None or header.host != platform.node():
            return False
        with (journal.folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def set_aside(path: Path) -> Path:
    """Keep a damaged record, or a journal whose header is, out of every later replay: its new name."""
    kept = path.with_name(path.name + DAMAGED)
    with writing(kept):
        return path.rename(kept)


def _sealed(record: dict[str, Any], blob: bytes) -> bytes:
    body = json.dumps({"record": record, "blob": base64.b64encode(blob).decode()}).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _opened(path: Path) -> tuple[dict[str, Any], bytes] | None:
    try:
        seal, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if hashlib.sha256(body).hexdigest().encode() != seal:
        return None
    content = json.loads(body)
    return content["record"], base64.b64decode(content["blob"])
