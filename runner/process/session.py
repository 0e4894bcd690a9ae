"""A child and everything that it started: what was left to itself would disturb whatever is timed next."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def processes_of(leader: int) -> dict[int, int]:
    """The resident bytes of every process in the leader's group or session, by process id. Pages they share count in each."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - run for every job, and a Path for each process of a node costs more
        if name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                # Asking the kernel costs a tenth of what reading a file for each process does.
                if leader not in (os.getsid(int(name)), os.getpgid(int(name))):
                    continue
                # man 5 proc: after the name in brackets come state, parent, group, session, …, resident pages as the 22nd.
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    found[int(name)] = int(fields[21]) * PAGE
    return found


def kill_session(leader: int) -> None:
    """End the leader's group, and what left the group but not the session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for pid in processes_of(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
