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


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a polite kill, and a terminal that was closed."""

SHOW_CURSOR = b"\x1b[?25h"
"""A progress bar hides it, and is not there any more to bring it back."""


class Interrupt:
    """The process's `SIGNALS` while `handled` is in force."""

    def __init__(self) -> None:
        self.asked = False
        self._held = False
        self._due = False
        self._terminals: list[int] = []

    @contextmanager
    def handled(self) -> Iterator[None]:
        """While the block runs, the first signal is a KeyboardInterrupt and a second one ends the process.

        What the process started ends with it: Ray's own processes and our children ask the kernel for that. A terminal that is
        closed may say so twice, and only once counts; under nohup it is not heard.
        """
        self.asked = self._due = False
        self._terminals = [fd for fd in range(3) if os.isatty(fd)]
        heard = [n for n in SIGNALS if n is not signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in heard}
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
        if number == signal.SIGHUP:
            self._leave_terminals()
        if self._held:
            self._due = True
        else:
            self._raise()

    def _leave_terminals(self) -> None:
        """What is printed to a terminal that is closed would fail, and with it the end in good order."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in self._terminals:
            os.dup2(nowhere, fd)
        os.close(nowhere)

    def _raise(self) -> None:
        self._due = False
        raise KeyboardInterrupt


def _end_at_the_second(signals: socket.socket) -> None:
    """Read the numbers of the signals that came, until there are two that ask for the end, or nobody sends any more."""
    with signals:
        asked: list[int] = []
        while number := signals.recv(1):
            if number[0] in SIGNALS and not (number[0] == signal.SIGHUP and number[0] in asked):
                asked.append(number[0])
            if len(asked) == 2:
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), SHOW_CURSOR)
                os._exit(INTERRUPTED)


interrupt = Interrupt()
"""Signals belong to the process, so there is one."""
