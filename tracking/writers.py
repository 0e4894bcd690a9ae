"""Processes that bring a sweep's outcomes to MLflow beside its driver.

MLflow takes 40 ms of processor time and more for a run, whatever its store is: a driver that does it itself gets 20 outcomes
a second there, and has no time for its devices meanwhile. The journal is the queue: a writer is told the name of a record,
reads it there and answers with the run. It dies with the driver, and until then it holds the journal too. Writers do not know
of each other: an outcome has one record, and goes to one of them at a time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from runner.errors import InfrastructureLost
from runner.subprocesses import python_path
from tracking import writer
from tracking.journal import Journal
from tracking.store import Key

ROOM = 32
"""Outcomes for each writer that may be under way: beyond that the driver waits, and its devices with it."""

TOLD = 4  # of them, to each writer: it never waits for the driver
PATIENCE = 5.0  # seconds that the driver waits for room with one outcome

SILENCE = 60.0
"""Seconds without an answer after which a writer counts as hanging. It takes some until its first: it imports MLflow."""


class Given(NamedTuple):
    """An outcome's record, what the outcome is known by, and whether MLflow may have it already, or half of it."""

    record: Path
    key: Key
    doubtful: bool


class Written(NamedTuple):
    """`run_id` is empty where the record was damaged on disk."""

    given: Given
    run_id: str


class Writers:
    """So many processes. `journal` is held by this one, and `parent` is the sweep's own run.

    To be made in the main thread: Linux ends the processes with the thread that started them.
    """

    def __init__(self, number: int, uri: str, journal: Journal, parent: str):
        self._all = [_Writer(uri, journal, parent) for _ in range(number)]
        self._waiting: deque[Given] = deque()
        self._written: list[Written] = []

    @property
    def under_way(self) -> int:
        return len(self._waiting) + sum(len(w.given) for w in self._all)

    @property
    def are_behind(self) -> bool:
        return self.under_way > ROOM * len(self._all)

    def take(self, given: Sequence[Given]) -> None:
        """Have outcomes written. Raises InfrastructureLost where any was not."""
        self._waiting.extend(given)
        self._hear(0)

    def make_room(self) -> None:
        """Wait a little for those that are too many. What is too many already grows less, whatever else comes."""
        most = max(ROOM * len(self._all), self.under_way - 2)
        end = time.monotonic() + PATIENCE
        while self.under_way > most and (left := end - time.monotonic()) > 0:
            self._hear(left)

    def written(self) -> list[Written]:
        """What was written since this was last asked."""
        found, self._written = self._written, []
        return found

    def end(self, seconds: float) -> list[Key]:
        """Wait about so long for what is under way, and end the processes: what may be written, half or not at all."""
        end = time.monotonic() + seconds
        with contextlib.suppress(InfrastructureLost):  # who has to write it now meets the same trouble, and says so
            while self.under_way and (left := end - time.monotonic()) > 0:
                self._hear(left)
        for w in self._all:
            w.kill()
        return [given.key for w in self._all for given in w.given.values()]

    def _hear(self, seconds: float) -> None:
        """Take an answer of each writer that has one, or gives one within so many seconds, and tell it of the next outcomes."""
        self._tell()
        lines = {w.line: w for w in self._all}
        patience = min(w.patience() for w in self._all)
        for line in wait(list(lines), max(0.0, min(seconds, patience))):
            self._written.append(lines[line].hear())  # type: ignore[index]
        self._tell()
        if min(w.patience() for w in self._all) < 0:
            raise InfrastructureLost(f"a process that writes to MLflow has not answered for {SILENCE:.0f} s")

    def _tell(self) -> None:
        while self._waiting and len((freest := min(self._all, key=lambda w: len(w.given))).given) < TOLD:
            freest.tell(self._waiting.popleft())


class _Writer:
    """One process, and what it was given and has not written yet, by the record's name."""

    def __init__(self, uri: str, journal: Journal, parent: str):
        assert journal.lock is not None
        self.given: dict[str, Given] = {}
        self.line, theirs = Pipe()
        self._heard = 0.0
        # By path and not by -m, which would put the current folder first on the path, and a user's files before ours.
        command = [sys.executable, writer.__file__, str(theirs.fileno()), str(os.getpid()), str(journal.folder), parent]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), journal.lock),
            start_new_session=True,  # Ctrl-C is the driver's
        )
        theirs.close()

    def tell(self, given: Given) -> None:
        if not self.given:
            self._heard = time.monotonic()
        self.given[given.record.name] = given
        try:
            self.line.send((given.record.name, given.key, given.doubtful))
        except OSError as error:
            raise InfrastructureLost("a process that writes to MLflow ended") from error

    def hear(self) -> Written:
        """What it has written. Raises InfrastructureLost where it has not."""
        try:
            name, run_id, error = self.line.recv()
        except (EOFError, OSError) as lost:
            raise InfrastructureLost("a process that writes to MLflow ended") from lost
        if error:
            raise InfrastructureLost(error)
        self._heard = time.monotonic()
        return Written(self.given.pop(name), run_id)

    def patience(self) -> float:
        """Seconds that are left until it counts as hanging."""
        return self._heard + SILENCE - time.monotonic() if self.given else SILENCE

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.line.close()
