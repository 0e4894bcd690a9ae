"""Who used this machine's cores while something ran: all that was used, less what this process used itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SHORTEST = 0.3
"""Seconds. Linux counts in hundredths: over a shorter look one count more or less would pass for somebody."""

TOLERATED = 0.3
"""Cores that others may use unremarked: a desktop, or Ray's own processes, take less."""

TOLERATED_SHARE = 0.05
"""Of a large machine's cores, that others may use unremarked: somewhere on it there is always somebody."""

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """Seconds: on the clock, of all cores by anybody, and of all cores by this process and what it started."""

    clock: float
    all: float
    own: float


def now() -> Used:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return Used(time.monotonic(), busy(Path("/proc/stat").read_text()), own)


def busy(stat: str) -> float:
    """Seconds that all cores together were not idle, from the text of /proc/stat.

    What the host of a virtual machine took away counts too.
    """
    # man 5 proc_stat: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    user, nice, system, _, _, irq, softirq, steal = (int(n) for n in stat.split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def look() -> Callable[[], str | None]:
    """Begins to look; what it returns ends the look and answers as `Backend.others` does."""
    before = now()

    def answer() -> str | None:
        time.sleep(max(0.0, before.clock + SHORTEST - time.monotonic()))
        return judged(before, now(), os.cpu_count() or 1)

    return answer


def judged(before: Used, after: Used, cores: int) -> str | None:
    """Who computed between two looks: "" for nobody to speak of, None where the system does not count."""
    everybody, own = after.all - before.all, after.own - before.own
    if not everybody and own > 2 / TICKS:
        return None
    share = (everybody - own) / (after.clock - before.clock)
    if share <= max(TOLERATED, TOLERATED_SHARE * cores):
        return ""
    return f"other processes used {share:.1f} of {cores} cores while this was timed"
