"""Real MLflow servers, on the loopback interface unless told otherwise, each on a free port and a store of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

START_SECONDS = 180.0
"""A server takes ten seconds to start here, and several times that on a busy machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Server:
    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def demand_alive(self) -> None:
        """Tell a server that died apart from a store that cannot reach one."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")


@contextmanager
def running(folder: Path, *arguments: str, command: str = "server", **environment: str) -> Iterator[str]:
    """`mlflow <command> <arguments>` started in `folder`: its address, once it answers. Ended with its whole process group."""
    with _started(folder, command, arguments, environment) as server:
        yield server.address


@contextmanager
def _started(folder: Path, command: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[Server]:
    port = free_port()
    settings = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    host = environment.get("MLFLOW_HOST", "127.0.0.1")
    settings |= {"MLFLOW_PORT": str(port), "MLFLOW_HOST": host, "MLFLOW_WORKERS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    settings["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # else seven more processes start, for what is not used here
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", command, *arguments],
            cwd=folder,
            env={**settings, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(f"http://{host}:{port}", process, log)
    try:
        _await(server)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        server.demand_alive()
        try:
            with urllib.request.urlopen(f"{server.address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no answer from {server.address}:\n{server.log.read_text()[-3000:]}")


@cache
def _shared() -> Server:
    folder, stack = Path(tempfile.mkdtemp(prefix="mlflow-server-")), ExitStack()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(stack.close)
    options = ("--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts"))
    return stack.enter_context(_started(folder, "server", options, {}))


def shared_server() -> str:
    """The address of the one server of this test run; artifacts travel through it."""
    server = _shared()
    server.demand_alive()
    return server.address


@pytest.fixture
def mlflow_server() -> str:
    return shared_server()


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mlflow-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    from tracking import connection

    connection.connect(f"sqlite:///{folder}/mlflow.db")
    with closing(sqlite3.connect(folder / "mlflow.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all of it in the one file
    return folder / "mlflow.db"


@pytest.fixture
def local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a new one with an empty `mlflow.db`, as MLflow makes it (a copy, since its migrations take seconds)."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copy(_template(), tmp_path / "mlflow.db")
    return tmp_path
