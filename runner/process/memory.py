"""How much memory a child's processes hold and how much the node can still give, as Linux tells it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from runner.process.session import processes_of

SHARE = 0.5
"""Of what the node can give when a child starts: what the child may use where nothing else is said."""

LEAST = 2e9
"""Bytes that a child may use however little is left: torch and TileLang alone take half a gigabyte."""

PAUSE = 0.2  # seconds between looks: a loop over new pages writes about half a gigabyte in that time
EFFORT = 0.02  # of one core, at most, that looking costs on a node with many processes


class MemoryWatch:
    """Looks, now and then, at whether the processes of a child hold more than `limit` bytes together."""

    def __init__(self, leader: int, limit: float):
        self.limit = limit
        self._leader, self._next = leader, time.monotonic() + PAUSE  # most jobs of a warm child have ended by then

    def exceeded(self) -> bool:
        started = time.monotonic()
        if started < self._next:
            return False
        held = sum(processes_of(self._leader).values())
        cost = time.monotonic() - started
        self._next = started + max(PAUSE, cost / EFFORT)
        return held > self.limit


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
