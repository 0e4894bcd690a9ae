"""Real MLflow servers, on the loopback interface only, each on a free port and a store of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

START_SECONDS = 180.0
"""A server takes ten seconds to start here, and several times that on a busy machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path, *arguments: str, command: str = "server", **environment: str) -> Iterator[str]:
    """`mlflow <command> <arguments>` started in `folder`: its address, once it answers. Ended with its whole process group."""
    port = free_port()
    settings = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    settings |= {"MLFLOW_PORT": str(port), "MLFLOW_HOST": "127.0.0.1", "MLFLOW_WORKERS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    settings["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # else seven more processes start, for what is not used here
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", command, *arguments],
            cwd=folder,
            env={**settings, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _await(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no answer from {address}:\n{log.read_text()[-3000:]}")


@cache
def _shared() -> str:
    folder, stack = Path(tempfile.mkdtemp(prefix="mlflow-server-")), ExitStack()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(stack.close)
    store = f"sqlite:///{folder}/server.db"
    return stack.enter_context(
        running(folder, "--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts"))
    )


@pytest.fixture(scope="session")
def mlflow_server() -> str:
    """The address of one server for the whole test run; its artifacts travel through it."""
    return _shared()


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mlflow-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    from tracking import connection

    connection.connect(f"sqlite:///{folder}/mlflow.db")
    return folder / "mlflow.db"


@pytest.fixture
def local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a new one with an empty `mlflow.db`, as MLflow makes it (a copy, since its migrations take seconds)."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copy(_template(), tmp_path / "mlflow.db")
    return tmp_path
