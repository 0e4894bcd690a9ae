"""How much memory a child's processes hold and how much the node can still give, as Linux tells it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.5
"""Of what the node can give when a child starts: what the child may use where nothing else is said."""

LEAST = 2e9
"""Bytes that a child may use however little is left: torch and TileLang alone take half a gigabyte."""

PAUSE = 0.2  # seconds between looks: a loop over new pages writes about half a gigabyte in that time
EFFORT = 0.02  # of one core, at most, that looking costs on a node with many processes

PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Looks, now and then, at whether the processes of a child hold more than `limit` bytes together."""

    def __init__(self, leader: int, limit: float):
        self.limit = limit
        self._leader, self._next = leader, 0.0

    def exceeded(self) -> bool:
        started = time.monotonic()
        if started < self._next:
            return False
        held = sum(processes_of(self._leader).values())
        cost = time.monotonic() - started
        self._next = started + max(PAUSE, cost / EFFORT)
        return held > self.limit


def processes_of(leader: int) -> dict[int, int]:
    """The resident bytes of every process in the leader's group or session, by process id. Pages they share count in each."""
    found = {}
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # it ended meanwhile
                # man 5 proc: after the name in brackets come state, parent, group, session, …, resident pages as the 22nd.
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                if leader in (int(fields[2]), int(fields[3])) and fields[0] != b"Z":
                    found[int(entry.name)] = int(fields[21]) * PAGE
    return found


def default_limit() -> float:
    """Bytes that a child that starts now may use."""
    return max(LEAST, SHARE * available())


def available(root: Path = Path("/")) -> float:
    """Bytes that can be allocated before somebody is killed for it: of the machine, or of the container where that is less."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    machine = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([machine, *_left_in_cgroups(root)])


def _left_in_cgroups(root: Path) -> Iterator[float]:
    """What is left in each control group that this process is in, where there is a limit. Both versions of Linux's interface."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            old = controllers == "memory"
            top = root / "sys/fs/cgroup" / ("memory" if old else "")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
            folder = top / path.lstrip("/")
            # In a container the path may be the host's, which is not there; the container's own group is then at the top.
            for group in (folder, *folder.parents):
                with contextlib.suppress(OSError, ValueError):  # "max": no limit here
                    limit, used = (float((group / name).read_text()) for name in names)
                    yield limit - used + _reclaimable(group)
                if group == top:
                    break


def _reclaimable(group: Path) -> float:
    """Bytes of file cache that count as used and are given up when asked for."""
    lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    counts = {name: float(value) for name, value in lines}
    return counts.get("total_inactive_file", counts.get("inactive_file", 0.0))
