"""Asking a vendor's command-line tool, and the variables that hide its cards from a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from runner.errors import InfrastructureLost

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
