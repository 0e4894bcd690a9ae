"""What holds for every Python process that we start: it finds the same modules as we do, and ends with us."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "MACA_VISIBLE_DEVICES": ""}
"""Environment of a process that is to see no accelerator."""

PR_SET_PDEATHSIG = 1


def python_path() -> str:
    """Where this process finds its modules, for the environment of another."""
    return os.pathsep.join(p for p in sys.path if p)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, and end now if it already has.

    The parent's end is that of the thread that started this process.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
