"""Looking at processes that are to be killed, and at whether they are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.command import ROOT

SOON = 10.0  # seconds in which what is killed must be gone; seconds that no passing test waits for


def eventually_gone(pid: int) -> bool:
    """Whether a process ends soon. A zombie is gone: its new parent may be slow to bury it. It is one only once its last
    thread has ended: until then its files are open, and locks on them held.
    """
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        try:
            dead = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if dead and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1:
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def children(parent: int, sign: str) -> list[int]:
    """A process's own, of those that live and have the sign in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2] if entry.name.isdecimal() else ("Z", "0")
            if state != "Z" and int(above) == parent and sign in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def with_a_child(folder: Path, job: str, **environment: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process whose child is in a job that never ends, an expression's arguments of `Child.run`; and that child's number."""
    program = (
        "import pathlib, sys, time; from runner.process.child import Child; from tests import child_jobs as jobs\n"
        "child = Child(); pathlib.Path(sys.argv[1]).write_text(str(child.run(jobs.process_id, deadline=60)))\n"
        f"child.run({job}, deadline=600)"
    )
    pid_file = folder / "pid"
    command = [sys.executable, "-c", program, str(pid_file)]
    parent = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment})
    end = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    pid = int(pid_file.read_text())
    assert Path(f"/proc/{pid}").exists()
    return parent, pid
