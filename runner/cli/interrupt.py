"""Ctrl-C: once ends the sweep in good order, twice ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # what a shell calls a command that Ctrl-C ended


@contextmanager
def twice_is_now() -> Iterator[None]:
    """While the block runs, the first SIGINT or SIGTERM raises KeyboardInterrupt and a second one ends the process.

    What the process started ends with it: Ray's own processes and our children ask the kernel for that.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(INTERRUPTED)
        asked = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
