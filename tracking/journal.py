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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.paths import atomic_write

HEADER = "header.json"
SUFFIX = ".record"


class Journal:
    """One sweep's records in `folder`. `header` says whose they are and is there before the first record."""

    def __init__(self, folder: Path):
        self.folder = folder
        numbers = [int(path.stem) for path in folder.glob(f"*{SUFFIX}")] if folder.is_dir() else []
        self._next = max(numbers, default=0) + 1

    def begin(self, header: dict[str, Any]) -> None:
        atomic_write(self.folder / HEADER, _sealed(header, b""))

    def header(self) -> dict[str, Any] | None:
        """None where it is missing or damaged."""
        found = _opened(self.folder / HEADER)
        return found[0] if found else None

    def add(self, record: dict[str, Any], blob: bytes = b"") -> Path:
        """Keep a record; it is on disk when this returns."""
        path = self.folder / f"{self._next:08d}{SUFFIX}"
        self._next += 1
        atomic_write(path, _sealed(record, blob))
        return path

    def pending(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    @staticmethod
    def read(path: Path) -> tuple[dict[str, Any], bytes] | None:
        """A record and its blob; None where the file does not match its checksum. Such a file is set aside, never used."""
        found = _opened(path)
        if found is None:
            with contextlib.suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
        return found

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Whether this process may use the journal: one does at a time, and a dead one's hold ends with it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True

    def end(self) -> None:
        """Remove the folder once nothing is pending; damaged records stay for a person to look at."""
        if self.pending():
            return
        for name in (HEADER, "lock"):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


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
