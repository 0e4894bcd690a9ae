"""Asking a vendor's command-line tool, for anything and for who uses a card; and which cards this process may use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InfrastructureLost
from runner.process.lease import TAKES_TURNS

TIMEOUT = 30.0
"""Seconds. A tool that hangs means a driver that hangs: nothing on that node can be trusted then."""


def ask(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a vendor tool. Raises InfrastructureLost when it does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise InfrastructureLost(f"{command[0]} did not answer within {TIMEOUT:.0f} s: see to the driver of this node") from None


def is_visible(index: int, uuid: str, variable: str) -> bool:
    """Whether this process may use a card: it may, unless the variable is set and names it neither by index nor by UUID."""
    value = os.environ.get(variable)
    if value is None:
        return True
    named = [part.strip() for part in value.split(",")]
    return str(index) in named or any(part and uuid.startswith(part) for part in named)


@dataclass(frozen=True)
class User:
    """A process that a vendor's tool lists on a card. `percent` is how busy it keeps it, None where the tool does not say."""

    pid: int
    name: str
    percent: int | None = None


def look(who: Callable[[], str | None]) -> Callable[[], str | None]:
    """Asks a tool who uses a card, now and again when what is returned is called; that answers as `Backend.others` does.

    Twice, because a tool tells of the moments before it was asked: the first answer may miss who comes later, the second
    who is gone by then.
    """
    answers: list[str | None] = []

    def ask_once() -> None:
        with contextlib.suppress(Exception):  # a tool that fails costs the answer, not the measurement
            answers.append(who())

    first = threading.Thread(target=ask_once, daemon=True)
    first.start()

    def answer() -> str | None:
        first.join(timeout=2 * TIMEOUT)
        ask_once()
        known = [said for said in answers if said is not None]
        return max(known, key=len) if known else None  # any stranger's name is longer than nobody's

    return answer


def strangers(users: Iterable[User]) -> str | None:
    """Who of the users of a card is none of ours, in words; as `Backend.others` answers.

    This process uses the card, so a table without it has other numbers than ours (a container's are not its host's) and
    says nothing.
    """
    listed = list(users)
    if os.getpid() not in (user.pid for user in listed):
        return None
    foreign = [user for user in listed if user.percent != 0 and not _is_ours(user.pid)]
    said = (f"{u.name} (pid {u.pid})" + (f" at {u.percent} %" if u.percent else "") for u in foreign)
    return f"on the device while this was timed: {', '.join(said)}" if foreign else ""


def _is_ours(pid: int) -> bool:
    """Whether a process was started by this one (it is in the same group), or takes turns with it.

    Tools tell of the last second or so. Another sweep's turn may have been in it, and has ended all the same.
    """
    with contextlib.suppress(OSError):
        return os.getpgid(pid) == os.getpgid(0) or f"{TAKES_TURNS}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False
