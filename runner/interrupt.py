"""Ctrl-C: once ends the work in good order, twice ends the process at once.

An interrupt must not come between an outcome and its record, so it is an exception only where the work waits for a job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code that a shell gives a command that Ctrl-C ended."""


class Interrupt:
    """The process's SIGINT and SIGTERM while `handled` is in force."""

    def __init__(self) -> None:
        self.asked = False
        self._held = False
        self._due = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """While the block runs, the first signal is a KeyboardInterrupt and a second one ends the process.

        What the process started ends with it: Ray's own processes and our children ask the kernel for that.
        """
        self.asked = self._due = False
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """While the block runs, the first signal waits for the next `let_through` in it, and is only `asked` without one."""
        with self._holding(True):
            yield

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Where an interrupt does no harm: while waiting."""
        with self._holding(False):
            if self._due:
                self._raise()
            yield

    @contextmanager
    def _holding(self, held: bool) -> Iterator[None]:
        before, self._held = self._held, held
        try:
            yield
        finally:
            self._held = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            with contextlib.suppress(Exception):  # it may have come in the middle of writing there
                sys.stdout.flush()
            os._exit(INTERRUPTED)
        self.asked = True
        if self._held:
            self._due = True
        else:
            self._raise()

    def _raise(self) -> None:
        self._due = False
        raise KeyboardInterrupt


interrupt = Interrupt()
"""Signals belong to the process, so there is one."""
