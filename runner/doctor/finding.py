"""What the doctor finds: one line each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from runner.errors import JobFailed
from runner.process.worker import first_line

PATIENCE = 180.0
"""Seconds that one job of a check may take: importing TileLang from a cold network disk can take a minute."""


@dataclass(frozen=True)
class Finding:
    """One line. A `fault` keeps sweeps from running here, a `note` does not; `remedy` is what to do about either."""

    topic: str
    state: Literal["ok", "note", "fault"]
    text: str
    remedy: str = ""


def guarded(topic: str, check: Iterator[Finding]) -> Iterator[Finding]:
    """A check that itself fails is a fault of this machine, and the next checks still run."""
    try:
        yield from check
    except Exception as error:
        yield Finding(topic, "fault", f"could not be checked: {type(error).__name__}: {first_line(error)}")


def said(failure: JobFailed) -> str:
    """A failure's detail, and the last line of what was printed where the detail says only that the process ended."""
    lines = [line.strip() for line in failure.output.splitlines() if line.strip()]
    return f"{failure.detail}: {lines[-1]}" if lines and "exit code" in failure.detail else failure.detail
