"""The two commands as a user runs them, in a folder of their own.

What starts Ray is a process of its own. The rest runs in this one, through the same entry point: importing MLflow anew
for each of some hundred commands would cost more than all that they do.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from runner.executors.jobs import START
from runner.process import forkserver

OWN_PROCESS = ("submit", "resume", "doctor", "repro")
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
    if arguments[0] not in OWN_PROCESS:
        return here(command, *arguments, folder=folder, **environment)
    return alone(command, *arguments, folder=folder, timeout=timeout, **environment)


def alone(
    command: str, *arguments: str, folder: Path, timeout: float = 280, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `run`, in a process of its own. It shares the server that forks our children: importing torch takes each its seconds."""
    return subprocess.run(
        [sys.executable, "-c", START.format(program=command), *arguments],
        cwd=folder,
        env=clean_environment() | {forkserver.ADDRESS: forkserver.start()} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def here(command: str, *arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `run`, in this process."""
    main = importlib.import_module(f"runner.cli.{command}").main
    before, settings, wanted = Path.cwd(), dict(os.environ), clean_environment() | environment
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        result = CliRunner().invoke(main, list(arguments))
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(settings)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess([command, *arguments], result.exit_code, result.stdout, result.stderr)


def start(command: str, *arguments: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """As `alone`, without waiting; in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", START.format(program=command), *arguments],
        cwd=folder,
        env=clean_environment() | {forkserver.ADDRESS: forkserver.start()} | environment,
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
