"""Runs one part of a benchmark in a process, a folder and a store of its own: memory and database start from nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def environment(**more: str) -> dict[str, str]:
    """This process's, with this repository first on Python's path. MLflow tells nobody that it runs, which takes time."""
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "MLFLOW_DISABLE_TELEMETRY": "true", **more}


def alone(module: str, folder: str, *arguments: object, **more: str) -> dict[str, Any]:
    """The JSON that `python -m MODULE ARGUMENTS` prints last. Ends this process with what it said where it fails."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
