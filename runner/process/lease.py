"""Who may use a device: one timing at a time, whichever sweep or process asks. Kernel file locks, so a dead holder frees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from runner.records import Device

FOLDER = Path("/tmp")
"""Not `tempfile`'s: TMPDIR differs between users and jobs, and a lock that others do not see is none."""

TAKES_TURNS = "SWEEP_RUNNER_TAKES_TURNS"
"""Environment variable of every process that computes on a device only while the device is leased to it."""


@contextlib.contextmanager
def lease(device: Device, shared: bool = False) -> Iterator[None]:
    """Hold a device of this host while the block runs, waiting until it is free.

    Timing holds it alone; `shared` is for what may run beside its like but not beside timing: builds on the CPU
    that a CPU target is timed on.
    """
    with _lock_file(device).open("r+b") as file:  # not to be created here: Linux may forbid that for another user's in /tmp
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def _lock_file(device: Device) -> Path:
    """The same file for every user of this host, which is what makes the lease mean something."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{device.kind}-{device.uuid or device.index}")
    path = FOLDER / f"sweep-runner-lease-{name}.lock"
    if not path.exists():
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o666))
            path.chmod(0o666)
    return path
