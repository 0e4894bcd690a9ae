"""The two commands as a user runs them: real processes, in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FAST = """\
name: {name}
question: Which block is fastest?
kernel: gemm
workload: {{M: 192, N: 192, K: 192, dtype: float32}}
target: cpu
base: {{block_M: 16, block_N: 16, block_K: 16}}
sweep:
  block_N: {block_n}
measure: {{warmup: 1, repeat: 7, finals: 2}}
accept: {{max_abs_error: 1.0e-3, mma: none, max_spread: 3.0, alone: none}}
"""
"""A sweep whose wide blocks are several times faster than its base, on any machine: what is promoted is no coin's toss."""


def sweep_file(folder: Path, name: str = "blocks", block_n: str = "[16, 48, 96]") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(FAST.format(name=name, block_n=block_n))
    return path


def run(
    command: str, *arguments: str, folder: Path, timeout: float = 280, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`sweep …` or `runner …` in `folder`, with nothing of MLflow or Ray in its environment but what is given."""
    return subprocess.run(
        [sys.executable, "-m", f"runner.cli.{command}", *arguments],
        cwd=folder,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def start(command: str, *arguments: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """As `run`, without waiting; in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", f"runner.cli.{command}", *arguments],
        cwd=folder,
        env=clean_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def clean_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_"))}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
