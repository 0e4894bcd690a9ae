"""A Ray of one's own: what of it runs, and that it ends with the process that started it."""

from __future__ import annotations

import subprocess
import sys

from tests.command import ROOT, clean_environment
from tests.processes import eventually_gone

PROGRAM = """
import os
from pathlib import Path
from runner.executors.on_ray import RayExecutor
from tests.processes import children
executor = RayExecutor(None)
for pid in children(os.getpid(), ""):
    print(pid, Path(f"/proc/{pid}/cmdline").read_text().replace(chr(0), " "))
os._exit(0)
"""


def test_only_what_runs_jobs_is_started_and_ends_with_who_started_it() -> None:
    """The dashboard, the autoscaler and the log monitor would cost every sweep seconds, and nobody sees them."""
    env = clean_environment() | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "/raylet " in done.stdout and "/gcs_server " in done.stdout
    assert not any(name in done.stdout for name in ("dashboard.py", "monitor.py", "log_monitor.py")), done.stdout
    assert all(eventually_gone(int(line.split()[0])) for line in done.stdout.splitlines())
