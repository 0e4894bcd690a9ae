"""Ctrl-C: once ends the work in good order, twice ends the process at once.

An interrupt must not come between an outcome and its record, so it is an exception only where the work waits for a job.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code that a shell gives a command that Ctrl-C ended."""


SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"
"""A progress bar hides it, and is not there any more to bring it back."""


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
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        # Python's own handlers wait for C code to return, Ray's and MLflow's included; this tells a thread at once.
        fd_before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=_end_at_the_second, args=(ours,), daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd_before)
            theirs.close()
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
        self.asked = True
        if self._held:
            self._due = True
        else:
            self._raise()

    def _raise(self) -> None:
        self._due = False
        raise KeyboardInterrupt


def _end_at_the_second(signals: socket.socket) -> None:
    """Read the numbers of the signals that came, until there are two that ask for the end, or nobody sends any more."""
    with signals:
        asked = 0
        while number := signals.recv(1):
            asked += number[0] in SIGNALS
            if asked == 2:
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), SHOW_CURSOR)
                os._exit(INTERRUPTED)


interrupt = Interrupt()
"""Signals belong to the process, so there is one."""
